"""Tokenizer: parity of ids and offsets with transformers, special tokens as text, windows and truncation."""

from __future__ import annotations

import json
import lzma
import shutil
import threading
import zlib
from itertools import islice, pairwise, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers.convert_slow_tokenizer import AlbertConverter

from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.encodings import TextTooLong
from swiftlet_models.token_ranges import pair_lengths, window_ranges
from swiftlet_models.tokenizer import Tokenizer
from tests.goldens import cases, families
from tests.support.tiers import first

FILES = {"vocab": "vocab.txt", "spiece": "spiece.model"}
LOOKALIKES = "<pad> <unk> [CLS]a[SEP] [MASK] [PAD] ［ＣＬＳ］ <PAD>[UNK]"


def checkpoint(path: Path, name: str, **options: Any) -> Path:
    """A directory with a vocabulary and a tokenizer configuration."""
    shutil.copy(cases.HERE / FILES[name], path / FILES[name])
    (path / "tokenizer_config.json").write_text(json.dumps(options))
    return path


@pytest.fixture(scope="module", params=list(FILES))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(checkpoint(tmp_path_factory.mktemp("t"), request.param))


def read(tokenizer: Tokenizer, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    return [(r.ids.tolist(), [tuple(span) for span in r.offsets.tolist()]) for r in tokenizer.tokenize(texts)]


def reference(tokenizer: Any, texts: list[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Returns ids and offsets of a transformers tokenizer that treats special tokens as text."""
    found = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    return list(zip(found["input_ids"], [list(map(tuple, spans)) for spans in found["offset_mapping"]], strict=True))


def albert(path: Path, **options: Any) -> Any:
    """Returns the tokenizer that transformers converts from a SentencePiece model. 4.57.1 and 5.23.0 share the code.

    The class `AlbertTokenizer` of 5.x does not use it: it drops the space before a user-defined symbol.
    """
    slow = SimpleNamespace(
        vocab_file=str(path / "spiece.model"),
        keep_accents=options.get("keep_accents", False),
        do_lower_case=options.get("do_lower_case", True),
        convert_tokens_to_ids={"[CLS]": 2, "[SEP]": 3}.__getitem__,
    )
    backend = AlbertConverter(slow).converted()
    specials = {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "[MASK]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, split_special_tokens=True, **specials)


def looks_special(text: str) -> bool:
    return any(special in text for special in ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "［"))


@pytest.mark.parametrize("variant", list(cases.VARIANTS))
def test_tokenize_equals_transformers_4_57_1(variant: str, tmp_path: Path) -> None:
    name, options = cases.VARIANTS[variant]
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name, **options))
    texts = cases.strings(600)
    golden = np.load(cases.HERE / "tokens.npz")[variant]
    for text, (ids, spans), expected in zip(texts, read(tokenizer, texts), golden, strict=True):
        if name == "spiece" and looks_special(text):
            continue  # transformers recognises special tokens in it
        assert zlib.crc32(f"{ids} {spans}".encode()) == expected, text


@pytest.mark.parametrize("count", first([800, 4000], 800))
@pytest.mark.parametrize("variant", list(cases.VARIANTS))
def test_tokenize_equals_installed_transformers(variant: str, count: int, tmp_path: Path) -> None:
    name, options = cases.VARIANTS[variant]
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name, **options))
    texts = cases.strings(count)
    if name == "spiece":
        reference_tokenizer = albert(tmp_path, **options)
        texts = [text for text in texts if not looks_special(text)]
    else:
        reference_tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    assert read(tokenizer, texts) == reference(reference_tokenizer, texts)


@pytest.mark.exhaustive
def test_tokenize_equals_transformers_on_data_sets(tmp_path: Path) -> None:
    if not cases.DATA.is_dir():
        pytest.skip("the data sets are absent")
    shutil.copy(cases.DATA / "bert-base-uncased-vocab.txt", tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    reference_tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    texts = [line.split("\t")[-1] for line in (cases.DATA / "sst2" / "dev.tsv").read_text("utf-8").splitlines()]
    texts += (cases.DATA / "nsmc" / "test.tsv").read_text("utf-8").splitlines()[:4000]
    texts += sorted({sample["context"] for sample in cases.squad_questions(10_000, 1)})
    for corpus in ("enwiki2015_cap8k", "kowiki_100MB"):
        with lzma.open(cases.DATA / "corpora" / f"{corpus}.txt.xz", "rt", encoding="utf-8") as lines:
            texts += islice(lines, 2500)
    assert len(texts) > 10_000
    assert read(Tokenizer.from_directory(tmp_path), texts) == reference(reference_tokenizer, texts)


def test_tokenizer_json_is_read_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    reference_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), split_special_tokens=True
    )
    texts = [text for text in cases.strings(1000) if not looks_special(text)]
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    expected = reference(reference_tokenizer, texts)
    assert read(tokenizer, texts) == expected
    assert read(Tokenizer.load(tmp_path / "tokenizer.json"), texts) == expected
    assert read(Tokenizer.from_directory(tmp_path), texts) == expected


def test_bert_configuration_overrides_tokenizer_json(tmp_path: Path) -> None:
    Tokenizer.from_directory(checkpoint(tmp_path, "vocab")).save(tmp_path / "tokenizer.json")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert read(tokenizer, cases.SENTENCES) == reference(reference_tokenizer, cases.SENTENCES)
    assert tokenizer.tokenize(["Clara"])[0].ids.tolist() != tokenizer.tokenize(["clara"])[0].ids.tolist()


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("max_tokens", [8, 9, 31, 512])
def test_encode_adds_special_tokens_and_truncates_as_transformers(
    tokenizer: Tokenizer, tmp_path: Path, pair: bool, max_tokens: int
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    reference_tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    firsts = [*cases.SENTENCES, " ".join(cases.SENTENCES), ""]
    seconds = [*cases.SENTENCES[7:], *cases.SENTENCES[:7], "x", " ".join(cases.SENTENCES)] if pair else None
    expected = reference_tokenizer(firsts, seconds, truncation=True, max_length=max_tokens, return_token_type_ids=True)
    texts = firsts if seconds is None else list(zip(firsts, seconds, strict=True))
    found = tokenizer.encode(texts, max_tokens)
    assert [row.input_ids.tolist() for row in found] == expected["input_ids"]
    assert [row.token_type_ids.tolist() for row in found] == expected["token_type_ids"]
    assert all(row.focus.tolist() == [0] for row in found)


def test_padding_and_truncation_settings_of_tokenizer_json_are_ignored(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_padding(length=64)
    backend.enable_truncation(4)
    backend.save(str(tmp_path / "tokenizer.json"))
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert read(again, cases.SENTENCES) == read(tokenizer, cases.SENTENCES)


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}])
@pytest.mark.parametrize("name", list(FILES))
def test_encode_treats_special_token_lookalikes_as_text(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name, **options))
    unknown = {tokenizer.token_to_id("[UNK]"), tokenizer.token_to_id("<unk>")}
    for row in tokenizer.encode([LOOKALIKES, *LOOKALIKES.split()], 100):
        inner = row.input_ids[1:-1].tolist()
        assert len(inner) > 2
        assert not set(inner) & (tokenizer.special_ids - unknown)


def test_encode_with_mask_recognises_only_the_mask_token(tokenizer: Tokenizer) -> None:
    text = f"a [MASK] b[MASK]. {LOOKALIKES}"
    (row,) = tokenizer.encode([text], 200, mask=True)
    assert len(row.focus) == text.count("[MASK]") == 3
    assert (row.input_ids[row.focus] == tokenizer.mask_id).all()
    unknown = {tokenizer.token_to_id("[UNK]"), tokenizer.token_to_id("<unk>")}
    assert set(row.input_ids[1:-1].tolist()) & tokenizer.special_ids <= {tokenizer.mask_id} | unknown


@pytest.mark.parametrize("cleanup", [False, True])
@pytest.mark.parametrize("name", list(FILES))
def test_decode_equals_transformers(name: str, cleanup: bool, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(checkpoint(tmp_path, name, clean_up_tokenization_spaces=cleanup))
    if name == "spiece":
        reference_tokenizer = albert(tmp_path)
        reference_tokenizer.clean_up_tokenization_spaces = cleanup
    else:
        reference_tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    texts = [*cases.SENTENCES, "it ' s n't , is it ? do n't 've 're . ! 'm", ""]
    rows = [row.input_ids.tolist() for row in tokenizer.encode(texts, 512)]
    for skip in (False, True):
        expected = [reference_tokenizer.decode(row, skip_special_tokens=skip) for row in rows]
        dropped = tokenizer.special_ids if skip else ()
        assert tokenizer.decode([[number for number in row if number not in dropped] for row in rows]) == expected


# Characters that some tokenizer drops, joins to the ones beside them or reads as one token, however many there are.
BLANKS = " \t\n\r\u00a0\u3000\u2003\u2028\u200b\u200d\u2060\ufeff\u00ad\x00\x07\x7f\ufffd"
FILLERS = BLANKS + "\u0301\u20dd\ufe0f\u0600aあ水한\U000e0041"
PARTS = st.sampled_from(
    ["Clara", "is", "a", "baker,", "봄은", "水", "e\u0301", "ﬁ", "🎬", "!?", "swimmingly", "9,5", "``"]
)
RUNS = st.builds(lambda one, count: one * count, st.sampled_from(FILLERS), st.integers(1, 600))
TEXTS = st.lists(PARTS | RUNS, max_size=8).map("".join)
READERS = [*families.FILES, "bpe-space"]


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Any]]:
    """A tokenizer of each kind, with the same one in transformers."""
    found = {}
    for name in READERS:
        path = tmp_path_factory.mktemp("t")
        for file in families.FILES[name.removesuffix("-space")]:
            shutil.copy(cases.HERE / file, path)
        (path / "tokenizer_config.json").write_text(json.dumps(families.OPTIONS.get(name, {})))
        tokenizer = Tokenizer.from_directory(path)
        tokenizer.save(path / "tokenizer.json")
        found[name] = tokenizer, transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    return found


@pytest.mark.parametrize("name", first(READERS, "bpe", "vocab"))
@given(text=TEXTS, other=st.lists(PARTS, max_size=30).map("".join))
@example(text=" " * 2000 + "Clara is a baker.", other="\u200b" * 99 + "Who?")
def test_cut_texts_have_the_tokens_that_transformers_keeps(
    readers: dict[str, tuple[Tokenizer, Any]], name: str, text: str, other: str
) -> None:
    """No number of characters tells where a text is cut: fillers may give no token, and one word of them one token.

    The other text is short, because transformers makes a sequence of each part of one text with each of the other.
    """
    tokenizer, reference_tokenizer = readers[name]
    for texts in ((text,), (text, other)):
        batches = [[one] for one in texts]
        (whole,) = reference_tokenizer(*batches)["input_ids"]
        (expected,) = reference_tokenizer(*batches, truncation=True, max_length=16)["input_ids"]
        read: Any = texts if len(texts) == 2 else text
        (found,) = tokenizer.encode([read], 16)
        assert found.input_ids.tolist() == expected
        assert found.left_out == len(whole) - len(expected)
        if found.left_out:
            with pytest.raises(TextTooLong):
                tokenizer.encode([read], 16, truncate=False)
    question = "Who?"
    (whole,) = reference_tokenizer([text], [question])["input_ids"]
    (expected,) = reference_tokenizer([text], [question], truncation="only_first", max_length=16)["input_ids"]
    (found,) = tokenizer.encode_product([text], [question], 16)
    assert found.input_ids.tolist() == expected
    assert found.left_out == len(whole) - len(expected)


WRITTEN = [
    "서울의 봄은 짧고, 꿀벌은 춤으로 말한다.",
    "👩‍👩‍👧‍👦 two films 🎬🇰🇷 👍🏽!?",
    "e\u0301te\u0301 nai\u0308ve क्षि ด้วย",
    "no",
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", first(READERS, "bpe", "spiece", "vocab"))
def test_texts_are_cut_on_either_side_as_the_tokenizers_library_cuts_them(
    readers: dict[str, tuple[Tokenizer, Any]], name: str, side: Any
) -> None:
    tokenizer, library = readers[name][0], readers[name][1].backend_tokenizer
    cutting = tokenizer.cutting(side)
    for texts in [*((text,) for text in WRITTEN), *permutations(WRITTEN, 2)]:
        read: Any = texts if len(texts) == 2 else texts[0]
        library.no_truncation()
        whole = library.encode(*texts).ids
        for limit in range(library.num_special_tokens_to_add(len(texts) == 2) + 1, len(whole) + 2):
            library.enable_truncation(limit, direction=side)
            (found,) = cutting.encode([read], limit)
            assert found.input_ids.tolist() == library.encode(*texts).ids
            assert found.left_out == max(0, len(whole) - limit)
        if len(texts) == 2:  # a limit of the second text alone, which is cut as if the limit of both were lower
            (query,), (document,) = tokenizer.ids(texts[:1]), tokenizer.ids(texts[1:])
            for count in range(1, len(document) + 2):
                limit = len(whole) - max(0, len(document) - count)
                library.enable_truncation(limit, strategy="only_second", direction=side)
                (found,) = cutting.encode([read], 999, own_limits=(None, count))
                assert found.input_ids.tolist() == library.encode(*texts).ids
            (found,) = cutting.encode([read], 999, own_limits=(1, 1))
            assert found.left_out == len(query) + len(document) - 2
    library.no_truncation()


def test_prefix_stays_if_a_text_is_cut_on_the_left(tokenizer: Tokenizer) -> None:
    start, text = "find this: ", "서울의 봄은 짧다 and a film"
    (prefix,), (whole,) = tokenizer.ids([start]), tokenizer.ids([start + text])
    (found,) = tokenizer.cutting("left").encode([start + text], len(prefix) + 5, prefix=start)
    assert found.input_ids[1:-1].tolist() == [*prefix, *whole[-3:]]
    assert found.left_out == len(whole) - len(prefix) - 3


@pytest.mark.parametrize("name", first(READERS, "bpe-space", "spiece"))
@given(text=TEXTS, count=st.integers(0, 20))
def test_first_tokens_equal_those_of_the_whole_text(
    readers: dict[str, tuple[Tokenizer, Any]], name: str, text: str, count: int
) -> None:
    tokenizer, _ = readers[name]
    (whole,), (first,) = tokenizer.tokenize([text]), tokenizer.tokenize([text], count)
    assert len(first) + first.left_out == len(whole)
    for one, other in zip(vars(first).values(), vars(whole.part(0, count)).values(), strict=True):
        np.testing.assert_array_equal(one, other if isinstance(other, np.ndarray) else first.left_out)


def test_added_token_that_is_normalised_is_told_as_it_was_added(tmp_path: Path) -> None:
    """As in the answers of transformers 4.57.1, with tokenizers 0.22. Later versions of tokenizers tell e-x."""
    vocabulary = {token: number for number, token in enumerate(("[UNK]", "a", "b"))}
    written = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    written.normalizer, written.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    written.add_tokens([tokenizers.AddedToken("É-x", normalized=True)])
    written.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    for text in ("a É-x b", "a e-x b"):
        (tokens,) = tokenizer.tokenize([text])
        assert [tokenizer.token(number) for number in tokens.ids.tolist()] == ["a", "É-x", "b"]
        assert tokenizer.join_ids(tokens.ids.tolist()) == "a É-x b"


def test_equal_texts_are_tokenised_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query is read with each of many texts: its length must not count for each of them."""
    handed: list[str] = []
    plain = tokenizer._text

    class Spy:
        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            handed.extend(texts)
            return plain.encode_batch_fast(texts, **options)

    moving = "\u302e"  # a mark with which a text is left to the library
    query, texts = moving + "Who is a 베이커? " * 30, [moving + text for text in ("봄", "水", "봄")]
    expected = [tokenizer.encode([(query, text)], 99)[0].input_ids.tolist() for text in texts]
    monkeypatch.setattr(tokenizer, "_text", Spy())
    found = tokenizer.encode([(query, text) for text in texts], 99)
    assert [row.input_ids.tolist() for row in found] == expected
    assert sorted(handed) == sorted({query, *texts})


def test_encode_without_truncation_names_the_long_text(tokenizer: Tokenizer) -> None:
    fits = tokenizer.encode(["a a a"], 512)[0].input_ids
    assert len(tokenizer.encode(["a a a"], len(fits), truncate=False)) == 1
    with pytest.raises(TextTooLong) as caught:
        tokenizer.encode(["a", "a a a"], len(fits) - 1, truncate=False)
    assert caught.value.index == 1


@given(length=st.integers(0, 200), size=st.integers(1, 40), data=st.data())
def test_window_ranges_cover_every_token_and_overlap_by_stride(length: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(0, size - 1))
    found = window_ranges(length, size, stride)
    assert found[0][0] == 0
    assert found[-1][1] == length
    assert all(stop - start == size for start, stop in found[:-1])
    assert all(before[1] - after[0] == stride for before, after in pairwise(found))
    encoding = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    encoding.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    row = encoding.encode("a " * length)
    row.truncate(size, stride=stride)
    assert [stop - start for start, stop in found] == [len(part.ids) for part in [row, *row.overflowing]]


@pytest.mark.parametrize(("size", "stride"), [(0, 0), (4, 4), (4, 5), (4, -1)])
def test_window_ranges_reject_stride_without_advance(size: int, stride: int) -> None:
    with pytest.raises(ValueError, match="stride"):
        window_ranges(10, size, stride)


@given(first=st.integers(0, 50), second=st.integers(0, 50), size=st.integers(0, 60))
def test_pair_lengths_equal_tokenizers_library(first: int, second: int, size: int) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.enable_truncation(size)
    row = library.encode("a " * first, "a " * second)
    assert pair_lengths(first, second, size) == (row.sequence_ids.count(0), row.sequence_ids.count(1))


@given(text=st.text())
@settings(deadline=None)
def test_windows_equal_library_offsets_and_word_spans(tokenizer: Tokenizer, text: str) -> None:
    question, context = tokenizer.tokenize(["Who is it?", text])
    whole = tokenizer._text.encode_batch([text], add_special_tokens=False)[0]
    whole.truncate(7, stride=2)
    found = tokenizer.windows(question, context, question_index=3, size=7, stride=2)
    for window, part in zip(found, [whole, *whole.overflowing], strict=True):
        assert window.token_spans.tolist() == [list(span) for span in part.offsets]
        words = [window.span(place, place, words=True) for place in range(len(part.ids))]
        assert words == [part.word_to_chars(word) for word in part.word_ids]
        assert window.input_ids[window.context_start :][: len(part.ids)].tolist() == part.ids
        assert len(window.input_ids) == len(question) + len(part.ids) + 3 == len(window.focus)
        assert window.question_index == 3


@given(text=st.text(alphabet=st.characters(codec="utf-8")))
def test_offsets_stay_within_text_and_ascend(tokenizer: Tokenizer, text: str) -> None:
    (tokenized,) = tokenizer.tokenize([text])
    assert ((tokenized.offsets >= 0) & (tokenized.offsets <= len(text))).all()
    assert (tokenized.offsets[:, 0] <= tokenized.offsets[:, 1]).all()
    assert (np.diff(tokenized.offsets, axis=0) >= 0).all()
    assert (np.diff(tokenized.word_ids) >= 0).all()


def test_tokenizer_is_thread_safe(tokenizer: Tokenizer) -> None:
    expected = [row.input_ids.tolist() for row in tokenizer.encode(cases.SENTENCES, 20)]
    wrong: list[object] = []

    def work() -> None:
        for iteration in range(30):
            found = tokenizer.encode(cases.SENTENCES, 20, mask=iteration % 2 == 0)
            if [row.input_ids.tolist() for row in found] != expected:
                wrong.append(iteration)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing.txt", b"", "holds none of"),
        ("vocab.txt", b"a\nb\n[CLS]\n[UNK]\n", "lacks the token"),
        ("tokenizer.json", b"{", "cannot be read as a tokenizer"),
        ("spiece.model", b"x", "cannot be read as a tokenizer"),
        ("tokenizer_config.json", b"{", "is not valid JSON"),
    ],
)
def test_from_directory_rejects_unusable_directory(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_directory(tmp_path)


def test_load_rejects_invalid_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"tokenizer.json cannot be read as a tokenizer"):
        Tokenizer.load(tmp_path / "tokenizer.json")
