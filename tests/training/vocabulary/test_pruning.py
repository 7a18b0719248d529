"""The smaller vocabulary: the pieces of a WordPiece vocabulary that a corpus uses."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import normalizers

from swiftlet_train.vocabulary.pruning import SPECIALS, count_pieces, prune
from swiftlet_train.vocabulary.tokenizer_training import make_unigram
from tests.support.training import PIECES, wordpiece

TEXTS = ["rain falls on the old mill", "the river and the rain", "the snow", "rainfalls", "the qx mill."]


def pruned(size: int, *, template: bool = True) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer, list[int]]:
    whole = wordpiece(template=template)
    whole.no_truncation()
    whole.no_padding()
    small, kept = prune(whole, count_pieces(whole, TEXTS), size)
    return whole, small, kept


def tokens(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


def test_count_pieces_counts_all_texts():
    counts = count_pieces(pruned(60)[0], iter(TEXTS * 500))  # more than one chunk

    assert counts["the"] == 5 * 500
    assert counts["##fall"] == 500
    assert "over" not in counts


@pytest.mark.parametrize("size", [40, 43, 60])
def test_prune_keeps_the_size_and_puts_special_tokens_first(size):
    _, small, kept = pruned(size)

    assert small.get_vocab_size() == len(kept) <= size
    assert [small.id_to_token(number) for number in range(5)] == list(SPECIALS)
    assert size == 60 or len(kept) == size


def test_prune_returns_the_old_id_of_each_piece():
    whole, small, kept = pruned(43)

    for number, old in enumerate(kept):
        assert small.id_to_token(number) == whole.id_to_token(old)
    assert kept == sorted(kept)


@pytest.mark.parametrize("text", TEXTS)
def test_prune_tokenizes_kept_words_as_before(text):
    whole, small, _ = pruned(60)

    assert tokens(small, text) == tokens(whole, text)


def test_prune_keeps_frequent_pieces_and_splits_other_words():
    _, small, _ = pruned(41)

    assert tokens(small, "the") == ["the"]
    assert tokens(small, "snow") == ["s", "##n", "##o", "##w"]


def test_prune_keeps_all_characters_in_both_positions():
    """In the corpus `q` only starts a word, `x` only continues one, and the letters of `snow` occur in words only."""
    _, small, _ = pruned(40)

    assert "[UNK]" not in tokens(small, "q qx won")
    assert tokens(small, "qxx") == ["q", "##x", "##x"]


def test_prune_leaves_out_rare_characters():
    """`q` and `x` occur twice, also in a piece of both. The other letters occur more often."""
    whole = wordpiece([*PIECES, "qx"])
    counts = count_pieces(whole, [*TEXTS, "w o n i l f m r t v d s h e a"] * 3)
    counts["qx"] = counts["q"] = counts["##x"] = 1
    assert "qx" in prune(whole, counts, 60, min_character_count=2)[0].get_vocab()
    small, _ = prune(whole, counts, 60, min_character_count=3)

    assert tokens(small, "qx") == ["[UNK]"]
    assert not [piece for piece in small.get_vocab() if "q" in piece or "x" in piece]
    assert "[UNK]" not in tokens(small, "won")
    assert tokens(small, "rain") == ["rain"]


@pytest.mark.parametrize("template", [True, False])
def test_prune_updates_the_template_to_the_new_ids(template):
    _, small, _ = pruned(60, template=template)

    assert small.encode("the rain", "mill").ids == [
        *[2, small.token_to_id("the"), small.token_to_id("rain"), 3],
        *[small.token_to_id("mill"), 3],
    ]
    assert small.encode("[MASK]", add_special_tokens=False).ids == [4]


def test_prune_rejects_a_size_below_the_characters():
    with pytest.raises(ValueError, match="do not fit into a vocabulary of 6"):
        pruned(6)


def test_prune_keeps_the_scores_of_a_unigram_vocabulary():
    pieces = [("[CLS]", 0.0), ("[PAD]", 0.0), ("[SEP]", 0.0), ("[UNK]", 0.0), ("▁", -2.0), ("a", -6.0), ("b", -6.5)]
    pieces += [("▁ab", -5.0), ("▁a", -4.0), ("ba", -7.0), ("▁cc", -9.0), ("c", -9.5), ("[MASK]", 0.0)]
    whole = make_unigram(pieces, 3, normalizers.NFKC())
    small, kept = prune(whole, count_pieces(whole, ["ab ab ba", "ab ba aba"]), 10)

    assert [whole.id_to_token(old) for old in kept] == [small.id_to_token(number) for number in range(10)]
    assert {"▁", "a", "b", "▁ab", "ba"} == set(small.get_vocab()) - set(SPECIALS)
    for text in ("ab ba", "[MASK] abba", "x"):
        assert small.encode(text).tokens == whole.encode(text).tokens
