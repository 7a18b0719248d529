"""The corpus of a pre-training: the vocabulary, and the text as sequences of tokens.

Both are kept in the run's directory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from swiftlet_models.datasets import documents
from swiftlet_train.loop.run_directory import (
    write_array_atomically,
    write_atomically,
    write_text_atomically,
)
from swiftlet_train.pretraining import input_formats
from swiftlet_train.pretraining.objectives.sentence_pairs import split_segments
from swiftlet_train.recipe import Recipe, RecipeError, TokenizerTraining
from swiftlet_train.teachers.encoders import load_teacher_tokenizer
from swiftlet_train.vocabulary.pruning import count_pieces, prune
from swiftlet_train.vocabulary.tokenizer_training import train_unigram, train_wordpiece

TOKENIZER_FILE: Final = "tokenizer.json"  # in a run's directory
COUNTS_FILE: Final = "vocabulary.json"
SEQUENCES_FILE: Final = "sequences.npy"
DOCUMENTS_FILE: Final = "documents.npy"
SENTENCE_ENDS: Final = (".", "?", "!")
PRUNING_DOCUMENTS: Final = 20_000  # documents per corpus that decide a pruned vocabulary
TRAINING_CHARACTERS: Final = 10_000_000  # characters per corpus that train a tokenizer; limits large corpora's weight
TRAINERS: Final = {"wordpiece": train_wordpiece, "unigram": train_unigram}


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokenizer of a pre-training."""

    tokenizer: tokenizers.Tokenizer
    kept: list[int]
    """The teacher's id of each piece, or the piece's own id if there is no teacher."""
    counts: Tensor
    """The number of occurrences of each piece in the corpora, (V,)."""


def prepare_vocabulary(recipe: Recipe, data: Path, directory: Path) -> Vocabulary:
    """Prunes the teacher's vocabulary or trains a tokenizer. Later calls load the result from the directory.

    Raises:
        RecipeError: the corpora give no vocabulary of the recipe's size.
    """
    path, notes = directory / TOKENIZER_FILE, directory / COUNTS_FILE
    if not notes.is_file():
        paths = [data / name for name in recipe.pretraining.corpora]
        try:
            if recipe.tokenizer is not None:
                tokenizer, counts = _train_tokenizer(recipe.tokenizer, paths, recipe.vocab_size)
                kept = list(range(tokenizer.get_vocab_size()))
            else:
                tokenizer, kept, counts = _prune_teacher(recipe, paths)
        except ValueError as error:
            raise RecipeError(str(error)) from None
        by_id = [counts[tokenizer.id_to_token(number) or ""] for number in range(len(kept))]
        tokenizer.save(str(path))
        write_text_atomically(notes, json.dumps({"kept": kept, "counts": by_id}))
    document = json.loads(notes.read_text())
    counts_by_id = torch.tensor(document["counts"]).float()
    return Vocabulary(tokenizers.Tokenizer.from_file(str(path)), document["kept"], counts_by_id)


def copy_vocabulary(source: Path, directory: Path) -> None:
    """Copies the vocabulary of a run to another one that has the same, unless that has it already."""
    if (source / COUNTS_FILE).is_file() and not (directory / COUNTS_FILE).is_file():
        directory.mkdir(parents=True, exist_ok=True)
        for name in (TOKENIZER_FILE, COUNTS_FILE):  # the counts last: they mark a complete vocabulary
            write_atomically(directory / name, partial(_write, (source / name).read_bytes()))


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _prune_teacher(recipe: Recipe, paths: Sequence[Path]) -> tuple[tokenizers.Tokenizer, list[int], Counter[str]]:
    tokenizer = load_teacher_tokenizer(recipe.teacher)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    counts = count_pieces(tokenizer, (text for path in paths for text in islice(documents(path), PRUNING_DOCUMENTS)))
    pruned, kept = prune(tokenizer, counts, recipe.vocab_size, recipe.min_character_count)
    return pruned, kept, counts


def _train_tokenizer(
    settings: TokenizerTraining, paths: Sequence[Path], size: int
) -> tuple[tokenizers.Tokenizer, Counter[str]]:
    texts = [text for path in paths for text in _take_characters(documents(path), TRAINING_CHARACTERS)]
    tokenizer = TRAINERS[settings.kind](
        texts,
        size,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
        character_coverage=settings.character_coverage,
    )
    return tokenizer, count_pieces(tokenizer, texts)


