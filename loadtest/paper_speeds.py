"""Measures the speeds that the papers of ALBERT and MobileBERT promise, as ratios on this machine.

    python -m loadtest.paper_speeds [--only NAME ...] [--rounds N] [--threads N] [--picture FILE] [--shares]

The networks have the released shapes, random weights and one sequence of 128 tokens. Each is measured in three ways:
inference of the native engine in int8, inference of torch in fp32, and a training step of torch in fp32 (forward,
backward, LAMB). Networks take turns, so that other work on the machine affects all alike. A training step is measured
once its network is alone, because the optimiser of a large one takes gigabytes. The least of the rounds counts: of CPU
time with one thread, of wall-clock time with several. ALBERT's paper compares training with BERT-large, and that of
MobileBERT inference on a phone with BERT-base.

With `--shares`, the native engine runs networks from which steps are removed, and the differences are the CPU times of
the feed-forward networks and of attention on one core.
"""

from __future__ import annotations

import argparse
import gc
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from swiftlet_models.artifact import WEIGHTS, Artifact, File, Manifest
from swiftlet_models.folded import Folded
from swiftlet_models.folding import fold
from swiftlet_models.heads import Model, build, weights_of
from swiftlet_models.program import Attend, Multiply, Norm, Step
from swiftlet_models.weights import save_weights
from swiftlet_serve.benchmark.networks import VOCABULARY_SIZE, batch_of
from swiftlet_serve.engines import _kernel_selection, native
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.types import Engine
from swiftlet_train.loop.lamb import Lamb

TOKENS: Final = 128
WAYS: Final = ("native int8", "torch fp32", "training step")
PARTS: Final = ("feed-forward", "attention", "rest")  # of a network's time
FEED_FORWARD: Final = re.compile(r"\.(\w*ffn)")
ATTENTION: Final = re.compile(r"\.(enter\w*|query|key|value|output|attention_norm)\.")


@dataclass(frozen=True)
class Shape:
    architecture: str
    beside: str  # the network that the paper compares it with
    paper: float | None  # how many times as fast it is, there
    config: Mapping[str, Any] = field(default_factory=dict)


