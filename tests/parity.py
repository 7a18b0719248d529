"""Measures how far each engine's rows are from those of transformers, and writes the tables of the documentation.

    python -m tests.parity

A second table compares vectors with those of sentence-transformers (`tests/support/embedding_parity.py`).

The checkpoints are small and have random weights, with activations near 1. A difference is the Euclidean length of a
row's error relative to the root mean square length of all rows. The table holds the largest of any row. The sequences
have 1 to 40 tokens. transformers computes each of them alone, and the engines compute all of them in one batch.
"""

from __future__ import annotations

import platform
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import sentence_transformers
import torch
import transformers
from torch import Tensor

from swiftlet_models.convert import ConvertedCheckpoint
from swiftlet_models.encodings import Encoding
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32, of_int8
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx, adds_in_32_bits
from swiftlet_serve.types import Batch
from tests.goldens import cases
from tests.support import embedding_parity, standard_checkpoints
from tests.support.checkpoints import (
    FIRST_ID,
    TASKS,
    Shape,
    Task,
    conversion,
    our_rows,
    reference,
    relative_error,
    rows,
)
from tests.support.native_kernels import CONFIGS, STANDARD, weights
from tests.support.paths import ROOT

OPTIONS_OF_FAMILIES: Final = ({"normalize": True}, {"normalize": True, "prompt_name": "query"})
PAGE: Final = ROOT / "loadtest/results/parity.md"
LENGTHS: Final = (40, 1, 2, 17, 39, 8)
# Settings that transformers has instead, or that must fit the small vocabulary.
OTHERS: Final[dict[str, dict[str, Any]]] = {
    "deberta_v2": {"pos_att_type": ["c2p", "p2c"]},
    "modernbert": dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
_IDS: Final = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
SHAPES: Final = {
    **{name: Shape(name, settings | OTHERS.get(name, {})) for name, settings in CONFIGS.items()},
    "xlm_roberta": Shape("xlm_roberta", CONFIGS["roberta"]),
    "camembert": Shape("camembert", CONFIGS["roberta"]),
    **{
        name: Shape(name, {**_IDS, "tie_word_embeddings": True, **STANDARD[name]})
        for name in ("eurobert", "qwen2", "qwen3")
    },
    **{name: Shape(name, {**_IDS, **STANDARD["gte"]}) for name in ("gte", "jina_embeddings_v3", "nomic_bert")},
}
CAUSAL_TASKS: Final[tuple[Task, ...]] = ("classify", "qa", "score")
ENCODER_TASKS: Final[tuple[Task, ...]] = (*TASKS, "entities")
NO_QUESTIONS: Final = ("eurobert", "gte", "nomic_bert")  # transformers has no class for them
CASES: Final = [
    (name, task)
    for name in sorted(SHAPES)
    for task in (CAUSAL_TASKS if name in ("gpt2", "qwen2", "qwen3") else ENCODER_TASKS)
    if task != "qa" or name not in NO_QUESTIONS
]


def differences(shape: Shape, task: Task) -> list[float]:
    """Returns the differences of torch, of onnx_cpu in fp32 and in int8, and of native.

    A difference is NaN if there is no kernel for this CPU.
    """
    model = reference(shape, task)
    converted = conversion(model, task)
    batch = rows(task, LENGTHS, converted.model.encoder.config.vocab_size)
    if task == "classify" and converted.model.encoder.config.traits().causal:
        batch.focus.copy_(torch.arange(len(LENGTHS)) * batch.input_ids.shape[1] + batch.lengths - 1)
    alone = batch.alone()
    assert int(batch.input_ids[batch.mask].min()) >= FIRST_ID
    expected = torch.cat([_expected(model, task, one.input_ids, one.token_type_ids, one.focus) for one in alone])
    encodings = [Encoding(one.input_ids[0].numpy(), one.token_type_ids[0].numpy(), one.focus.numpy()) for one in alone]
    found = [our_rows(converted.model, batch), *_engine_rows(converted, Batch.of(encodings))]
    return [float("nan") if one is None else relative_error(one, expected) for one in found]


@torch.no_grad()
def _expected(model: Any, task: Task, ids: Tensor, types: Tensor, focus: Tensor) -> Tensor:
    """Returns the rows that transformers computes for one sequence."""
    out = model(input_ids=ids, **({"token_type_ids": types} if getattr(model.config, "type_vocab_size", 1) > 1 else {}))
    if task == "classify":
        return out.logits  # type: ignore[no-any-return]
    logits = torch.stack([out.start_logits, out.end_logits], -1) if task == "qa" else out.logits
    return logits[0][focus]  # type: ignore[no-any-return]


def _engine_rows(converted: ConvertedCheckpoint, batch: Batch) -> Iterator[Tensor | None]:
    folded = fold(converted.architecture, converted.config, weights(converted.model))
    library = _kernel_selection.best()
    engines = [RaggedOnnx(folded, multiply, 1) for multiply in (in_fp32, of_int8(folded, signed=adds_in_32_bits()))]
    for engine in [*engines, None if library is None else Native(library, folded)]:
        yield None if engine is None else torch.from_numpy(np.concatenate(engine.run(batch)))


def table() -> list[Sequence[str]]:
    """Returns a row of the table for each architecture and task."""
    return [[name, task, *(f"{value:.1e}" for value in differences(SHAPES[name], task))] for name, task in CASES]


def embedding_table() -> Iterator[Sequence[str]]:
    """Yields a row for each model: the largest differences of torch and of onnx_cpu in fp32, of any option."""
    made = [("bert", pooling, partial(embedding_parity.save, pooling=pooling)) for pooling in ("cls", "mean", "max")]
    made += [
        (name, pooling, partial(embedding_parity.save_standard, name=name))
        for name, (_, _, _, pooling, _) in standard_checkpoints.MODELS.items()
    ]
    for name, pooling, save in made:
        with tempfile.TemporaryDirectory() as directory:
            model, artifact = save(Path(directory))
            largest = dict.fromkeys(("torch", "onnx_cpu"), 0.0)
            for options in embedding_parity.OPTIONS if name == "bert" else OPTIONS_OF_FAMILIES:
                wanted = embedding_parity.expected(model, options)
                for engine in largest:
                    found = embedding_parity.vectors(artifact, engine, options)
                    largest[engine] = max(largest[engine], embedding_parity.difference(found, wanted))
        yield [name, "embed", pooling, *(f"{value:.1e}" for value in largest.values())]


def golden_table() -> Iterator[Sequence[str]]:
    """Yields a row for each task: the recorded calls of the pipelines, which the tests of tasks compare."""
    calls: Counter[str] = Counter()
    for file in sorted(cases.HERE.glob("*.npz")):
        if not file.stem.startswith("tokens"):
            calls[file.stem.partition("-")[0].replace("_", "-")] += len(np.load(file)["counts"])
    for task, count in calls.items():
        yield [task, f"{count:,}"]


def in_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows]) + "\n"


