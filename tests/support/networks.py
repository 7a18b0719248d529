"""Small networks with random weights, their ONNX graphs, and artifacts of them.

An export takes seconds, so each graph is exported once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import onnx
import onnxruntime as ort
import torch

from swiftlet_models.artifact import Artifact, Manifest, Precision
from swiftlet_models.encodings import Encoding
from swiftlet_models.graphs.export import INPUTS, export
from swiftlet_models.heads import Model, weights_of
from swiftlet_serve import engines, plugins
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.evaluate import Measure
from swiftlet_serve.offline.release import release
from swiftlet_serve.types import Batch
from tests.support.artifacts import LABELS as NAMES
from tests.support.artifacts import make_tokenizer
from tests.support.checkpoints import HEADS, Rows, Task, randomise, rows, untrained
from tests.support.tiers import first

VOCABULARY: Final = 211
LABELS: Final = 3
_SIZES: Final = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "hidden_dropout_prob": 0.0,
}
CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "albert": _SIZES | {"embedding_size": 32, "num_hidden_layers": 2},
    "mobilebert": _SIZES
    | {
        "embedding_size": 32,
        "intra_bottleneck_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_feedforward_networks": 2,
    },
    "bert": _SIZES | {"num_hidden_layers": 1},
    "roberta": _SIZES | {"num_hidden_layers": 1, "max_position_embeddings": 514},
    "electra": _SIZES | {"num_hidden_layers": 1, "embedding_size": 32},
    "distilbert": {
        "vocab_size": VOCABULARY,
        "dim": 64,
        "n_heads": 4,
        "hidden_dim": 128,
        "n_layers": 1,
        "dropout": 0.0,
    },
    "modernbert": {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 112,
        "num_hidden_layers": 4,
        "local_attention": 12,
    },
    "deberta_v2": _SIZES
    | {"num_hidden_layers": 2, "relative_attention": True, "c2p": True, "p2c": True, "position_buckets": 32},
    "mpnet": _SIZES | {"num_hidden_layers": 2, "max_position_embeddings": 514},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 64, "n_head": 4, "n_inner": 128, "n_layer": 2, "resid_pdrop": 0.0},
}
# Every architecture but those that share a network, and the common heads on two of them.
NETWORKS: Final[tuple[tuple[str, Task], ...]] = (
    ("albert", "classify"),
    ("albert", "fill-mask"),
    ("mobilebert", "qa"),
    ("mobilebert", "fill-mask"),
    ("bert", "classify"),
    ("bert", "qa"),
    ("roberta", "qa"),
    ("electra", "fill-mask"),
    ("distilbert", "classify"),
    ("mpnet", "fill-mask"),
    ("modernbert", "classify"),
    ("modernbert", "qa"),
    ("modernbert", "fill-mask"),
    ("deberta_v2", "classify"),
    ("deberta_v2", "qa"),
    ("gpt2", "qa"),
    ("gpt2", "score"),
)
# The architectures of the benchmark, which alone exports. A trace takes seconds.
EXPORTED: Final = first(
    (
        ("albert", "classify"),
        ("mobilebert", "qa"),
        ("mobilebert", "fill-mask"),
        ("bert", "qa"),
        ("roberta", "qa"),
        ("distilbert", "classify"),
        ("mpnet", "fill-mask"),
        ("modernbert", "classify"),
        ("deberta_v2", "classify"),
    ),
    *(("albert", "classify"), ("mobilebert", "fill-mask")),
)


@cache
def network(architecture: str, task: Task) -> Model:
    """Returns a network whose activations are near 1. Tests must not change it."""
    model = untrained(architecture, CONFIGS[architecture], task)
    randomise(model)
    return model.eval()


@cache
def graph(architecture: str, task: Task) -> onnx.ModelProto:
    """Returns the ONNX graph of `network`. Tests must not change it."""
    return export(network(architecture, task))


def run(proto: onnx.ModelProto, batch: Rows) -> torch.Tensor:
    """Returns the rows (N, O) that ONNX Runtime computes on one thread."""
    return torch.from_numpy(_session(proto.SerializeToString()).run(["rows"], feeds(batch))[0])


def feeds(batch: Rows) -> dict[str, np.ndarray]:
    """Returns the inputs of a graph for a batch."""
    tensors = (batch.input_ids, batch.token_type_ids, batch.lengths, batch.focus)
    return {name: tensor.numpy() for name, tensor in zip(INPUTS, tensors, strict=True)}


def batch(task: Task, lengths: list[int], seed: int = 0) -> Rows:
    """Returns random sequences of these lengths. The padding is not zero, because it must not affect the outputs."""
    made = rows(task, lengths, VOCABULARY, seed)
    made.input_ids[~made.mask] = 7
    return made


def draft(architecture: str, task: Task, precision: Precision = "int8") -> Draft:
    """Returns the draft of an artifact, with the tokenizer of single characters."""
    manifest = Manifest(
        name=f"{architecture}-{task}",
        version="1",
        architecture=architecture,
        task=task,
        head=HEADS[task][0],
        precision=precision,
        max_tokens=512,
        vocab_size=VOCABULARY,
        width={"classify": LABELS, "qa": 2}.get(task, VOCABULARY),
        labels=NAMES[task],
        problem="single_label" if task == "classify" else None,
        tolerance=1.0,
        config=CONFIGS[architecture],
        source={"made": "for a test"},
    )
    return Draft(weights_of(network(architecture, task)), make_tokenizer(), manifest, {"summary": "Random weights."})


def make(directory: Path, plan: Draft, measure: Measure | None = None, **options: Any) -> Artifact:
    """Releases a draft as an artifact in a folder with its name."""
    return release(plan, directory / plan.manifest.name, measure, **options)


def encodings(task: Task) -> list[Encoding]:
    """Returns five sequences of very different lengths."""
    return [
        Encoding(row.input_ids[0].numpy(), row.token_type_ids[0].numpy(), row.focus.numpy())
        for row in batch(task, [9, 1, 33, 200, 2]).alone()
    ]


def answers(artifact: Artifact, engine: str) -> torch.Tensor:
    """Returns the rows that an engine computes for `encodings` as one batch, concatenated."""
    running = plugins.load(engines, engine).create(artifact, threads=1)
    task = cast(Task, artifact.manifest.task)
    answers = running.run(Batch.of(encodings(task)))
    running.close()
    return torch.from_numpy(np.concatenate(answers))


@cache
def _session(content: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
