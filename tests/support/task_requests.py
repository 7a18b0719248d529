"""Requests to a task without a server, and the manifests that the tasks are made from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swiftlet_models.artifact import Manifest
from swiftlet_serve.errors import Unprocessable
from tests.support.artifacts import HEADS

MAX_TOKENS = 64
LABELS = ("bad", "fair", "good")


def manifest(task: Any, width: int, labels: tuple[str, ...] = (), problem: Any = None) -> Manifest:
    about = {"name": "fake", "version": "1", "architecture": "bert", "precision": "fp32", "vocab_size": 9}
    sizes = {"max_tokens": MAX_TOKENS, "width": width, "tolerance": 1e-3}
    return Manifest(task=task, head=HEADS[task], labels=labels, problem=problem, config={}, source={}, **about, **sizes)  # type: ignore[arg-type]


def encode(task: Any, inputs: object, **parameters: object) -> Any:
    """Encodes a request from JSON."""
    body = json.dumps({"inputs": inputs, "parameters": parameters})
    return task.encode(task.Request.model_validate_json(body))


def rejection(task: Any, inputs: object, **parameters: object) -> tuple[str, str, float | None]:
    """Returns the code, pointer and limit of the error that a request causes."""
    with pytest.raises(Unprocessable) as caught:
        encode(task, inputs, **parameters)
    (fault,) = caught.value.field_errors
    return caught.value.code, fault.pointer, fault.limit
