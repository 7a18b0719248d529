"""A tokenizer is refused if it is not known to take linear time and memory."""

from __future__ import annotations

import base64
import json

import pytest

from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.artifact import find_artifacts
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.tokenizer_safety import check
from swiftlet_serve.inference.loading import BUNDLED
from tests.support.artifacts import make_tokenizer

BACKTRACK = (
    *(
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(h|he|hel|hello| )*z",
        "a*",
        ".*",
        "a+b",
        "a+a+",
        "a?a?a?aaa",
        "",
        r"\s+$",
        "(a)",
    ),
    *("a|", "a+?", "a++", "a{0,}", "a{100,}", r"\1", "(?=a)", r"[a]+(?!\S)", "(?i)a", "[a[b]]+", "x" * 1001),
)
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def document(**parts):
    """The document of a WordPiece tokenizer, with other parts."""
    return make_tokenizer()._document | parts


def replace(pattern, content, kind="Regex"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": False}


def charsmap(*texts):
    return base64.b64encode(bytes(4) + b"\0".join(text.encode() for text in texts) + b"\0").decode()


def normalizers(*steps):
    return {"type": "Sequence", "normalizers": list(steps)}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": None, "pre_tokenizer": None, "decoder": None},
        {"normalizer": replace(" {2,}", "▁")},
        {"normalizer": normalizers(replace("``", '"', "String"), {"type": "NFKD"}, replace(r"\s+", " "))},
        {"normalizer": normalizers(*[replace("\n", " ", "String")] * 20)},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("a", "x" * 18)}},
        {"normalizer": {"type": "Prepend", "prepend": "▁"}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(GPT_2), split(r"\p{N}{1,3}"), split("[0-9]")]}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
    ],
)
def test_linear_steps_are_accepted(parts):
    check(document(**parts))


@pytest.mark.parametrize("path", list(find_artifacts(BUNDLED)), ids=lambda path: path.name)
def test_bundled_tokenizers_are_accepted(path):
    check(json.loads((path / "tokenizer.json").read_text("utf-8")))


@pytest.mark.parametrize("regex", BACKTRACK)
@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer", "decoder"])
def test_regular_expressions_that_may_backtrack_are_refused(part, regex):
    step = split(regex) if part == "pre_tokenizer" else replace(regex, "")
    with pytest.raises(TokenizerError, match="is not known to take linear time"):
        check(document(**{part: step}))


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers(*[replace("h", "h" * 1000, "String")] * 3)},
        {"normalizer": replace("h", "h" * 9, "String")},
        {"normalizer": normalizers(*[replace("h", "hh", "String")] * 4)},
        {"normalizer": normalizers(replace("hh", "h" * 16, "String"), normalizers(replace("h", "hh", "String")))},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("a", "x" * 1000)}},
        {"normalizer": normalizers(*[{"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 18)}] * 2)},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 3}},
        {"decoder": {"type": "Sequence", "decoders": [replace("h", "h" * 100, "String")]}},
    ],
)
def test_replacements_that_multiply_a_text_are_refused(parts):
    with pytest.raises(TokenizerError, match="may lengthen a text by a factor of"):
        check(document(**parts))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": replace("", "h", "String")}, "empty pattern"),
        ({"normalizer": {"type": "Prepend", "prepend": "h" * 65}}, "before a text"),
        ({"normalizer": {"type": "Script"}}, "unknown type: 'Script'"),
        ({"pre_tokenizer": {"type": "Lowercase"}}, "unknown type: 'Lowercase'"),
        ({"normalizer": normalizers(*[{"type": "NFC"}] * 65)}, "more than 64 steps"),
        ({"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}}, "max_input_chars_per_word"),
        ({"model": {"type": "WordPiece", "continuing_subword_prefix": "#" * 65}}, "continuing_subword_prefix"),
        ({"model": {"type": "BPE", "end_of_word_suffix": "h" * 65}}, "end_of_word_suffix"),
        ({"model": {"type": "Unigram", "vocab": [["h", 0.0], ["h" * 129, 0.0]]}}, "a piece of more than 128"),
    ],
)
def test_other_steps_without_a_bound_are_refused(parts, reason):
    with pytest.raises(TokenizerError, match=reason):
        check(document(**parts))


def test_artifact_with_such_a_tokenizer_is_refused(tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(document(pre_tokenizer=split("(a+)+b"))))
    with pytest.raises(TokenizerError, match="is not known to take linear time"):
        Tokenizer.load(file)
