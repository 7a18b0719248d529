"""The texts of tokens, against the decoders of the tokenizers library."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from swiftlet_models.piece_texts import PieceTexts

SPACES = [decoders.Replace(text, text.strip()) for text in (" .", " n't", " ' ")]
TOKENS = [
    "[CLS]",
    "a",
    "##b",
    "##",
    "n",
    "'",
    "t",
    "##'t",
    ".",
    "▁",
    "▁a",
    "▁▁",
    "b▁",
    "Ġ",
    "Ġa",
    "é",
    "Ã",
    "©",
    "ð",
    " c",
    "",
]
DECODERS = {
    "WordPiece": decoders.WordPiece(cleanup=False),
    "WordPiece, cleaned": decoders.WordPiece(),
    "WordPiece, replaced": decoders.Sequence([decoders.WordPiece(cleanup=False), decoders.Fuse(), *SPACES]),
    "Metaspace": decoders.Metaspace(),
    "Metaspace, never": decoders.Metaspace(prepend_scheme="never"),
    "Metaspace, replaced": decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), *SPACES]),
    "ByteLevel": decoders.ByteLevel(),
    "ByteLevel, replaced": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), *SPACES]),
}


def make(decoder: Any) -> tuple[tokenizers.Tokenizer, PieceTexts | None]:
    model = tokenizers.models.WordLevel({token: number for number, token in enumerate(TOKENS)}, unk_token="a")
    library = tokenizers.Tokenizer(model)
    if decoder is not None:
        library.decoder = decoder
    return library, PieceTexts.of(json.loads(library.to_str()), library.id_to_token)


MADE = {name: make(decoder) for name, decoder in DECODERS.items()}


@pytest.mark.parametrize("name", list(DECODERS))
@given(ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12))
def test_texts_equal_the_library(name: str, ids: Sequence[int]) -> None:
    library, texts = MADE[name]
    assert texts is not None
    expected = library.decode(list(ids), skip_special_tokens=False)
    found = texts.write(ids)
    broken = any("\ufffd" in library.decode([number]) for number in ids)
    assert found == (None if broken else expected)


@pytest.mark.parametrize("name", list(DECODERS))
def test_a_sequence_with_an_unknown_id_has_no_text(name: str) -> None:
    _, texts = MADE[name]
    assert texts is not None
    assert texts.write([1, len(TOKENS)]) is None
    assert texts.write([len(TOKENS), 1]) is None


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.BPEDecoder(),
        decoders.Sequence([]),
        decoders.Sequence([decoders.WordPiece(), decoders.Fuse(), decoders.Replace("", "-")]),
        decoders.Metaspace(replacement="a"),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.WordPiece(), *SPACES]),  # replaces within tokens
        decoders.Sequence([decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    ],
)
def test_other_decoders_are_left_to_the_library(decoder: Any) -> None:
    assert make(decoder)[1] is None


def test_replacements_are_made_across_tokens() -> None:
    _, texts = MADE["WordPiece, replaced"]
    assert texts is not None
    ids = [TOKENS.index(token) for token in ("a", "n", "##'t", "'", "t", ".")]
    assert texts.write(ids) == "an't't."
    assert texts.join(ids) == "a n't ' t ."
