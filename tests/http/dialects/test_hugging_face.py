"""Hugging Face's addresses. The answers are those of the tasks' routes."""

from __future__ import annotations

import pytest

from tests.support.apps import assert_problem

BODIES = {
    "classify": {"inputs": ["서울 🎬", "a"], "parameters": {"top_k": 1}},
    "qa": {"inputs": {"question": "Who?", "context": "Clara."}},
    "fill-mask": {"inputs": "the [MASK] ."},
}


@pytest.mark.parametrize("task", BODIES)
def test_model_has_an_address(task, client):
    own = client.post(f"/{task}", json=BODIES[task])

    assert client.post(f"/models/tiny-{task}", json=BODIES[task]).json() == own.json()
    assert client.post(f"/models/{task}", json=BODIES[task]).json() == own.json()


def test_errors_are_ours(client):
    assert_problem(client.post("/models/no", json={"inputs": "a"}), 404, "unknown_model")
    assert_problem(client.post("/models/classify", json={"inputs": 1}), 422, "validation_failed")
