"""Artifacts of tens of megabytes, for tests of memory. Their weights are random numbers in int8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models.artifact import CARD, GOLDEN, TOKENIZER, WEIGHTS, Artifact, Manifest, seal
from swiftlet_models.weights import save_weights
from tests.support.artifacts import HEADS, LABELS, make_tokenizer

INTERMEDIATE: Final = 4  # widths of the hidden states in that of the feed-forward network


def make_bert(directory: Path, task: str, *, words: int, hidden: int, layers: int) -> Artifact:
    """Writes and seals an int8 artifact of a BERT network."""
    rng, prefix = np.random.default_rng(0), "encoder.embeddings."
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int) -> None:
        weights[name] = 3e-4 * rng.integers(-127, 128, (rows, columns), np.int8).astype(np.float32)

    def product(name: str, rows: int, columns: int) -> None:
        matrix(name + ".weight", rows, columns)
        weights[name + ".bias"] = np.zeros(rows, np.float32)

    def norm(name: str) -> None:
        weights[name + ".weight"] = np.ones(hidden, np.float32)
        weights[name + ".bias"] = np.zeros(hidden, np.float32)

    matrix(prefix + "word.weight", words, hidden)
    matrix(prefix + "position.weight", 64, hidden)
    weights[prefix + "token_type.weight"] = np.zeros((2, hidden), np.float32)
    norm(prefix + "norm")
    for layer in (f"encoder.layers.{number}." for number in range(layers)):
        for name in ("query", "key", "value", "output"):
            product(layer + name, hidden, hidden)
        product(layer + "ffn_in", INTERMEDIATE * hidden, hidden)
        product(layer + "ffn_out", hidden, INTERMEDIATE * hidden)
        norm(layer + "attention_norm")
        norm(layer + "ffn_norm")
    labels = LABELS[task]
    if task == "fill-mask":
        product("head.transform", hidden, hidden)
        norm("head.norm")
        weights["head.bias"] = np.zeros(words, np.float32)
    else:
        product("head.pooler", hidden, hidden)
        weights["head.output.weight"] = np.zeros((len(labels), hidden), np.float32)
        weights["head.output.bias"] = np.zeros(len(labels), np.float32)
    path = directory / f"large-{task}"
    path.mkdir()
    save_weights(path / WEIGHTS, weights, "int8")
    make_tokenizer().save(path / TOKENIZER)
    (path / CARD).write_text(json.dumps({"data": "none", "n": 0}), "utf-8")
    np.savez(
        path / GOLDEN,
        allow_pickle=False,
        input_ids=np.array([2, 9, 3]),
        token_type_ids=np.zeros(3, np.int64),
        offsets=np.array([0, 3]),
        focus=np.array([0]),
        focus_offsets=np.array([0, 1]),
        rows=np.zeros((1, 2), np.float32),
        columns=np.arange(2),
    )
    config = {
        "vocab_size": words,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "intermediate_size": INTERMEDIATE * hidden,
        "max_position_embeddings": 64,
    }
    manifest = Manifest(
        name=path.name,
        version="1",
        architecture="bert",
        task=task,
        head=HEADS[task],
        precision="int8",
        max_tokens=64,
        vocab_size=words,
        width=len(labels) or words,
        labels=labels,
        problem="single_label" if labels else None,
        tolerance=100.0,
        config=config,
        source={},
    )
    return seal(path, manifest)
