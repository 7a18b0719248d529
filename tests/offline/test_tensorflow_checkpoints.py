"""Directories as Google released them give what the same weights give as a checkpoint of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from swiftlet_models import sources
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.offline.release import Draft
from tests.goldens.cases import HERE
from tests.support.checkpoints import SMALL, randomise
from tests.support.drafts import answers, catch_drafts
from tests.support.tensor_bundles import google_variables, write_bundle

TEXTS = ["A warm film about bread.", "서울의 봄 👍🏽", ""]
INPUTS: Mapping[str, Any] = {
    "classify": TEXTS[:2],
    "fill-mask": ["She sells [MASK]."],
    "qa": {"question": "Who sells bread?", "context": "She sells bread on Saturdays."},
    "embed": TEXTS[:2],
}
# What transformers adds to the settings that Google's code writes.
OWN = ("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "num_labels")
Import = Callable[..., Draft]


def network(name: str, kind: str, **settings: Any) -> Any:
    words = 1200 if name.startswith("albert") else len((HERE / "vocab.txt").read_text("utf-8").splitlines())
    sizes = {"vocab_size": words, "num_hidden_layers": 2, "num_labels": 3} | settings
    if kind == "QuestionAnswering":
        del sizes["num_labels"]
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(SMALL[name].config(**sizes)).eval()
    randomise(model)
    return model


def save(directory: Path, model: Any, vocabulary: str) -> Path:
    """Writes a checkpoint of transformers."""
    model.save_pretrained(directory)
    shutil.copy(HERE / vocabulary, directory)
    return directory


def release(
    directory: Path, model: Any, vocabulary: str, named: str, *, variables: Mapping[str, NDArray[Any]] | None = None
) -> Path:
    """Writes a directory as Google's code does. The variables also have those of the optimizer."""
    directory.mkdir()
    name = model.config.model_type
    arrays = dict(variables or google_variables(name, model.state_dict()))
    first = next(iter(arrays))
    arrays |= {f"{first}/adam_m": np.ones(3, np.float32), "global_step": np.array(125_000, np.int64)}
    write_bundle(directory / "model.ckpt-best", arrays)
    (directory / "model.ckpt-best.meta").write_bytes(b"\x0a\x05")
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-best"\n')
    settings = {key: value for key, value in model.config.to_dict().items() if key not in OWN}
    (directory / f"{name}_config.json").write_text(json.dumps(settings))
    shutil.copy(HERE / vocabulary, directory / named)
    return directory


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a directory, up to the rounding of the weights."""
    drafts = catch_drafts(monkeypatch)

    def run(source: Path, task: str | None = None, **options: Any) -> Draft:
        settings: dict[str, Any] = {"max_loss": 0.5, "report": lambda _: None} | options
        import_checkpoint(str(source), task, tmp_path / "out", **settings)
        return drafts[-1]

    return run


def check_equal(ours: Draft, expected: Draft) -> None:
    assert ours.weights.keys() == expected.weights.keys()
    assert all(np.array_equal(ours.weights[name], weight) for name, weight in expected.weights.items())
    assert ours.manifest.task == expected.manifest.task
    assert ours.manifest.config == expected.manifest.config
    assert ours.manifest.labels == expected.manifest.labels
    inputs = INPUTS[ours.manifest.task]
    assert answers(ours, inputs) == answers(expected, inputs)


CASES = [
    ("bert", "SequenceClassification", "vocab.txt", "vocab.txt"),
    ("bert", "PreTraining", "vocab.txt", "vocab.txt"),
    ("albert", "PreTraining", "spiece.model", "30k-clean.model"),
    ("albert", "QuestionAnswering", "spiece.model", "30k-clean.model"),
    ("albert-groups", "SequenceClassification", "spiece.model", "30k-clean.model"),
    ("mobilebert", "PreTraining", "vocab.txt", "vocab.txt"),
    ("mobilebert-tiny", "SequenceClassification", "vocab.txt", "vocab.txt"),
    ("ib-bert", "QuestionAnswering", "vocab.txt", "vocab.txt"),
]


@pytest.mark.parametrize(("name", "kind", "vocabulary", "named"), CASES)
def test_directories_of_google_are_read_as_those_of_transformers(
    tmp_path: Path, draft: Import, name: str, kind: str, vocabulary: str, named: str
) -> None:
    model = network(name, kind)
    directory = release(tmp_path / "it", model, vocabulary, named)
    assert sources.identify(str(directory)).kind == "checkpoint"
    ours = draft(directory)
    expected = draft(save(tmp_path / "transformers", model, vocabulary))
    assert ours.manifest.source["directory"] == "it"
    check_equal(ours, expected)
