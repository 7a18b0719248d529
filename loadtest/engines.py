"""CPU engines side by side, on one core: milliseconds a call on the released shapes with random weights.

    python loadtest/engines.py [--seconds 1.5] [--only mobilebert] [--engine native ...]

Each engine is a function from a network to a call; what is not installed is left out. Every round calls every engine
once, so that a busy machine is unfair to all alike; the figures are medians and the quickest call.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

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


def run_native(architecture: str, model: Model, directory: Path) -> Call:
    library = native.best()
    assert library is not None
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    return native.Native(library, fold(architecture, RELEASED[architecture], weights)).run


def _session(file: Path) -> Call:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(["rows"], batch.rectangle()._asdict())


def exported(model: Model, directory: Path) -> Path:
    """The network as an fp32 graph, made once."""
    file = directory / "fp32.onnx"
    if not file.exists():
        onnx.save(export(model), file)
    return file


def run_onnx_cpu(architecture: str, model: Model, directory: Path) -> Call:
    onnx.save(quantize(onnx.load(exported(model, directory))), directory / "int8.onnx")
    return _session(directory / "int8.onnx")


def run_stock(architecture: str, model: Model, directory: Path) -> Call:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    file = directory / "stock.onnx"
    quantize_dynamic(exported(model, directory), file, per_channel=True, weight_type=QuantType.QInt8)
    return _session(file)


def run_torch(architecture: str, model: Model, directory: Path) -> Call:
    torch.set_num_threads(1)

    @torch.inference_mode()
    def call(batch: Batch) -> torch.Tensor:
        return model(*(torch.from_numpy(array) for array in batch.rectangle()))

    return call


def _openvino(model: Any) -> Call:
    import openvino

    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    return lambda batch: request.infer(batch.rectangle()._asdict())


def run_openvino(architecture: str, model: Model, directory: Path) -> Call:
    import openvino

    return _openvino(openvino.Core().read_model(exported(model, directory)))


def run_openvino_int8(architecture: str, model: Model, directory: Path) -> Call:
    import nncf
    import openvino

    samples = [batch_of(2, 64, seed).rectangle()._asdict() for seed in range(8)]
    network = openvino.Core().read_model(exported(model, directory))
    kind = nncf.ModelType.TRANSFORMER
    return _openvino(nncf.quantize(network, nncf.Dataset(samples), model_type=kind, subset_size=len(samples)))


ENGINES: Final[Mapping[str, Callable[[str, Model, Path], Call]]] = {
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
            calls = {}
            for name in arguments.engine or ENGINES:
                try:
                    calls[name] = ENGINES[name](architecture, model, Path(directory))
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