_LARGE: Final = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_XXLARGE: Final = {"hidden_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 64, "intermediate_size": 16384}
_TINY: Final = {"num_feedforward_networks": 2, "use_bottleneck_attention": True}
_PLAIN: Final = {"normalization_type": "layer_norm", "hidden_act": "gelu"}
SHAPES: Final[Mapping[str, Shape]] = {
    "BERT-large": Shape("bert", "BERT-large", 1.0, _LARGE),
    "BERT-base": Shape("bert", "BERT-large", 4.7),
    "ALBERT-base": Shape("albert", "BERT-large", 5.6),
    "ALBERT-large": Shape("albert", "BERT-large", 1.7, _LARGE),
    "ALBERT-xxlarge": Shape("albert", "BERT-large", 0.3, _XXLARGE),
    "MobileBERT": Shape("mobilebert", "BERT-base", 342 / 62),
    "MobileBERT, LayerNorm and GELU": Shape("mobilebert", "BERT-base", 342 / 192, _PLAIN),
    "MobileBERT-tiny": Shape("mobilebert", "BERT-base", 342 / 40, _TINY),
    "MobileBERT-tiny, LayerNorm and GELU": Shape("mobilebert", "BERT-base", None, _TINY | _PLAIN),
}


def make(shape: Shape) -> Model:
    torch.manual_seed(0)
    return build(shape.architecture, {"vocab_size": VOCABULARY_SIZE, **shape.config}, "classification", 2).eval()


def load_native(shape: Shape, model: Model, directory: Path, threads: int) -> Engine:
    """Returns the native engine with a network's weights in int8."""
    directory.mkdir()
    save_weights(directory / WEIGHTS, weights_of(model), "int8")
    manifest = Manifest(
        name="shape",
        version="0",
        architecture=shape.architecture,
        task="classify",
        head="classification",
        precision="int8",
        max_tokens=512,
        vocab_size=VOCABULARY_SIZE,
        width=2,
        labels=("0", "1"),
        problem="single_label",
        tolerance=1.0,
        config={"vocab_size": VOCABULARY_SIZE, **shape.config},
        source={"weights": "random"},
        files={WEIGHTS: File((directory / WEIGHTS).stat().st_size, "0" * 64)},
    )
    return native.create(Artifact(directory, manifest), threads)


def inputs() -> tuple[torch.Tensor, ...]:
    """Returns the tokens, their types, the length, and the position that the head reads."""
    ids = torch.from_numpy(batch_of(1, TOKENS).input_ids)[None]
    return ids, torch.zeros_like(ids), torch.tensor([TOKENS]), torch.zeros(1, dtype=torch.int64)


def training_step(model: Model) -> Callable[[], None]:
    model.train()
    optimiser, given, label = Lamb(model.parameters(), lr=1e-6), inputs(), torch.tensor([1])

    def step() -> None:
        optimiser.zero_grad()
        loss: Any = nn.functional.cross_entropy(model(*given), label)
        loss.backward()
        optimiser.step()

    return step


def seconds_of(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Returns the mean duration of the calls that fit into a tenth of a second, or of one call."""
    count, began = 0, clock()
    while count == 0 or clock() - began < 0.1:
        call()
        count += 1
    return (clock() - began) / count


def measure(shapes: Mapping[str, Shape], rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Returns the seconds for a sequence, by network and way."""
    clock = time.process_time if threads == 1 else time.perf_counter
    batch, given = batch_of(1, TOKENS), inputs()
    found: dict[str, dict[str, float]] = {name: {} for name in shapes}
    with tempfile.TemporaryDirectory() as directory, torch.inference_mode():
        calls: dict[tuple[str, str], Callable[[], object]] = {}
        for name, shape in shapes.items():
            model = make(shape)
            engine = load_native(shape, model, Path(directory, name), threads)
            calls[name, WAYS[0]] = partial(engine.run, batch)
            calls[name, WAYS[1]] = partial(model, *given)
        for call in calls.values():
            call()  # to have its memory
        for _ in range(rounds):
            for (name, way), call in calls.items():
                found[name][way] = min(found[name].get(way, float("inf")), seconds_of(call, clock))
    del calls, model, engine
    for name, shape in shapes.items():
        gc.collect()
        step = training_step(make(shape))
        step()
        found[name][WAYS[2]] = min(seconds_of(step, clock) for _ in range(rounds))
    return found


def part_of(step: Step) -> str:
    """Returns what a step is a part of: the feed-forward networks, attention with its products, or the rest.

    What leads from the hidden states into a bottleneck is one product with attention's, and counts with them.
    """
    name = {Multiply: "product", Norm: "norm"}.get(type(step))
    if name is None:
        return PARTS[1] if isinstance(step, Attend) else PARTS[2]
    of_layer = getattr(step, name).removeprefix("layers.")
    if ".feed_forward." in of_layer:
        return PARTS[0]
    return PARTS[2] if of_layer == getattr(step, name) or ".leave" in of_layer else PARTS[1]


def without(folded: Folded, removed: Callable[[Step], bool]) -> Folded:
    """Returns a network without some steps. Its answers mean nothing, but the other steps take as long as before."""
    program = folded.program
    kept = [tuple(step for step in block.steps if not removed(step)) for block in program.blocks]
    blocks = [replace(block, steps=steps) for block, steps in zip(program.blocks, kept, strict=True) if steps]
    return replace(folded, program=replace(program, blocks=tuple(blocks)))


def measure_shares(shape: Shape, tokens: int, rounds: int) -> dict[str, float]:
    """Returns the seconds of CPU time of each of `PARTS` of a network, for a sequence of so many tokens."""
    library, _ = _kernel_selection.select()
    if library is None:
        raise SystemExit("There are no kernels for this CPU.")
    whole = fold(shape.architecture, {"vocab_size": VOCABULARY_SIZE, **shape.config}, weights_of(make(shape)))
    networks = [
        whole,
        without(whole, lambda step: part_of(step) == PARTS[0]),
        without(whole, lambda step: part_of(step) == PARTS[0] or ".leave" in getattr(step, "product", "")),
        without(whole, lambda step: part_of(step) != PARTS[2] or ".leave" in getattr(step, "product", "")),
    ]
    engines = [native.Native(library, network) for network in networks]
    library.share_cores(1)
    batch, least = batch_of(1, tokens), [float("inf")] * len(engines)
    for _ in range(rounds):
        for number, engine in enumerate(engines):
            least[number] = min(least[number], seconds_of(partial(engine.run, batch), time.process_time))
    for engine in engines:
        engine.close()
    all_s, plain_s, entered_s, rest_s = least
    found = {PARTS[0]: all_s - plain_s, PARTS[1]: entered_s - rest_s}
    return found | {PARTS[2]: all_s - sum(found.values())}


def parameter_ratio(shape: Shape) -> float:
    """Returns the parameters of attention, bottlenecks in front of it included, beside those of the feed-forward."""
    counts = dict.fromkeys(PARTS[:2], 0)
    for name, weight in make(shape).encoder.named_parameters():
        if FEED_FORWARD.search(name):
            counts[PARTS[0]] += weight.numel()
        elif ATTENTION.search(name):
            counts[PARTS[1]] += weight.numel()
    return counts[PARTS[1]] / counts[PARTS[0]]


def report_shares(shapes: Mapping[str, Shape], rounds: int) -> str:
    lines = [
        current_environment("torch").description(""),
        "",
        "| Network | Tokens | Ratio of parameters | Feed-forward | Attention | Rest | Ratio of time |",
        "|---|" + "---:|" * 6,
    ]
    for name, shape in shapes.items():
        ratio = parameter_ratio(shape)
        for tokens in (TOKENS, 4 * TOKENS):
            seconds = measure_shares(shape, tokens, rounds)
            shares = [f"{100 * seconds[part] / sum(seconds.values()):.0f} %" for part in PARTS]
            cells = [name, f"{tokens}", f"{ratio:.2f}", *shares, f"{seconds[PARTS[1]] / seconds[PARTS[0]]:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(shapes: Mapping[str, Shape], found: Mapping[str, Mapping[str, float]], threads: int) -> str:
    kind = "CPU time" if threads == 1 else "wall-clock time"
    lines = [
        f"{current_environment('torch').description('')} Threads: {threads}. Tokens: {TOKENS}.",
        f"Milliseconds of {kind}, and how many times as fast as the other network that is.",
        "",
        f"| Network | Beside | Paper | {' | | '.join(WAYS)} | |",
        "|---|---|" + "---:|" * (1 + 2 * len(WAYS)),
    ]
    for name, seconds in found.items():
        shape = shapes[name]
        cells = [name, shape.beside, "–" if shape.paper is None else f"{shape.paper:.1f}×"]
        for way in WAYS:
            beside = found.get(shape.beside, {}).get(way)
            cells += [f"{1000 * seconds[way]:.0f}", f"{beside / seconds[way]:.1f}×" if beside else "–"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(shapes: Mapping[str, Shape], found: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Writes a picture of the ratios: the paper's, and those of each way."""
    from matplotlib.figure import Figure

    from swiftlet_serve.offline import pictures

    names = [name for name, shape in shapes.items() if shape.beside != name and shape.beside in found]
    bars: dict[str, list[float]] = {"paper": [shapes[name].paper or 0.0 for name in names]}
    for way in WAYS:
        bars[way] = [found[shapes[name].beside][way] / found[name][way] for name in names]
    figure = Figure(figsize=(9, 0.8 * len(names) + 1), layout="constrained")
    axes = figure.subplots()
    for number, (label, values) in enumerate(bars.items()):
        places = [row + 0.2 * number for row in range(len(names))]
        drawn = axes.barh(places, values, 0.18, label=label)
        axes.bar_label(drawn, [f"{value:.1f}" if value else "" for value in values], padding=2, fontsize=8)
    axes.set_yticks(
        [row + 0.3 for row in range(len(names))], [f"{name}\nbeside {shapes[name].beside}" for name in names]
    )
    axes.invert_yaxis()
    axes.set_xlabel("times as fast")
    axes.legend()
    pictures.save(figure, path, path.suffix[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shares", action="store_true", help="measure attention and feed-forward, and nothing else")
    parser.add_argument("--picture", type=Path, help="an SVG file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shapes = {name: SHAPES[name] for name in arguments.only}
    if arguments.shares:
        print(report_shares(shapes, arguments.rounds))
        return
    found = measure(shapes, arguments.rounds, arguments.threads)
    print(report(shapes, found, arguments.threads))
    if arguments.picture:
        draw(shapes, found, arguments.picture)


if __name__ == "__main__":
    main()
