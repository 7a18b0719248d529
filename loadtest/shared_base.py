"""Measures what adapters (LoRA) on one base cost beside the same adapters merged, on one core of the native engine.

    python -m loadtest.shared_base [--shapes minilm bert] [--adapters 4] [--rank 8] [--tokens 16 64 256]

Each adapter changes query and value, as is peft's default for BERT, or all linear maps, and has a classifier of its
own. The networks have random weights in the released shapes. Rounds alternate, and times are medians, in CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from loadtest.shared_trunk import ENCODER, medians, networks
from swiftlet_models.folding import fold
from swiftlet_models.tensors import Adapted
from swiftlet_serve.benchmark.networks import RELEASED, random_sequences
from swiftlet_serve.engines._kernel_selection import select
from swiftlet_serve.engines._program_numbers import without_adapter
from swiftlet_serve.engines._shared_trunk import SharedTrunk
from swiftlet_serve.engines.native import Native
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.types import Batch, Engine

TARGETS: Final = {"query, value": ("query", "value"), "all": ("query", "key", "value", "output", "inner", "outer")}
SIZE: Final = 0.02  # of the numbers of an adapter

Network = tuple[str, dict[str, Any], dict[str, Any]]


def adapted(network: Network, targets: Sequence[str], rank: int, seed: int) -> Network:
    """Returns a network whose encoder an adapter changes."""
    draw, (architecture, config, weights) = np.random.default_rng(seed), network
    own = dict(weights)
    for name, weight in weights.items():
        if name.startswith(ENCODER) and name.removesuffix(".weight").rpartition(".")[2] in targets:
            b, a = (
                SIZE * draw.standard_normal(size, np.float32) for size in ((len(weight), rank), (rank, weight.shape[1]))
            )
            own[name] = Adapted(weight, b, a)
    return architecture, config, own


def merged(network: Network) -> Network:
    """Returns a network with its adapter merged."""
    architecture, config, weights = network
    return architecture, config, {name: np.asarray(weight) for name, weight in weights.items()}


def engines(made: Sequence[Network]) -> tuple[list[Native], SharedTrunk, int]:
    """Returns the networks in engines of their own, and in one engine with its size."""
    library, _ = select()
    if library is None:
        raise SystemExit("No kernel is compiled for this CPU.")
    trunks = [fold(*network, part="trunk") for network in made]
    trunk = Native(library, trunks[0], adapters=[without_adapter(one)[1] for one in trunks])
    heads = [Native(library, fold(*network, part="head")) for network in made]
    size = sum(part.bytes for part in (trunk, *heads))
    return [Native(library, fold(*network)) for network in made], SharedTrunk(trunk, heads, range(len(made))), size


def compare(own: Sequence[Engine], shared: Engine, apart: Sequence[Engine], tokens: int, rounds: int) -> list[float]:
    """Returns the milliseconds of one text alone, adapted and merged, and of a text for each adapter.

    The latter are in one batch, in calls to merged networks, and in one batch of a merged network.
    """
    texts = random_sequences([tokens] * len(apart))
    mixed = Batch.of([replace(text, head=head) for head, text in enumerate(texts)])
    calls = [(model, Batch.of([text])) for model, text in zip(apart, texts, strict=True)]
    one, same = calls[0][1], Batch.of(texts)
    return medians(
        [
            lambda: own[0].run(one),
            lambda: apart[0].run(one),
            lambda: shared.run(mixed),
            lambda: [model.run(batch) for model, batch in calls],
            lambda: apart[0].run(same),
        ],
        rounds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["minilm", "bert"], choices=RELEASED, metavar="SHAPE")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    print(f"{current_environment().description()}\n")
    titles = (
        "network",
        "targets",
        "tokens",
        "alone",
        "alone, merged",
        "one batch",
        "calls, merged",
        "one merged batch",
        "MiB",
        "MiB, merged",
    )
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for shape in arguments.shapes:
        base = networks(shape, arguments.adapters)
        for named, targets in TARGETS.items():
            made = [adapted(network, targets, arguments.rank, seed) for seed, network in enumerate(base)]
            own, shared, size = engines(made)
            apart, _, _ = engines([merged(network) for network in made])
            sizes = size, sum(model.bytes for model in apart)
            for tokens in arguments.tokens:
                found = compare(own, shared, apart, tokens, arguments.rounds)
                row = shape, named, tokens, *(f"{t:.2f}" for t in found), *(f"{n / 2**20:.1f}" for n in sizes)
                print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