def main() -> None:
    header = ["architecture", "task", "torch, fp32", "onnx_cpu, fp32", "onnx_cpu, int8", "native, int8"]
    kernel = _kernel_selection.select().library
    text = f"""# Parity with transformers

The largest difference of a row from the row that transformers computes, relative to the root mean square length of the
rows. Small networks with random weights; sequences of 1 to 40 tokens, which the engines compute as one batch.

Measured by `python -m tests.parity` with transformers {transformers.__version__}, torch {torch.__version__},
{platform.machine()}, the kernel {kernel.kernel if kernel else "of no instruction set"}.

{in_markdown(header, table())}
## Parity with sentence-transformers

The largest difference of a number of a vector from that of `SentenceTransformer.encode`, relative to the largest number
of all vectors if that is above 1. {len(embedding_parity.texts()):,} texts: English and Korean sentences, long texts,
emoji, combining marks, control characters and special tokens, with and without normalisation and prompts, and with
three numbers of dimensions (networks other than BERT with fewer options). Small models with random weights, each with
the tokenizer of its family. T5 differs in one text, which spells `<pad>`: Swiftlet reads it as text, and the vocabulary
of transformers has it as a piece.

sentence-transformers {sentence_transformers.__version__}.

{in_markdown(["architecture", "task", "pooling", "torch, fp32", "onnx_cpu, fp32"], embedding_table())}
## Parity with the pipelines

Calls whose answers were recorded from the pipelines of transformers 4.57.1 (`tests/goldens`). The tests of the tasks
make each of them: labels, spans, tokens and words are equal, and scores differ by at most 0.0001.

{in_markdown(["task", "calls"], golden_table())}"""
    Path(PAGE).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
