"""The training of a model on the examples of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from swiftlet_models.artifact import Embedding
from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.batches import make_batches
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.logits import Logits, has_labelled_tokens, stack_logits, task_logits
from swiftlet_train.finetuning.losses import distillation_loss, label_loss
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import Losses, train
from swiftlet_train.recipe import EMBEDDING_METHODS, Finetuning, Recipe, identifying_settings

MEAN: Final = Embedding("mean", normalize=True)
"""How a trained embedding model makes a vector."""
EVALUATION_FIELDS: Final = frozenset(
    {"evaluate", "evaluate_skip", "evaluate_limit", "licences", "also_evaluate", "weaknesses"}
)
"""The fields that do not change the training of a model."""


@dataclass(frozen=True, eq=False)
class FinetunedTeacher:
    """A fine-tuned teacher, with all that an artifact of it needs."""

    task: str
    architecture: str
    model: Model
    tokenizer: Tokenizer
    labels: Sequence[str]


class Predict(Protocol):
    """Computes a teacher's logits for each example on an engine, from an int8 artifact in `directory`."""

    def __call__(
        self,
        engine: str,
        directory: Path,
        teacher: FinetunedTeacher,
        examples: Sequence[Example],
        progress: Callable[[int, int], None] | None,
    ) -> list[Logits]: ...


@dataclass(frozen=True)
class Run:
    """The directory and device of a training, and the callbacks that report its progress."""

    directory: Path
    device: torch.device
    report: Callable[[str], None]
    progress: Callable[[int, int], None] | None
    predict: Predict | None = None
    """Computes a teacher's logits on an engine; None without such a teacher."""
    teachers: Path | None = None
    """The folder of the task teachers that recipes share; None without one."""


def training_directory(directory: Path, number: int) -> Path:
    """Returns the directory of one of a task's trainings, counted from 1. The first one is in the task's directory."""
    return directory if number == 1 else directory / f"training-{number}"


def averaged_directory(directory: Path, count: int) -> Path:
    """Returns the directory of the steps that follow the averaging of `count` trainings."""
    return directory / f"mean-of-{count}"


def finetuning_settings(work: Finetuning) -> dict[str, Any]:
    """Returns the settings that decide a fine-tuning: none of the evaluation or the card."""
    return {name: value for name, value in identifying_settings(work).items() if name not in EVALUATION_FIELDS}


def add_head(
    recipe: Recipe, work: Finetuning, architecture: str, config: Mapping[str, Any], encoder: nn.Module
) -> Model:
    """Makes a model with a trained encoder and an untrained head."""
    torch.manual_seed(recipe.seed)
    if work.method == "span":
        model = build(architecture, config, "token", 2)  # the start and the end of an answer
    elif work.method == "entities":
        model = build(architecture, config, "token", len(work.labels))
    elif work.method in EMBEDDING_METHODS:
        model = build(architecture, config, "embedding", embedding=MEAN)
    else:
        model = build(architecture, config, "classification", len(work.labels))
    model.encoder.load_state_dict(encoder.state_dict())
    return model


def train_on_examples(
    model: Model,
    examples: Sequence[Example],
    teacher_logits: Sequence[Logits] | None,
    work: Finetuning,
    seed: int,
    run: Run,
) -> None:
    """Trains a model on examples, and on a teacher's logits for them if given.

    A labelled token whose logits are NaN has no prediction of the teacher.
    """

    def batch_losses(numbers: Sequence[int]) -> Losses:
        batch = [examples[i] for i in numbers]
        logits = task_logits(model, batch)
        hard: Tensor = label_loss(logits, batch)
        plan = work.distillation
        if teacher_logits is None or plan is None:
            return {"loss": hard}
        theirs = stack_logits([teacher_logits[i] for i in numbers], batch).to(logits.device)
        if has_labelled_tokens(batch):
            theirs = torch.where(theirs.isnan(), logits.detach(), theirs)  # a prediction equal to ours adds 0
        soft = distillation_loss(logits, theirs, plan.temperature)
        return {"labels": plan.hard_label_weight * hard, "teacher": (1 - plan.hard_label_weight) * soft}

    train_on_batches(model, examples, batch_losses, work, seed, run)


def train_on_batches(
    model: Model,
    examples: Sequence[Example],
    batch_losses: Callable[[Sequence[int]], Losses],
    work: Finetuning,
    seed: int,
    run: Run,
) -> None:
    """Trains a model on batches of examples. `batch_losses` takes the numbers of a batch's examples."""
    batches = [batch for epoch in range(work.epochs) for batch in make_batches(examples, work.batch_size, seed + epoch)]
    steps = -(-len(batches) // work.gradient_accumulation_steps)  # the first batches complete the last step
    train(
        model,
        lambda number: batch_losses(batches[number % len(batches)]),
        Schedule.from_recipe(steps, work),
        run.directory,
        seed=seed,
        device=run.device,
        report=run.report,
        progress=run.progress,
    )
