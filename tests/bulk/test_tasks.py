"""Every task scores the rows of files, and answers as over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from swiftlet_serve import tasks
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.scoring import INPUTS, PARAMETERS, done, read_csv, read_jsonl, refusal, write_csv, write_jsonl

LONG = "word " * 60


@pytest.fixture(scope="module")
def client(models: Path):
    paths = tuple(str(models / f"tiny-{task}") for task in tasks.names())
    with TestClient(create_app(LocalRuntime.load(Settings(engine="echo", models=paths)))) as client:
        yield client


def rows_of(task: str) -> list[dict[str, Any]]:
    """Returns rows whose inputs are short, long, empty, and of the wrong type."""
    given = INPUTS[task]
    row = given if isinstance(given, dict) else {"text": given}
    last = list(row)[-1]
    changed = [f"{row[last]} {LONG}", " ", 3] if isinstance(row[last], str) else [["rain", LONG], [" "], "rain"]
    return [row, *({**row, last: value} for value in changed), row]


def columns(task: str) -> list[str]:
    """Returns the options that name the columns, where the first form of the input is not the wanted one."""
    given = INPUTS[task]
    names = list(given) if isinstance(given, dict) else ["text"]
    return [part for name in names for part in ("--column", f"{name}={name}")]


def parameters(task: str) -> list[str]:
    return [
        part
        for name, value in PARAMETERS.get(task, {}).items()
        for part in ("--parameter", f"{name}={json.dumps(value)}")
    ]


def asked(client: TestClient, task: str, row: dict[str, Any], model: str) -> tuple[Any, str | None]:
    """Returns the answer over HTTP, or the error code."""
    inputs = row if isinstance(INPUTS[task], dict) else row["text"]
    shared = {"parameters": PARAMETERS[task]} if task in PARAMETERS else {}
    response = client.post(f"/{task}", json={"inputs": inputs, "model": model, **shared})
    if response.status_code != 200:
        return None, response.json()["code"]
    body = response.json()
    return (body[0] if task in ("classify", "embed") else body), None


@pytest.mark.parametrize(
    ("model", "task"), [*((task, task) for task in sorted(INPUTS)), ("embed", "rerank"), ("embed", "zero-shot")]
)
def test_rows_have_the_answers_of_requests(client, models, tmp_path, model, task):
    rows = rows_of(task)
    write_jsonl(tmp_path / "in.jsonl", [{"id": i, **row} for i, row in enumerate(rows)])
    options = [*columns(task), *parameters(task), "--key", "id", "--max-bad", "90%"]

    done(
        tmp_path / "in.jsonl",
        "--model",
        models / f"tiny-{model}",
        "--task",
        task,
        "--engine",
        "echo",
        "--out",
        tmp_path / "out",
        *options,
    )

    found = read_jsonl(tmp_path / "out")
    assert [row["id"] for row in found] == list(range(len(rows)))
    for row, one in zip(found, rows, strict=True):
        answer, code = asked(client, task, one, f"tiny-{model}")
        assert row["answer"] == answer
        assert row["error"] == ("wrong_type" if code == "validation_failed" else code)
    assert [row["error"] for row in found][0::4] == [None, None]


def test_inputs_cover_every_task():
    assert sorted(INPUTS) == tasks.names()


def test_csv_holds_lists_as_json(models, tmp_path):
    write_csv(tmp_path / "in.csv", [["who?", '["rain", "clara"]'], ["who?", "rain"]], ("query", "texts"))

    done(
        tmp_path / "in.csv",
        "--model",
        models / "tiny-rerank",
        "--engine",
        "echo",
        "--out",
        tmp_path / "out",
        "--max-bad",
        1,
    )

    found = read_csv(tmp_path / "out")
    assert len(json.loads(found[0]["answer"])) == 2
    assert [row["error"] for row in found] == ["", "wrong_type"]


def test_optional_column_is_read_if_named(models, tmp_path):
    rows = [{"text": "a", "second": "b"}, {"text": "a", "second": None}, {"text": "a"}, {"text": "a", "second": "c"}]
    write_jsonl(tmp_path / "in.jsonl", rows)

    done(
        tmp_path / "in.jsonl",
        "--model",
        models / "tiny-classify",
        "--engine",
        "echo",
        "--out",
        tmp_path / "out",
        "--column",
        "text_pair=second",
    )

    answers = [row["answer"] for row in read_jsonl(tmp_path / "out")]
    assert answers[1] == answers[2]
    assert answers[0] != answers[1]
    assert answers[0] != answers[3]


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        ("classify", ["--task", "qa"], "The model tiny-classify is for the task classify, not qa."),
        (
            "classify",
            ["--column", "body=text"],
            "has no input of the fields body. Its inputs are: text; text, text_pair.",
        ),
        ("classify", ["--parameter", "top_k=many"], "The parameter top_k is invalid:"),
        ("classify", ["--parameter", "topk=1"], "The parameter topk is invalid: Extra inputs are not permitted."),
        ("zero-shot", [], "The parameter candidate_labels is invalid: Field required."),
        ("embed", ["--parameter", "dimensions=99"], "A parameter does not fit the model: dimensions exceeds"),
    ],
)
def test_unfit_task_column_or_parameter_is_refused(models, tmp_path, task, options, sentence):
    write_jsonl(tmp_path / "in.jsonl", [{"text": "a"}])
    where = ("--model", models / f"tiny-{task}", "--engine", "echo", "--out", tmp_path / "out")

    assert sentence in refusal(tmp_path / "in.jsonl", *where, *options)
    assert not (tmp_path / "out").exists()
