"""Writes `labels.json`: the answers of gliner 0.2.29 and gliclass 0.1.21 to the cases of `labels.py`.

    python -m venv /tmp/oracle
    /tmp/oracle/bin/pip install torch==2.13.0 transformers==5.16.1 gliner==0.2.29 gliclass==0.1.21 protobuf==7.36.2
    PYTHONPATH=. /tmp/oracle/bin/python tests/goldens/write_labels.py

The packages are unmodified, and read the checkpoints of `tests/support/label_checkpoints.py`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from gliclass import GLiClassModel, ZeroShotClassificationPipeline
from gliner import GLiNER
from transformers import AutoTokenizer

from tests.goldens import labels
from tests.goldens.cases import HERE


def entities(model: Any, number: int, text: str) -> list[Any]:
    mode = dict(labels.MODES[number % len(labels.MODES)])
    names = labels.LABELS[number % len(labels.LABELS)]
    found = model.predict_entities(text, names, flat_ner=mode.pop("flat", True), **mode)
    return [[one["start"], one["end"], one["label"], round(one["score"], 6)] for one in found]


def scores(pipeline: Any, number: int, text: str) -> list[list[float]]:
    """Returns the scores of labels, by themselves and of labels that exclude each other."""
    names = labels.LABELS[number % len(labels.LABELS)]
    answers = [
        pipeline([text], names, classification_type=kind, return_hierarchical=True)[0]
        for kind in ("multi-label", "single-label")
    ]
    return [[round(answer[name], 6) for name in names] for answer in answers]


def main() -> None:
    answers: dict[str, dict[str, Any]] = {"gliner": {}, "gliclass": {}}
    for name, write in labels.GLINER.items():
        with tempfile.TemporaryDirectory() as directory:
            model = GLiNER.from_pretrained(str(write(Path(directory)))).eval()
        answers["gliner"][name] = [entities(model, i, text) for i, text in enumerate(labels.TEXTS)]
    for name, write in labels.GLICLASS.items():
        with tempfile.TemporaryDirectory() as directory, torch.no_grad():
            path = str(write(Path(directory)))
            network, tokenizer = GLiClassModel.from_pretrained(path), AutoTokenizer.from_pretrained(path)
            pipeline = ZeroShotClassificationPipeline(network, tokenizer, device="cpu", progress_bar=False)
            answers["gliclass"][name] = [scores(pipeline, i, text) for i, text in enumerate(labels.TEXTS)]
    (HERE / "labels.json").write_text(json.dumps(answers, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
