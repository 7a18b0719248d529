"""What the documents say is so: tables equal the code, examples work, and what they name exists."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import time
import tomllib
from collections.abc import Iterator
from typing import Any

import click
import pytest
from pydantic import TypeAdapter

from swiftlet_serve.models.artifact import CARD, find_artifacts
from swiftlet_serve.service import engines, plugins, tasks
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import FieldError, SwiftletError, Unprocessable
from swiftlet_serve.service.http import playground
from swiftlet_serve.service.http.app import ANSWER_SHARE, create_app
from swiftlet_serve.service.http.limits import MOST_CONNECTIONS, Limits
from swiftlet_serve.service.http.problem_details import render
from swiftlet_serve.service.loading import BUNDLED
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.tasks import classify, fill_mask, qa
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

DOCUMENTS = ("README.md", ".github/CONTRIBUTING.md")
README = (ROOT / "README.md").read_text("utf-8")
EMBEDDED = ("Model", "Measured on", "Score, 95 % interval", "n", "Without a model")
TASKS = {"classify": classify.Classify, "qa": qa.Qa, "fill-mask": fill_mask.FillMask}


def test_the_rates_that_are_told_are_those_of_the_committed_search():
    found = json.loads((ROOT / "loadtest/results/standard.json").read_text("utf-8"))
    limit, alone = found["maximum"], found["generators"]["nothing"]
    hundreds = [f"{round(alone[name], -2):,.0f}" for name in ("locust", "wrk")]
    told = " ".join(README.split())

    assert f"{limit['rate']:.0f} requests a second of this mix ({limit['low']:.0f} to {limit['high']:.0f})" in told
    assert f"{hundreds[0]} requests a second against {hundreds[1]} of `wrk`" in told


def table(*header: str) -> list[list[str]]:
    """The rows of the table that has this header, cell by cell."""
    _, found, rest = README.partition(f"| {' | '.join(header)} |\n")
    assert found
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def rows_of(card: dict[str, Any], name: str) -> list[str]:
    """What the README says of an embedded model: a row for each file it was measured on."""
    files = {card["data"]["file"]: (card["scores"]["int8"], card["scores"]["trivial"])}
    files |= {file: (told["scores"], told["trivial"]) for file, told in card.get("also", {}).items()}
    rows = []
    for file, (scores, trivial) in files.items():
        names = [next(iter(scores)), *(["matthews"] if "matthews" in scores else [])]
        shown = ", ".join(
            f"{one} {scores[one]['value']:.1f} ({scores[one]['low']:.1f} to {scores[one]['high']:.1f})" for one in names
        )
        how, best = max(trivial.items(), key=lambda item: item[1]["value"])
        rows.append(f"| {name} | {file} | {shown} | {scores[names[0]]['n']:,} | {best['value']:.1f}, {how} |")
    return rows


def test_the_embedded_models_are_as_good_as_is_said():
    cards = {path.name: json.loads((path / CARD).read_text("utf-8")) for path in find_artifacts(BUNDLED)}
    said = [" | ".join(row) for row in table(*EMBEDDED)]

    assert said == [row.strip("| ") for name, card in cards.items() for row in rows_of(card, name)]


def code(document: str) -> Iterator[str]:
    """Every line of a code block, and everything between backticks elsewhere."""
    fence = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    for block in fence.findall(document):
        yield from block.replace("\\\n", "").splitlines()[1:-1]
    yield from re.findall(r"`([^`\n]+)`", fence.sub("", document))


def examples() -> dict[str, tuple[str, str]]:
    """The body and the response that the README shows for each route."""
    pattern = r"^```sh\ncurl (.*?)^```\n+```json\n(.*?)^```$"
    found = {}
    for arguments, response in re.findall(pattern, README, re.MULTILINE | re.DOTALL):
        url, *options = shlex.split(arguments.replace("\\\n", ""))
        found[url.removeprefix(f"http://127.0.0.1:{Settings.model_fields['port'].default}/")] = options[-1], response
    return found


def test_what_is_shown_of_recipes_is_part_of_the_shipped_ones():
    shown = re.findall(r"^```toml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    shipped = (ROOT / "models/training/recipes").glob("*.toml")
    known = [_flat(tomllib.loads(path.read_text("utf-8"))).items() for path in shipped]

    assert len(shown) == 2
    for text in shown:
        assert any(_flat(tomllib.loads(text)).items() <= recipe for recipe in known)


def test_the_table_of_settings_is_the_settings():
    assert table("Setting", "Default", "Meaning") == [
        [f"`{name}`", _default(field.default_factory or field.default), field.description]
        for name, field in Settings.model_fields.items()
    ]


def _default(value: Any) -> str:
    return "–" if callable(value) or value in ((), "", None) else f"`{value}`"


def test_the_table_of_errors_is_the_tree():
    rows = table("Status", "Code", "When", "Try again")

    assert {(int(status), code.strip("`"), again != "no") for status, code, _, again in rows} == {
        (kind.status, code, kind.retryable) for kind in SwiftletError.__subclasses__() for code in kind.codes
    }
    assert len(rows) == sum(len(kind.codes) for kind in SwiftletError.__subclasses__())


def test_the_table_of_limits_is_what_the_code_refuses_at():
    top_k = {task: _maximum(parameters, "top_k") for task, parameters in PARAMETERS.items()}
    targets = fill_mask.FillMaskParameters.model_json_schema()["properties"]["targets"]["anyOf"]
    most, long = next((one["maxItems"], one["items"]["maxLength"]) for one in targets if "maxItems" in one)
    bytes_, answer, tokens = (
        Settings.model_fields[name].default for name in ("max_body_bytes", "max_answer_bytes", "max_waiting_tokens")
    )

    assert dict(table("What", "At most")) == {
        "the body": f"{bytes_} bytes (`max_body_bytes`)",
        "the answer": f"{answer} bytes (`max_answer_bytes`), or {ANSWER_SHARE} times the body",
        "texts or questions": f"{tasks.MAX_INPUTS}",
        "tokens, of all inputs together": f"{tokens} (`max_waiting_tokens`)",
        "labels (`top_k`), classify": f"{top_k['classify']}",
        "characters of all texts, qa": f"{qa.MAX_CHARACTERS}",
        "windows, qa": f"{qa.MAX_WINDOWS}",
        "answers (`top_k`), qa": f"{top_k['qa']}",
        "tokens of an answer (`max_answer_len`), qa": f"{_maximum(qa.QaParameters, 'max_answer_len')}",
        "masks, fill-mask": f"{fill_mask.MAX_MASKS}",
        "tokens for each mask (`top_k`), fill-mask": f"{top_k['fill-mask']}",
        "characters of all sequences of the answer, fill-mask": f"{fill_mask.MAX_WRITTEN}",
        "targets, fill-mask": f"{most} of {long} characters each",
    }


def test_the_table_of_a_connections_limits_is_the_limits():
    limits = Limits(connections=MOST_CONNECTIONS)

    assert dict(table("Of a connection", "At most")) == {
        "a request's head": f"{limits.head_bytes} bytes",
        "headers": f"{limits.headers}",
        "the address": f"{limits.target_bytes} bytes",
        "until the head has arrived": f"{limits.head_s:g} s",
        "until the whole request has arrived": f"{limits.receipt_s:g} s",
        "until the client reads what it asked for": f"{limits.write_s:g} s",
        "without a request": f"{limits.idle_s:g} s",
        "requests at a time": "1; what is pipelined behind it is answered in order",
        "connections": f"{limits.connections}, and half of the files the process may open (`ulimit -n`)",
    }


PARAMETERS = {
    "classify": classify.ClassifyParameters,
    "qa": qa.QaParameters,
    "fill-mask": fill_mask.FillMaskParameters,
}


def _maximum(model: Any, name: str) -> int:
    schema = model.model_json_schema()["properties"][name]
    return next(one["maximum"] for one in schema.get("anyOf", [schema]) if "maximum" in one)


def test_every_parameter_is_named():
    for parameters in PARAMETERS.values():
        for name in parameters.model_fields.keys() - {"topk"}:  # an older name, for old clients
            assert f"`{name}`" in README


def test_every_engine_is_in_the_table():
    assert {row[0].strip("`") for row in table("Engine", "Runs on", "Needs")} == set(plugins.names(engines))


def test_every_route_is_named(artifact_dir):
    models = tuple(str(artifact_dir / f"tiny-{task}") for task in TASKS)
    app = create_app(Runtime.load(Settings(models=models, engine="echo")))
    served = {route.path for route in app.routes}

    parts = playground.FILES.keys() - {"/"}
    assert {row[0].strip("`").removeprefix("GET ") for row in table("Route", "Answers")} == served - parts - {
        f"/{task}" for task in TASKS
    }
    assert examples().keys() == TASKS.keys()


@pytest.mark.parametrize("task", TASKS)
def test_an_example_is_a_request_and_its_response(task):
    body, response = examples()[task]

    assert TASKS[task].Request.model_validate_json(body)
    assert TypeAdapter(TASKS[task].Response).validate_json(response)


@pytest.mark.skipif(not list(find_artifacts(BUNDLED)), reason="no model is embedded in this tree")
def test_the_embedded_models_answer_the_examples_as_shown():
    async def ask() -> dict[str, Any]:
        runtime = Runtime.load(Settings())
        deadline = time.monotonic() + PATIENCE_S
        try:
            return {
                task: await pipeline.answer(
                    pipeline.model.task.Request.model_validate_json(examples()[task][0]), deadline
                )
                for task, pipeline in runtime.tasks.items()
            }
        finally:
            await runtime.close()

    for task, answer in asyncio.run(ask()).items():
        shown = json.loads(examples()[task][1])

        assert _flat(answer) == pytest.approx(_flat(shown), abs=0.02), task  # int8 rounds differently on other CPUs


def _flat(answer: Any, path: str = "") -> dict[str, Any]:
    """Every number and string of an answer, by where it stands."""
    if isinstance(answer, dict | list):
        items = answer.items() if isinstance(answer, dict) else enumerate(answer)
        return {key: leaf for name, value in items for key, leaf in _flat(value, f"{path}/{name}").items()}
    return {path: answer}


def test_the_error_shown_is_what_the_server_sends():
    detail = "A text has no [MASK], the mask token of this model."
    error = Unprocessable("no_mask", detail, field_errors=[FieldError("/inputs", "no_mask")])
    (shown,) = re.findall(r'^```json\n(\{\n  "type".*?)^```$', README, re.MULTILINE | re.DOTALL)

    assert json.loads(shown) == json.loads(render(error, "4f1d2c").body)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_path_named_exists(name):
    document = (ROOT / name).read_text("utf-8")
    linked = {(ROOT / name).parent / path for path in re.findall(r"\]\((?!http)([^)]+)\)", document)}
    quoted = {ROOT / path for path in code(document) if re.fullmatch(r"(?!\.\./|\.venv)[\w.-]+/[\w./-]*", path)}

    assert linked | quoted
    assert [path for path in linked | quoted if not path.exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_named_exists(name):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    lines = code((ROOT / name).read_text("utf-8"))
    named = {target for line in lines for target in re.findall(r"\bmake ([a-z]+)", line)}

    assert named
    assert named <= targets


def test_every_command_is_named_with_options_it_has():
    assert isinstance(main, click.Group)
    named = {}
    for line in code(README):
        for command, rest in re.findall(r"\bswiftlet ([a-z]+)\b([^#]*)", line):
            named.setdefault(command, set()).update(re.findall(r"--[a-z][a-z-]*", rest))

    assert named.keys() == main.commands.keys()
    for command, options in named.items():
        assert options <= {option for parameter in main.commands[command].params for option in parameter.opts}


def test_the_notice_names_all_that_the_recipes_train_on():
    notice = (ROOT / "NOTICE").read_text("utf-8")
    recipes = [tomllib.loads(path.read_text("utf-8")) for path in (ROOT / "models/training/recipes").glob("*.toml")]
    works = [work for recipe in recipes for work in recipe.get("finetuning", {}).values()]
    sources = {licence.partition(" (")[0] for work in works for licence in work["licences"]}

    assert sources
    assert [source for source in sources if f"\n{source}\n" not in notice] == []
