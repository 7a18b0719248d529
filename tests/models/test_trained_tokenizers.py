"""Tokenizers trained on texts of our own, as the service loads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.tokenizer import continuing, train_unigram, train_wordpiece
from swiftlet_serve.models.training.vocabulary import SPECIALS
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


def test_special_tokens_come_first_and_the_size_is_kept(trained):
    assert [trained.id_to_token(number) for number in range(5)] == list(SPECIALS)
    assert trained.get_vocab_size() <= SIZE
    assert sorted(trained.get_vocab().values()) == list(range(trained.get_vocab_size()))


@pytest.mark.parametrize("text", TEXTS)
def test_no_letter_that_was_seen_is_unknown_wherever_it_stands(trained, text):
    letters = [character for character in text if not character.isspace()]

    for made in (text, " ".join(letters), "".join(reversed(letters))):
        assert 1 not in trained.encode(made).ids


@pytest.mark.parametrize("text", KOREAN)
def test_hangul_stays_whole(trained, text):
    tokens = trained.encode(text, add_special_tokens=False).tokens

    assert not any("\u1100" <= character <= "\u11ff" for token in tokens for character in token)
    plain = "".join(tokens).replace("##", "").replace("▁", "")
    assert plain == text.replace(" ", "")


@pytest.mark.parametrize("text", TEXTS)
def test_offsets_slice_the_original_text(loaded, trained, text):
    (reading,) = loaded.read([text])

    for number, (start, end) in zip(reading.ids.tolist(), reading.offsets.tolist(), strict=True):
        piece = trained.id_to_token(number).replace("##", "").replace("▁", "")
        # A blank that stands alone before the text, as SentencePiece puts it, has no character of its own.
        assert not piece or text[start:end].strip().lower().replace("é", "e") == piece


def test_text_comes_back_lower_cased_and_without_accents(loaded):
    texts = ["the miller at the cafe", "마을은 조용하고 강물은 천천히 흐른다"]
    rows = [encoding.input_ids.tolist() for encoding in loaded.encode(["The Miller at the Café", texts[1]], 64)]

    assert loaded.decode(rows, skip_specials=True) == texts


def test_rows_are_framed_and_pairs_have_two_types(loaded):
    (one,), (two,) = loaded.encode(["rain"], 32), loaded.encode([("rain", "강물")], 32)

    assert (one.input_ids[0], one.input_ids[-1]) == (2, 3)
    assert (two.input_ids == 3).sum() == 2
    middle = two.input_ids.tolist().index(3)
    assert two.token_type_ids.tolist() == [0] * (middle + 1) + [1] * (len(two.input_ids) - middle - 1)


def test_what_looks_like_a_special_token_is_text_and_the_mask_is_one_where_asked_for(loaded):
    text = "rain [SEP] [MASK] [CLS] [PAD]"
    (plain,), (masked,) = loaded.encode([text], 64), loaded.encode([text], 64, mask=True)

    assert loaded.mask_id == 4
    assert (plain.input_ids < 5).sum() - (plain.input_ids == 1).sum() == 2  # only the frame
    assert len(masked.focus) == 1
    assert masked.input_ids[masked.focus].tolist() == [4]
    assert (masked.input_ids == 3).sum() == 1


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_the_same_texts_make_the_same_tokenizer_in_another_process(name):
    program = (
        "import sys; from tests.models.test_trained_tokenizers import *;"
        f"sys.stdout.buffer.write(TRAINERS['{name}'](TEXTS * 5, SIZE).to_str().encode())"
    )
    root = ROOT
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=root)

    assert run.stdout.decode() == TRAINERS[name](TEXTS * 5, SIZE).to_str()


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_case_and_accents_are_kept_if_asked_for(name):
    made = TRAINERS[name](TEXTS * 5, SIZE + 40, lowercase=False, strip_accents=False)
    tokens = "".join(made.encode("The café", add_special_tokens=False).tokens)

    assert tokens.replace("##", "").replace("▁", "") == "Thecafé"


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_a_vocabulary_too_small_for_its_characters_is_refused(name):
    with pytest.raises(ValueError, match="vocabulary of 20"):
        TRAINERS[name](TEXTS, 20)


def test_it_is_known_which_pieces_go_on_with_a_word(trained):
    going_on = continuing(trained)
    encoded = trained.encode("the mill, the amills", add_special_tokens=False)
    begins = [text for text, more in zip(encoded.tokens, going_on[encoded.ids].tolist(), strict=True) if not more]

    assert going_on.shape == (trained.get_vocab_size(),)
    assert not going_on[:5].any()
    assert len(begins) == 5  # four words and a comma
    assert len(encoded.tokens) > 5


@pytest.mark.parametrize("name", sorted(TRAINERS))
def test_the_rarest_characters_can_be_left_out(name):
    made = TRAINERS[name]([*TEXTS * 50, "rain ☂ 鑫"], SIZE, coverage=0.999)

    assert "☂" not in made.get_vocab()
    assert 1 in made.encode("☂").ids
    assert 1 not in made.encode("rain 비").ids


def test_every_blank_is_a_blank(trained):
    wanted = trained.encode("rain falls on the mill").ids

    assert trained.encode("rain\nfalls\ton  the\u00a0\r\nmill").ids == wanted
    assert 1 not in wanted
