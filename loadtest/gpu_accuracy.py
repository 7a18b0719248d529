"""Measures what each precision of the torch engine costs in accuracy on a GPU, on the data of the models' cards.

    python -m loadtest.gpu_accuracy [--device cuda] [--models ...] [--precisions bf16 fp16 int8 fp8] [--limit N]

The reference is the padded network in fp32 on the same device. A precision passes if it loses at most 0.5 points, the
limit that `swiftlet import` has for int8. fp16 does not fit every network: MobileBERT overflows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch

from swiftlet_serve.engines.torch import PRECISIONS, PaddedTorch, load_network, ragged_engine
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.inference.loading import LoadedModel, locate, open_model
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.offline.evaluate import Evaluation, agreement, difference, evaluate
from swiftlet_serve.types import Engine
from swiftlet_train.run_recipe import load_recipe

MAX_LOSS: Final = 0.5  # points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--models", nargs="*", default=(), help="default: all bundled models")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--limit", type=int, help="examples of each model; default: as many as its card has")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, in fp32 except for products"
    print(f"{name}. {current_environment('torch').description('')}\n")
    print("| model | precision | score | difference (95 % CI) | same answer | passes |")
    print("|---|---|---|---|---|---|")
    for path in locate(arguments.models):
        reference = score(path, "fp32", device, arguments.data, arguments.limit)
        main_score = next(iter(reference.scores.values()))
        print(f"| {path.name} | fp32 | {main_score.value:.2f} | – | – | – |", flush=True)
        for precision in arguments.precisions:
            try:
                evaluation = score(path, precision, device, arguments.data, arguments.limit)
            except SwiftletError as error:
                print(f"| {path.name} | {precision} | – | – | – | no: {error} |", flush=True)
                continue
            points, same = difference(reference, evaluation), agreement(reference, evaluation)
            cells = [
                f"{next(iter(evaluation.scores.values())).value:.2f}",
                f"{points.value:+.2f} ({points.low:+.2f} to {points.high:+.2f})",
                f"{same.value:.2f} %",
                "yes" if points.value <= MAX_LOSS else "no",
            ]
            print(f"| {path.name} | {precision} | {' | '.join(cells)} |", flush=True)


def score(path: Path, precision: str, device: torch.device, data: Path, limit: int | None) -> Evaluation:
    """Measures a bundled model in a precision, on the examples that its card has."""
    model = open_model(path, "torch")
    manifest = model.manifest
    work = load_recipe(manifest.source["recipe"]).finetuning[manifest.name]
    network = load_network(model.artifact)
    engine: Engine | None = PaddedTorch(network, device, torch.float32)
    if precision != "fp32":
        engine = ragged_engine(model.artifact, network, device, precision)
    if engine is None:
        raise SystemExit(f"The network {manifest.name} cannot be folded, or this GPU is too old.")
    loaded = LoadedModel(**vars(model), engine=engine, deviation=None, timed_calls=(), seconds=0.0)
    return evaluate(loaded, data / work.evaluate, limit=limit or work.evaluate_limit, skip=work.evaluate_skip)


if __name__ == "__main__":
    main()
