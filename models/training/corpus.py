"""What a pre-training reads: text as rows of tokens, in a vocabulary cut from the teacher's.

Both are kept in the run's directory.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from models import convert
from models.architectures import bert
from models.datasets import documents
from models.training.recipe import Recipe
from models.training.run import write, write_text
from models.training.vocabulary import count_pieces, prune

COUNTED: Final = 20_000  # documents of each corpus that the vocabulary is chosen by


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
        write_text(notes, json.dumps({"kept": kept, "counts": by_id}))
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
    start, end = token_id(tokenizer, "[CLS]"), token_id(tokenizer, "[SEP]")
    texts = documents(path)
    while chunk := list(islice(texts, 200)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            ids = encoding.ids
            for at in range(0, len(ids) - (length - 2) + 1, length - 2):
                yield [start, *ids[at : at + length - 2], end]


def token_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    """The id of a special token."""
    number = tokenizer.token_to_id(token)
    assert number is not None, token  # noqa: S101  # `prune` keeps every special token
    return number
