"""The reference pages agree with the code."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from dataclasses import fields
from typing import Any

import pytest
from starlette.testclient import TestClient

from swiftlet_models.artifact import CARD, MANIFEST, OPTIONAL, REQUIRED, UNLISTED, Manifest, find_artifacts
from swiftlet_serve import engines, plugins, tasks
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import playground
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.gates import CORS_ALLOWED
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.dialects import dialect_routes
from tests.support.markdown import blocks, code, first_column, table, text_of
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
TASKS = ("classify", "fill-mask", "qa")


@pytest.fixture(scope="module")
def app() -> Any:
    """The application with the bundled models and an engine that computes nothing."""
    return create_app(LocalRuntime.load(Settings(engine="echo")))


def page(name: str) -> str:
    return text_of(REFERENCE / f"{name}.md")


def test_generated_tables_are_up_to_date():
    """`make docs` writes them."""
    generate = runpy.run_path(str(DOCS / "generate.py"))
    found = {str(path.relative_to(ROOT)): text == wanted for path, text, wanted in generate["pages"]()}

    assert found
    assert [path for path, same in found.items() if not same] == []


def test_picture_of_the_bundled_models_shows_their_tables():
    """`python docs/plot_defaults.py` draws it."""
    plots = runpy.run_path(str(DOCS / "plot_defaults.py"))
    page = plots["PAGE"].read_text("utf-8")

    assert plots["draw"](page) == plots["PICTURE"].read_text("utf-8")
    rows = [row for column in plots["PANELS"] for row in plots["read_rows"](page, column)]
    ours = {"albert-sst2", "mobilebert-sst2", "albert-cola", "albert-nsmc", "albert-qa", "mobilebert-qa"}
    assert {row.name for row in rows if row.is_ours} == ours


def test_generated_tables_have_no_empty_cell():
    rows = [line for path in DOCS.rglob("*.md") for line in text_of(path).splitlines() if line.startswith("| `")]

    assert rows
    assert [row for row in rows if re.search(r"\| +\|", row) or re.search(r"\| \.? \|", row)] == []


def test_settings_of_the_environment_are_those_of_the_table():
    assert first_column(page("settings"), "Setting", "Default", "Description") == list(Settings.model_fields)


def test_error_codes_have_a_cause_each():
    codes = first_column(page("errors"), "Code", "Cause")

    assert sorted(codes) == sorted(code for kind in SwiftletError.__subclasses__() for code in kind.codes)


def test_error_fields_are_those_of_the_example():
    (shown,) = [json.loads(block) for block in blocks(page("errors"), "json")]

    assert first_column(page("errors"), "Field", "Meaning") == list(shown)


def test_routes_are_those_of_the_application(app):
    shown = {row[0].strip("`") for row in table(page("http-api"), "Route", "Response")}
    foreign = {f"{method} {path}" for method, path in dialect_routes()}
    files = playground.FILES.keys() - {"/"}

    served = {f"{next(iter(route.methods - {'HEAD'}))} {route.path}" for route in app.routes if route.path not in files}

    assert shown | foreign == served | {f"POST /{task}" for task in tasks.names()}  # not all have a bundled model


def test_routes_of_each_dialect_are_shown():
    pages = page("dialects") + page("model-servers")
    shown = set(re.findall(r"^\| `((?:GET|POST) [^|]+)` \|", pages, re.MULTILINE))

    assert shown == {f"{method} {path}" for method, path in dialect_routes(shared=True)}


def test_request_headers_include_those_of_openapi_and_of_cors(app):
    document, _, _ = page("http-headers").partition("## Response headers")
    shown = {header.lower() for header in first_column(document, "Header", "Meaning")}
    described = {one["name"].lower() for one in app.openapi()["paths"]["/classify"]["post"]["parameters"]}
    allowed = {header.lower() for header in CORS_ALLOWED} - {"content-type"}

    assert described | allowed <= shown


def test_response_headers_are_those_that_the_server_sends(app):
    (_, _, rest) = page("http-headers").partition("## Response headers")
    shown = {header.lower() for header in first_column(rest, "Header", "Meaning")}
    with TestClient(app) as client:
        response = client.post("/classify", json={"inputs": "fine"})
    sent = set(response.headers.keys()) - {"content-length", "content-type"}

    assert response.status_code == 200
    assert shown - sent == {"retry-after", "www-authenticate", "x-receipt"}
    assert sent <= shown


def test_parameters_of_every_task_are_documented(app):
    schemas = app.openapi()["components"]["schemas"]
    document = page("http-api")
    rows = [line.split(" | ")[0].strip("| `") for line in document.splitlines() if line.startswith("| `")]
    names = {name for key, one in schemas.items() if key.endswith("Parameters") for name in one["properties"]}

    assert names
    assert names <= set(rows)


def test_engines_are_those_of_the_package():
    document = text_of(DOCS / "explanation/engines.md")

    assert set(first_column(document, "Engine", "Runs on", "Needs")) == set(plugins.names(engines))


def test_manifest_fields_and_files_are_those_of_an_artifact():
    document = page("artifact")

    assert set(first_column(document, "Field", "Type", "Meaning")) == {field.name for field in fields(Manifest)}
    assert set(first_column(document, "File", "Content")) == {MANIFEST, *REQUIRED, *OPTIONAL, *UNLISTED}


def test_card_fields_are_those_that_commands_write():
    cards = [json.loads((path / CARD).read_text("utf-8")) for path in find_artifacts(BUNDLED)]
    shown = set(first_column(page("artifact"), "Field", "Meaning"))
    commands = [*(ROOT / "service/swiftlet_serve/offline").glob("*.py"), ROOT / "models/swiftlet_train/run_recipe.py"]
    written = "".join(map(text_of, commands))

    assert cards
    assert {name for card in cards for name in card} <= shown
    assert [name for name in shown if f'"{name}"' not in written] == []


def rows_of(card: dict[str, Any], name: str) -> list[str]:
    """Returns the rows of the table of scores: one for each file that a model was measured on."""
    files = {card["data"]["file"]: (card["scores"]["int8"], card["scores"]["trivial"])}
    files |= {file: (told["scores"], told["trivial"]) for file, told in card.get("also", {}).items()}
    rows = []
    for file, (scores, trivial) in files.items():
        names = [next(iter(scores)), *(n for n in ("matthews", "has_answer_f1", "no_answer_f1") if n in scores)]
        shown = ", ".join(
            f"{one} {scores[one]['value']:.1f} ({scores[one]['low']:.1f} to {scores[one]['high']:.1f})" for one in names
        )
        how, best = max(trivial.items(), key=lambda item: item[1]["value"])
        rows.append(f"{name} | {file} | {shown} | {scores[names[0]]['n']:,} | {best['value']:.1f}, {how}")
    return rows


def test_scores_are_those_of_the_cards():
    cards = {path.name: json.loads((path / CARD).read_text("utf-8")) for path in find_artifacts(BUNDLED)}
    header = ("Model", "Measured on", "Score, 95 % interval", "n", "Without a model")
    shown = [" | ".join(row) for row in table(page("bundled-models"), *header)]

    assert shown == [row for name, card in cards.items() for row in rows_of(card, name)]


def test_recipes_shown_are_part_of_the_shipped_ones():
    shown = blocks(text_of(DOCS / "how-to/train.md"), "toml")
    paths = (ROOT / "models/swiftlet_train/recipes").glob("*.toml")
    shipped = [flat(tomllib.loads(text_of(path))).items() for path in paths]

    assert len(shown) == 3
    for text in shown:
        assert any(flat(tomllib.loads(text)).items() <= recipe for recipe in shipped)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Returns every number and string of a document by its path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: leaf for name, part in items for key, leaf in flat(part, f"{path}/{name}").items()}
    return {path: value}


def test_metrics_named_in_the_guides_exist():
    known = set(first_column(page("metrics"), "Metric", "Type", "Labels", "Description"))
    named = {
        name.removesuffix("_bucket")
        for path in DOCS.rglob("*.md")
        for line in code(text_of(path))
        for name in re.findall(r"\bswiftlet_(?!serve|models|train)\w+", line)
    }

    assert named
    assert named <= known


def test_load_test_rates_are_those_of_the_committed_result():
    found = json.loads((ROOT / "loadtest/results/standard.json").read_text("utf-8"))
    limit, alone = found["maximum"], found["generators"]["null_server"]
    generator, wrk = (f"{round(alone[name], -2):,.0f}" for name in ("python", "wrk"))
    document = text_of(DOCS / "how-to/load-test.md")

    assert f"{limit['rate']:.0f} requests a second of this mix ({limit['low']:.0f} to {limit['high']:.0f})" in document
    assert f"{generator} requests a second against {wrk} of `wrk`" in document


def test_calibrations_of_answers_are_those_of_the_cards():
    cards = {path.name: json.loads((path / CARD).read_text("utf-8")) for path in find_artifacts(BUNDLED)}
    header = "Bundled model", "Data", "Temperature", "Offset", "Error before", "Error after"
    rows = table(text_of(DOCS / "explanation/accuracy.md"), *header)
    told = {name: figures for name, _, *figures in rows}
    answering = {name for name, card in cards.items() if card.get("calibration", {}).get("offset")}

    assert told.keys() == answering
    for name, figures in told.items():
        found = cards[name]["calibration"]
        errors = [f"{100 * found[key]:.1f} %" for key in ("raw_error", "calibrated_error")]
        assert figures == [f"{found['temperature']:.2f}", f"{found['offset']:.2f}", *errors]
