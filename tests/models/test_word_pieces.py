"""Word pieces are those of the tokenizers library, or a text is left to it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from swiftlet_models import word_pieces
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.word_pieces import BLOCK, WordPieces
from tests.goldens import cases
from tests.support.tiers import first

VOCAB = (cases.HERE / "vocab.txt").read_text("utf-8").splitlines()
LETTERS = [
    "[UNK]",
    *"abcdefghijklé中ㅎ",
    *(f"##{letter}" for letter in "abcdefghijklé中"),
    "##ab",
    "abc",
    "ab",
    "a" * 90,
]
MOVING = "\u302e"  # a mark that stays in the text and may change places with other marks


def document(vocab: list[str] = VOCAB, model: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Returns the tokenizer.json of a BERT tokenizer."""
    normalizer = tokenizers.normalizers.BertNormalizer(**options)
    pieces = tokenizers.models.WordPiece(
        {word: i for i, word in enumerate(vocab)}, unk_token="[UNK]", max_input_chars_per_word=100
    )
    tokenizer = tokenizers.Tokenizer(pieces)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    found["model"] |= model or {}
    return found


def without_accents(described: dict[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer.json that leaves out whether accents are stripped."""
    del described["normalizer"]["strip_accents"]
    return described


def library(described: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the library's tokenizer, which treats special tokens as text."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(described))
    tokenizer.encode_special_tokens = True
    return tokenizer


def own(described: dict[str, Any]) -> WordPieces:
    made = WordPieces.of(described, library(described))
    if made is None:
        pytest.skip("the word pieces are not compiled")
    return made


CASES = {
    "uncased": document(),
    "cased": document(lowercase=False),
    "accents": document(strip_accents=False),
    "cased without accents": document(lowercase=False, strip_accents=True),
    "control characters": document(clean_text=False),
    "no ideographs": document(handle_chinese_chars=False),
    "accents as usual": without_accents(document()),
    "short words": document(model={"max_input_chars_per_word": 5}),
    "long words": document(LETTERS, {"max_input_chars_per_word": 1000}),
    "letters": document(LETTERS),
    "prefix of one letter": document(LETTERS, {"continuing_subword_prefix": "a"}),
    "no prefix": document(LETTERS, {"continuing_subword_prefix": ""}),
    "unused prefix": document(LETTERS, {"continuing_subword_prefix": "@@"}),
}
NORMALIZERS = ("uncased", "cased", "accents", "cased without accents", "control characters", "no ideographs")
"""The cases that differ in what happens to a character. The others have another vocabulary."""
UNITS = st.one_of(
    st.sampled_from([*VOCAB, *LETTERS]),
    st.text(max_size=8),
    st.text("abcdefghijklm", min_size=1, max_size=110),
    st.text("\u0301\u0323\u0345\u034f\u0300\u093c\u094d\u05b0\u064b", max_size=5),
    st.sampled_from(
        ["İ", "ß", "Σας", "ﬁ", "한", "\u1112\u1161\u11ab", "中文", "\uf900", "👩‍👧", "\ufffd", "\0", "\x85"]
    ),
)
TEXTS = st.lists(st.tuples(UNITS, st.sampled_from(["", " ", "\t", "-"])).map("".join), max_size=12).map("".join)


def encoded(tokenizer: tokenizers.Tokenizer, text: str) -> list[tuple[int, int, int, int]]:
    (found,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return [(i, *place, word) for i, place, word in zip(found.ids, found.offsets, found.word_ids, strict=True)]


def rows(pieces: WordPieces, text: str) -> list[tuple[int, ...]]:
    found = pieces.encode(text)
    assert found is not None
    return [tuple(row) for row in found.tolist()]


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest) -> tuple[WordPieces, tokenizers.Tokenizer]:
    return own(CASES[request.param]), library(CASES[request.param])


@given(text=TEXTS)
@example("Don't [CLS] stop-me [UNK]; it's 3.14 @home!")
@example("a" * 101 + " " + "b" * 100 + "\u0301" * 9)
@example("a" * 1001 + " " + "ab" * 500)
@example("")
@example("\ud800")
def test_word_pieces_equal_those_of_the_library(both: tuple[WordPieces, tokenizers.Tokenizer], text: str) -> None:
    pieces, tokenizer = both
    found = pieces.encode(text)
    assert found is None or rows(pieces, text) == encoded(tokenizer, text)


@pytest.mark.parametrize("both", first(CASES, *NORMALIZERS), indirect=True)
def test_characters_of_all_scripts_equal_those_of_the_library(both: tuple[WordPieces, tokenizers.Tokenizer]) -> None:
    """Each character between letters, and after a mark that another one may pass."""
    pieces, tokenizer = both
    left = 0
    for block in (*range(0x34), 0x4E, 0xA8, 0xAC, 0xD7, 0xD8, 0xE0, *range(0xF9, 0x100), 0x1D1, 0x1D4, 0x1F6, 0x2F8):
        characters = [chr(code) for code in range(block * BLOCK, (block + 1) * BLOCK)]
        alone = [pieces.encode(f"a{character}b\u0345{character}") is not None for character in characters]
        text = " ".join(f"a{one}b\u0345{one}" for one, known in zip(characters, alone, strict=True) if known)
        left += alone.count(False)
        assert rows(pieces, text) == encoded(tokenizer, text)
    assert left < 3 * BLOCK  # two blocks of surrogates, and a few marks


@pytest.mark.parametrize("unit", ["a", "a1", "é", "e\u0301", "\u0301", "中", "한", "👍", "!?", " ", "\0", "ﷺ", "aB "])
def test_long_texts_equal_those_of_the_library(unit: str) -> None:
    described, text = CASES["uncased"], unit * (100_000 // len(unit))
    assert rows(own(described), text) == encoded(library(described), text)


@pytest.mark.parametrize("text", [f"a{MOVING}", f"a\u0345{MOVING}", "a\ud800", "\U000e0067", "\U0010ffff"])
def test_word_pieces_leave_other_texts_to_the_library(text: str) -> None:
    assert own(CASES["uncased"]).encode(text) is None


def test_no_ascii_text_is_left_to_the_library(both: tuple[WordPieces, tokenizers.Tokenizer]) -> None:
    """The pipeline counts on it."""
    pieces, tokenizer = both
    text = "".join(f"a{chr(code)}b" for code in range(128))
    assert rows(pieces, text) == encoded(tokenizer, text)


def test_threads_share_word_pieces_that_know_no_character_yet() -> None:
    described = CASES["uncased"]
    texts = [chr(code) + "一" for code in range(0xB0, 0x3000, 128)] * 8
    pieces, tokenizer = own(described), library(described)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: rows(pieces, text), texts))
    assert found == [encoded(tokenizer, text) for text in texts]


def test_a_text_teaches_few_blocks_of_characters() -> None:
    """The event loop must not wait for a text with a character of each script."""
    pieces, text = own(CASES["uncased"]), "".join(chr(code) for code in range(0x400, 0x800, BLOCK))
    assert pieces.encode(text) is None
    assert rows(pieces, text) == encoded(library(CASES["uncased"]), text)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": None},
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"model": {"type": "BPE"}},
        {"model": CASES["uncased"]["model"] | {"unk_token": "<none>"}},
        {"model": CASES["uncased"]["model"] | {"max_input_chars_per_word": 1001}},
        {"model": CASES["uncased"]["model"] | {"vocab": {"[UNK]": 0, "a" * (1 << 22): 1}}},
        {"model": CASES["uncased"]["model"] | {"vocab": {"[UNK]": 0, "a": 1 << 31}}},
        {"added_tokens": [{**CASES["uncased"]["added_tokens"][0], "special": False}]},
    ],
)
def test_word_pieces_support_bert_tokenizers_only(change: dict[str, Any]) -> None:
    described = CASES["uncased"]
    assert WordPieces.of(described | change, library(described)) is None


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_without_a_compiled_library_the_other_one_serves(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "word_pieces.so"
    file.write_bytes(content)
    monkeypatch.setattr(word_pieces, "FILE", file)
    monkeypatch.setattr(word_pieces, "_library", word_pieces._library.__wrapped__)
    assert WordPieces.of(CASES["uncased"], library(CASES["uncased"])) is None
    assert Tokenizer(CASES["uncased"]).tokenize(["a"])[0].ids.tolist() == [VOCAB.index("a")]


@given(parts=st.lists(TEXTS, min_size=1, max_size=4), lower=st.booleans(), max_tokens=st.integers(3, 40))
def test_a_tokenizer_with_word_pieces_equals_one_without(parts: list[str], lower: bool, max_tokens: int) -> None:
    """Ids and places, also of texts that are cut, and with masks."""
    quick, plain = TOKENIZERS[lower]
    text = "[MASK]".join(parts).encode("utf-8", "replace").decode()
    for one, other in zip(quick.encode([text, *parts[1:]], 40), plain.encode([text, *parts[1:]], 40), strict=True):
        assert_equal(one, other)
    for one, other in zip(quick.encode([text], 40, mask=True), plain.encode([text], 40, mask=True), strict=True):
        assert_equal(one, other)
    for size in (None, max_tokens):
        (some,), (others,) = quick.tokenize([text], size), plain.tokenize([text], size)
        assert_equal(some, others)


def assert_equal(one: object, other: object) -> None:
    for key, value in vars(other).items():
        np.testing.assert_array_equal(getattr(one, key), value)
        assert not isinstance(value, np.ndarray) or getattr(one, key).dtype == value.dtype


def without_word_pieces(described: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer(described)
    tokenizer._word_pieces = None
    return tokenizer


TOKENIZERS = [(Tokenizer(CASES[name]), without_word_pieces(CASES[name])) for name in ("cased", "uncased")]
