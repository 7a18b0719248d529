"""The cost of a request by task: the requests, the stages and the table."""

from __future__ import annotations

import json

import pytest

from loadtest.request_cost import STAGES, Case, cases, row
from loadtest.request_stages import run
from swiftlet_serve import tasks
from swiftlet_serve.http.endpoints import bodies
from tests.support.artifacts import HEADS, make_artifact

INPUTS = {
    "qa": {"question": "a", "context": "b c"},
    "fill-mask": "a [MASK]",
    "rerank": {"query": "a", "texts": ["b", "c"]},
}


@pytest.mark.parametrize("task", list(HEADS))
def test_every_stage_of_a_task_takes_time(task, tmp_path):
    parameters = {"parameters": {"candidate_labels": "a, b"}} if task == "zero-shot" else {}
    body = json.dumps({"inputs": INPUTS.get(task, "a b"), **parameters})
    line = {"artifact": str(make_artifact(tmp_path, task).path), "task": task, "bodies": [body] * 20}

    spent = run(line)

    assert list(spent) == list(STAGES)
    assert sum(spent.values()) > 0


@pytest.mark.parametrize(("name", "case"), cases().items())
def test_requests_are_those_of_their_task(name: str, case: Case):
    task = tasks.load(case.path[1:]).TASK
    for body in case.bodies:
        assert bodies.parse(task.Request, body)
    assert len(case.bodies) >= 8, name


def test_a_row_holds_the_stages_and_what_is_left():
    us = {**dict.fromkeys(STAGES, 10.0), "decode": 20.4, "http": 170.4, "engine": 30.0}

    (line,) = row("qa", {"now": us})

    assert line == "| qa | now | 10 | 10 | 10 | 10 | 20 | 10 | 100 | 170 | 30 |"
