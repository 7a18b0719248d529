"""Checkpoints of token classifiers: conversion, and the refusal of checkpoints of another kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from swiftlet_models.checkpoint_tensors import ConversionError
from tests.support.checkpoints import HEADS, SMALL, Task, conversion, convert, our_rows, reference, reference_rows, rows
from tests.support.checkpoints import relative_error as error

NAMES = ("bert", "albert", "mobilebert", "mobilebert-pooler", "roberta", "electra", "distilbert")


def save(directory: Path, name: str, task: Task, **changes: object) -> None:
    """Writes the checkpoint of a task, with changes to its configuration. None removes a setting."""
    reference(SMALL[name], task).save_pretrained(directory)
    file = directory / "config.json"
    settings = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}), "utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_token_classifier_equals_transformers(name: str) -> None:
    model = reference(SMALL[name], "entities")
    batch = rows("entities", [9, 4, 17], SMALL[name].config().vocab_size)

    converted = conversion(model, "entities")

    assert error(our_rows(converted.model, batch), reference_rows(model, "entities", batch)) < 1e-5
    assert (len(converted.labels), converted.problem) == (3, None)
    assert not any("classifier" in tensor for tensor in converted.ignored)


@pytest.mark.parametrize(
    ("task", "wanted", "message"),
    [
        ("classify", "entities", "config.json: architectures does not name a token classifier."),
        ("qa", "entities", "config.json: architectures does not name a token classifier."),
        ("fill-mask", "entities", "config.json: architectures does not name a token classifier."),
        (
            "entities",
            "classify",
            "config.json: architectures names a token classifier, which does not classify texts.",
        ),
    ],
)
@pytest.mark.parametrize("name", ["bert", "mobilebert"])
def test_classifier_of_another_kind_is_refused(
    tmp_path: Path, name: str, task: Task, wanted: Task, message: str
) -> None:
    save(tmp_path, name, task)

    with pytest.raises(ConversionError) as caught:
        convert(tmp_path, *HEADS[wanted])

    assert str(caught.value) == message


@pytest.mark.parametrize("value", ["BertForTokenClassification", [5], {"a": "b"}, 7])
def test_invalid_architectures_are_refused(tmp_path: Path, value: object) -> None:
    save(tmp_path, "bert", "entities", architectures=value)

    with pytest.raises(ConversionError, match="architectures has an invalid value"):
        convert(tmp_path, *HEADS["entities"])


def test_question_answering_is_no_token_classifier_even_without_architectures(tmp_path: Path) -> None:
    save(tmp_path, "bert", "qa", architectures=None)

    with pytest.raises(ConversionError, match="the checkpoint has no trained head for this task"):
        convert(tmp_path, *HEADS["entities"])


def test_token_classifier_without_architectures_is_read(tmp_path: Path) -> None:
    save(tmp_path, "bert", "entities", architectures=None)

    head = convert(tmp_path, *HEADS["entities"]).model.state_dict()["head.output.weight"]

    assert head.shape == (3, SMALL["bert"].config().hidden_size)
    assert torch.isfinite(head).all()
