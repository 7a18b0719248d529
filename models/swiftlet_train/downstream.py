"""The scores of a study's variants on its tasks, from several checkpoints of their pre-training.

Each checkpoint is fine-tuned in the same way, once for each seed, and evaluated in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Final

import torch
from matplotlib.figure import Figure

from swiftlet_models import datasets
from swiftlet_models.datasets import DatasetError
from swiftlet_models.heads import Model, build
from swiftlet_models.metrics import Score, share
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.offline import pictures
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.loop.checkpoint import snapshot_path
from swiftlet_train.loop.learning_curve import LOSSES_FILE, CurvePoint, read_curve
from swiftlet_train.pretraining.corpus import TOKENIZER_FILE
from swiftlet_train.recipe import Finetuning, Recipe
from swiftlet_train.study import HELD_OUT, Downstream, Study, held_out_losses, join_rows, million_parameters

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
    parameters: float
    """Of the encoder, in millions."""
    losses: Mapping[str, float]
    """On held-out text, by objective; empty if they were not measured after this step."""
    scores: tuple[Score, ...]
    """The accuracy after fine-tuning with each seed."""

    @property
    def mean(self) -> Score:
        """The mean accuracy. Its interval is that of one fine-tuning, since all of them answer the same examples."""
        n = self.scores[0].n
        return share(mean(score.value for score in self.scores) * n / 100, n)


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
        curve = {point.step: point for point in read_curve(directory / LOSSES_FILE)}
        last, parameters = curve[max(curve)], million_parameters(recipe)
        for task in recipe.finetuning:
            for step in plan.steps(recipe):
                pretrained = _load_checkpoint(recipe, tokenizer, directory, step)
                scores = []
                for seed in plan.seeds:
                    folder = directory / f"{task}-step-{step}-seed-{seed}"
                    seeded = replace(recipe, seed=seed)
                    model = finetune(seeded, task, pretrained, tokenizer, data, folder, _ignore, device=device)
                    scores.append(measure_accuracy(model, recipe.finetuning[task], tokenizer, data))
                    report(f"{variant}: {task}, step {step}, seed {seed}: {scores[-1].value:.1f} %")
                operations = last.flops * step / last.step
                losses = held_out_losses(curve[step]) if step in curve else {}
                scored.append(CheckpointScore(variant, task, step, operations, parameters, losses, tuple(scores)))
    return scored


@torch.no_grad()
def measure_accuracy(model: Model, work: Finetuning, tokenizer: Tokenizer, data: Path) -> Score:
    """Returns the accuracy of a fine-tuned model on its evaluation file, with its interval.

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
    return share(right, len(examples))


def format_scores(scores: Sequence[CheckpointScore]) -> str:
    """Returns a Markdown table of the checkpoints' scores."""
    rows = [
        ["variant", "M parameters", "steps", "TFLOP", "held-out", "task", "accuracy", "95 % interval", "of each seed"],
        ["---", "---:", "---:", "---:", "---", "---", "---:", "---:", "---:"],
    ]
    for point in scores:
        losses = ", ".join(f"{name} {loss:.3f}" for name, loss in point.losses.items())
        numbers = [f"{point.parameters:.2f}", str(point.step), f"{point.operations / 1e12:.2f}", losses]
        accuracy = [f"{point.mean.value:.1f} %", f"{point.mean.low:.1f} to {point.mean.high:.1f}"]
        seeds = ", ".join(f"{score.value:.1f}" for score in point.scores)
        rows.append([point.variant, *numbers, point.task, *accuracy, seeds])
    return join_rows(rows)


def plot_scores(scores: Sequence[CheckpointScore], curves: Mapping[str, Sequence[CurvePoint]], out: Path) -> None:
    """Writes an SVG with panels over the operations of pre-training.

    There is one for each loss on held-out text that all `curves` of the variants have, and one for each task: the mean
    score of each variant, and each seed's.
    """
    tasks, variants = (
        list(dict.fromkeys(names)) for names in ([point.task for point in scores], [point.variant for point in scores])
    )
    measured = [{name for point in curves[variant] for name in held_out_losses(point)} for variant in variants]
    losses = sorted(set.intersection(*measured))
    figure = Figure(figsize=(6 * (len(losses) + len(tasks)), 4), layout="constrained")
    panels = iter(figure.subplots(1, len(losses) + len(tasks), squeeze=False)[0])
    for loss, axes in zip(losses, panels, strict=False):
        for number, variant in enumerate(variants):
            points = [point for point in curves[variant] if HELD_OUT + loss in point.losses]
            x = [point.flops / 1e12 for point in points]
            axes.plot(x, [point.losses[HELD_OUT + loss] for point in points], label=variant, color=f"C{number}")
        axes.set(title=f"held-out {loss}", xlabel="TFLOP of pre-training", ylabel="loss (nat)")
        axes.legend()
    for task, axes in zip(tasks, panels, strict=True):
        for number, variant in enumerate(variants):
            at = [point for point in scores if (point.task, point.variant) == (task, variant)]
            x, colour = [point.operations / 1e12 for point in at], f"C{number}"
            axes.plot(x, [point.mean.value for point in at], label=variant, color=colour, marker="o")
            for place, point in zip(x, at, strict=True):
                values = [score.value for score in point.scores]
                axes.plot([place] * len(values), values, color=colour, marker=".", linestyle="none", alpha=0.5)
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
