"""What a pre-training reads: text as rows of tokens, in a vocabulary cut from the teacher's or made of the text.

Both are kept in the run's directory.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from swiftlet_serve.models import convert
from swiftlet_serve.models.architectures import bert
from swiftlet_serve.models.datasets import documents
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, Tokenisation
from swiftlet_serve.models.training.run import write, write_text
from swiftlet_serve.models.training.tokenizer import train_unigram, train_wordpiece
from swiftlet_serve.models.training.vocabulary import count_pieces, prune

COUNTED: Final = 20_000  # documents of each corpus that the vocabulary is chosen by
LEARNT: Final = 10_000_000  # characters of each corpus that a vocabulary is made of: a small corpus counts as well
TRAINERS: Final = {"wordpiece": train_wordpiece, "unigram": train_unigram}


def load_teacher(package: str) -> bert.Encoder:
    """The encoder of a BERT checkpoint that an installed package carries under `model/`.

    Raises:
        convert.ConversionError: the package is not installed, or holds no such checkpoint.
    """
    converted = convert.convert(package_model(package), "masked_lm", "vocabulary", encoder_only=True)
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
    """The tokenizer, the teacher's id of each of its pieces (or its own), and how often each occurs in the corpora.

    Raises:
        RecipeError: no vocabulary of that size can be made of the corpora.
    """
    path, notes = directory / "tokenizer.json", directory / "vocabulary.json"
    if not notes.is_file():
        paths = [data / name for name in recipe.pretraining.corpora]
        try:
            if recipe.tokenizer is not None:
                small, counts = _make(recipe.tokenizer, paths, recipe.vocabulary)
                kept = list(range(small.get_vocab_size()))
            else:
                small, kept, counts = _cut(recipe.teacher, paths, recipe.vocabulary)
        except ValueError as error:
            raise RecipeError(str(error)) from None
        by_id = [counts[small.id_to_token(number) or ""] for number in range(len(kept))]
        small.save(str(path))
        write_text(notes, json.dumps({"kept": kept, "counts": by_id}))
    document = json.loads(notes.read_text())
    return tokenizers.Tokenizer.from_file(str(path)), document["kept"], torch.tensor(document["counts"]).float()


def _cut(teacher: str, paths: Sequence[Path], size: int) -> tuple[tokenizers.Tokenizer, list[int], Counter[str]]:
    whole = tokenizers.Tokenizer.from_file(str(package_model(teacher) / "tokenizer.json"))
    whole.no_truncation()
    whole.no_padding()
    counts = count_pieces(whole, (text for path in paths for text in islice(documents(path), COUNTED)))
    small, kept = prune(whole, counts, size)
    return small, kept, counts


def _make(how: Tokenisation, paths: Sequence[Path], size: int) -> tuple[tokenizers.Tokenizer, Counter[str]]:
    texts = [text for path in paths for text in _first(documents(path), LEARNT)]
    train = TRAINERS[how.kind]
    made = train(texts, size, lowercase=how.lowercase, strip_accents=how.strip_accents, coverage=how.coverage)
    return made, count_pieces(made, texts)


def _first(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Texts up to so many characters, and the one that goes beyond."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def corpus(recipe: Recipe, tokenizer: tokenizers.Tokenizer, data: Path, directory: Path) -> NDArray[np.uint16]:
    """The corpora as rows of tokens (R, S): [CLS], running text, [SEP].

    What is left at a document's end is dropped. But the texts of a table (.tsv) are mostly shorter than a row: they
    are strung together, with [SEP] between them.
    """
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
    start, end, room = token_id(tokenizer, "[CLS]"), token_id(tokenizer, "[SEP]"), length - 2
    texts, strung, left = documents(path), path.suffix == ".tsv", list[int]()
    while chunk := list(islice(texts, 200)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            ids = [*left, *encoding.ids]
            whole = len(ids) - len(ids) % room
            for at in range(0, whole, room):
                yield [start, *ids[at : at + room], end]
            left = [*ids[whole:], end] if strung and ids[whole:] else []


def token_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    """The id of a special token."""
    number = tokenizer.token_to_id(token)
    assert number is not None, token  # noqa: S101  # every vocabulary has all special tokens
    return number
