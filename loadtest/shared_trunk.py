"""Measures what several heads on one trunk cost beside as many models, on one core of the native engine.

    python -m loadtest.shared_trunk [--shapes bert minilm] [--heads 4] [--tokens 16 64 256]

Each head is a classifier, of 2, 3, 4 and more labels. The networks have random weights in the released shapes, with a
vocabulary of 30,522 tokens. Rounds alternate, and the ratio is that of their medians, in CPU time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, Final

import torch

from swiftlet_models.folding import Part, fold
from swiftlet_models.heads import build, weights_of
from swiftlet_serve.benchmark.networks import RELEASED, random_sequences
from swiftlet_serve.engines._kernel_selection import select
from swiftlet_serve.engines._shared_trunk import SharedTrunk
from swiftlet_serve.engines.native import Native
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.types import Batch, Engine

VOCABULARY: Final = 30_522
ENCODER: Final = "encoder."


def networks(shape: str, heads: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Returns the architecture, the settings and the parameters of classifiers with the same encoder."""
    torch.manual_seed(0)
    architecture, config = RELEASED[shape].architecture, {"vocab_size": VOCABULARY, **RELEASED[shape].changes}
    weights = [weights_of(build(architecture, config, "classification", 2 + head)) for head in range(heads)]
    trunk = {name: weight for name, weight in weights[0].items() if name.startswith(ENCODER)}
    return [(architecture, config, {**own, **trunk}) for own in weights]


def engine(network: tuple[str, dict[str, Any], dict[str, Any]], part: Part = "network") -> Native:
    """Returns a network, or a part of it, in the best kernel of this CPU."""
    library, _ = select()
    if library is None:
        raise SystemExit("No kernel is compiled for this CPU.")
    architecture, config, weights = network
    return Native(library, fold(architecture, config, weights, part=part))


def medians(works: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Returns the CPU time of each work in milliseconds. Works take turns, and the first round does not count."""
    times: list[list[float]] = [[] for _ in works]
    for n in range(rounds + 1):
        for work, own in zip(works, times, strict=True):
            started = time.process_time()
            work()
            if n:
                own.append(time.process_time() - started)
    return [1e3 * median(own) for own in times]


def compare(shared: Engine, models: Sequence[Engine], tokens: int, rounds: int) -> list[float]:
    """Returns the milliseconds of one text: on the trunk for one head, for all heads, and in all models."""
    (text,) = random_sequences([tokens])
    alone = Batch.of([text])
    every = Batch.of([replace(text, head=head) for head in range(len(models))])
    return medians(
        [
            lambda: shared.run(alone),
            lambda: shared.run(every),
            lambda: [model.run(alone) for model in models],
        ],
        rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["bert", "minilm"], choices=RELEASED, metavar="SHAPE")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print(f"{current_environment().description()}\n")
    titles = (
        "network",
        "tokens",
        "one head, ms",
        "heads, ms",
        "models, ms",
        "models / heads",
        "heads, MiB",
        "models, MiB",
    )
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for shape in arguments.shapes:
        made = networks(shape, arguments.heads)
        models = [engine(network) for network in made]
        trunk, heads = engine(made[0], "trunk"), [engine(network, "head") for network in made]
        shared = SharedTrunk(trunk, heads)
        sizes = sum(part.bytes for part in (trunk, *heads)) / 2**20, sum(model.bytes for model in models) / 2**20
        for tokens in arguments.tokens:
            one, every, apart = compare(shared, models, tokens, arguments.rounds)
            row = shape, tokens, *(f"{t:.2f}" for t in (one, every, apart)), f"{apart / every:.2f}"
            print(f"| {' | '.join(map(str, (*row, *(f'{size:.0f}' for size in sizes))))} |", flush=True)


if __name__ == "__main__":
    main()
