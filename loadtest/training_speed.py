"""Measures training steps of the shipped recipes' networks: `swiftlet train`, with each of its means alone.

    python -m loadtest.training_speed [--device cuda] [--models mobilebert-sst2 albert-qa] [--steps 60] [--data DIR]

Each bundled model is fine-tuned further on the training files of its recipe, with the recipe's batch size: in fp32 and
bf16 with padding, then without, then with compiled layers, which is what `swiftlet train --device cuda` does in bf16.
The last way is what it does on a CPU. There is no dropout, as in the recipe's student.
Tokens per second are real tokens, and the share is that of the rate of a large product in bf16. The median of the
reports after the first one counts, since the first steps also compile.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch

from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.artifact import TOKENIZER, Artifact, open_artifact
from swiftlet_models.device_peak import measured_peak
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.engines.torch import load_network
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.telemetry.percentile import percentile
from swiftlet_train.examples.batches import make_batches
from swiftlet_train.examples.example import Example, take_evenly
from swiftlet_train.finetuning.finetune import read_examples
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.losses import label_loss
from swiftlet_train.loop import trainer
from swiftlet_train.loop.cpu_acceleration import attending_in_bf16
from swiftlet_train.loop.gpu_acceleration import can_be_packed, compiled, packed
from swiftlet_train.loop.learning_curve import LOSSES_FILE, read_curve
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.recipe import Finetuning, Precision
from swiftlet_train.run_recipe import load_recipe

MODELS: Final = ("mobilebert-sst2", "mobilebert-qa", "albert-sst2", "albert-qa")
TOKENS: Final = re.compile(r"([\d,]+) tokens/s")
EXAMPLES: Final = 4096  # of a task, evenly spaced
WAYS: Final[Mapping[str, tuple[Precision, bool, bool, bool]]] = {
    "fp32, padded": ("fp32", False, False, False),
    "bf16, padded": ("bf16", False, False, False),
    "bf16": ("bf16", True, False, False),
    "bf16, compiled": ("bf16", True, True, False),
    "bf16, padded, attention in bf16": ("bf16", False, False, True),
}
"""The precision; whether layers are computed without padding, are compiled, and have scores of attention in bf16."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--steps", type=int, default=60, help="at least 40")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--batch-size", type=int, help="in place of the recipe's")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments = parser.parse_args()
    device = trainer.find_device(arguments.device)
    peak = 2 * measured_peak(device, 8192 if device.type == "cuda" else 512)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"{name}. {current_environment('torch').description('')}\n")
    print(f"A large product reaches {peak / 1e12:.2f} TFLOP/s.\n")
    print("| model | batch | way | tokens/s | share of the peak |")
    print("|---|---|---|---|---|")
    for artifact, work, examples in tasks(arguments.models, arguments.data):
        work = replace(work, batch_size=arguments.batch_size or work.batch_size)
        for way in arguments.ways:
            tokens, share = measured(artifact, work, examples, device, arguments.steps, peak, *WAYS[way])
            title = artifact.manifest.name
            print(f"| {title} | {work.batch_size} | {way} | {tokens:,.0f} | {share:.0%} |", flush=True)


def tasks(names: list[str], data: Path) -> Iterator[tuple[Artifact, Finetuning, list[Example]]]:
    """Yields bundled models with their recipes' fine-tunings, and examples for them."""
    for path in locate(names):
        artifact = open_artifact(path)
        work = load_recipe(artifact.manifest.source["recipe"]).finetuning[artifact.manifest.name]
        examples = read_examples(work, data, Tokenizer.load(artifact.file(TOKENIZER)))
        yield artifact, work, take_evenly(examples, EXAMPLES)


def measured(
    artifact: Artifact,
    work: Finetuning,
    examples: list[Example],
    device: torch.device,
    steps: int,
    peak: float,
    precision: Precision,
    packs: bool,
    compiles: bool,
    attends_in_bf16: bool,
) -> tuple[float, float]:
    """Returns tokens per second and the share of the peak of one way to train."""
    model, reports = load_network(artifact), list[str]()
    batches = make_batches(examples, work.batch_size, seed=0)

    def losses(number: int) -> trainer.Losses:
        batch = [examples[i] for i in batches[number % len(batches)]]
        return {"loss": label_loss(task_logits(model, batch), batch)}

    schedule = Schedule(steps, work.learning_rate, optimiser=work.optimiser, precision=precision)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for encoder in model.modules():
            if packs and isinstance(encoder, Encoder) and can_be_packed(encoder):
                stack.enter_context(packed(encoder))
            if attends_in_bf16 and isinstance(encoder, Encoder):
                stack.enter_context(attending_in_bf16(encoder))
        if compiles:
            stack.enter_context(compiled(model))
        trainer.train(
            *(model, losses, schedule, Path(folder)),
            seed=0,
            device=device,
            save_every=steps,
            report=reports.append,
            accelerate=False,
        )
        points = read_curve(Path(folder) / LOSSES_FILE)
    tokens = [float(match[1].replace(",", "")) for report in reports if (match := TOKENS.search(report))]
    operations = [(b.flops - a.flops) / (b.seconds - a.seconds) for a, b in pairwise(points)]
    return percentile(sorted(tokens[1:]), 0.5), percentile(sorted(operations), 0.5) / peak


if __name__ == "__main__":
    main()
