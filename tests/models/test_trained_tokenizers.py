"""Tokenizers trained on a small corpus, as the service loads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.vocabulary.pruning import SPECIALS
from swiftlet_train.vocabulary.tokenizer_training import (
    find_continuations,
    train_unigram,
    train_wordpiece,
)
from tests.support.paths import ROOT

TRAINERS = {"wordpiece": train_wordpiece, "unigram": train_unigram}
ENGLISH = [
    "Rain falls on the old mill, and the river rises.",
    "The miller's café was quiet; rainfall kept the town at home.",
    "Snow lies over the quiet town, and the river falls.",
]
KOREAN = [
    "오래된 물레방아에 비가 내린다.",
    "강가의 마을은 조용하고, 강물은 천천히 흐른다.",
    "눈이 내린 마을에 카페가 하나 있다!",
]
TEXTS = [*ENGLISH, *KOREAN]
SIZE = 260


@pytest.fixture(scope="module", params=sorted(TRAINERS))
def trained(request) -> tokenizers.Tokenizer:
    return TRAINERS[request.param](TEXTS * 5, SIZE)


@pytest.fixture
def loaded(trained, tmp_path: Path) -> Tokenizer:
    trained.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.load(tmp_path / "tokenizer.json")


def test_training_puts_special_tokens_first_and_keeps_the_size(trained):
    assert [trained.id_to_token(number) for number in range(5)] == list(SPECIALS)
    assert trained.get_vocab_size() <= SIZE
    assert sorted(trained.get_vocab().values()) == list(range(trained.get_vocab_size()))


@pytest.mark.parametrize("text", TEXTS)
def test_training_covers_all_characters_in_both_positions(trained, text):
    letters = [character for character in text if not character.isspace()]

    for made in (text, " ".join(letters), "".join(reversed(letters))):
        assert 1 not in trained.encode(made).ids


@pytest.mark.parametrize("text", KOREAN)
def test_training_keeps_hangul_syllables(trained, text):
    tokens = trained.encode(text, add_special_tokens=False).tokens

    assert not any("\u1100" <= character <= "\u11ff" for token in tokens for character in token)
    plain = "".join(tokens).replace("##", "").replace("▁", "")
    assert plain == text.replace(" ", "")


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_offsets_slice_the_original_text(loaded, trained, text):
    (tokenized,) = loaded.tokenize([text])

    for number, (start, end) in zip(tokenized.ids.tolist(), tokenized.offsets.tolist(), strict=True):
        piece = trained.id_to_token(number).replace("##", "").replace("▁", "")
        # SentencePiece puts a blank before the text, which has no character in the text.
        assert not piece or text[start:end].strip().lower().replace("é", "e") == piece


def test_tokenizer_decodes_lower_cased_text_without_accents(loaded):
    texts = ["the miller at the cafe", "마을은 조용하고 강물은 천천히 흐른다"]
    rows = [ids.tolist() for ids in loaded.ids(["The Miller at the Café", texts[1]])]

    assert loaded.decode(rows) == texts


def test_tokenizer_adds_special_tokens_and_token_types(loaded):
    (one,), (two,) = loaded.encode(["rain"], 32), loaded.encode([("rain", "강물")], 32)

    assert (one.input_ids[0], one.input_ids[-1]) == (2, 3)
    assert (two.input_ids == 3).sum() == 2
    middle = two.input_ids.tolist().index(3)
    assert two.token_type_ids.tolist() == [0] * (middle + 1) + [1] * (len(two.input_ids) - middle - 1)


def test_tokenizer_reads_special_tokens_as_text_except_the_mask_on_request(loaded):
    text = "rain [SEP] [MASK] [CLS] [PAD]"
    (plain,), (masked,) = loaded.encode([text], 64), loaded.encode([text], 64, mask=True)

    assert loaded.mask_id == 4
    assert (plain.input_ids < 5).sum() - (plain.input_ids == 1).sum() == 2  # the special tokens around the text
    assert len(masked.focus) == 1
    assert masked.input_ids[masked.focus].tolist() == [4]
    assert (masked.input_ids == 3).sum() == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_training_is_deterministic_across_processes(name):
    program = (
        "import sys; from tests.models.test_trained_tokenizers import *;"
        f"sys.stdout.buffer.write(TRAINERS['{name}'](TEXTS * 5, SIZE).to_str().encode())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=ROOT)

    assert run.stdout.decode() == TRAINERS[name](TEXTS * 5, SIZE).to_str()


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_training_keeps_case_and_accents_on_request(name):
    made = TRAINERS[name](TEXTS * 5, SIZE + 40, lowercase=False, strip_accents=False)
    tokens = "".join(made.encode("The café", add_special_tokens=False).tokens)

    assert tokens.replace("##", "").replace("▁", "") == "Thecafé"


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_training_rejects_a_vocabulary_below_the_characters(name):
    with pytest.raises(ValueError, match="vocabulary of 20"):
        TRAINERS[name](TEXTS, 20)


def test_find_continuations_marks_pieces_that_continue_a_word(trained):
    continues = find_continuations(trained)
    encoded = trained.encode("the mill, the amills", add_special_tokens=False)
    begins = [text for text, more in zip(encoded.tokens, continues[encoded.ids].tolist(), strict=True) if not more]

    assert continues.shape == (trained.get_vocab_size(),)
    assert not continues[:5].any()
    assert len(begins) == 5  # four words and a comma
    assert len(encoded.tokens) > 5


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_training_drops_rare_characters_by_coverage(name):
    made = TRAINERS[name]([*TEXTS * 50, "rain ☂ 鑫"], SIZE, character_coverage=0.999)

    assert "☂" not in made.get_vocab()
    assert 1 in made.encode("☂").ids
    assert 1 not in made.encode("rain 비").ids


def test_tokenizer_treats_all_whitespace_alike(trained):
    wanted = trained.encode("rain falls on the mill").ids

    assert trained.encode("rain\nfalls\ton  the\u00a0\r\nmill").ids == wanted
    assert 1 not in wanted