def _take_characters(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yields texts until they have this many characters. The last text is not cut."""
    for text in texts:
        yield text
        characters -= len(text)
        if characters <= 0:
            return


def prepare_sequences(
    recipe: Recipe, tokenizer: tokenizers.Tokenizer, data: Path, directory: Path
) -> NDArray[np.uint16]:
    """Encodes the corpora as sequences of tokens (R, S): [CLS], text, [SEP]. Padding is 0.

    The input format decides the texts. For `blocks`, the incomplete sequence at the end of a document is dropped. The
    texts of a .tsv file are mostly shorter than a sequence, so `blocks` concatenates them with [SEP] between them.
    Later calls load the result from the directory, which also holds the number of each sequence's document, except for
    `blocks`.

    Raises:
        RecipeError: the corpora hold no text of this format.
    """
    path, work = directory / SEQUENCES_FILE, recipe.pretraining
    if not path.is_file():
        if work.input_format == "blocks":
            parts = [
                np.array(list(islice(_encode(tokenizer, data / name, work.sequence_length), count)), dtype=np.uint16)
                for name, count in work.corpora.items()
            ]
            concatenated = np.concatenate(parts)
        else:
            concatenated, numbers = _pack(recipe, tokenizer, data)
            write_array_atomically(directory / DOCUMENTS_FILE, numbers)
        write_array_atomically(path, concatenated)
    sequences: NDArray[np.uint16] = np.load(path, mmap_mode="r")
    return sequences


def load_documents(directory: Path) -> NDArray[np.int64] | None:
    """Loads the number of each sequence's document, (R,), which `prepare_sequences` wrote. None for `blocks`."""
    path = directory / DOCUMENTS_FILE
    numbers: NDArray[np.int64] | None = np.load(path) if path.is_file() else None
    return numbers


def _pack(recipe: Recipe, tokenizer: tokenizers.Tokenizer, data: Path) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """Returns the sequences (R, S) of an input format, and the number of each one's document, (R,)."""
    work, layout = recipe.pretraining, input_formats.load(recipe.pretraining.input_format)
    cls, sep, ends = special_id(tokenizer, "[CLS]"), special_id(tokenizer, "[SEP]"), find_sentence_ends(tokenizer)
    longest, first = layout.max_segment(work.sequence_length), 0
    rows, numbers = list[NDArray[np.uint16]](), list[int]()
    for name, count in work.corpora.items():
        encoded = encode_documents(tokenizer, data / name)
        # A cut sentence would tell the order of a pair, so pairs leave out long ones.
        split = (
            split_segments(torch.tensor(ids), ends, len(ids) if layout.PAIRS else longest) for ids in encoded if ids
        )
        for text in islice(layout.pack(split, work.sequence_length, sep), count):
            row = np.zeros(work.sequence_length, np.uint16)
            row[: len(text.ids) + 2] = [cls, *text.ids.tolist(), sep]
            rows.append(row)
            numbers.append(first + text.document)
        first = numbers[-1] + 1 if numbers else 0
    if not rows:
        raise RecipeError(f"the corpora hold no text for the input_format {work.input_format}.")
    return np.stack(rows), np.array(numbers, np.int64)


def encode_documents(tokenizer: tokenizers.Tokenizer, path: Path) -> Iterator[list[int]]:
    """Yields the ids of each document of a corpus, without special tokens."""
    texts = documents(path)
    while chunk := list(islice(texts, 200)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            yield encoding.ids


def _encode(tokenizer: tokenizers.Tokenizer, path: Path, length: int) -> Iterator[list[int]]:
    cls, sep, inner = special_id(tokenizer, "[CLS]"), special_id(tokenizer, "[SEP]"), length - 2
    concatenates, rest = path.suffix == ".tsv", list[int]()
    for encoded in encode_documents(tokenizer, path):
        ids = [*rest, *encoded]
        complete = len(ids) - len(ids) % inner
        for start in range(0, complete, inner):
            yield [cls, *ids[start : start + inner], sep]
        rest = [*ids[complete:], sep] if concatenates and ids[complete:] else []


def find_sentence_ends(tokenizer: tokenizers.Tokenizer) -> Tensor:
    """Returns which pieces end a sentence, (V,)."""
    is_end = torch.zeros(tokenizer.get_vocab_size(), dtype=torch.bool)
    ends = map(tokenizer.token_to_id, SENTENCE_ENDS)
    is_end[[number for number in ends if number is not None]] = True
    return is_end


def special_id(tokenizer: tokenizers.Tokenizer, token: str) -> int:
    """Returns the id of a special token. Every vocabulary has all of them."""
    number = tokenizer.token_to_id(token)
    assert number is not None, token  # noqa: S101  # for the type checker
    return number
