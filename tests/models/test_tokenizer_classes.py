"""Tokenizers of checkpoints by their class: read as transformers reads them, or refused by name; and their check."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import transformers
from click.testing import CliRunner

from swiftlet_models import tokenizer_check, transformers_tokens
from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.cli.main import main
from tests.goldens import cases, families
from tests.support.sentence_checkpoints import save_transformer

BERT = {"tokenizer_class": "BertTokenizer"}
SIZES = {
    "vocab": len((cases.HERE / "vocab.txt").read_text("utf-8").splitlines()),
    "bpe": len(json.loads((cases.HERE / "vocab.json").read_text("utf-8"))),
}
TEXT = "A newword NewWord Newword, and a swift."


def write(path: Path, vocabulary: str, **files: Any) -> Path:
    """Writes a vocabulary of the golden tests and JSON files, named without their suffix."""
    path.mkdir(exist_ok=True)
    for file in families.FILES[vocabulary]:
        shutil.copy(cases.HERE / file, path)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.from_directory(path)
    return str(caught.value)


SEGMENTING = (
    "KoBert",
    "BertJapanese",
    "Bertweet",
    "Phobert",
    "Flaubert",
    "XLM",
    "XLNet",
    "Pegasus",
    "RoFormer",
    "Made.Up",
)


@pytest.mark.parametrize("place", ["tokenizer_config", "config"])
@pytest.mark.parametrize("with_file", [False, True])
@pytest.mark.parametrize("name", SEGMENTING)
def test_other_classes_are_refused_by_name(tmp_path: Path, name: str, place: str, with_file: bool) -> None:
    """Also beside a tokenizer.json, which transformers does not read for a class that has no fast form."""
    write(tmp_path, "vocab", **{place: {"model_type": "bert", "tokenizer_class": f"{name}Tokenizer"}})
    if with_file:
        Tokenizer.from_directory(write(tmp_path / "other", "vocab")).save(tmp_path / "tokenizer.json")

    assert refusal(tmp_path).startswith(f"the tokenizer class {name}Tokenizer is not supported. If a tokenizer.json")


def test_classes_with_a_fast_form_need_its_file(tmp_path: Path) -> None:
    write(tmp_path, "bpe", tokenizer_config={"tokenizer_class": "HerbertTokenizer"})
    assert refusal(tmp_path).startswith(
        "the tokenizer class HerbertTokenizer is not supported without tokenizer.json. Save a tokenizer.json with"
    )
    Tokenizer.from_directory(write(tmp_path / "other", "bpe")).save(tmp_path / "tokenizer.json")
    Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("place", "auto_map"),
    [
        ("tokenizer_config", {"AutoTokenizer": ["tokenization_kobert.KoBertTokenizer", None]}),
        ("tokenizer_config", ["tokenization_kobert.KoBertTokenizer", None]),
        ("config", {"AutoTokenizer": ["tokenization_kobert.KoBertTokenizer", None], "AutoModel": "m.M"}),
    ],
)
def test_code_of_the_checkpoint_is_refused(tmp_path: Path, place: str, auto_map: Any) -> None:
    write(tmp_path, "vocab", **{place: {"auto_map": auto_map}})
    assert "tokenization_kobert.KoBertTokenizer, which is code of the checkpoint and is not run." in refusal(tmp_path)


def test_code_of_the_network_does_not_concern_the_tokenizer(tmp_path: Path) -> None:
    Tokenizer.from_directory(write(tmp_path, "vocab", config={"auto_map": {"AutoModel": "m.M"}}))


@pytest.mark.parametrize(
    ("option", "value"),
    [("do_basic_tokenize", False), ("never_split", ["[X]"]), ("word_tokenizer_type", "mecab"), ("add_bos_token", True)],
)
def test_options_of_one_form_only_are_refused(tmp_path: Path, option: str, value: Any) -> None:
    write(tmp_path, "vocab", tokenizer_config={**BERT, option: value})
    assert f"{option} {value!r} is not supported" in refusal(tmp_path)


def test_class_without_its_vocabulary_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "vocab", tokenizer_config={"tokenizer_class": "RobertaTokenizer"})
    assert "holds no tokenizer.json or vocab.json, which RobertaTokenizer reads." in refusal(tmp_path)


def test_bpe_with_ends_of_words_is_refused(tmp_path: Path) -> None:
    """HerBERT, FlauBERT, XLM and OpenAI GPT have such vocabularies, in files of the same names."""
    write(tmp_path, "bpe", config={"model_type": "roberta"})
    vocab = json.loads((tmp_path / "vocab.json").read_text("utf-8"))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {"swift</w>": len(vocab)}), "utf-8")
    assert "whose words end in </w>" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "vocabulary", "around"),
    [("bert", "vocab", (2, 3)), ("roberta", "bpe", (0, 2)), ("gpt2", "bpe", ()), ("xlm-roberta", "xlm", (0, 2))],
)
def test_model_type_tells_the_class(tmp_path: Path, model_type: str, vocabulary: str, around: tuple[int, ...]) -> None:
    tokenizer = Tokenizer.from_directory(write(tmp_path, vocabulary, config={"model_type": model_type}))
    (encoding,) = tokenizer.encode(["a"], 9)
    specials = [number for number in encoding.input_ids.tolist() if number in tokenizer.special_ids]
    assert specials == [*around]


def bert_file(post_processor: Any) -> dict[str, Any]:
    """Returns a `tokenizer.json` of BERT with another post-processor."""
    fast = transformers.BertTokenizer(str(cases.HERE / "vocab.txt"))
    document: dict[str, Any] = json.loads(fast.backend_tokenizer.to_str())
    return document if post_processor == "own" else document | {"post_processor": post_processor}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
AROUND = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}


@pytest.mark.parametrize(
    "post_processor",
    ["own", None, AROUND, BYTES, {"type": "Sequence", "processors": [BYTES, AROUND]}],
    ids=["template", "none", "bert", "bytes", "sequence"],
)
@pytest.mark.parametrize(
    ("config", "types"),
    [
        (BERT, 2),
        (BERT | {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, 2),
        (BERT | {"model_input_names": ["input_ids", "attention_mask"]}, 1),
        ({"tokenizer_class": "TokenizersBackend"}, 1),
    ],
)
def test_pairs_have_the_token_types_that_the_network_reads(
    tmp_path: Path, post_processor: Any, config: dict[str, Any], types: int
) -> None:
    tokenizer = Tokenizer.from_directory(
        write(tmp_path, "vocab", tokenizer=bert_file(post_processor), tokenizer_config=config)
    )
    pair = Tokenizer.from_directory(
        write(tmp_path, "vocab", tokenizer_config=BERT, tokenizer=bert_file(post_processor))
    ).encode([("a swift", "the")], 64)[0]

    (encoding,) = tokenizer.encode([("a swift", "the")], 64)
    assert encoding.input_ids.tolist() == pair.input_ids.tolist()
    assert encoding.token_type_ids.tolist() == (pair.token_type_ids if types == 2 else 0 * pair.token_type_ids).tolist()
    assert (tokenizer.token_types, pair.token_type_ids.max()) == (types, 1)


def test_wrong_names_of_inputs_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "vocab", tokenizer_config=BERT | {"model_input_names": "input_ids"})
    assert "model_input_names is not a list of names" in refusal(tmp_path)


def test_special_tokens_may_have_other_names(tmp_path: Path) -> None:
    names = {"cls_token": "the", "sep_token": "a", "unk_token": "and"}
    tokenizer = Tokenizer.from_directory(write(tmp_path, "vocab", tokenizer_config=BERT, special_tokens_map=names))
    reference = transformers.AutoTokenizer.from_pretrained(
        write(tmp_path, "vocab", config={"model_type": "bert"}, tokenizer_config=BERT | names)
    )

    (encoding,) = tokenizer.encode(["swift 中"], 64)
    assert encoding.input_ids.tolist() == reference("swift 中")["input_ids"]
    assert tokenizer.unknown_id == tokenizer.token_to_id("and")


def entry(content: str, *, special: bool) -> dict[str, Any]:
    options = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": not special}
    return {"content": content, "special": special, **options}


def added(vocabulary: str) -> dict[str, dict[str, Any]]:
    """The ways in which versions of transformers write two added words and an added special token."""
    size = SIZES[vocabulary]
    more = {"additional_special_tokens": ["[E1]"]}
    numbers = {"newword": size, "[E1]": size + 1, "Big": size + 2}
    decoder = {str(number): entry(token, special=token == "[E1]") for token, number in numbers.items()}
    return {
        "added_tokens": {"added_tokens": numbers, "special_tokens_map": more},
        "decoder": {"tokenizer_config": {"added_tokens_decoder": decoder, **more}},
    }


@pytest.mark.parametrize("way", ["added_tokens", "decoder"])
@pytest.mark.parametrize(("vocabulary", "name"), [("vocab", "Bert"), ("bpe", "Roberta")])
@pytest.mark.parametrize("with_file", [False, True])
def test_added_tokens_are_those_of_transformers(
    tmp_path: Path, vocabulary: str, name: str, way: str, with_file: bool
) -> None:
    files = added(vocabulary)[way]
    files["tokenizer_config"] = {"tokenizer_class": f"{name}Tokenizer", **files.get("tokenizer_config", {})}
    if with_file:
        Tokenizer.from_directory(write(tmp_path / "other", vocabulary)).save(tmp_path / "tokenizer.json")
    write(tmp_path, vocabulary, config={"model_type": name.lower()}, **files)
    tokenizer = Tokenizer.from_directory(tmp_path)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = f"{TEXT} Big big."

    (encoding,) = tokenizer.encode([text], 64)
    assert encoding.input_ids.tolist() == reference(text)["input_ids"]
    assert SIZES[vocabulary] in encoding.input_ids
    assert tokenizer.vocab_size == SIZES[vocabulary] + 3
    assert tokenizer.token_to_id("[E1]") == SIZES[vocabulary] + 1 in tokenizer.special_ids
    assert SIZES[vocabulary] + 1 not in tokenizer.encode(["a [E1] b"], 64)[0].input_ids  # a special token is text
    assert tokenizer_check.difference(tokenizer, tmp_path) is None


def test_additional_special_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    more = {"additional_special_tokens": ["[E1]", "[E2]"]}
    tokenizer = Tokenizer.from_directory(write(tmp_path, "vocab", tokenizer_config=BERT | more))
    assert [tokenizer.token_to_id(token) for token in ("[E1]", "[E2]")] == [SIZES["vocab"], SIZES["vocab"] + 1]


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"newword": SIZES["vocab"] + 3}},
        {"added_tokens": {"[PAD]": SIZES["vocab"]}},
        {"tokenizer_config": {"added_tokens_decoder": {"7": entry("newword", special=False)}}},
        {"added_tokens": {"newword": "x"}},
        {"tokenizer_config": {"added_tokens_decoder": {"7": 3}}},
        {"special_tokens_map": {"cls_token": {"text": "[CLS]"}}},
        {"special_tokens_map": {"additional_special_tokens": [None]}},
    ],
)
def test_contradicting_added_tokens_are_refused(tmp_path: Path, files: dict[str, Any]) -> None:
    assert "the added token" in refusal(write(tmp_path, "vocab", **files))


# The check


@pytest.mark.parametrize(("vocabulary", "most"), [("vocab", 0.0), ("spiece", 0.0), ("bpe", 0.0), ("xlm", 0.0)])
def test_a_right_tokenizer_loses_no_letters(tmp_path: Path, vocabulary: str, most: float) -> None:
    assert tokenizer_check.lost_share(Tokenizer.from_directory(write(tmp_path, vocabulary))) <= most


def word_pieces(path: Path, pieces: list[str]) -> Tokenizer:
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(pieces)]
    path.mkdir()
    (path / "vocab.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return Tokenizer.from_directory(path)


def test_vocabularies_of_other_tokenizers_lose_most_letters(tmp_path: Path) -> None:
    words = " ".join(tokenizer_check.TEXTS.values()).split()
    letters = sorted({letter for word in words for letter in word})
    sentencepiece = word_pieces(tmp_path / "sentencepiece", [*(f"▁{word}" for word in words), *letters])
    bpe = word_pieces(tmp_path / "bpe", [*(f"{word}</w>" for word in words), *(f"{one}</w>" for one in letters)])

    for languages in (["en"], ["ko"], ["ru", "de"]):
        assert tokenizer_check.lost_share(sentencepiece, languages) > 2 * tokenizer_check.MAX_LOST
        assert tokenizer_check.lost_share(bpe, languages) > 2 * tokenizer_check.MAX_LOST


@pytest.mark.parametrize("language", ["ko", "ru", "th", "zh", "ja", "en"])
def test_a_vocabulary_is_judged_by_the_language_that_it_covers(tmp_path: Path, language: str) -> None:
    letters = sorted(set(unicodedata.normalize("NFD", tokenizer_check.TEXTS[language].lower())))
    tokenizer = word_pieces(tmp_path / "one", [*letters, *(f"##{letter}" for letter in letters)])

    assert tokenizer_check.lost_share(tokenizer) <= tokenizer_check.lost_share(tokenizer, [language]) < 0.3
    assert tokenizer_check.lost_share(tokenizer, ["am-ET"]) == 1.0


@pytest.mark.parametrize("name", ["Bert", "Roberta", "XLMRoberta", "Camembert", "Albert"])
def test_difference_finds_a_wrong_tokenizer(tmp_path: Path, name: str) -> None:
    vocabulary = {"Bert": "vocab", "Roberta": "bpe", "Albert": "spiece"}.get(name, "xlm")
    config = {"tokenizer_class": f"{name}Tokenizer"}
    model_type = {"XLMRoberta": "xlm-roberta"}.get(name, name.lower())
    write(tmp_path, vocabulary, config={"model_type": model_type}, tokenizer_config=config)
    tokenizer = Tokenizer.from_directory(tmp_path)
    wrong = Tokenizer.from_directory(write(tmp_path / "other", "bpe" if name == "Bert" else "vocab"))

    assert tokenizer_check.difference(tokenizer, tmp_path) is None
    assert tokenizer_check.difference(wrong, tmp_path) is not None


def test_transformers_reads_a_tokenizer_without_torch_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "vocab", config={"model_type": "bert"}, tokenizer_config={"tokenizer_class": "BertTokenizer"})
    here = transformers_tokens.read(tmp_path)
    monkeypatch.delitem(sys.modules, "transformers")
    there = transformers_tokens.read(tmp_path)

    assert there.added == here.added
    assert [tuple(map(list, ids)) for ids in there.ids] == [tuple(map(list, ids)) for ids in here.ids]
    with pytest.raises(subprocess.CalledProcessError):
        transformers_tokens.read(tmp_path / "none")


def run(source: Path, *options: str) -> str:
    result = CliRunner().invoke(
        main, ["import", str(source), "--task", "classify", "--out", str(source.parent / "out"), *options]
    )
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_import_checks_the_tokenizer(tmp_path: Path) -> None:
    """Without the check, the import goes on to the next fault: a tokenizer that is larger than the network."""
    source = save_transformer(tmp_path / "checkpoint", labels=3)
    tokens = (source / "vocab.txt").read_text("utf-8").splitlines()
    pieces = [token if token.startswith("[") else f"▁{token}" for token in tokens]
    (source / "vocab.txt").write_text("\n".join([*pieces, "▁one more"]) + "\n", "utf-8")

    assert "unknown tokens of 100% of the letters of a built-in text" in run(source)
    assert "tokens, and the network only" in run(source, "--accept-tokenizer")


def test_import_compares_with_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_transformer(tmp_path / "checkpoint", labels=3)
    original = Tokenizer.from_directory
    other = write(tmp_path / "other", "vocab", tokenizer_config=BERT | {"do_lower_case": False})
    monkeypatch.setattr(Tokenizer, "from_directory", lambda _: original(other))

    assert "transformers reads the tokenizer otherwise: the text 'All human beings" in run(source)
