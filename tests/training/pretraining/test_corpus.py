"""The corpus of pre-training."""

from __future__ import annotations

from itertools import islice

from swiftlet_models.datasets import documents
from swiftlet_train.pretraining.corpus import prepare_sequences, prepare_vocabulary
from swiftlet_train.run_recipe import load_recipe
from swiftlet_train.vocabulary.pruning import SPECIALS


def test_prepare_sequences_makes_the_number_and_length_of_the_recipe(pretrained, project):
    recipe = load_recipe(str(project / "tiny.toml"))
    vocabulary = prepare_vocabulary(recipe, project / "data", project / "runs" / "tiny")
    tokenizer = vocabulary.tokenizer
    sequences = prepare_sequences(recipe, tokenizer, project / "data", project / "runs" / "tiny")

    assert sequences.shape == (49, 16)
    assert (sequences[:, 0] == tokenizer.token_to_id("[CLS]")).all()
    assert (sequences[:, -1] == tokenizer.token_to_id("[SEP]")).all()
    assert (sequences[:, 1:-1] >= len(SPECIALS)).all()
    assert len(vocabulary.kept) == len(vocabulary.counts) == tokenizer.get_vocab_size() <= 50
    first = next(islice(documents(project / "data" / "text.txt.xz"), 0, None))
    assert sequences[0, 1:-1].tolist() == tokenizer.encode(first, add_special_tokens=False).ids[:14]
