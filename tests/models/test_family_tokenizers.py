"""Tokenizers of RoBERTa and XLM-RoBERTa: ids and offsets of transformers, special tokens as text, the mask."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.tokenizer import Tokenizer
from tests.goldens import cases, families
from tests.models.test_tokenizer import read
from tests.support.tiers import first

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
CLASSES: dict[str, Any] = {"bpe": transformers.RobertaTokenizer, "xlm": transformers.XLMRobertaTokenizer}


def checkpoint(path: Path, name: str, **options: Any) -> Path:
    """Fills a directory with the files of a tokenizer and its configuration."""
    for file in families.FILES[name]:
        shutil.copy(cases.HERE / file, path)
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    return path


@pytest.fixture(scope="module", params=families.TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(checkpoint(tmp_path_factory.mktemp("t"), request.param))


def looks_special(text: str) -> bool:
    return any(special in text for special in SPECIALS)


@pytest.mark.parametrize("variant", families.VARIANTS)
def test_tokenize_equals_transformers_4_57_1(variant: str, tmp_path: Path) -> None:
    name, options = families.VARIANTS[variant]
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name, **options))
    texts = cases.strings(600)
    golden = np.load(cases.HERE / "tokens-families.npz")[variant]
    for text, (ids, spans), expected in zip(texts, read(tokenizer, texts), golden, strict=True):
        if name == "xlm" and looks_special(text):
            continue  # transformers finds special tokens in it
        assert zlib.crc32(f"{ids} {spans}".encode()) == expected, text


@pytest.mark.parametrize("options", first([{}, {"add_prefix_space": True}, {"trim_offsets": False}], {}))
def test_byte_level_tokenizer_equals_installed_transformers(options: dict[str, bool], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, "bpe", **options))
    reference = transformers.RobertaTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    texts = cases.strings(3000)
    found = reference(texts, add_special_tokens=False, return_offsets_mapping=True)

    expected = [(ids, list(map(tuple, s))) for ids, s in zip(found["input_ids"], found["offset_mapping"], strict=True)]
    assert read(tokenizer, texts) == expected


@pytest.mark.parametrize("name", families.TOKENIZERS)
def test_saved_tokenizer_is_read_alike(name: str, tmp_path: Path) -> None:
    """transformers writes a tokenizer.json, and our artifacts hold one."""
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name))
    written = CLASSES[name].from_pretrained(tmp_path)
    written.save_pretrained(tmp_path / "written")
    tokenizer.save(tmp_path / "tokenizer.json")
    texts = [text for text in cases.strings(500) if "  " not in text] if name == "xlm" else cases.strings(500)

    assert read(Tokenizer.load(tmp_path / "tokenizer.json"), texts) == read(tokenizer, texts)
    if name == "bpe":
        assert read(Tokenizer.from_directory(tmp_path / "written"), texts) == read(tokenizer, texts)
    again = Tokenizer.from_directory(tmp_path / "written")
    found = again.encode(cases.SENTENCES, 64)
    assert [one.input_ids.tolist() for one in found] == [
        one.input_ids.tolist() for one in tokenizer.encode(cases.SENTENCES, 64)
    ]


def test_written_xlm_tokenizer_equals_installed_transformers(tmp_path: Path) -> None:
    """The file that transformers 5 writes differs from the one that 4.57.1 makes of the same model."""
    written = CLASSES["xlm"].from_pretrained(checkpoint(tmp_path, "xlm"))
    written.save_pretrained(tmp_path / "written")
    texts = [text for text in cases.strings(3000) if not looks_special(text)]
    found = written(texts, add_special_tokens=False, return_offsets_mapping=True)

    expected = [(ids, list(map(tuple, s))) for ids, s in zip(found["input_ids"], found["offset_mapping"], strict=True)]
    assert read(Tokenizer.from_directory(tmp_path / "written"), texts) == expected


def test_configuration_overrides_byte_level_tokenizer_json(tmp_path: Path) -> None:
    Tokenizer.from_directory(checkpoint(tmp_path, "bpe")).save(tmp_path / "tokenizer.json")
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True, "trim_offsets": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)

    found = reference(cases.SENTENCES, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert [spans for _, spans in read(Tokenizer.from_directory(tmp_path), cases.SENTENCES)] == [
        list(map(tuple, spans)) for spans in found
    ]


@pytest.mark.parametrize("max_tokens", [9, 31, 512])
def test_pairs_have_two_separators_and_one_token_type(tokenizer: Tokenizer, tmp_path: Path, max_tokens: int) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    reference = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    pairs = list(zip(cases.SENTENCES, reversed(cases.SENTENCES), strict=True))
    expected = reference(*map(list, zip(*pairs, strict=True)), truncation=True, max_length=max_tokens)["input_ids"]
    found = tokenizer.encode(pairs, max_tokens)

    assert [one.input_ids.tolist() for one in found] == expected
    assert tokenizer.special_count(pair=True) == 4
    for one in found:
        middle = one.input_ids.tolist().index(2)
        assert one.input_ids[[0, middle, middle + 1, -1]].tolist() == [0, 2, 2, 2]
        assert not one.token_type_ids.any()


SPECIAL_LETTERS = st.sampled_from(["<s>", "</s>", "<mask>", "<pad>", "<unk>", "＜s＞", "<", "s", ">", " ", "▁", "Ġ"])
LETTERS = st.sampled_from([*"ab ,.é가각👍ﬁ½", "e\u0301", "👨\u200d👩\u200d👧", "\u1112\u1161\u11ab", "\u00a0", "\n"])


@given(parts=st.lists(SPECIAL_LETTERS | LETTERS | st.characters(codec="utf-8"), max_size=12))
def test_text_gives_no_special_token_and_valid_spans(tokenizer: Tokenizer, parts: list[str]) -> None:
    text = "".join(parts)
    ((ids, spans),) = read(tokenizer, [text])
    (encoding,) = tokenizer.encode([text], 64)

    specials = {tokenizer.token_to_id(token) for token in SPECIALS} - {tokenizer.token_to_id("<unk>")}
    assert specials.isdisjoint(ids)
    assert specials.isdisjoint(encoding.input_ids[1:-1].tolist())
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)


def test_spans_of_a_split_character_are_the_whole_character(tmp_path: Path) -> None:
    """Several tokens of a byte-level BPE make up one emoji or one Hangul syllable. Each has the span of all."""
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, "bpe"))
    text = "a 👍🏽 둷"
    ((ids, spans),) = read(tokenizer, [text])

    assert len(ids) > len(text)
    assert {text[start:end] for start, end in spans} == {"a", "", "👍", "🏽", "둷"}
    assert tokenizer.decode([ids]) == [text]


def test_byte_level_merges_do_not_give_a_special_token(tmp_path: Path) -> None:
    """The pre-tokenizer splits `<s>` before merges could join it. A special token of letters alone is not split."""
    Tokenizer.from_directory(checkpoint(tmp_path, "bpe")).save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    number = library.encode("the", add_special_tokens=False).ids[0]
    library.add_special_tokens([library.id_to_token(number)])
    library.save(str(tmp_path / "tokenizer.json"))
    ((ids, _),) = read(Tokenizer.load(tmp_path / "tokenizer.json"), ["the"])

    assert number in library.encode("the", add_special_tokens=False).ids
    assert number not in ids


@pytest.mark.parametrize("text", ["a <mask> b", "a<mask>b", "<mask>", "<mask> <mask>", "a </s> <mask>"])
def test_mask_includes_the_space_before_it(tokenizer: Tokenizer, text: str) -> None:
    (encoding,) = tokenizer.encode([text], 64, mask=True)
    ids = encoding.input_ids.tolist()

    assert tokenizer.mask == "<mask>"
    assert encoding.focus.tolist() == [i for i, number in enumerate(ids) if number == tokenizer.mask_id]
    assert len(encoding.focus) == text.count("<mask>")
    assert ids.count(2) == 1  # the closing token only
    if "a <mask>" in text:
        assert encoding.focus.tolist() == [2]


def test_camembert_has_its_own_ids(tmp_path: Path) -> None:
    checkpoint(tmp_path, "xlm", tokenizer_class="CamembertTokenizer")
    tokenizer = Tokenizer.from_directory(tmp_path)
    other = Tokenizer.from_directory(checkpoint(tmp_path, "xlm"))

    assert [tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<unk>")] == [5, 1, 6, 3]
    assert tokenizer.mask_id == other.mask_id + 3
    ((ids, spans),) = read(tokenizer, [cases.SENTENCES[0]])
    ((their_ids, their_spans),) = read(other, [cases.SENTENCES[0]])
    assert ids == [number + 3 for number in their_ids]
    assert spans == their_spans
    ((ids, _),) = read(tokenizer, ["<s>NOTUSED <unk>NOTUSED"])
    assert {0, 2, 4, 5, 6}.isdisjoint(ids)


def test_gpt2_vocabulary_has_no_special_tokens_around_a_text(tmp_path: Path) -> None:
    checkpoint(tmp_path, "bpe")
    vocab = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    kept = [token for token in vocab if token not in SPECIALS]
    numbered = {token: i for i, token in enumerate([*kept, "<|endoftext|>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(numbered), "utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    reference = transformers.GPT2Tokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    texts = [*cases.SENTENCES, "<|endoftext|>"]

    found = reference(texts, return_offsets_mapping=True)
    assert [ids for ids, _ in read(tokenizer, texts)] == found["input_ids"]
    assert [spans for _, spans in read(tokenizer, texts)] == [list(map(tuple, s)) for s in found["offset_mapping"]]
    assert tokenizer.special_count(pair=True) == 0
    assert tokenizer.mask is None
    assert tokenizer.special_ids == {len(kept)}


def test_vocabulary_without_merges_is_rejected(tmp_path: Path) -> None:
    shutil.copy(cases.HERE / "vocab.json", tmp_path)
    with pytest.raises(TokenizerError, match=r"^vocab\.json has no merges\.txt beside it\.$"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"a": "b"}'])
def test_invalid_byte_level_vocabulary_is_rejected(tmp_path: Path, content: str) -> None:
    checkpoint(tmp_path, "bpe")
    (tmp_path / "vocab.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"^vocab\.json cannot be read as a tokenizer: "):
        Tokenizer.from_directory(tmp_path)


def test_added_words_remain_words(tmp_path: Path) -> None:
    """A checkpoint may add words that are not special. They are found in a text."""
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, "bpe"))
    tokenizer.save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.add_tokens([AddedToken("swiftlet", special=False)])
    library.save(str(tmp_path / "tokenizer.json"))
    grown = Tokenizer.load(tmp_path / "tokenizer.json")

    assert grown.vocab_size == tokenizer.vocab_size + 1
    assert grown.encode(["a swiftlet"], 64)[0].input_ids[-2] == grown.vocab_size - 1
