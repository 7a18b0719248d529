"""The examples of entities: the labels of tokens, and their loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import normalizers

from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import NO_LABEL
from swiftlet_train.finetuning.finetune import read_examples
from swiftlet_train.finetuning.logits import split_logits, task_logits
from swiftlet_train.finetuning.losses import label_loss
from swiftlet_train.recipe import Finetuning, RecipeError
from swiftlet_train.vocabulary.pruning import SPECIALS
from swiftlet_train.vocabulary.tokenizer_training import make_unigram
from tests.support.artifacts import make_tokenizer

TOKENIZER = make_tokenizer()
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LINES = """\
Ana B-person
Rui I-person
left O
Rio B-place
. O

The O
Rio B-band
band O
"""


def finetuning(**changes) -> Finetuning:
    kinds = {"person": "PER", "place": "LOC"}
    settings = {"method": "entities", "labels": LABELS, "entity_kinds": kinds, "max_tokens": 64} | changes
    return Finetuning("entities", "x", (), {"ner.conll": 9}, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    data = tmp_path_factory.mktemp("entities")
    (data / "ner.conll").write_text(LINES, "utf-8")
    return data


def labels_by_word(work: Finetuning, folder: Path) -> list[list[str | None]]:
    """Returns the label of the first token of each word, or None for a token without label."""
    found = []
    for example, text in zip(
        read_examples(work, folder, TOKENIZER), ("Ana Rui left Rio .", "The Rio band"), strict=True
    ):
        (tokens,) = TOKENIZER.tokenize([text])
        assert len(tokens) == len(example.target) == len(example.encoding.focus)
        starts = np.cumsum([0, *(len(word) + 1 for word in text.split()[:-1])])
        firsts = [int(np.flatnonzero(tokens.offsets[:, 0] == start)[0]) for start in starts]
        found.append([None if example.target[i] == NO_LABEL else work.labels[example.target[i]] for i in firsts])
    return found


def test_read_examples_labels_tokens_by_bio(folder):
    assert labels_by_word(finetuning(), folder) == [["B-PER", "I-PER", "O", "B-LOC", "O"], ["O", "O", "O"]]


def test_read_examples_leaves_out_tokens_of_unsure_kinds(folder):
    work = finetuning(entity_kinds={"person": "PER", "place": "LOC", "band": ""})

    assert labels_by_word(work, folder)[1] == ["O", None, "O"]


def test_read_examples_labels_later_tokens_of_a_word_as_inside(folder):
    example = read_examples(finetuning(), folder, TOKENIZER)[0]
    (tokens,) = TOKENIZER.tokenize(["Ana Rui left Rio ."])
    inside = [example.target[i] for i, (start, end) in enumerate(tokens.offsets) if 0 < start < 7 and end <= 7]

    assert set(inside) <= {LABELS.index("I-PER")}
    assert example.target[0] == LABELS.index("B-PER")


def test_read_examples_labels_tokens_that_begin_with_a_space(tmp_path):
    """SentencePiece's tokens include the space before a word. A space alone is inside or outside of an entity."""
    (tmp_path / "ner.conll").write_text("Ana B-person\nRui I-person\nx O\nRio B-place\n", "utf-8")
    pieces = [(special, 0.0) for special in SPECIALS]
    pieces += [("▁", -3.0), ("▁Ana", -4.0), ("Ru", -5.0), ("i", -6.0), ("▁x", -4.0), ("▁Rio", -4.0)]
    tokenizer = Tokenizer(json.loads(make_unigram(pieces, 1, normalizers.NFKC()).to_str()))
    (example,) = read_examples(finetuning(), tmp_path, tokenizer)

    read = [tokenizer.tokens[i] for i in example.encoding.input_ids[1:-1]]
    assert read == ["▁Ana", "▁", "Ru", "i", "▁x", "▁Rio"]
    assert [LABELS[i] for i in example.target] == ["B-PER", "I-PER", "I-PER", "I-PER", "O", "B-LOC"]


def test_read_examples_divides_long_texts(tmp_path):
    (tmp_path / "ner.conll").write_text("Ana B-person\nRui I-person\nleft O\n" * 5, "utf-8")
    whole = read_examples(finetuning(), tmp_path, TOKENIZER)
    parts = read_examples(finetuning(max_tokens=8), tmp_path, TOKENIZER)

    assert len(whole) == 1 < len(parts)
    assert all(len(part.encoding.input_ids) <= 8 for part in parts)
    assert sum((part.target for part in parts), ()) == sum((one.target for one in whole), ())


@pytest.mark.parametrize("labels", [LABELS[1:], LABELS[:-1]])
def test_read_examples_rejects_missing_labels(folder, labels):
    with pytest.raises(RecipeError, match="the labels of a task like entities must contain"):
        read_examples(finetuning(labels=labels), folder, TOKENIZER)


@pytest.mark.parametrize("changes", [{"entity_kinds": {}}, {"method": "classification"}])
def test_recipe_rejects_contradictions(changes):
    with pytest.raises(RecipeError, match="a task like entities"):
        finetuning(**changes)


def network() -> Model:
    torch.manual_seed(1)
    config = {"vocab_size": TOKENIZER.vocab_size, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 4, "intermediate_size": 64, "hidden_dropout_prob": 0.0}
    return build("albert", config, "token", len(LABELS)).eval()


def test_label_loss_reads_labelled_tokens_only(folder):
    model = network()
    work = finetuning(entity_kinds={"person": "PER", "place": "LOC", "band": ""})
    examples = read_examples(work, folder, TOKENIZER)
    losses, count = 0.0, 0
    for example in examples:
        ids = torch.from_numpy(example.encoding.input_ids)[None]
        logits = model(ids, ids * 0, torch.tensor([ids.shape[1]]), torch.from_numpy(example.encoding.focus))
        labelled = torch.tensor(example.target) != NO_LABEL
        chosen = logits.log_softmax(1)[labelled].gather(1, torch.tensor(example.target)[labelled][:, None])
        losses, count = losses - chosen.sum().item(), count + len(example.target)

    assert label_loss(task_logits(model, examples), examples).item() == pytest.approx(losses / count, abs=1e-5)


def test_task_logits_are_those_of_each_text_alone(folder):
    model = network()
    examples = read_examples(finetuning(), folder, TOKENIZER)
    for together, example in zip(split_logits(task_logits(model, examples), examples), examples, strict=True):
        assert torch.allclose(together, task_logits(model, [example]), atol=1e-5)
