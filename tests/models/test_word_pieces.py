"""Word pieces of ASCII texts are those of the tokenizers library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from swiftlet_models.word_pieces import MAX_CHARACTERS, WordPieces
from tests.goldens import cases

VOCAB = (cases.HERE / "vocab.txt").read_text("utf-8").splitlines()
PRINTABLE = "".join(map(chr, range(32, 127)))
WORDS = [word for word in VOCAB if word.isascii() and word.isalnum()]


def document(vocab: list[str] = VOCAB, *, lowercase: bool = True, **model: Any) -> dict[str, Any]:
    """Returns the tokenizer.json of a BERT tokenizer."""
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase)
    pieces = tokenizers.models.WordPiece(
        {word: i for i, word in enumerate(vocab)}, unk_token="[UNK]", max_input_chars_per_word=100
    )
    tokenizer = tokenizers.Tokenizer(pieces)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    found["model"] |= model
    return found


def library(described: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the library's tokenizer, which treats special tokens as text."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
    tokenizer.encode_special_tokens = True
    return tokenizer


CASES = {
    "uncased": document(),
    "cased": document(lowercase=False),
    "short words": document(max_input_chars_per_word=5),
    "letters": document(["[UNK]", *"abcdefghijkl", *(f"##{letter}" for letter in "abcdefghijkl"), "##ab", "abc", "ab"]),
}
LIBRARIES = {name: library(described) for name, described in CASES.items()}
TEXTS = st.one_of(
    st.text(PRINTABLE, max_size=60),
    st.lists(st.one_of(st.sampled_from(WORDS), st.text("abcdefghijklm", min_size=1, max_size=30)), max_size=12).map(
        " ".join
    ),
)


@pytest.mark.parametrize("name", CASES)
@given(text=TEXTS)
@example("Don't [CLS] stop-me [UNK]; it's 3.14 @home!")
@example("a" * 101 + " " + "b" * 100)
@example("")
def test_word_pieces_equal_those_of_the_library(name: str, text: str) -> None:
    expected = LIBRARIES[name].encode(text, add_special_tokens=False).ids

    pieces = WordPieces.of(CASES[name])

    assert pieces is not None
    assert pieces.encode(text) == expected


@pytest.mark.parametrize("text", ["é", "a\tb", "a\nb", "a\0b", "中", "\x7f", "a" * (MAX_CHARACTERS + 1)])
def test_word_pieces_leave_other_texts_to_the_library(text: str) -> None:
    pieces = WordPieces.of(CASES["uncased"])

    assert pieces is not None
    assert pieces.encode(text) is None


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "NFC"}},
        {"normalizer": {**CASES["uncased"]["normalizer"], "clean_text": False}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"type": "BPE"}},
        {"added_tokens": [{**CASES["uncased"]["added_tokens"][0], "special": False}]},
    ],
)
def test_word_pieces_support_bert_tokenizers_only(change: dict[str, Any]) -> None:
    assert WordPieces.of(CASES["uncased"] | change) is None
