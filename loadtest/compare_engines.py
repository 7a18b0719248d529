"""CPU engines side by side, on one core: milliseconds a call on the released shapes with random weights.

    python loadtest/compare_engines.py [--seconds 1.5] [--only mobilebert] [--engine native ...]

Each engine is a function from a network to a call; what is not installed is left out. Every round calls every engine
once, so that a busy machine is unfair to all alike; the times are those of the processor, medians and the quickest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import torch

from models.export import export
from models.folding import fold
from models.heads import Model, build
from models.quantize import quantize
from models.tokenizer import Encoding
from service.engines import native
from service.types import Batch

RELEASED: Final[Mapping[str, Mapping[str, Any]]] = {
    "mobilebert": {"vocab_size": 1000},  # google/mobilebert-uncased but for words, which a classifier only looks up
    "albert": {"vocab_size": 1000},  # albert-base-v2
}
SHAPES: Final[Mapping[str, list[tuple[int, int]]]] = {
    "mobilebert": [(1, 16), (1, 32), (1, 128), (8, 32), (8, 128), (1, 384)],
    "albert": [(1, 16), (1, 128), (8, 128)],
}
# Multiply-adds for each token, without attention's own, and attention's for each token and key; the last layer counts
# in full, though less of it is needed.
WORK: Final = {
    "mobilebert": (24 * 835_584 + 196_608, 24 * 256),
    "albert": (12 * 7_077_888 + 98_304, 12 * 1536),
}
Call = Callable[[Batch], object]


class Network(NamedTuple):
    """What every engine is to run, and where its files go."""

    architecture: str
    model: Model
    directory: Path


def run_native(network: Network) -> Call:
    library = native.best()
    if library is None:
        raise ImportError("there are no kernels for this CPU")
    weights = {name: tensor.numpy() for name, tensor in network.model.state_dict().items()}
    return native.Native(library, fold(network.architecture, RELEASED[network.architecture], weights)).run


def _session(file: Path) -> Call:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(["rows"], batch.rectangle()._asdict())


def exported(network: Network) -> Path:
    """The network as an fp32 graph, made once."""
    file = network.directory / "fp32.onnx"
    if not file.exists():
        onnx.save(export(network.model), file)
    return file


def run_onnx_cpu(network: Network) -> Call:
    onnx.save(quantize(onnx.load(exported(network))), network.directory / "int8.onnx")
    return _session(network.directory / "int8.onnx")


def run_stock(network: Network) -> Call:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = network.directory / "stock.onnx"
    quantize_dynamic(exported(network), file, per_channel=True, weight_type=QuantType.QInt8)
    return _session(file)


def run_torch(network: Network) -> Call:
    torch.set_num_threads(1)

    @torch.inference_mode()
    def call(batch: Batch) -> torch.Tensor:
        return network.model(*(torch.from_numpy(array) for array in batch.rectangle()))

    return call


def _openvino(model: Any) -> Call:
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    return lambda batch: request.infer(batch.rectangle()._asdict())


def run_openvino(network: Network) -> Call:
    import openvino

    return _openvino(openvino.Core().read_model(exported(network)))


def run_openvino_int8(network: Network) -> Call:
    import nncf
    import openvino

    samples = [batch_of(2, 64, seed).rectangle()._asdict() for seed in range(8)]
    graph = openvino.Core().read_model(exported(network))
    kind = nncf.ModelType.TRANSFORMER
    return _openvino(nncf.quantize(graph, nncf.Dataset(samples), model_type=kind, subset_size=len(samples)))


ENGINES: Final[Mapping[str, Callable[[Network], Call]]] = {
    "native": run_native,
    "onnx_cpu": run_onnx_cpu,
    "ORT stock int8": run_stock,
    "OpenVINO": run_openvino,
    "OpenVINO int8": run_openvino_int8,
    "torch fp32": run_torch,
}


def batch_of(rows: int, length: int, seed: int = 0) -> Batch:
    """Rows of random ids, of which the head reads the first position."""
    draw = np.random.default_rng(seed)
    none, first = np.zeros(length, np.int64), np.zeros(1, np.int64)
    return Batch.of([Encoding(draw.integers(1, 1000, length), none, first) for _ in range(rows)])


def times(calls: Mapping[str, Call], batch: Batch, seconds: float) -> Iterator[tuple[str, list[float]]]:
    """What each call took, in seconds, in rounds of one call each."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call(batch)
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or min(map(len, taken.values())) < 3:
        for name, call in calls.items():
            started = time.process_time()
            call(batch)
            taken[name].append(time.process_time() - started)
    yield from taken.items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--only", choices=RELEASED)
    parser.add_argument("--engine", action="append", choices=ENGINES)
    arguments = parser.parse_args()
    for architecture in [arguments.only] if arguments.only else RELEASED:
        torch.manual_seed(0)
        model = build(architecture, RELEASED[architecture], "classify", 2).eval()
        with tempfile.TemporaryDirectory() as directory:
            network = Network(architecture, model, Path(directory))
            calls = {}
            for name in arguments.engine or ENGINES:
                try:
                    calls[name] = ENGINES[name](network)
                except ImportError as error:
                    print(f"{name} is left out: {error}")
            for rows, length in SHAPES[architecture]:
                each, pair = WORK[architecture]
                work = rows * length * (each + pair * length)
                for name, taken in times(calls, batch_of(rows, length), arguments.seconds):
                    print(
                        f"{architecture} {rows}x{length} {name:15} median {statistics.median(taken) * 1e3:8.2f} ms, "
                        f"quickest {min(taken) * 1e3:8.2f} ms, {work / min(taken) / 1e9:6.1f} G/s, n = {len(taken)}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
