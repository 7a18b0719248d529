"""Training of an embedding model to imitate the vectors of a teacher (Reimers and Gurevych 2020, arXiv:2004.09813).

The teacher is the recipe's, with its own tokenizer and pooling. Its vectors are computed once and kept in the run's
directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from swiftlet_models import convert
from swiftlet_models import sentence_transformers as sentences
from swiftlet_models.heads import Model, build, fill
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.batches import make_batches
from swiftlet_train.examples.example import Example, unlabelled
from swiftlet_train.examples.sentences import read_sentences
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.task_training import Run, train_on_batches
from swiftlet_train.loop.run_directory import claim_directory, write_array_atomically
from swiftlet_train.loop.trainer import Losses
from swiftlet_train.recipe import Finetuning, Recipe, RecipeError
from swiftlet_train.teachers.encoders import find_checkpoint

VECTORS_FILE: Final = "vectors.npy"  # in the folder `teacher` of the run's directory; fp16, (N, H)

Vectors = NDArray[np.float16]


def train_on_vectors(
    model: Model, recipe: Recipe, work: Finetuning, tokenizer: Tokenizer, data: Path, run: Run
) -> None:
    """Trains an embedding model on the sentences of the recipe.

    Raises:
        RecipeError: the teacher is no embedding model, or its vectors have another width.
        DatasetError: a file is damaged or not a text.
    """
    texts = read_sentences(work, data)
    vectors = teacher_vectors(recipe.teacher, texts, work, run)
    if vectors.shape[1] != model.encoder.config.hidden_size:
        raise RecipeError(f"the teacher's vectors have {vectors.shape[1]} numbers: set hidden_size to that.")
    examples = unlabelled(tokenizer.encode(texts, work.max_tokens))

    def batch_losses(numbers: Sequence[int]) -> Losses:
        ours = task_logits(model, [examples[i] for i in numbers])
        theirs = torch.from_numpy(vectors[numbers].astype(np.float32)).to(ours.device)
        return {"distance": vector_distance(ours, theirs)}

    train_on_batches(model, examples, batch_losses, work, recipe.seed, run)


def vector_distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """Returns one minus the mean cosine of vectors (B, H) with the teacher's."""
    return 1 - F.cosine_similarity(ours, theirs).mean()


def teacher_vectors(package: str, texts: Sequence[str], work: Finetuning, run: Run) -> Vectors:
    """Returns the teacher's vector of each text, from the run's directory if it has them.

    Raises:
        RecipeError: the teacher is no embedding model, or the directory holds the vectors of other texts.
    """
    digest = hashlib.sha256("\0".join(texts).encode())
    claim_directory(run.directory / "teacher", {"teacher": package, "texts": digest.hexdigest()})
    path = run.directory / "teacher" / VECTORS_FILE
    if not path.is_file():
        model, tokenizer, max_tokens = load_sentence_teacher(package)
        run.report(f"teacher: computing the vectors of {len(texts)} sentences")
        examples = unlabelled(tokenizer.encode(texts, min(max_tokens, work.max_tokens)))
        with torch.autocast(run.device.type, torch.bfloat16, enabled=work.precision == "bf16"):
            vectors = compute_vectors(model, examples, work.batch_size, run)
        write_array_atomically(path, vectors)
    stored: Vectors = np.load(path, mmap_mode="r")
    return stored


def load_sentence_teacher(package: str) -> tuple[Model, Tokenizer, int]:
    """Loads a teacher with its own tokenizer and its token limit.

    Raises:
        RecipeError: the package holds no embedding model of sentence-transformers.
    """
    directory = find_checkpoint(package)
    if not sentences.is_encoder(directory):
        raise RecipeError(f"the teacher's package {package} holds no embedding model of sentence-transformers.")
    encoder = sentences.read_encoder(directory)
    with convert.convert(
        encoder.checkpoint, "embedding", "hidden", embedding=encoder.embedding, parameters=encoder.dense
    ) as converted:
        model = fill(build(*converted.network), converted.weights)
    max_tokens = min(model.encoder.max_tokens, encoder.max_tokens or model.encoder.max_tokens)
    return model, Tokenizer.from_directory(encoder.checkpoint), max_tokens


@torch.inference_mode()
def compute_vectors(model: Model, examples: Sequence[Example], batch_size: int, run: Run) -> Vectors:
    """Returns the vectors of examples, (N, H), with length 1."""
    model.to(run.device).eval()
    vectors: dict[int, Vectors] = {}
    batches = make_batches(examples, batch_size, seed=0)
    for done, numbers in enumerate(batches, start=1):
        rows = task_logits(model, [examples[i] for i in numbers])
        vectors |= zip(numbers, F.normalize(rows.float()).half().cpu().numpy(), strict=True)
        if run.progress is not None:
            run.progress(done, len(batches))
    return np.stack([vectors[i] for i in range(len(examples))])
