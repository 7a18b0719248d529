"""The scores of a study's variants on its tasks, from several checkpoints of their pre-training.

Each checkpoint is fine-tuned in the same way, once for each seed, and evaluated in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

import torch
from matplotlib.figure import Figure

from swiftlet_models import datasets
from swiftlet_models.datasets import DatasetError
from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.offline import pictures
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.loop.checkpoint import snapshot_path
from swiftlet_train.loop.learning_curve import LOSSES_FILE, read_curve
from swiftlet_train.pretraining.corpus import TOKENIZER_FILE
from swiftlet_train.recipe import Finetuning, Recipe
from swiftlet_train.study import Downstream, Study, join_rows

BATCH: Final = 64  # examples per forward pass of an evaluation


@dataclass(frozen=True)
class CheckpointScore:
    """The scores of one checkpoint on one task."""

    variant: str
    task: str
    step: int
    operations: float
    """Floating-point operations of the matrix products up to here, forward and backward, those of a generator too. A
    multiplication and an addition are two operations."""
    scores: tuple[float, ...]
    """The accuracy in percent after fine-tuning with each seed."""


def score_checkpoints(
    study: Study, plan: Downstream, data: Path, runs: Path, report: Callable[[str], None], device: torch.device
) -> list[CheckpointScore]:
    """Fine-tunes and evaluates the checkpoints of all variants. Finished fine-tunings are not repeated.

    Raises:
        DatasetError: a file of a task is not a table of labelled texts, or has too few.
    """
    scored = []
    for variant, recipe in study.variants.items():
        directory = runs / variant
        tokenizer = Tokenizer.load(directory / TOKENIZER_FILE)
        last = read_curve(directory / LOSSES_FILE)[-1]
        for task in recipe.finetuning:
            for step in plan.steps(recipe):
                pretrained = _load_checkpoint(recipe, tokenizer, directory, step)
                scores = []
                for seed in plan.seeds:
                    folder = directory / f"{task}-step-{step}-seed-{seed}"
                    seeded = replace(recipe, seed=seed)
                    model = finetune(seeded, task, pretrained, tokenizer, data, folder, _ignore, device=device)
                    scores.append(measure_accuracy(model, recipe.finetuning[task], tokenizer, data))
                    report(f"{variant}: {task}, step {step}, seed {seed}: {scores[-1]:.1f} %")
                operations = last.flops * step / last.step
                scored.append(CheckpointScore(variant, task, step, operations, tuple(scores)))
    return scored


@torch.no_grad()
def measure_accuracy(model: Model, work: Finetuning, tokenizer: Tokenizer, data: Path) -> float:
    """Returns the accuracy of a fine-tuned model on its evaluation file, in percent.

    Raises:
        DatasetError: the file is not a table of labelled texts, or has too few.
    """
    names = work.labels if len(work.labels) > 1 else ()
    texts = datasets.labelled(data / work.evaluate, names)[work.evaluate_skip :][: work.evaluate_limit]
    if not texts:
        raise DatasetError(
            f"{work.evaluate} has no examples after the first {work.evaluate_skip}. Lower evaluate_skip."
        )
    encodings = tokenizer.encode([text.texts for text in texts], work.max_tokens)
    examples = [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]
    right = 0
    for start in range(0, len(examples), BATCH):
        batch = examples[start : start + BATCH]
        labels = torch.tensor([example.target[0] for example in batch])
        right += int((task_logits(model, batch).argmax(1) == labels).sum())
    return 100 * right / len(examples)


def format_scores(scores: Sequence[CheckpointScore]) -> str:
    """Returns a Markdown table of the checkpoints' scores."""
    rows = [
        ["variant", "steps", "TFLOP", "task", "accuracy", "of each seed"],
        ["---", "---:", "---:", "---", "---:", "---:"],
    ]
    for point in scores:
        seeds = ", ".join(f"{score:.1f}" for score in point.scores)
        numbers = [str(point.step), f"{point.operations / 1e12:.2f}", point.task, f"{mean(point.scores):.1f} %", seeds]
        rows.append([point.variant, *numbers])
    return join_rows(rows)


def plot_scores(scores: Sequence[CheckpointScore], out: Path) -> None:
    """Writes an SVG with one panel per task: the mean score of each variant over its operations, and each seed's."""
    tasks, variants = (
        list(dict.fromkeys(names)) for names in ([point.task for point in scores], [point.variant for point in scores])
    )
    figure = Figure(figsize=(6 * len(tasks), 4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for number, variant in enumerate(variants):
            points = [point for point in scores if (point.task, point.variant) == (task, variant)]
            x, colour = [point.operations / 1e12 for point in points], f"C{number}"
            axes.plot(x, [mean(point.scores) for point in points], label=variant, color=colour, marker="o")
            for at, point in zip(x, points, strict=True):
                axes.plot([at] * len(point.scores), point.scores, color=colour, marker=".", linestyle="none", alpha=0.5)
        axes.set(title=task, xlabel="TFLOP of pre-training", ylabel="accuracy (%)")
        axes.legend()
    pictures.save(figure, out)


def _load_checkpoint(recipe: Recipe, tokenizer: Tokenizer, directory: Path, step: int) -> Model:
    """Loads the encoder of a checkpoint. The network is untrained after 0 steps. The head is not used."""
    torch.manual_seed(recipe.seed)
    config = {**recipe.config, "vocab_size": tokenizer.vocab_size}
    model = build(recipe.architecture, config, "classification", 1)
    if step:
        parameters = torch.load(snapshot_path(directory, step), map_location="cpu", weights_only=True)
        prefix = "encoder."
        own = {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}
        model.encoder.load_state_dict(own)
    return model


def _ignore(text: str) -> None:
    """Drops the progress of a fine-tuning."""
