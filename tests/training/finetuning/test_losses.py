"""The losses of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from swiftlet_models.datasets import Question
from swiftlet_models.heads import build
from swiftlet_train.examples.example import NO_LABEL, Example
from swiftlet_train.examples.questions import make_windows
from swiftlet_train.finetuning.distillation import compute_logits
from swiftlet_train.finetuning.logits import mean_predictions, stack_logits, task_logits
from swiftlet_train.finetuning.losses import distillation_loss, label_loss
from tests.support.artifacts import make_tokenizer
from tests.support.networks import network
from tests.support.tiers import first
from tests.support.training import logits_alone

TOKENIZER = make_tokenizer()


CPU = torch.device("cpu")


def questions() -> list[Example]:
    question = Question("1", "ab?", "abc cab " * 3, ("cab",), (4,))
    return [*make_windows(question, TOKENIZER, 20), *make_windows(replace(question, answers=()), TOKENIZER, 40)]


def labelled() -> list[Example]:
    return [Example(encoding, (i,)) for i, encoding in enumerate(TOKENIZER.encode(["a", "abc abc", ""], 20))]


def divergence(theirs: list[float], ours: list[float], temperature: float) -> float:
    """Returns KL(teacher || student) of softened predictions, computed in plain Python."""
    p, q = ([math.exp(x / temperature) for x in logits] for logits in (theirs, ours))
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize(
    ("task", "make_examples", "temperature"),
    first(
        [(*one, temperature) for one in (("qa", questions), ("classify", labelled)) for temperature in (1.0, 2.0, 5.0)],
        ("qa", questions, 2.0),
        ("classify", labelled, 5.0),
    ),
)
@torch.no_grad()
def test_distillation_loss_matches_the_divergence_computed_by_hand(task, make_examples, temperature):
    student, teacher = network("bert", task), network("mobilebert" if task == "qa" else "albert", task)
    examples = make_examples()
    logits = compute_logits(teacher, examples, batch_size=2, device=CPU)
    expected = [
        temperature**2 * divergence(t.tolist(), s.tolist(), temperature)
        for example in examples
        for t, s in zip(logits_alone(teacher, example).T, logits_alone(student, example).T, strict=True)
    ]

    found = distillation_loss(task_logits(student, examples), stack_logits(logits, examples), temperature).item()
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-3)
    assert found > 1e-3
    assert [one.shape[0] for one in logits] == [len(example.encoding.focus) for example in examples]
    own = compute_logits(student, examples, batch_size=3, device=CPU)
    assert distillation_loss(
        task_logits(student, examples), stack_logits(own, examples), temperature
    ).item() == pytest.approx(0, abs=1e-6)


def test_label_loss_ignores_unlabelled_examples():
    examples = labelled()
    logits = task_logits(network("albert", "classify"), examples)
    one, two, _ = (label_loss(logits[[i]], [example]) for i, example in enumerate(examples))
    unknown = replace(examples[2], target=(NO_LABEL,))

    assert label_loss(logits, [*examples[:2], unknown]).item() == pytest.approx((one + two).item() / 3, rel=1e-5)
    assert label_loss(logits[[2]], [unknown]).item() == 0


def test_distillation_loss_has_finite_gradients_for_excluded_positions():
    model = build("bert", {**vars(network("bert", "qa").encoder.config)}, "token", 2)
    examples = questions()
    logits = compute_logits(network("bert", "qa"), examples, batch_size=8, device=CPU)
    distillation_loss(task_logits(model, examples), stack_logits(logits, examples), 2.0).backward()

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_label_loss_of_answers_reads_cls_and_the_context_only():
    question = Question("1", "ab?", "abc cab " * 3, ("cab",), (4,))
    examples = [*make_windows(question, TOKENIZER, 20), *make_windows(replace(question, answers=()), TOKENIZER, 40)]
    model = network("mobilebert", "qa")
    expected = []
    for example in examples:
        ids, types = (
            torch.from_numpy(array)[None] for array in (example.encoding.input_ids, example.encoding.token_type_ids)
        )
        logits = model(ids, types, torch.tensor([ids.shape[1]]), torch.arange(ids.shape[1]))  # (S, 2)
        positions = [0, *example.context]
        log_probabilities = logits[positions].log_softmax(0)
        expected += [
            -log_probabilities[positions.index(position), side] for side, position in enumerate(example.target)
        ]

    assert len({len(example.encoding.input_ids) for example in examples}) > 1
    assert label_loss(task_logits(model, examples), examples).item() == pytest.approx(
        torch.stack(expected).mean().item(), rel=1e-4
    )


def test_label_loss_of_a_batch_is_the_mean_of_its_examples():
    model = network("bert", "classify")
    examples = [
        Example(encoding, (label,)) for label, encoding in enumerate(TOKENIZER.encode(["a", "abc abc", ""], 20))
    ]
    alone = [label_loss(task_logits(model, [example]), [example]).item() for example in examples]

    assert label_loss(task_logits(model, examples), examples).item() == pytest.approx(sum(alone) / 3, rel=1e-4)


def test_mean_of_two_teachers_is_that_of_their_probabilities_or_the_first_where_the_second_has_none():
    chance = np.random.default_rng(0)
    one, other = (chance.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    other[1] = np.nan
    (mean,) = mean_predictions([one], [other], 0.25)
    first, second = (torch.from_numpy(x).softmax(1) for x in (one, other))
    expected = 0.25 * first + 0.75 * second
    expected[1] = first[1]

    torch.testing.assert_close(torch.from_numpy(mean).exp(), expected)
