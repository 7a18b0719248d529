"""Proves that a tokenizer takes linear time and memory, from its document alone: a `tokenizer.json` may be hostile.

The steps of the tokenizers library are linear, except for three parts of the document: regular expressions may
backtrack without end, replacements may multiply a text, and the model may have long words, pieces and prefixes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from swiftlet_models.added_tokens import TokenizerError

MAX_STEPS: Final = 64
MAX_GROWTH: Final = 8.0
"""How many times its length a text may have after all replacements. Unicode's normal forms may multiply that by 18."""
LONGEST_FORM: Final = 18  # characters of the longest normal form, U+FDFA's
MAX_PREFIX: Final = 64  # characters, that are put before a text, or at an end of each part of a word
MAX_WORD: Final = 1000  # characters: the library tries all parts of a word, in WordPiece models
MAX_PIECE: Final = 128  # characters: the library compares all pieces at each place, in Unigram models
MAX_PATTERN: Final = 1000  # characters
BYTE_GROWTH: Final = 4.0  # bytes of a character, which become a character each

# A match is a fixed number of atoms. The first may be missing and the last may repeat. Nothing follows what repeats,
# and there is nothing to go back for.
_ATOM: Final = r"(?:\\[sSdDwWnrt]|\\[pP]\{\^?\w+\}|\\[^A-Za-z0-9]|\[(?:\\.|[^\\\[\]])+\]|[^\\\[\](){}|*+?^$])"
_BRANCH: Final = rf"(?:(?:{_ATOM}\?)?{_ATOM}+(?:\+|\{{[1-9]\d?(?:,\d*)?\}})?|\\s\+\(\?!\\S\))"
LINEAR: Final = re.compile(rf"{_BRANCH}(?:\|{_BRANCH})*", re.DOTALL)
KNOWN: Final = frozenset(
    {  # of Llama 3 and of Qwen 2, after the tokenizers of OpenAI
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    }
)

LISTS: Final = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
BOUNDED: Final = {
    "normalizer": frozenset(
        {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Strip", "StripAccents"}
    ),
    "pre_tokenizer": frozenset(
        {"BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Metaspace", "Punctuation"}
        | {"UnicodeScripts", "Whitespace", "WhitespaceSplit"}
    ),
    "decoder": frozenset({"BPEDecoder", "ByteFallback", "ByteLevel", "CTC", "Fuse", "Metaspace", "Strip", "WordPiece"}),
}
"""The types of steps whose output is at most a small multiple of their input, with any options."""


def check(document: Mapping[str, Any]) -> None:
    """Checks the document of a tokenizer.

    Raises:
        TokenizerError: it may take unbounded time or memory.
        KeyError, TypeError, ValueError, AttributeError: it is no document of a tokenizer.
    """
    encoding = _growth(document, "normalizer") * _growth(document, "pre_tokenizer")
    for growth, what in ((encoding, "encodes"), (_growth(document, "decoder"), "decodes")):
        if growth > MAX_GROWTH:
            raise TokenizerError(
                f"The tokenizer {what} with replacements that may lengthen a text by a factor of {growth:.3g}. "
                f"At most {MAX_GROWTH:g} is allowed."
            )
    _check_model(document["model"])


def _check_model(model: Mapping[str, Any]) -> None:
    if model["type"] == "WordPiece" and model.get("max_input_chars_per_word", 0) > MAX_WORD:
        raise TokenizerError(f"The tokenizer's max_input_chars_per_word exceeds {MAX_WORD}.")
    for mark in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(model.get(mark) or "") > MAX_PREFIX:
            raise TokenizerError(f"The tokenizer's {mark} exceeds {MAX_PREFIX} characters.")
    if model["type"] == "Unigram" and any(len(piece) > MAX_PIECE for piece, _ in model["vocab"]):
        raise TokenizerError(f"The tokenizer has a piece of more than {MAX_PIECE} characters.")


def _growth(document: Mapping[str, Any], part: str) -> float:
    """Returns the largest growth of a text by the replacements of all steps of a part, as a factor."""
    growth = 1.0
    seen: set[str] = set()
    for number, step in enumerate(_steps(document[part], part)):
        kind = step["type"]
        if number >= MAX_STEPS:
            raise TokenizerError(f"The tokenizer's {part} has more than {MAX_STEPS} steps.")
        if kind == "Replace":
            growth *= max(1.0, len(step["content"]) / _least_match(step["pattern"], part))
        elif kind == "Split" and part == "pre_tokenizer":
            _least_match(step["pattern"], part)
        elif kind == "Precompiled" and part == "normalizer":
            longest = _longest_replacement(step["precompiled_charsmap"])
            growth *= longest if kind in seen else max(1.0, longest / LONGEST_FORM)  # one is Unicode's, as a rule
        elif kind == "Prepend" and part == "normalizer":
            if len(step["prepend"]) > MAX_PREFIX:
                raise TokenizerError(f"The tokenizer puts more than {MAX_PREFIX} characters before a text.")
        elif kind == "ByteLevel" and part != "decoder":
            growth *= BYTE_GROWTH if kind in seen else 1.0
        elif kind not in BOUNDED[part]:
            raise TokenizerError(f"The tokenizer's {part} has a step of an unknown type: {kind!r:.50}.")
        seen.add(kind)
    return growth


def _steps(step: Any, part: str) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a part, in order. Parts may be nested."""
    if step is None:
        return
    if step["type"] == "Sequence":
        for inner in step[LISTS[part]]:
            yield from _steps(inner, part)
    else:
        yield step


def _least_match(pattern: Mapping[str, str], part: str) -> int:
    """Returns the least number of characters that a pattern matches.

    Raises:
        TokenizerError: it may match nothing, or take more than linear time.
    """
    if "String" in pattern:
        if not pattern["String"]:
            raise TokenizerError(f"The tokenizer's {part} has an empty pattern.")
        return len(pattern["String"])
    regex = pattern["Regex"]
    if regex not in KNOWN and (len(regex) > MAX_PATTERN or not LINEAR.fullmatch(regex)):
        raise TokenizerError(
            f"The tokenizer's {part} has a regular expression that is not known to take linear time: {regex!r:.100}. "
            "Only alternatives of characters and classes are allowed. The last one of each may repeat."
        )
    return 1


def _longest_replacement(charsmap: str) -> int:
    """Returns the characters of the longest replacement in SentencePiece's table: a trie, then texts that end in 0."""
    table = base64.b64decode(charsmap or "")
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(len(text.decode("utf-8", "replace")) for text in texts.split(b"\0"))
