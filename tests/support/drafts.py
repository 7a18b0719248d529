"""Imports that end at the draft of an artifact: the network in fp32, with its tokenizer and manifest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from swiftlet_models.tensors import Weights
from swiftlet_serve import tasks
from swiftlet_serve.offline import import_checkpoint as module
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.types import Batch


def catch_drafts(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """Returns a list that gets the draft of each import. No import is released."""
    drafts: list[Draft] = []

    def release(draft: Draft, *_: object, **__: object) -> None:
        of_labels = draft.of_labels and replace(draft.of_labels, weights=_read(draft.of_labels.weights))
        drafts.append(replace(draft, weights=_read(draft.weights), of_labels=of_labels))

    monkeypatch.setattr(module, "release", release)
    return drafts


def _read(weights: Weights) -> Weights:
    return {name: np.asarray(weight) for name, weight in weights.items()}


def task_of(draft: Draft) -> Any:
    """Returns the task of a draft."""
    label_tokenizer = draft.of_labels.tokenizer if draft.of_labels else None
    return tasks.create(draft.manifest.task, draft.tokenizer, draft.manifest, draft.head, label_tokenizer)


def answers(draft: Draft, inputs: Any, **parameters: Any) -> Any:
    """Returns the response of a draft to a request."""
    task = task_of(draft)
    request = task.Request.model_validate({"inputs": inputs, "parameters": parameters})
    encodings = list(task.encode(request))
    rows = np.concatenate(draft.answers(encodings))
    return task.decode(request, encodings, Batch.of(encodings).split_rows(rows))
