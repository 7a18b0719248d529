"""Compares the int8 variants that ONNX Runtime and OpenVINO offer: their speed, and their accuracy against fp32.

    python -m loadtest.int8_variants [--data ../shared/data] [--seconds 1] [--out TABLE.md]
    python -m loadtest.int8_variants --part albert --shape 1x16 --variant "ragged, fp32" --variant served

Speed: milliseconds of CPU time for a batch on one core, on MobileBERT and ALBERT-base in their released shapes with
random weights. Every round runs each variant once, so other work on the machine affects all of them. The table shows
the median, and the speed-up over fp32 as the median of the rounds' ratios. Accuracy: the bundled models on a part of
SST-2, SQuAD 1.1 and masked Wikipedia, each variant against the same weights in fp32. OpenVINO is left out if it is not
installed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import torch

from loadtest.int8_networks import EQUIVALENT, FP32, VARIANTS, Subject
from swiftlet_models.folding import fold
from swiftlet_models.heads import build
from swiftlet_models.weights import read_weights
from swiftlet_serve.benchmark.networks import VOCABULARY_SIZE, batch_of
from swiftlet_serve.errors import Internal
from swiftlet_serve.inference.loading import BUNDLED, LoadedModel, load_model
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.offline.evaluate import Evaluation, agreement, evaluate
from swiftlet_serve.types import Batch, Engine

ARCHITECTURES: Final = ("mobilebert", "albert")  # in their released shapes
SHAPES: Final = ("1x16", "1x32", "1x128", "8x32", "8x128", "1x384", "mixed")  # rows x tokens
# Model, data file, number of examples to skip (the last of them calibrate activations), number to measure on.
ACCURACY_CASES: Final = (
    ("mobilebert-sst2", "sst2/dev.tsv", 72, 800),
    ("albert-sst2", "sst2/dev.tsv", 72, 800),
    ("mobilebert-qa", "squad/squad-v1.1.eval.json", 10, 200),
    ("albert-qa", "squad/squad-v1.1.eval.json", 10, 200),
    ("mobilebert-fill-mask", "corpora/enwiki2015_cap8k.txt.xz", 24_500, 20),
    ("albert-fill-mask", "corpora/enwiki2015_cap8k.txt.xz", 24_500, 20),
)
PACKAGES: Final = ("openvino", "nncf", "torch", "numpy")  # the report names the versions of the installed ones
CALIBRATION_EXAMPLES: Final = 10
MIN_ROUNDS: Final = 5


def engines(subject: Subject, variants: Sequence[str]) -> Iterator[tuple[str, Engine]]:
    """Creates the engine of each variant. Leaves out variants whose package is not installed."""
    for name in variants:
        try:
            yield name, VARIANTS[name](subject)
        except ImportError as error:
            print(f"{name} is left out: {error}")


def mixed(seed: int = 0) -> Batch:
    """Returns a batch of eight short texts: rows of 8 to 60 tokens."""
    draw = np.random.default_rng(seed)
    rows = [batch_of(1, int(length), seed).encodings()[0] for length in draw.integers(8, 61, 8)]
    return Batch.of(rows)


def cpu_times_s(engines: Mapping[str, Engine], batch: Batch, seconds: float) -> dict[str, list[float]]:
    """Returns the CPU seconds of each engine for the batch, one for each round."""
    times_s: dict[str, list[float]] = {name: [] for name in engines}
    for engine in engines.values():
        engine.run(batch)
    end = time.perf_counter() + seconds * len(engines)
    while time.perf_counter() < end or min(map(len, times_s.values())) < MIN_ROUNDS:
        for name, engine in engines.items():
            started = time.process_time()
            engine.run(batch)
            times_s[name].append(time.process_time() - started)
    return times_s


def speed_up(fp32_s: Sequence[float], other_s: Sequence[float]) -> float:
    """Returns the median ratio over the rounds."""
    return statistics.median(a / b for a, b in zip(fp32_s, other_s, strict=True))


def speed(architecture: str, seconds: float, variants: Sequence[str], shapes: Sequence[str]) -> Iterator[str]:
    """Yields the table of one architecture, line by line."""
    config = {"vocab_size": VOCABULARY_SIZE}
    torch.manual_seed(0)
    model = build(architecture, config, "classification", 2).eval()
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    batches = {shape: mixed() if shape == "mixed" else batch_of(*map(int, shape.split("x"))) for shape in shapes}
    typical = [batch_of(2, 64, seed) for seed in range(4)]

    def calibrate(engine: Engine) -> None:
        for batch in typical:
            engine.run(batch)

    with tempfile.TemporaryDirectory() as directory:
        subject = Subject(fold(architecture, config, weights), model, Path(directory), calibrate)
        created = dict(engines(subject, variants))
        columns = [cpu_times_s(created, batch, seconds) for batch in batches.values()]
    yield f"\n### {architecture}: milliseconds per batch, median (speed-up over fp32)\n"
    rows = (
        [
            name,
            *(
                f"{statistics.median(times_s[name]) * 1e3:.1f} ({speed_up(times_s[FP32], times_s[name]):.2f})"
                for times_s in columns
            ),
        ]
        for name in created
    )
    yield from table(["variant", *batches], rows)


def accuracy(data: Path, variants: Sequence[str], share: float) -> Iterator[str]:
    """Yields the tables of the bundled models, line by line."""
    for name, file, skip, count in ACCURACY_CASES:
        loaded = load_model(BUNDLED / name, "echo")
        manifest, weights = loaded.manifest, read_weights(loaded.artifact.weights)
        model = build(manifest.architecture, manifest.config, manifest.head, manifest.width)
        model.load_state_dict({key: torch.from_numpy(array) for key, array in weights.items()})

        def calibrate(engine: Engine, loaded: LoadedModel = loaded, file: str = file, skip: int = skip) -> None:
            before = skip - CALIBRATION_EXAMPLES
            evaluate(replace(loaded, engine=engine), data / file, limit=CALIBRATION_EXAMPLES, skip=before)

        with tempfile.TemporaryDirectory() as directory:
            folded = fold(manifest.architecture, manifest.config, weights)
            subject = Subject(folded, model.eval(), Path(directory), calibrate)
            scored: dict[str, Evaluation] = {}
            for variant, engine in engines(subject, [name for name in variants if name not in EQUIVALENT]):
                try:
                    measured = replace(loaded, engine=engine)
                    scored[variant] = evaluate(measured, data / file, skip=skip, limit=max(1, round(share * count)))
                except Internal as error:  # its rows have another shape, or are missing
                    print(f"{name}: {variant} fails: {error}")

        score = next(iter(scored[FP32].scores))
        yield f"\n### {name}, {Path(file).name}: {score} and agreement with fp32, n = {scored[FP32].main.n}\n"
        yield from table(
            ["variant", score, "agreement"],
            (
                [variant, f"{evaluation.main.value:.2f}", f"{agreement(scored[FP32], evaluation).value:.2f}"]
                for variant, evaluation in scored.items()
            ),
        )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"))
    add("--seconds", type=float, default=1.0, help="Duration for each variant and shape. Default: 1.")
    add("--part", choices=(*ARCHITECTURES, "accuracy"), help="Measure only this part.")
    add("--shape", action="append", choices=SHAPES, help="Measure only this shape. Repeatable.")
    add("--variant", action="append", metavar="TEXT", help="Measure only fp32 and variants with this text. Repeatable.")
    add("--share", type=float, default=1.0, help="Share of the examples for accuracy. Default: 1.")
    add("--out", type=Path, help="File for the tables.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    texts = [FP32, *arguments.variant] if arguments.variant else [""]
    variants = [name for name in VARIANTS if any(text in name for text in texts)]
    lines = [current_environment(*(name for name in PACKAGES if find_spec(name))).description("")]
    print(lines[0])
    parts: dict[str, Callable[[], Iterator[str]]] = {
        **{
            name: partial(speed, name, arguments.seconds, variants, arguments.shape or SHAPES) for name in ARCHITECTURES
        },
        "accuracy": partial(accuracy, arguments.data, variants, arguments.share),
    }
    for name, part in parts.items():
        if arguments.part in (None, name):
            for line in part():
                print(line, flush=True)
                lines.append(line)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
