"""The workload: default bodies, bodies from files, and their routes."""

from __future__ import annotations

import json

import pytest

from loadtest.workload import MASK, OTHERS, TASKS, Body, default_workload, read_workload, route_of
from swiftlet_serve import tasks
from tests.support.artifacts import make_artifact, make_tokenizer


def test_default_workload_has_the_documented_shares_and_lengths():
    bodies = default_workload(2000)
    lengths = sorted(len(json.loads(body.data)["inputs"].split()) for body in bodies if body.path == "/classify")

    assert all(route_of(body.data) == body.path for body in bodies)
    for path, share in TASKS.items():
        assert sum(body.path == path for body in bodies) / len(bodies) == pytest.approx(share, abs=0.04)
    assert lengths[len(lengths) // 2] < 30 < 100 < lengths[int(0.97 * len(lengths))]


def test_default_workload_depends_on_its_seed_alone():
    assert default_workload(50) == default_workload(50)
    assert default_workload(50) != default_workload(50, seed=2)


@pytest.mark.parametrize("path", [*TASKS, *OTHERS])
def test_body_of_each_task_is_a_valid_request(path, tmp_path):
    name = path.removeprefix("/")
    task = tasks.load(name).create(make_tokenizer(), make_artifact(tmp_path, name).manifest)

    for body in default_workload(20, tasks=[path]):
        assert body.path == path
        task.Request.model_validate_json(body.data)


def test_default_workload_knows_every_task():
    assert {path.removeprefix("/") for path in (*TASKS, *OTHERS)} == set(tasks.names())


def test_default_workload_can_be_limited_to_some_tasks():
    assert {body.path for body in default_workload(200, tasks=["/qa", "/classify"])} == {"/qa", "/classify"}


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        ("a", "/classify"),
        (["a", "b"], "/classify"),
        ({"text": "a", "text_pair": "b"}, "/classify"),
        (f"a {MASK}", "/fill-mask"),
        ([f"a {MASK}"], "/fill-mask"),
        ({"question": "a", "context": f"b {MASK}"}, "/qa"),
        ([{"question": "a", "context": "b"}], "/qa"),
    ],
)
def test_read_workload_finds_the_route_of_a_body(tmp_path, inputs, path):
    body = json.dumps({"inputs": inputs}).encode()
    (tmp_path / "bodies").write_bytes(body + b"\n\n")

    assert read_workload([tmp_path / "bodies"]) == [Body(path, body)]


@pytest.mark.parametrize("line", [b"[]", b"{}", b"1"])
def test_route_of_refuses_other_json(line):
    with pytest.raises(ValueError, match='the field "inputs"'):
        route_of(line)


def test_body_is_not_answered_by_the_response_of_another_task():
    assert Body("/qa", b"").is_answered_by(b'{"score": 1, "answer": ""}')
    assert not Body("/qa", b"").is_answered_by(b'[[{"label": "A"}]]')
