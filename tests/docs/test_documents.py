"""Examples in the documents work, and what the documents name exists."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from starlette.testclient import TestClient

from swiftlet_models.artifact import find_artifacts
from swiftlet_serve.cli.main import main
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.docs.test_reference import flat
from tests.support.app_client import AppClient
from tests.support.markdown import Example, anchors, code, examples, first_column, links, table, text_of
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
CODE_PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / ".github/CONTRIBUTING.md")
PAGES = (*CODE_PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", ROOT / "k8s/README.md")
EXAMPLES = [
    pytest.param(path, example, id=f"{path.stem}-{example.route}-{number}")
    for path in CODE_PAGES
    for number, example in enumerate(examples(text_of(path)))
    if example.route.strip("/") not in {"rerank", "score"}  # no bundled model answers them
    if "login page" not in example.body  # the tutorial's own model; tests/docs/test_tutorial.py asks it
]
README_MAX_LINES = 150
PAGE_MAX_LINES = 400
TRANSFORMERS = {"from_pretrained", "save_pretrained"}
CLIENTS = {
    "base_url",
    "chunk_size",
    "feature_extraction",
    "fill_mask",
    "question_answering",
    "rank_features",
    "sentence_similarity",
    "sparse_vector",
    "text_classification",
    "token_classification",
    "zero_shot_classification",
}
FOREIGN_NAMES = TRANSFORMERS | CLIENTS | {"app_port"}

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
code_page = pytest.mark.parametrize("path", CODE_PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture(scope="module")
def client() -> TestClient:
    with AppClient(create_app(LocalRuntime.load(Settings()))) as client:
        yield client


@pytest.fixture(scope="module")
def source_words() -> set[str]:
    files = [
        file
        for folder in ("service", "models", "loadtest", "docs")
        for suffix in (".cpp", ".h", ".py", ".toml", "card.json")
        for file in (ROOT / folder).rglob(f"*{suffix}")
    ]
    return {word for file in files for word in re.findall(r"\w+", text_of(file))}


@pytest.mark.skipif(not list(find_artifacts(BUNDLED)), reason="this tree has no bundled models")
@pytest.mark.parametrize(("path", "example"), EXAMPLES)
def test_bundled_models_answer_examples_as_shown(client, path: Path, example: Example):
    response = client.post(f"/{example.route}", content=example.body, headers={"Content-Type": "application/json"})

    assert response.status_code == 200
    shown = json.loads(example.response)
    assert flat(response.json()) == pytest.approx(flat(shown), abs=0.03)  # int8 rounds differently on other CPUs


def test_readme_has_an_example_for_each_task():
    shown = [example.route for example in examples(text_of(ROOT / "README.md"))]

    assert sorted(shown) == ["classify", "fill-mask", "qa", "zero-shot"]


def test_contents_list_every_result_and_study():
    """The site's build fails without them. `make test` does not build it."""
    folders = (ROOT / "loadtest/results", ROOT / "models/swiftlet_train/studies")
    pages = [file for folder in folders for file in folder.glob("*.md")]
    listed = text_of(DOCS / "index.md").splitlines()

    assert pages
    assert [page for page in pages if f"/{page.relative_to(ROOT).with_suffix('')}" not in listed] == []


def test_readme_is_short():
    assert len(text_of(ROOT / "README.md").splitlines()) <= README_MAX_LINES


@page
def test_page_is_short_enough_to_read(path: Path):
    assert len(text_of(path).splitlines()) < PAGE_MAX_LINES


def test_readme_figures_are_those_of_the_committed_comparison():
    """Of the workload W1 with 32 callers."""
    results = text_of(ROOT / "loadtest/results/http.md")
    measured = {row[2]: row for row in table(results, *HTTP_COLUMNS) if row[:2] == ["W1", "32"]}
    memory = dict(re.findall(r"(swiftlet|FastAPI and ORT int8) (\d+)", results))
    shown = {row[0]: row[1:3] for row in table(text_of(ROOT / "README.md"), *README_COLUMNS)}

    for column, server in enumerate(("swiftlet", "FastAPI and ORT int8")):
        _, _, _, rate, _, p99, *_ = measured[server]
        assert shown["Requests/s"][column] == f"{float(rate.split()[0]):.0f}"
        assert shown["p99 latency"][column] == f"{float(p99):.0f} ms"
        assert shown["Memory"][column] == f"{memory[server]} MiB"


HTTP_COLUMNS = ("workload", "c", "server", "requests/s", "p50 ms", "p99 ms", "p99 of short ones", "failed")
README_COLUMNS = ("", "Swiftlet", "FastAPI + ONNX Runtime", "`transformers.pipeline`", "General model server")


@page
def test_links_lead_to_files_and_headings(path: Path):
    broken = []
    for link in links(text_of(path)):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(text_of(target))):
            broken.append(link)

    assert broken == []


