"""Small artifacts for tests: a tokenizer of single characters and a network that looks rows up in a table."""

from __future__ import annotations

import hashlib
import json
import string
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from swiftlet_models.artifact import (
    CARD,
    CERTIFICATE,
    GOLDEN,
    MANIFEST,
    ONNX,
    TOKENIZER,
    Artifact,
    Embedding,
    Head,
    Manifest,
    seal,
)
from swiftlet_models.tokenizer import Tokenizer

CHARACTERS = string.ascii_lowercase + string.digits + string.punctuation
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *(f"##{c}" for c in CHARACTERS)]
MAX_TOKENS = 48
LABELS = {
    "classify": ("bad", "good", "neither"),
    "qa": (),
    "fill-mask": (),
    "score": (),
    "embed": (),
    "rerank": ("LABEL_0",),
    "zero-shot": ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
    "entities": ("O", "B-PER", "I-PER", "B-LOC"),
}
HEADS: Mapping[str, Head] = {
    "classify": "classification",
    "qa": "token",
    "fill-mask": "masked_lm",
    "score": "causal_lm",
    "embed": "embedding",
    "rerank": "classification",
    "zero-shot": "classification",
    "entities": "token",
}
WIDTHS = {
    "classify": 3,
    "qa": 2,
    "fill-mask": len(VOCABULARY),
    "score": len(VOCABULARY),
    "embed": 8,
    "rerank": 1,
    "zero-shot": 3,
    "entities": 4,
}


def make_artifact(directory: Path, task: str, name: str | None = None, tolerance: float = 1e-5) -> Artifact:
    """Writes and seals an artifact for the task. The network returns the rows of `table` for the ids at the focus."""
    name = name or f"tiny-{task}"
    path = directory / name
    path.mkdir(parents=True)
    make_tokenizer().save(path / TOKENIZER)
    onnx.save(network(WIDTHS[task]), path / ONNX)
    (path / CARD).write_text(json.dumps({"data": "none", "n": 0}), "utf-8")
    np.savez(path / GOLDEN, allow_pickle=False, **golden(WIDTHS[task]))
    manifest = Manifest(
        name=name,
        version="1",
        architecture="table",
        task=task,
        head=HEADS[task],
        precision="fp32",
        max_tokens=MAX_TOKENS,
        vocab_size=len(VOCABULARY),
        width=WIDTHS[task],
        labels=LABELS[task],
        problem="single_label" if task in ("classify", "rerank", "zero-shot") else None,
        embedding=Embedding("cls", normalize=True, prompts={"query": "q: "}) if task == "embed" else None,
        tolerance=tolerance,
        config={},
        source={},
    )
    return seal(path, manifest)


def certify(path: Path, **more: object) -> dict[str, object]:
    """Writes a certificate of an artifact that tells nothing, and returns it."""
    document = {"manifest": hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest(), "comparisons": [], **more}
    (path / CERTIFICATE).write_text(json.dumps(document), "utf-8")
    return document


def make_tokenizer() -> Tokenizer:
    """Returns a tokenizer of single characters."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
        return Tokenizer.from_directory(Path(directory))


def table(width: int) -> np.ndarray:
    """Returns the row of each id, as an array (V, O)."""
    return np.random.default_rng(7).normal(size=(len(VOCABULARY), width)).astype(np.float32)


def network(width: int) -> onnx.ModelProto:
    """Returns an ONNX graph with the inputs and the output of every artifact."""
    int64, dims = TensorProto.INT64, {"input_ids": "BS", "token_type_ids": "BS", "lengths": "B", "focus": "N"}
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["input_ids", "flat"], ["ids"]),
            helper.make_node("Gather", ["ids", "focus"], ["read"]),
            helper.make_node("Gather", ["table", "read"], ["rows"]),
        ],
        "table",
        [helper.make_tensor_value_info(name, int64, list(shape)) for name, shape in dims.items()],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", width])],
        [numpy_helper.from_array(table(width), "table"), numpy_helper.from_array(np.array([-1]), "flat")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def golden(width: int) -> dict[str, np.ndarray]:
    """Returns golden answers for two sequences of three and two tokens: the first two columns of each row."""
    ids, focus = np.array([2, 9, 3, 2, 3]), np.array([0, 1, 0])
    columns = np.arange(min(2, width))
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "offsets": np.array([0, 3, 5]),
        "focus": focus,
        "focus_offsets": np.array([0, 2, 3]),
        "rows": table(width)[np.array([2, 9, 2])][:, columns],
        "columns": columns,
    }


def reseal(artifact: Artifact, **changes: Any) -> Path:
    """Seals a modified directory again, so that its checksums are valid."""
    return seal(artifact.path, replace(artifact.manifest, **changes)).path
