"""Checkpoints with trained weights, in packages: in fp32, they answer as the reference packages.

`trained_checkpoints.json` has their packages, licences and differences, also of those that were compared by hand:
they are too large to install, or in the package of something else. The documentation shows it.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer

from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.goldens import cases
from tests.support.drafts import answers, catch_drafts

ROWS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("trained_checkpoints.json").read_text("utf-8"))
LARGEST = 1e-5


def difference(directory: Path, task: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> float:
    """Returns the largest difference of a number of a vector, or of the score of a token for a mask."""
    drafts = catch_drafts(monkeypatch)
    import_checkpoint(str(directory), task, directory, name="it", max_loss=0.5, report=lambda _: None)
    if task == "embed":
        encoder = SentenceTransformer(str(directory), device="cpu")
        encoder.tokenizer.split_special_tokens = True  # those in a text are text here
        expected = encoder.encode(texts)
        return float(np.abs(np.array(answers(drafts[-1], texts)) - expected).max())
    reference = transformers.pipeline("fill-mask", model=str(directory), device="cpu", top_k=5)
    differences = []
    for text in texts:
        theirs, ours = reference(text), answers(drafts[-1], text, top_k=5)
        assert [answer["token"] for answer in ours] == [answer["token"] for answer in theirs]
        differences += [abs(a["score"] - b["score"]) for a, b in zip(ours, theirs, strict=True)]
    return max(differences)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if "directory" in row])
def test_trained_checkpoints_answer_as_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, _, folder = ROWS[name]["directory"].partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    largest = difference(Path(spec.origin).parent / folder, ROWS[name]["task"], [*cases.SENTENCES], monkeypatch)
    assert largest <= LARGEST


def test_differences_by_hand_are_small() -> None:
    assert all(row["difference"] <= LARGEST for row in ROWS.values())