@code_page
def test_paths_named_in_code_exist(path: Path):
    named = {
        one
        for one in code(text_of(path))
        if re.fullmatch(r"(?!\.\./|\.venv|artifacts|build/|runs/|(?:application|text)/|.*/NAME)[\w.-]+/[\w./-]*", one)
    }

    roots = (ROOT, ROOT / "models/swiftlet_models")
    assert [one for one in named if not any((root / one).exists() for root in roots)] == []


@code_page
def test_names_in_code_spans_occur_in_the_source(path: Path, source_words: set[str]):
    """A renamed setting, key or field leaves no trace in the documents."""
    named = {one for one in code(text_of(path)) if re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", one)}

    assert {one for one in named if re.sub(r"^swiftlet_|_total$", "", one) not in source_words | FOREIGN_NAMES} == set()


@code_page
def test_modules_run_in_code_exist(path: Path):
    named = {name for line in code(text_of(path)) for name in re.findall(r"python -m ((?:loadtest|tests)\.\w+)", line)}
    files = [ROOT / name.replace(".", "/") for name in named]

    assert [file for file in files if not file.is_dir() and not file.with_suffix(".py").exists()] == []


@code_page
def test_make_targets_named_in_code_exist(path: Path):
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {target for line in code(text_of(path)) for target in re.findall(r"\bmake ([a-z-]+)", line)}

    assert named <= targets


@code_page
def test_commands_named_in_code_have_the_options_shown(path: Path):
    assert isinstance(main, click.Group)
    for line in code(text_of(path)):
        for command, rest in re.findall(r"(?<!\S)swiftlet ([a-z][a-z-]*)\b([^#]*)", line):
            options = set(re.findall(r"--[a-z][a-z0-9-]*", rest.partition("\n")[0]))

            assert command in main.commands, line
            assert options <= {option for parameter in main.commands[command].params for option in parameter.opts}, line


def test_cli_page_documents_every_command_and_option():
    document = text_of(DOCS / "reference/cli.md")
    assert isinstance(main, click.Group)
    for name, command in main.commands.items():
        section = document.partition(f"## swiftlet {name}\n")[2].partition("\n## ")[0]
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}

        assert section
        if name != "serve":  # whose options are the settings
            assert options <= set(re.findall(r"^\| `(--[a-z0-9-]+)`", section, re.MULTILINE))


def test_architecture_page_lists_the_packages_that_exist():
    rows = table(text_of(DOCS / "contributing/architecture.md"), "Package", "Responsibility")
    packages = {
        str(path.parent.relative_to(ROOT))
        for folder in ("service/swiftlet_serve", "models/swiftlet_models", "models/swiftlet_train")
        for path in (ROOT / folder).glob("*/__init__.py")
    }

    assert {name.strip("`") for name, _ in rows} == packages | {
        "models/swiftlet_train",
        "service/swiftlet_serve/native",
    }
    assert [text for _, text in rows if not text.endswith(".")] == []


def test_public_pages_are_plain_markdown():
    """Directives of the site's generator do not render on a code host."""
    fences = {path: re.findall(r"^```(\{.*)$", text_of(path), re.MULTILINE) for path in DOCS.rglob("*.md")}

    assert {path.name: set(found) for path, found in fences.items() if found} == {"index.md": {"{toctree}"}}


def test_notice_names_the_sources_of_all_recipes():
    notice = text_of(ROOT / "NOTICE")
    recipes = [tomllib.loads(text_of(path)) for path in (ROOT / "models/swiftlet_train/recipes").glob("*.toml")]
    works = [work for recipe in recipes for work in recipe.get("finetuning", {}).values()]
    sources = {licence.partition(" (")[0] for work in works for licence in work["licences"]}

    assert sources
    assert [source for source in sources if f"\n{source}\n" not in notice] == []


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_their_actions_limit_their_rights_and_name_commands_that_exist(path: Path):
    workflow: dict[str, Any] = yaml.safe_load(text_of(path))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    scripts = [part for step in steps for part in shlex.split(step.get("run", ""), comments=True)[:1]]

    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert [step["uses"] for step in steps if "uses" in step and not re.search(r"@v\d+$", step["uses"])] == []
    assert [one for one in scripts if "/" in one and not (ROOT / one).exists()] == []


def test_issue_forms_are_valid_and_ask_for_something():
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]

    assert forms
    for path in forms:
        form = yaml.safe_load(text_of(path))

        assert {"name", "description", "body"} <= form.keys()
        assert all({"type", "attributes"} <= item.keys() for item in form["body"])


def test_tutorial_is_part_of_the_site():
    assert first_column(text_of(DOCS / "index.md"), "Start here", "")[0] == "[Tutorial](tutorial.md)"
