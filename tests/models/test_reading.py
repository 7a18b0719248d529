"""How texts are read beyond tokenizer.json: the side that is cut, limits, special tokens in texts, separators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.artifact import Reading
from swiftlet_models.checkpoint_tokenizer import Limits, read_limits
from swiftlet_models.token_ranges import mirrored, window_ranges
from swiftlet_models.tokenizer import Tokenizer
from tests.goldens import cases
from tests.models.test_tokenizer_classes import BERT, write

TEXTS = [*cases.SENTENCES, " ".join(cases.SENTENCES), "a"]


@pytest.fixture(params=["vocab", "bpe", "xlm"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint whose tokenizer cuts on the left."""
    name = {"vocab": "bert", "bpe": "roberta", "xlm": "xlm-roberta"}[request.param]
    return write(tmp_path, request.param, config={"model_type": name}, tokenizer_config={"truncation_side": "left"})


@pytest.mark.parametrize("max_tokens", [9, 31, 512])
@pytest.mark.parametrize("pair", [False, True])
def test_texts_are_cut_on_the_left_as_in_transformers(folder: Path, max_tokens: int, pair: bool) -> None:
    tokenizer, reference = Tokenizer.from_directory(folder), transformers.AutoTokenizer.from_pretrained(folder)
    seconds = TEXTS[::-1] if pair else None
    expected = reference(TEXTS, seconds, truncation=True, max_length=max_tokens)["input_ids"]
    texts = TEXTS if seconds is None else list(zip(TEXTS, seconds, strict=True))

    assert [one.input_ids.tolist() for one in tokenizer.encode(texts, max_tokens)] == expected


def test_only_the_first_text_is_cut_on_the_left_as_in_transformers(folder: Path) -> None:
    """As the pipeline for zero-shot classification does."""
    tokenizer, reference = Tokenizer.from_directory(folder), transformers.AutoTokenizer.from_pretrained(folder)
    other, text = "It is about birds.", " ".join(cases.SENTENCES)
    (found,) = tokenizer.encode_product([text], [other], 64)

    assert found.input_ids.tolist() == reference(text, other, truncation="only_first", max_length=64)["input_ids"]
    room = 64 - tokenizer.special_count(pair=True) - len(tokenizer.tokenize([other])[0])
    assert found.left_out == len(tokenizer.tokenize([text])[0]) - room


@pytest.mark.parametrize(("size", "stride"), [(30, 10), (50, 0), (64, 40)])
def test_windows_on_the_left_are_those_of_transformers(folder: Path, size: int, stride: int) -> None:
    """As the pipelines for questions and for entities have them."""
    tokenizer, reference = Tokenizer.from_directory(folder), transformers.AutoTokenizer.from_pretrained(folder)
    question, text = "Who sells bread?", " ".join(cases.SENTENCES[:12])
    asked, context = tokenizer.tokenize([question, text])
    options = {"stride": stride, "return_overflowing_tokens": True, "return_offsets_mapping": True}
    length = len(asked) + tokenizer.special_count(pair=True) + size
    pairs = reference(question, text, truncation="only_second", max_length=length, **options)
    alone = reference(text, truncation=True, max_length=size + tokenizer.special_count(pair=False), **options)

    windows = tokenizer.windows(asked, context, 0, size, stride)
    assert [one.input_ids.tolist() for one in windows] == pairs["input_ids"]
    chunks = tokenizer.chunks(context, 0, size, stride)
    assert [one.input_ids.tolist() for one in chunks] == alone["input_ids"]
    if not (folder / "sentencepiece.bpe.model").exists():  # transformers 5 counts the blank before a word otherwise
        for chunk, spans in zip(chunks, alone["offset_mapping"], strict=True):
            assert chunk.tokens.offsets.tolist() == [list(span) for span in spans[1:-1]]


def test_first_tokens_on_the_left_are_the_last(folder: Path) -> None:
    tokenizer = Tokenizer.from_directory(folder)
    ((whole,), (cut,)) = tokenizer.tokenize([TEXTS[-2]]), tokenizer.tokenize([TEXTS[-2]], 7)

    assert cut.ids.tolist() == whole.ids[-7:].tolist()
    assert cut.offsets.tolist() == whole.offsets[-7:].tolist()
    assert cut.word_ids.tolist() == whole.word_ids[-7:].tolist()
    assert cut.left_out == len(whole) - 7


@given(st.integers(0, 90), st.integers(1, 20), st.integers(0, 19))
def test_mirrored_ranges_are_those_of_the_reversed_tokens(length: int, size: int, stride: int) -> None:
    if stride >= size:
        return
    tokens = list(range(length))
    found = [tokens[start:stop] for start, stop in mirrored(window_ranges(length, size, stride), length)]
    assert found == [tokens[::-1][start:stop][::-1] for start, stop in window_ranges(length, size, stride)]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ("right", None)),
        ({"model_max_length": 96}, ("right", 96)),
        ({"model_max_length": 96.0, "truncation_side": "left"}, ("left", 96)),
        ({"model_max_length": 1000000000000000019884624838656}, ("right", None)),
        ({"model_max_length": 1e30}, ("right", None)),
        ({"model_max_length": float("inf")}, ("right", None)),
        ({"model_max_length": None}, ("right", None)),
        ({"max_len": 128}, ("right", 128)),
    ],
)
def test_limits_are_read(tmp_path: Path, config: dict[str, Any], expected: Any) -> None:
    assert read_limits(write(tmp_path, "vocab", tokenizer_config=config)) == Limits(*expected)


