"""Tests of MPNet's tokenizer, whose vocabulary holds BERT's special tokens beside its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from swiftlet_models.tokenizer import Tokenizer
from tests.goldens import cases

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def vocabulary() -> list[str]:
    common = (cases.HERE / "vocab.txt").read_text("utf-8").splitlines()
    return [*SPECIALS[:4], *common, SPECIALS[4]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint's files of older versions of transformers: `vocab.txt` only."""
    path = tmp_path_factory.mktemp("mpnet")
    (path / "vocab.txt").write_text("\n".join(vocabulary()) + "\n", "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MPNetTokenizer"}))
    return path


@pytest.fixture(scope="module")
def reference(folder: Path) -> transformers.PreTrainedTokenizerBase:
    return transformers.MPNetTokenizer(vocab={token: number for number, token in enumerate(vocabulary())})


@pytest.fixture(scope="module", params=["vocab.txt", "tokenizer.json"])
def tokenizer(
    request: pytest.FixtureRequest,
    folder: Path,
    reference: transformers.PreTrainedTokenizerBase,
    tmp_path_factory: pytest.TempPathFactory,
) -> Tokenizer:
    if request.param == "vocab.txt":
        return Tokenizer.from_directory(folder)
    path = tmp_path_factory.mktemp("saved")
    reference.save_pretrained(path)
    return Tokenizer.from_directory(path)


def test_ids_and_offsets_equal_those_of_transformers(
    tokenizer: Tokenizer, reference: transformers.PreTrainedTokenizerBase
) -> None:
    texts = [text for text in cases.strings(300) if not any(special in text for special in (*SPECIALS, "[UNK]"))]
    for text, ours in zip(texts, tokenizer.tokenize(texts), strict=True):
        theirs = reference(text, add_special_tokens=False, return_offsets_mapping=True)
        assert ours.ids.tolist() == theirs["input_ids"], text
        assert [tuple(span) for span in ours.offsets.tolist()] == [tuple(one) for one in theirs["offset_mapping"]], text


@pytest.mark.parametrize("text", ["a swift", ("a swift", "sleeps on the wing")])
def test_sequences_equal_those_of_transformers(
    tokenizer: Tokenizer, reference: transformers.PreTrainedTokenizerBase, text: str | tuple[str, str]
) -> None:
    theirs = reference(text) if isinstance(text, str) else reference(*text)
    (ours,) = tokenizer.encode([text], 64)

    assert ours.input_ids.tolist() == theirs["input_ids"]


def test_mask_is_its_own_and_not_that_of_bert(
    tokenizer: Tokenizer, reference: transformers.PreTrainedTokenizerBase
) -> None:
    (ours,) = tokenizer.encode(["the <mask> sleeps"], 64, mask=True)

    assert (tokenizer.mask, tokenizer.mask_id) == ("<mask>", len(vocabulary()) - 1)
    assert tokenizer.pad_id == 1
    assert ours.input_ids.tolist() == reference("the <mask> sleeps")["input_ids"]
    assert ours.input_ids[ours.focus].tolist() == [tokenizer.mask_id]


def test_special_tokens_in_a_text_are_text(tokenizer: Tokenizer) -> None:
    (ours,) = tokenizer.encode(["</s> <mask> [SEP]"], 64)

    assert ours.input_ids[0] == 0
    assert ours.input_ids[-1] == 2
    assert not set(ours.input_ids[1:-1].tolist()) & {0, 1, 2, tokenizer.mask_id}
