"""Reads `config.json` of a checkpoint: the settings of the network, and the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from swiftlet_models import architectures
from swiftlet_models.artifact import Head, Problem
from swiftlet_models.checkpoint_tensors import ConversionError

MAX_LABELS: Final = 1 << 20  # that a configuration may ask for without naming them
WRITE_LABELS: Final = 'Write all of them: "id2label": {"0": "NAME", "1": "NAME"}.'
_TOKEN_CLASSIFIER: Final = "ForTokenClassification"  # noqa: S105  # the end of a class name

# Settings that tell that the tensors are not those of the network, with the next step.
_CHANGED: Final = {
    "quantization_config": "give the checkpoint before its quantisation, or save model.dequantize() of transformers",
    "pruned_heads": "give the checkpoint before heads were removed",
}
_LANGUAGE_MODELS: Final = ("masked_lm", "causal_lm")  # heads that read the word embeddings
_ACTIVATIONS: Final = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_accurate": "gelu_new"}  # the same
_PROBLEMS: Final[Mapping[str | None, Problem]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def check_kind(settings: Mapping[str, Any], head: Head) -> None:
    """Refuses a classifier of texts as one of tokens, and the reverse. Their tensors may have the same shapes.

    Raises:
        ConversionError: the class of the checkpoint is of the other kind.
    """
    classes = settings.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ConversionError("config.json: architectures has an invalid value.")
    if head == "token" and any(not name.endswith(_TOKEN_CLASSIFIER) for name in classes):
        raise ConversionError("config.json: architectures does not name a token classifier.")
    if head == "classification" and any(name.endswith(_TOKEN_CLASSIFIER) for name in classes):
        raise ConversionError("config.json: architectures names a token classifier, which does not classify texts.")


def translate_config(architecture: str, settings: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """Returns the settings of a network as its `Config` has them.

    Raises:
        ConversionError: a setting is not supported.
    """
    module = architectures.describe(architecture)
    for key, step in _CHANGED.items():
        if settings.get(key):
            raise ConversionError(f"config.json: {key} is not supported; {step}.")
    checkpoints = module.CHECKPOINTS
    for key, only in checkpoints.fixed.items():
        if settings.get(key, only) != only and (key != "tie_word_embeddings" or head in _LANGUAGE_MODELS):
            step = "Train a model with that"
            raise ConversionError(f"config.json: {key} {settings[key]!r} is not supported, only {only!r}. {step}.")
    defaults = {field.name: field.default for field in fields(module.Config)} | dict(checkpoints.implied)
    try:
        settings = checkpoints.translate(settings)
        config = {key: _same_activation(settings.get(key, default)) for key, default in defaults.items()}
        module.Config(**config)
    except ValueError as error:
        raise ConversionError(f"config.json: {error}") from None
    return config


def _same_activation(value: Any) -> Any:
    return _ACTIVATIONS.get(value, value) if isinstance(value, str) else value


def read_labels(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Problem]:
    """Returns the labels in the order of the logits, and the kind of classification.

    transformers writes neither for two labels with default names.

    Raises:
        ConversionError: the labels have no names, or the kind is not supported.
    """
    count = settings.get("num_labels", 2)
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise ConversionError(f"config.json: num_labels has an invalid value. {WRITE_LABELS}")
    id2label = settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    try:
        labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    except (KeyError, TypeError):
        raise ConversionError(f"config.json: id2label does not number the labels from 0. {WRITE_LABELS}") from None
    if None in id2label.values():
        raise ConversionError(f"config.json: id2label has a label without a name. {WRITE_LABELS}")
    problem = settings.get("problem_type")
    if problem is None:  # the pipeline of transformers then applies a sigmoid to one label
        return labels, "single_label"
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        known = ", ".join(map(str, _PROBLEMS))
        raise ConversionError(f"config.json: problem_type {problem!r} is not supported, only {known} are.")
    return labels, _PROBLEMS[problem]