def test_side_of_tokenizer_json_counts_if_no_other_is_set(tmp_path: Path) -> None:
    write(tmp_path, "vocab")
    Tokenizer.from_directory(tmp_path).save(tmp_path / "tokenizer.json")
    document = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    document["truncation"] = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    write(tmp_path, "vocab", tokenizer=document, tokenizer_config=BERT)
    assert read_limits(tmp_path).truncation_side == "left"
    write(tmp_path, "vocab", tokenizer_config=BERT | {"truncation_side": "right"})
    assert read_limits(tmp_path).truncation_side == "right"


@pytest.mark.parametrize("truncation", ["Left", ["Left"], 1, None, {}])
def test_side_of_a_damaged_tokenizer_json_does_not_count(tmp_path: Path, truncation: object) -> None:
    write(tmp_path, "vocab", tokenizer={"truncation": truncation})
    assert read_limits(tmp_path).truncation_side == "right"


@pytest.mark.parametrize(
    "config",
    [
        {"truncation_side": "middle"},
        {"truncation_side": None},
        *({"model_max_length": value} for value in (0, -1, "512", True, 96.5, float("nan"), [])),
    ],
)
def test_invalid_limits_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=next(iter(config))):
        read_limits(write(tmp_path, "vocab", tokenizer_config=config))


# Special tokens in texts

MARKED = "the [E1] swift [/E1] sleeps [E1]"


@pytest.fixture
def marked(tmp_path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint that has markers of entities."""
    more = {"additional_special_tokens": ["[E1]", "[/E1]"]}
    return Tokenizer.from_directory(
        write(tmp_path, "vocab", config={"model_type": "bert"}, tokenizer_config=BERT | more)
    )


def test_markers_are_recognised_if_they_are_asked_for(marked: Tokenizer, tmp_path: Path) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    markers = [marked.token_to_id(token) for token in ("[E1]", "[/E1]")]
    recognising = marked.recognising(["[E1]", "[/E1]"])
    (encoding,) = recognising.encode([MARKED], 64)

    assert marked.other_specials() == ["[E1]", "[/E1]"]
    assert not {*marked.encode([MARKED], 64)[0].input_ids.tolist()} & {*markers}
    assert encoding.input_ids.tolist() == reference(MARKED)["input_ids"]
    assert recognising.tokenize([MARKED])[0].ids.tolist() == encoding.input_ids[1:-1].tolist()
    (hostile,) = recognising.encode(["[SEP] [CLS] [MASK] [PAD] [E1]"], 64)
    assert (
        sorted({*hostile.input_ids[1:-1].tolist()} & recognising.special_ids - {recognising.unknown_id}) == markers[:1]
    )


def test_markers_and_the_mask_are_recognised_together(marked: Tokenizer) -> None:
    recognising = marked.recognising(["[E1]"])
    (encoding,) = recognising.encode(["a [E1] [MASK] [/E1]"], 64, mask=True)

    assert encoding.input_ids[encoding.focus].tolist() == [recognising.mask_id]
    assert recognising.token_to_id("[E1]") in encoding.input_ids
    assert recognising.token_to_id("[/E1]") not in encoding.input_ids


def test_reading_survives_saving(marked: Tokenizer, tmp_path: Path) -> None:
    marked.save(tmp_path / "saved.json")
    reading = Reading("left", ("[E1]",))
    (encoding,) = Tokenizer.load(tmp_path / "saved.json", reading).encode([MARKED], 5)

    assert encoding.input_ids.tolist()[-2] == marked.token_to_id("[E1]")


@pytest.mark.parametrize("token", ["swift", "[E9]", ""])
def test_only_special_tokens_can_be_asked_for(marked: Tokenizer, token: str) -> None:
    with pytest.raises(ValueError, match="is not a special token of the tokenizer"):
        marked.recognising([token])


# Separators


def gpt2(path: Path) -> Tokenizer:
    vocab = json.loads((cases.HERE / "vocab.json").read_text("utf-8"))
    write(path, "bpe", config={"model_type": "gpt2"})
    (path / "vocab.json").write_text(json.dumps(vocab | {"<|endoftext|>": len(vocab)}), "utf-8")
    return Tokenizer.from_directory(path)


def test_a_separator_is_put_between_the_texts_of_a_pair(tmp_path: Path) -> None:
    plain = gpt2(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = plain.separating("<|endoftext|>")
    pair = ("Who sells bread?", "She does.")
    (single, both) = tokenizer.encode([pair[0], pair], 64)

    assert plain.other_specials() == ["<|endoftext|>"]
    assert tokenizer.other_specials() == []
    assert both.input_ids.tolist() == reference("<|endoftext|>".join(pair))["input_ids"]
    assert single.input_ids.tolist() == reference(pair[0])["input_ids"]
    assert plain.encode([pair], 64)[0].input_ids.tolist() == reference(*pair)["input_ids"]
    assert len(tokenizer.encode([pair], 9)[0].input_ids) == 9
    assert (
        tokenizer.recognising(["<|endoftext|>"]).encode(["<|endoftext|>".join(pair)], 64)[0].input_ids.tolist()
        == both.input_ids.tolist()
    )


def test_separators_must_be_missing_and_known(marked: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has a separator of its own"):
        marked.separating("[SEP]")
    with pytest.raises(ValueError, match="has no token '<sep>'"):
        gpt2(tmp_path / "gpt2").separating("<sep>")


def test_tokens_that_texts_may_hold(marked: Tokenizer) -> None:
    may = {token: marked.may_hold(marked.token_to_id(token) or 0) for token in ("the", "[SEP]", "[UNK]", "[MASK]")}
    assert all(may.values())
    assert not any(marked.may_hold(number) for number in (0, marked.token_to_id("[E1]") or 0, marked.vocab_size))
    assert marked.recognising(["[E1]"]).may_hold(marked.token_to_id("[E1]") or 0)
