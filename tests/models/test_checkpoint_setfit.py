"""The classifier of a SetFit model is that of scikit-learn, and nothing in its pickle is executed."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.setfit import HEAD, Classifier, read_classifier

VECTORS = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
NUMBERS = np.arange(60) % 3
NAMES = np.array(["yes", "no", "peut-être"])


def save(directory: Path, head: Any, settings: dict[str, Any] | None = None, **options: Any) -> Path:
    joblib.dump(head, directory / HEAD, **options)
    (directory / "config_setfit.json").write_text(json.dumps(settings or {}))
    return directory


def probabilities(classifier: Classifier) -> Any:
    logits = VECTORS @ classifier.weight.T + classifier.bias
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def message(directory: Path) -> str:
    """Returns why the head is refused."""
    with pytest.raises(ConversionError) as caught:
        read_classifier(directory)
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith(f"{HEAD} cannot be read: ")
    assert "; only a LogisticRegression of scikit-learn is; train with the default head of SetFit, or " in text
    return text.split(": ", 1)[1].split("; ", 1)[0]


@pytest.mark.parametrize(
    ("classes", "settings", "labels"),
    [
        (NUMBERS, {}, ("0", "1", "2")),
        (NUMBERS, {"labels": ["a", "b", "c"], "normalize_embeddings": True}, ("a", "b", "c")),
        (NUMBERS * 2, {"labels": ["a", "b", "c"]}, ("0", "2", "4")),  # not the numbers of the labels
        (NUMBERS % 2, {"labels": None}, ("0", "1")),
        (NAMES[NUMBERS], {"labels": ["x", "y", "z"]}, ("no", "peut-être", "yes")),
        (NAMES.astype(object)[NUMBERS], {}, ("no", "peut-être", "yes")),
    ],
)
def test_probabilities_are_those_of_scikit_learn(
    tmp_path: Path, classes: np.ndarray, settings: dict[str, Any], labels: tuple[str, ...]
) -> None:
    head = LogisticRegression(class_weight="balanced").fit(VECTORS, classes)
    classifier = read_classifier(save(tmp_path, head, settings))
    assert classifier.labels == labels
    assert classifier.normalize == settings.get("normalize_embeddings", False)
    assert np.allclose(probabilities(classifier), head.predict_proba(VECTORS), atol=1e-6)
    head.coef_ = np.asfortranarray(head.coef_)
    assert np.array_equal(read_classifier(save(tmp_path, head)).weight, classifier.weight)
    (tmp_path / HEAD).write_bytes(pickle.dumps(head, 4))
    assert np.array_equal(read_classifier(tmp_path).weight, classifier.weight)


def test_softmax_of_two_opposite_logits_is_read(tmp_path: Path) -> None:
    """Older versions of scikit-learn had the setting multi_class."""
    head = LogisticRegression().fit(VECTORS, NUMBERS % 2)
    head.multi_class = "multinomial"
    logits = head.decision_function(VECTORS)
    classifier = read_classifier(save(tmp_path, head))
    assert np.allclose(probabilities(classifier)[:, 1], 1 / (1 + np.exp(-2 * logits)), atol=1e-6)


class Code:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_code_is_not_executed(tmp_path: Path) -> None:
    head = LogisticRegression().fit(VECTORS, NUMBERS)
    head.classes_ = np.array([Code(tmp_path / "ran"), 1, 2], object)  # in the pickle within the pickle
    assert message(save(tmp_path, head)) == "it names posix.mkdir, which is never executed"
    head.classes_ = Code(tmp_path / "ran")
    assert message(save(tmp_path, head)) == "it names posix.mkdir, which is never executed"
    joblib.load(tmp_path / HEAD)
    assert (tmp_path / "ran").exists()  # proves that the payload works


def trained(**changes: Any) -> LogisticRegression:
    head = LogisticRegression().fit(VECTORS, NUMBERS)
    vars(head).update(changes)
    return head


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (LogisticRegression(), "it is no trained regression"),
        (None, "it is no trained regression"),
        (OneVsRestClassifier(trained()), "it names sklearn.multiclass.OneVsRestClassifier, which is never executed"),
        (torch.nn.Linear(2, 2), "it names torch.nn.modules.linear.Linear, which is never executed"),
        (trained(multi_class="ovr"), "its labels do not exclude each other (ovr, liblinear)"),
        (trained(solver="liblinear"), "its labels do not exclude each other (ovr, liblinear)"),
        (trained(coef_=np.zeros((2, 8))), "its matrices do not fit each other"),
        (trained(classes_=np.zeros((0,), int)), "its matrices do not fit each other"),
        (trained(classes_=np.zeros((3,))), "its matrices do not fit each other"),
        (trained(intercept_=np.full(3, np.nan)), "its numbers are not finite"),
        (trained(coef_=np.full((3, 8), 1e300)), "its numbers are not finite"),
        (trained(coef_=np.array([list("abcdefgh")] * 3)), "its matrices hold no numbers with a point"),
        (trained(classes_=np.frombuffer(b"\xff" * 12, "<U1")), "it is damaged"),
        (trained(coef_=np.zeros((3, 8), complex)), "it holds an array of a type that is not read"),
        (trained(coef_=np.zeros((3, 8), ">f8")), "it holds an array of a type that is not read"),
        (trained(coef_=np.zeros((3, 8, 1))), "it holds an array that is not read"),
    ],
)
def test_other_heads_are_refused_by_name(tmp_path: Path, head: object, expected: str) -> None:
    assert message(save(tmp_path, head)) == expected


@pytest.mark.parametrize("labels", [3, [1], ["a", "a", "a"], ["a", "b", "\x1b"]])
def test_invalid_labels_are_refused(tmp_path: Path, labels: object) -> None:
    save(tmp_path, trained(), {"labels": labels})
    with pytest.raises(ConversionError, match=r"labels has an invalid value|labels are not different texts"):
        read_classifier(tmp_path)


def test_compressed_and_missing_heads_are_refused(tmp_path: Path) -> None:
    assert message(save(tmp_path, trained(), compress=3)) == "it is damaged"
    (tmp_path / HEAD).unlink()
    with pytest.raises(ConversionError, match="is missing or cannot be read"):
        read_classifier(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pickletools")
def test_damaged_heads_give_a_classifier_or_one_sentence(tmp_path: Path) -> None:
    random.seed(0)
    content = (save(tmp_path, trained(classes_=NAMES)) / HEAD).read_bytes()
    outcomes: set[Any] = set()
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(len(content))
            damaged[at : at + random.choice((0, 1, 4))] = random.randbytes(random.choice((0, 1, 4)))
        (tmp_path / HEAD).write_bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))])
        try:
            outcomes.add(read_classifier(tmp_path).weight.shape)
        except ConversionError as error:
            outcomes.add(str(error))
    assert len(outcomes) > 5
