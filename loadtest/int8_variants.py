"""The ways to compute in int8 that ONNX Runtime offers, side by side: how fast, and how near to fp32.

    python loadtest/int8_variants.py [--data ../shared/data] [--seconds 1] [--out TABLE.md]
    python loadtest/int8_variants.py --part albert --shape 1x16 --form "ragged, fp32" --form served    # some of it

Speed: milliseconds of the processor for a call on one core, on MobileBERT and ALBERT-base in their released shapes with
random weights. Every round calls every form once, so that a busy machine is unfair to all alike; each number is the
median, and beside it how many times as fast as fp32 that is, the median of the rounds' ratios. Accuracy: the embedded
models on a part of SST-2, SQuAD 1.1 and masked Wikipedia, each form against the same weights in fp32. OpenVINO is left
out where it is not installed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch

from swiftlet_serve.models.artifact import ONNX
from swiftlet_serve.models.folding import Folded, Product, fold
from swiftlet_serve.models.graphs.export import export
from swiftlet_serve.models.graphs.quantize import quantize
from swiftlet_serve.models.graphs.ragged import Multiply, Network, in_fp32, in_int8, of_int8
from swiftlet_serve.models.graphs.reader import block_of, pack, read_weights
from swiftlet_serve.models.graphs.writer import CONTRIB, Graph
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.service.benchmark.baselines import RELEASED, batch_of
from swiftlet_serve.service.engines import native
from swiftlet_serve.service.engines.onnx_cpu import OnnxCpu, Ragged, inputs, session
from swiftlet_serve.service.errors import Internal
from swiftlet_serve.service.loading import BUNDLED, LoadedModel, load_model
from swiftlet_serve.service.offline.environment import setting
from swiftlet_serve.service.offline.evaluate import Evaluation, agreement, evaluate
from swiftlet_serve.service.types import Batch, Cost, Engine, Row

SHAPES: Final = ("1x16", "1x32", "1x128", "8x32", "8x128", "1x384", "mixed")  # rows x tokens
# Model, data, the examples that are left out before (there activations are calibrated), and those that are measured on.
MEASURED: Final = (
    ("mobilebert-sst2", "sst2/dev.tsv", 72, 800),
    ("albert-sst2", "sst2/dev.tsv", 72, 800),
    ("mobilebert-qa", "squad/squad-v1.1.eval.json", 10, 200),
    ("albert-qa", "squad/squad-v1.1.eval.json", 10, 200),
    ("mobilebert-fill-mask", "corpora/enwiki2015_cap8k.txt.xz", 24_500, 20),
    ("albert-fill-mask", "corpora/enwiki2015_cap8k.txt.xz", 24_500, 20),
)
PACKAGES: Final = ("openvino", "nncf", "torch", "numpy")  # whose versions are told, of those installed
CALIBRATED_ON: Final = 10  # examples before those


@dataclass(frozen=True)
class Subject:
    """A network as everybody needs it."""

    folded: Folded
    model: Model
    directory: Path
    calibrate: Callable[[Engine], None]  # runs typical batches
    stands: Path | None = None  # the artifact's own file

    @property
    def exported(self) -> Path:
        """The graph as torch writes it, fp32."""
        file = self.directory / "fp32.onnx"
        if not file.exists():
            onnx.save(export(self.model), file)
        return file


class Session:
    """A graph over batches without padding, made here; or any other engine's call."""

    title = "under test"
    cost = Cost(padded=False, padded_attention=True, call_tokens=16, max_tokens=512, max_rows=64)
    runs_network = True
    extra_tolerance = 0.0

    def __init__(self, call: Callable[[Batch], np.ndarray]) -> None:
        self._call = call

    def run(self, batch: Batch) -> Sequence[Row]:
        return batch.split_rows(self._call(batch))

    def close(self) -> None:
        pass


def ragged_session(network: Network, outputs: Sequence[str] = ("rows",)) -> Callable[[Batch], list[np.ndarray]]:
    made = session(network.build(), 1)
    names = [value.name for value in made.get_inputs()]

    def call(batch: Batch) -> list[np.ndarray]:
        given = inputs(batch)
        found: list[np.ndarray] = made.run(list(outputs), {name: given[name] for name in names})
        return found

    return call


