"""The examples of reranking: queries with texts that answer them, and with texts that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from swiftlet_models.datasets import Question
from swiftlet_train.examples.example import Example
from swiftlet_train.examples.relevance import Judged, judge_answers
from swiftlet_train.finetuning.finetune import read_examples
from swiftlet_train.finetuning.losses import label_loss
from swiftlet_train.recipe import Finetuning, RecipeError
from tests.support.artifacts import make_tokenizer

TOKENIZER = make_tokenizer()
BEES = "Bees live in hives. They dance to tell the way. Honey is sweet. Wax is hard."
SNOW = "Snow falls on the hives in winter. It melts in spring."


def finetuning(file: str, **changes) -> Finetuning:
    settings = {"method": "relevance", "labels": ("relevant",), "negatives": 2, "max_tokens": 256} | changes
    return Finetuning("rerank", "x", (), {file: 9}, **settings)


def question(asked: str, context: str, answer: str) -> Question:
    return Question(asked, asked, context, (answer,), (context.index(answer),))


def test_judge_answers_takes_paragraphs_and_sentences():
    asked = [question("Why do bees dance?", BEES, "tell the way"), question("When does snow fall?", SNOW, "winter")]
    judged = judge_answers(asked, 2)

    assert Judged("Why do bees dance?", BEES, 1) in judged
    assert Judged("Why do bees dance?", SNOW, 0) in judged
    assert Judged("Why do bees dance?", "They dance to tell the way.", 1) in judged
    assert Judged("Why do bees dance?", "Bees live in hives.", 0) in judged
    assert Judged("When does snow fall?", "It melts in spring.", 0) in judged
    assert len(judged) == 4 + 3 + 2
    assert all(one.text == one.text.strip() for one in judged)


def test_read_examples_reads_queries_with_texts(tmp_path: Path):
    rows = [{"query": "how?", "text": f"text {i}", "label": int(i == 2)} for i in range(5)]
    rows += [{"query": "unanswered?", "text": "text", "label": 0}]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    examples = read_examples(finetuning("asked.jsonl"), tmp_path, TOKENIZER)

    assert [example.target for example in examples] == [(1,), (0,), (0,)]


def test_label_loss_of_one_label_is_binary():
    encoding = TOKENIZER.encode(["a"], 8)[0]
    examples = [Example(encoding, (1,)), Example(encoding, (0,))]
    logits = torch.tensor([[2.0], [-1.0]])
    expected = -(torch.sigmoid(torch.tensor(2.0)).log() + torch.sigmoid(torch.tensor(1.0)).log()) / 2

    assert label_loss(logits, examples) == pytest.approx(float(expected))


@pytest.mark.parametrize("labels", [(), ("no", "yes")])
def test_recipe_rejects_other_numbers_of_labels(labels):
    with pytest.raises(RecipeError, match="a task like rerank needs one label"):
        finetuning("asked.jsonl", labels=labels)
