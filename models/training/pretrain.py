"""Pre-training of a student: masked language modelling, and a teacher's features to imitate.

Everything made on the way lies in the run's directory, so that a run goes on where it was stopped: the smaller
vocabulary, the corpus as rows of tokens, the checkpoint, the curve of the losses.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import convert
from models.architectures import bert
from models.datasets import documents
from models.heads import MaskedLM, Model, build
from models.training import start, transfer
from models.training.loop import Schedule, train
from models.training.objectives.masked_lm import mask
from models.training.recipe import Recipe, settings
from models.training.run import claim, write
from models.training.vocabulary import SPECIALS, count_pieces, prune

COUNTED: Final = 20_000  # documents of each corpus that the vocabulary is chosen by
SAMPLED: Final = 20  # rows, about, that the student's start is fitted on
STARTS: Final = {"albert": start.start_albert, "mobilebert": start.start_mobilebert}


def pretrain(
    recipe: Recipe,
    data: Path,
    directory: Path,
    report: Callable[[str], None] = print,
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Model, Path]:
    """Trains the student's encoder and masked-LM head. Returns them, on the CPU, and the tokenizer's file.

    The recipe's corpora are read from `data`; `directory` keeps the run.
    """
    place = device or torch.device("cpu")
    claim(directory, facts(recipe))
    teacher = load_teacher(recipe.teacher)
    tokenizer, kept, counts = vocabulary(recipe, data, directory)
    start.cut_vocabulary(teacher, kept)
    rows = corpus(recipe, tokenizer, data, directory)

    torch.manual_seed(recipe.seed)
    student = build(recipe.architecture, {**recipe.config, "vocab_size": len(kept)}, "fill-mask")
    sample = torch.from_numpy(rows[:: max(1, len(rows) // SAMPLED)].astype(np.int64))
    STARTS[recipe.architecture](student, teacher, counts, sample)
    assert isinstance(student.head, MaskedLM)  # noqa: S101  # tells the type checker
    start.start_head(student.head, counts)
    work = recipe.pretraining
    order = np.random.default_rng(recipe.seed).permutation(len(rows))
    mask_id = _id(tokenizer, "[MASK]")
    teacher.to(place)

    def loss(number: int) -> dict[str, Tensor]:
        taken = order[np.arange(number * work.batch_rows, (number + 1) * work.batch_rows) % len(order)]
        batch = torch.from_numpy(rows[taken].astype(np.int64))
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + number)
        holed = mask(batch, special=len(SPECIALS), mask_id=mask_id, vocab_size=len(kept), generator=generator)
        batch, ids, focus, targets = (x.to(place) for x in (batch, holed.input_ids, holed.focus, holed.targets))
        types, real = torch.zeros_like(batch), batch > 0
        features = student.encoder.features(ids, types, real)
        logits = student.head(features[-1].flatten(0, 1)[focus], student.encoder.embeddings.word.weight)
        losses = {"mlm": nn.functional.cross_entropy(logits.float(), targets)}
        if work.feature_weight:
            with torch.no_grad():
                wanted = teacher.features(batch, types, real)
            unchanged = real & (ids == batch)
            losses["features"] = work.feature_weight * transfer.feature_loss(
                features, wanted, unchanged, range(1, len(features))
            )
        return losses

    schedule = Schedule(
        work.steps,
        work.learning_rate,
        optimiser=work.optimiser,
        accumulate=work.accumulate,
        precision=work.precision,
    )
    train(student, loss, schedule, directory, seed=recipe.seed, device=place, report=report, progress=progress)
    return student, directory / "tokenizer.json"


def facts(recipe: Recipe) -> dict[str, Any]:
    """What decides a pre-training: all of the recipe but its names and what is made of the body."""
    whole = asdict(recipe) | {"pretraining": settings(recipe.pretraining)}
    return {name: whole[name] for name in ("seed", "teacher", "vocabulary", "architecture", "config", "pretraining")}


def load_teacher(package: str) -> bert.Encoder:
    """The encoder of a BERT checkpoint that an installed package carries under `model/`.

    Raises:
        convert.ConversionError: the package is not installed, or holds no such checkpoint.
    """
    converted = convert.convert(package_model(package), "fill-mask", encoder_only=True)
    encoder = converted.model.encoder
    assert isinstance(encoder, bert.Encoder)  # noqa: S101  # tells the type checker
    return encoder.requires_grad_(False)


def package_model(package: str) -> Path:
    """The `model/` folder of an installed package.

    Raises:
        convert.ConversionError: the package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise convert.ConversionError(f"the teacher's package {package} is not installed.")
    return Path(spec.origin).parent / "model"


def vocabulary(recipe: Recipe, data: Path, directory: Path) -> tuple[tokenizers.Tokenizer, list[int], Tensor]:
    """The tokenizer, the teacher's id of each of its pieces, and how often each occurs in the corpora."""
    path, notes = directory / "tokenizer.json", directory / "vocabulary.json"
    if not notes.is_file():
        whole = tokenizers.Tokenizer.from_file(str(package_model(recipe.teacher) / "tokenizer.json"))
        whole.no_truncation()
        whole.no_padding()
        texts = (text for name in recipe.pretraining.corpora for text in islice(documents(data / name), COUNTED))
        counts = count_pieces(whole, texts)
        small, kept = prune(whole, counts, recipe.vocabulary)
        by_id = [counts[whole.id_to_token(number) or ""] for number in kept]
        small.save(str(path))
        text = json.dumps({"kept": kept, "counts": by_id})
        write(notes, lambda file: file.write(text.encode()))
    document = json.loads(notes.read_text())
    return tokenizers.Tokenizer.from_file(str(path)), document["kept"], torch.tensor(document["counts"]).float()


def corpus(recipe: Recipe, tokenizer: tokenizers.Tokenizer, data: Path, directory: Path) -> NDArray[np.uint16]:
    """The corpora as rows of tokens (R, S): [CLS], running text, [SEP]; what is left at a document's end is dropped."""
    path = directory / "rows.npy"
    if not path.is_file():
        work = recipe.pretraining
        parts = [
            np.array(list(islice(_rows(tokenizer, data / name, work.row_tokens), count)), dtype=np.uint16)
            for name, count in work.corpora.items()
        ]
        made = np.concatenate(parts)
        write(path, lambda file: np.save(file, made))
    rows: NDArray[np.uint16] = np.load(path, mmap_mode="r")
    return rows


def _rows(tokenizer: tokenizers.Tokenizer, path: Path, length: int) -> Iterator[list[int]]:
    start, end = _id(tokenizer, "[CLS]"), _id(tokenizer, "[SEP]")
    texts = documents(path)
    while chunk := list(islice(texts, 200)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            ids = encoding.ids
            for at in range(0, len(ids) - (length - 2) + 1, length - 2):
                yield [start, *ids[at : at + length - 2], end]


def _id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    assert number is not None, token  # noqa: S101  # `prune` keeps every special token
    return number
