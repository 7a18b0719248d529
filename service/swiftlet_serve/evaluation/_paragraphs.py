"""Running text of an evaluation: some paragraphs of each document."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from swiftlet_models import datasets
from swiftlet_models.encodings import TokenizedText
from swiftlet_models.tokenizer import Tokenizer

LENGTHS: Final = range(200, 1200)  # characters of a paragraph
PARAGRAPHS: Final = 3  # of one document


def paragraphs(
    data: Path, skip: int, stop: int | None, tokenizer: Tokenizer, max_tokens: int
) -> Iterator[tuple[int, str, TokenizedText]]:
    """Yields the first paragraphs of each document that fit the model: the document's number, the text, its tokens."""
    for number, document in enumerate(islice(datasets.documents(data), skip, stop)):
        for text in [text for text in document.split("\n") if len(text) in LENGTHS][:PARAGRAPHS]:
            (tokens,) = tokenizer.tokenize([text])
            if len(tokens) + tokenizer.special_count(pair=False) <= max_tokens:
                yield number, text, tokens