def of(multiply: Multiply, network: type[Network] = Network) -> Callable[[Subject], Engine]:
    def engine(subject: Subject) -> Engine:
        call = ragged_session(network(subject.folded, multiply))
        return Session(lambda batch: call(batch)[0])

    return engine


# Ways to multiply


def in_blocks(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """MatMulNBits: weights and activations with a scale for each block of 128."""
    rows, columns = product.weight.shape
    block = block_of(columns)
    if block is None:
        return in_fp32(graph, name, product, x, zeros)
    weight, scale = pack(product.weight, block)
    arrays = [graph.array(f"{name}.{i}", array) for i, array in enumerate((weight, scale, product.bias))]
    given = [x, *arrays[:2], "", "", arrays[2]]
    sizes = {"N": rows, "K": columns, "bits": 8, "block_size": block, "accuracy_level": 4}
    return graph.add("MatMulNBits", given, domain=CONTRIB, **sizes)


def _signed(graph: Graph, name: str, product: Product) -> tuple[str, str, str]:
    """(K, N) in int8 with a scale for each output, and the bias."""
    weight, scale = native.quantise(product)
    return graph.array(name + ".w", weight.T), graph.array(name + ".s", scale), graph.array(name + ".b", product.bias)


def in_signed(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """As `in_int8`, but with signed weights: what saturates on AVX2."""
    weight, scale, bias = _signed(graph, name, product)
    last, one = graph.array("last", np.array([-1])), graph.array("one", np.array(1, np.float32))
    largest = graph.add("ReduceMax", [graph.add("Abs", [x]), last], keepdims=0)
    step = graph.add("Mul", [largest, graph.array("step.127", np.array(1 / 127, np.float32))])
    small = graph.add("QuantizeLinear", [x, step, zeros], axis=0)
    zero = graph.array("zero", np.array(128, np.uint8))
    large = graph.add("MatMulIntegerToFloat", [small, weight, one, scale, zero], domain=CONTRIB)
    return graph.add("Add", [graph.add("Mul", [large, graph.add("Unsqueeze", [step, last])]), bias])


def in_one_scale(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:  # noqa: ARG001  # it needs none
    """DynamicQuantizeMatMul: what stock quantisation writes. One scale for a whole call: never to be served."""
    weight, scale, bias = _signed(graph, name, product)
    none = graph.array(name + ".z", np.zeros(len(product.bias), np.int8))
    return graph.add("DynamicQuantizeMatMul", [x, weight, scale, none, bias], domain=CONTRIB)


def in_static(steps: Mapping[str, float]) -> Multiply:
    """One scale for all that ever comes to a product, from the largest seen on examples."""

    def multiply(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:  # noqa: ARG001  # it needs none
        weight, scale, bias = _signed(graph, name, product)
        step = graph.array(name + ".step", np.array(steps[name], np.float32))
        zero = graph.array("zero", np.array(128, np.uint8))
        small = graph.add("QuantizeLinear", [x, step, zero])
        return graph.add("MatMulIntegerToFloat", [small, weight, step, scale, zero, "", bias], domain=CONTRIB)

    return multiply


def static(subject: Subject) -> Engine:
    folded, largest, names = unrolled(subject.folded), {}, []

    def observe(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
        seen = graph.add("ReduceMax", [graph.add("Abs", [x])], keepdims=0)
        graph.output("seen." + name, "float32", 0, seen)
        names.append(name)
        return in_fp32(graph, name, product, x, zeros)

    network = Network(folded, observe)
    call = ragged_session(network, ())  # no name: every output

    def observed(batch: Batch) -> np.ndarray:
        *seen, rows = call(batch)
        for name, value in zip(names, seen, strict=True):
            largest[name] = max(largest.get(name, 1e-9), float(value))
        return rows

    subject.calibrate(Session(observed))
    steps = {name: value / 127 for name, value in largest.items()}
    return of(in_static(steps))(replace(subject, folded=folded))


def unrolled(folded: Folded) -> Folded:
    """The same network with the parameters of each depth for itself."""
    depths = range(len(folded.order))

    def repeat(named: Mapping[str, Any]) -> dict[str, Any]:
        own = {name: value for name, value in named.items() if not name.startswith("layers.")}
        for depth, i in zip(depths, folded.order, strict=True):
            own |= {
                f"layers.{depth}.{name.split('.', 2)[2]}": value
                for name, value in named.items()
                if name.startswith(f"layers.{i}.")
            }
        return own

    return replace(folded, order=tuple(depths), products=repeat(folded.products), vectors=repeat(folded.vectors))


class EveryRow(Network):
    """Without one of the rewrites: the last layer computes all tokens."""

    def last_layer(self, i: int, x: str) -> str:
        every = [self.nth("spread", 4 if self.thin else 3, part) for part in ((0, 2, 3) if self.thin else (0, 1, 2))]
        self.graph.add("Identity", ["focus_spread"])
        self.graph.add("Identity", ["focus_gathered"])
        return self.graph.add("Gather", [self.layer(self.graph, i, x, every), "focus"])


# Graphs as torch writes them, padded


def padded(graph: Path) -> Engine:
    return OnnxCpu(graph, 1)


def as_it_stands(subject: Subject) -> Engine:
    if subject.stands is not None:
        return padded(subject.stands)
    file = subject.directory / "int8.onnx"
    onnx.save(quantize(onnx.load(subject.exported)), file)
    return padded(file)


def stock(subject: Subject) -> Engine:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = subject.directory / "stock.onnx"
    quantize_dynamic(subject.exported, file, per_channel=True, weight_type=QuantType.QInt8)
    return padded(file)


def _openvino(model: Any) -> Engine:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return Session(lambda batch: np.array(request.infer(batch.padded()._asdict())["rows"]))


def openvino_fp32(subject: Subject) -> Engine:
    import openvino

    return _openvino(openvino.Core().read_model(subject.exported))


def openvino_int8(subject: Subject) -> Engine:
    import nncf
    import openvino

    samples: list[Any] = []
    fp32 = of(in_fp32)(subject)

    def observed(batch: Batch) -> np.ndarray:
        samples.append(batch.padded()._asdict())
        return np.concatenate(fp32.run(batch))

    subject.calibrate(Session(observed))
    graph = openvino.Core().read_model(subject.exported)
    kind = nncf.ModelType.TRANSFORMER
    return _openvino(nncf.quantize(graph, nncf.Dataset(samples), model_type=kind, subset_size=len(samples)))


def in_native(subject: Subject) -> Engine:
    library = native.best()
    if library is None:
        raise ImportError("there are no native kernels for this CPU")
    return native.Native(library, subject.folded)


FP32: Final = "ragged, fp32"
SERVED: Final = "served"
LAST_IN_FULL: Final = "the same, last layer for all tokens"
NO_LOOP: Final = "the same, shared layers not in a loop"
# What computes the same as another form.
EXACT: Final = ("as exported, fp32", "OpenVINO fp32", LAST_IN_FULL, NO_LOOP)

FORMS: Final[Mapping[str, Callable[[Subject], Engine]]] = {
    FP32: of(in_fp32),
    SERVED: lambda subject: Ragged(subject.folded, of_int8(subject.folded), 1),
    "ragged, 8 bits, a scale for each token": of(in_int8),
    LAST_IN_FULL: of(in_int8, EveryRow),
    NO_LOOP: lambda subject: of(in_int8)(replace(subject, folded=unrolled(subject.folded))),
    "ragged, signed weights": of(in_signed),
    "ragged, MatMulNBits": of(in_blocks),
    "ragged, static activations": static,
    "ragged, one scale for a call": of(in_one_scale),
    "as it stands: MatMulNBits": as_it_stands,
    "as exported, fp32": lambda subject: padded(subject.exported),
    "as exported, stock quantize_dynamic": stock,
    "OpenVINO fp32": openvino_fp32,
    "OpenVINO int8 (NNCF, static)": openvino_int8,
    "native engine": in_native,
}


def engines(subject: Subject, forms: Sequence[str]) -> Iterator[tuple[str, Engine]]:
    for name in forms:
        try:
            yield name, FORMS[name](subject)
        except ImportError as error:
            print(f"{name} is left out: {error}")


def mixed(seed: int = 0) -> Batch:
    """Eight rows of 8 to 60 tokens, as short texts come."""
    draw = np.random.default_rng(seed)
    rows = [batch_of(1, int(length), seed).encodings()[0] for length in draw.integers(8, 61, 8)]
    return Batch.of(rows)


def times(calls: Mapping[str, Engine], batch: Batch, seconds: float) -> dict[str, list[float]]:
    """What each call took, in seconds, in rounds of one call each."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for engine in calls.values():
        engine.run(batch)
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or min(map(len, taken.values())) < 5:
        for name, engine in calls.items():
            started = time.process_time()
            engine.run(batch)
            taken[name].append(time.process_time() - started)
    return taken


def ratio(first: Sequence[float], other: Sequence[float]) -> float:
    """How many times as fast the other is: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(first, other, strict=True))


def speed(architecture: str, seconds: float, forms: Sequence[str], shapes: Sequence[str]) -> Iterator[str]:
    config = RELEASED[architecture]
    torch.manual_seed(0)
    model = build(architecture, config, "classification", 2).eval()
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    batches = {shape: mixed() if shape == "mixed" else batch_of(*map(int, shape.split("x"))) for shape in shapes}
    with tempfile.TemporaryDirectory() as directory:
        typical = [batch_of(2, 64, seed) for seed in range(4)]
        subject = Subject(
            fold(architecture, config, weights),
            model,
            Path(directory),
            lambda engine, typical=typical: [engine.run(batch) for batch in typical],
        )
        calls = dict(engines(subject, forms))
        columns = {name: times(calls, batch, seconds) for name, batch in batches.items()}
    yield f"\n### {architecture}: milliseconds a call, median (times as fast as fp32)\n"
    yield from table(
        ["form", *columns],
        (
            [
                name,
                *(f"{statistics.median(t[name]) * 1e3:.1f} ({ratio(t[FP32], t[name]):.2f})" for t in columns.values()),
            ]
            for name in calls
        ),
    )


def accuracy(data: Path, forms: Sequence[str], share: float) -> Iterator[str]:
    for name, file, skip, usual in MEASURED:
        loaded = load_model(BUNDLED / name, "echo")
        manifest, stands = loaded.manifest, BUNDLED / name / ONNX
        weights = read_weights(stands)
        model = build(manifest.architecture, manifest.config, manifest.head, manifest.width)
        model.load_state_dict({key: torch.from_numpy(array) for key, array in weights.items()})

        def calibrate(engine: Engine, loaded: LoadedModel = loaded, file: str = file, skip: int = skip) -> None:
            before = skip - CALIBRATED_ON
            evaluate(replace(loaded, engine=engine), data / file, limit=CALIBRATED_ON, skip=before)

        with tempfile.TemporaryDirectory() as directory:
            folded = fold(manifest.architecture, manifest.config, weights)
            subject = Subject(folded, model.eval(), Path(directory), calibrate, stands)
            found: dict[str, Evaluation] = {}
            for form, engine in engines(subject, [form for form in forms if form not in EXACT]):
                try:
                    asked = replace(loaded, engine=engine)
                    found[form] = evaluate(asked, data / file, skip=skip, limit=max(1, round(share * usual)))
                except Internal as error:  # it gave rows of another shape, or none
                    print(f"{name}: {form} fails: {error}")

        score = next(iter(found[FP32].scores))
        yield f"\n### {name}, {Path(file).name}: {score} and agreement with fp32, n = {found[FP32].main.n}\n"
        yield from table(
            ["form", score, "agreement"],
            (
                [form, f"{one.main.value:.2f}", f"{agreement(found[FP32], one).value:.2f}"]
                for form, one in found.items()
            ),
        )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seconds", type=float, default=1.0, help="for each form and shape")
    parser.add_argument("--part", choices=(*RELEASED, "accuracy"), help="only this one")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="only this one, and others named so")
    parser.add_argument("--form", action="append", metavar="PART", help="only those with this in their names; and fp32")
    parser.add_argument("--share", type=float, default=1.0, help="of the examples that accuracy is measured on")
    parser.add_argument("--out", type=Path, help="a file that the tables are written to as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    wanted = [FP32, *arguments.form] if arguments.form else [""]
    forms = [name for name in FORMS if any(part in name for part in wanted)]
    lines = [setting(*(name for name in PACKAGES if find_spec(name))).told("")]
    print(lines[0])
    parts: dict[str, Callable[[], Iterator[str]]] = {
        **{name: partial(speed, name, arguments.seconds, forms, arguments.shape or SHAPES) for name in RELEASED},
        "accuracy": partial(accuracy, arguments.data, forms, arguments.share),
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
