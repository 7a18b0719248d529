"""Compares ways to run a network on a GPU, side by side in one run: `swiftlet bench --device cuda`.

The ways are the torch engine, with one call and with two in flight, and with other precisions; the same network without
CUDA graphs; the padded network in torch as it is and compiled; and ONNX Runtime where it has a provider for the device.
A call begins with a batch on the host and ends with its rows there, so its time includes both copies. The share of the
peak relates the multiply-adds that a batch needs to the best rate of a large product in bf16, measured in the same run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from swiftlet_models.device_peak import SIZE, measured_peak
from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark.baselines import Call, LoadedEngine
from swiftlet_serve.benchmark.measure import Interval, Result, measure, passes_per_s
from swiftlet_serve.benchmark.networks import Network, Progress, batch_of, random_sequences, released_network
from swiftlet_serve.benchmark.plan import MIXED_LENGTHS, Case
from swiftlet_serve.benchmark.report import speed_up
from swiftlet_serve.engines.torch import (
    CALLS,
    PRECISIONS,
    PaddedTorch,
    RaggedTorch,
    load_network,
    ragged_engine,
)
from swiftlet_serve.errors import SetupError
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.types import Batch

SHAPES: Final = ("mobilebert", "albert", "bert")
SIZES: Final[Sequence[tuple[int, int]]] = ((1, 32), (1, 384), (64, 128), (42, 384))
MIXED_ROWS: Final = 8  # times the mixed lengths of a batch
SUBJECT: Final = "swiftlet"
IN_FLIGHT: Final = "two calls"
REFERENCE: Final = "torch"  # the padded network in torch; `measure` compares the other rows with its rows


@dataclass(frozen=True)
class DeviceBenchmark:
    """All measurements of a run."""

    setting: str  # the machine and the versions
    peak: float  # multiply-adds per second
    results: tuple[Result, ...]
    joules: Mapping[str, float]  # of a sequence, by case; empty if the device does not measure it


def bench_device(
    device: torch.device,
    shapes: Sequence[str],
    runs: Path,
    seconds: float,
    progress: Progress,
    sizes: Sequence[tuple[int, int]] | None = None,
    peak_size: int | None = None,
) -> DeviceBenchmark:
    """Measures the shapes on a device.

    Args:
        device: a CUDA device, or the CPU, where only the tables are of use.
        shapes: names of released shapes.
        runs: folder for exported graphs.
        seconds: time for each case.
        progress: called with a line about the progress.
        sizes: rows and tokens of the batches beside one of mixed lengths. None: `SIZES`.
        peak_size: width of the matrices for the peak. None: `swiftlet_models.device_peak.SIZE`.

    Raises:
        SetupError: there is no such device.
    """
    check_device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    setting = f"{name}. {current_environment('torch').description('')}"
    peak = measured_peak(device, peak_size or SIZE)
    results: list[Result] = []
    joules: dict[str, float] = {}
    for shape in shapes:
        network = released_network(shape, runs, progress)
        engines = dict(_engines(network, device, progress))
        manifest = network.artifact.manifest
        operations = Operations.of(manifest.architecture, manifest.config, network.shapes(), manifest.embedding)
        mixed = [length for length in MIXED_LENGTHS for _ in range(MIXED_ROWS)]
        cases = [Case(f"{shape} {rows}×{tokens}", network, [batch_of(rows, tokens)]) for rows, tokens in sizes or SIZES]
        cases.append(Case(f"{shape} mixed lengths", network, [Batch.of(random_sequences(mixed))]))
        for case in cases:
            progress(case.name)
            measured = list(measure(case, engines, operations, seconds, clock=time.perf_counter))
            results += [_in_flight(measured[0], engines[SUBJECT].call, case, seconds / 4), *measured]
            used = _energy_j(device, partial(engines[SUBJECT].call, case.batches[0]), seconds / 4)
            if used is not None:
                joules[case.name] = used / case.rows
        del engines
    return DeviceBenchmark(setting, peak, tuple(results), joules)


def report(
    device: str, shapes: Sequence[str], runs: Path, seconds: float, progress: Progress, out: Path | None, name: str
) -> str:
    """Returns the table of the named shapes, or of all, in Markdown. Writes it to `out`/`name`.md if there is a folder.

    Raises:
        SetupError: as `bench_device`.
    """
    report = text(bench_device(torch.device(device), shapes or SHAPES, runs, seconds, progress))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.md").write_text(report + "\n", "utf-8")
        progress(str(out / f"{name}.md"))
    return report


def check_device(device: torch.device) -> None:
    """Raises SetupError if there is no such device."""
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SetupError("There is no CUDA device, or this torch has no support for it. Install torch for CUDA.")


def text(benchmark: DeviceBenchmark) -> str:
    """Returns the table in Markdown."""
    lines = [
        benchmark.setting,
        "",
        f"A large product reaches {2e-12 * benchmark.peak:.1f} TFLOP/s.",
        "",
        "| case | way | sequences/s | ms of a call | × torch | share of the peak | joules | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    torch_results = {result.case: result for result in benchmark.results if result.engine == REFERENCE}
    for result in benchmark.results:
        pass_s, ratio = Interval.of(result.rounds), speed_up(result, torch_results[result.case])
        joules = benchmark.joules.get(result.case) if result.engine == SUBJECT else None
        cells = [
            result.case,
            result.title,
            f"{result.rows / pass_s.value:,.0f} ({result.rows / pass_s.high:,.0f} to {result.rows / pass_s.low:,.0f})",
            f"{result.call_ms:.2f}",
            f"{ratio.value:.1f} ({ratio.low:.1f} to {ratio.high:.1f})",
            f"{result.multiply_adds / pass_s.value / benchmark.peak:.0%}",
            "–" if joules is None else f"{joules:.4f}",
            "–" if result.error is None else f"{result.error:.4f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _engines(network: Network, device: torch.device, progress: Progress) -> Iterator[tuple[str, LoadedEngine]]:
    artifact = network.artifact
    engine = ragged_engine(artifact, load_network(artifact), device)
    if engine is None:
        raise SetupError(f"The network {artifact.manifest.name} cannot be folded.")
    yield SUBJECT, LoadedEngine("swiftlet", engine.run)
    for precision in [name for name in PRECISIONS if name != "bf16"]:
        try:
            ragged = ragged_engine(artifact, load_network(artifact), device, precision)
            assert ragged is not None  # noqa: S101  # for the type checker
            ragged.run(batch_of(2, 8))
        except RuntimeError as error:  # the device has no such products
            progress(f"{precision} is left out: {error}")
        else:
            yield precision, LoadedEngine(f"swiftlet, {precision}", ragged.run)
    plain = RaggedTorch(engine.network, device, engine.longest)
    yield "without graphs", LoadedEngine("swiftlet, without graphs", plain.run)
    padded = PaddedTorch(load_network(artifact), device)
    yield REFERENCE, LoadedEngine("torch, padded", padded.run)
    compiled = PaddedTorch(load_network(artifact), device)
    compiled.compile()
    try:
        compiled.run(batch_of(2, 8))
    except Exception as error:  # a compiler may be missing, and it documents no exceptions
        progress(f"torch.compile is left out: {type(error).__name__}")
    else:
        yield "torch.compile", LoadedEngine("torch.compile, padded", compiled.run)
    with suppress(ImportError):
        yield from _onnx_runtime(network, device, progress)


def _onnx_runtime(network: Network, device: torch.device, progress: Progress) -> Iterator[tuple[str, LoadedEngine]]:
    """Yields ONNX Runtime's providers for CUDA devices, with the fp32 graph. TensorRT computes in fp16 where it can."""
    import onnxruntime as ort

    options: Mapping[str, Mapping[str, Any]] = {
        "TensorrtExecutionProvider": {"trt_fp16_enable": True},
        "CUDAExecutionProvider": {"use_tf32": 1},
    }
    for name in sorted(options.keys() & set(ort.get_available_providers())) if device.type == "cuda" else ():
        session = ort.InferenceSession(network.graph, providers=[(name, dict(options[name]))])
        if name not in session.get_providers():  # it falls back to the CPU if the provider's libraries are missing
            progress(f"ONNX Runtime's {name} is left out: it cannot be loaded")
            continue

        def call(batch: Batch, session: Any = session) -> Sequence[Any]:
            return [session.run(["rows"], batch.padded()._asdict())[0]]

        yield name, LoadedEngine(name.removesuffix("ExecutionProvider"), call)


def _in_flight(alone: Result, call: Call, case: Case, seconds: float) -> Result:
    """Measures an engine with as many calls in flight as a server keeps. `alone` is its result with one."""
    count = len(alone.rounds)  # a ratio of two ways needs as many rounds of each
    rates = [passes_per_s(call, case.batches, CALLS, seconds / count) for _ in range(count)]
    call_ms = 1e3 * CALLS / statistics.median(rates) / len(case.batches)
    title = f"{alone.title}, {CALLS} calls in flight"
    return replace(alone, engine=IN_FLIGHT, title=title, rounds=tuple(1 / rate for rate in rates), call_ms=call_ms)


def _uuid(device: torch.device) -> str:
    """Returns the name of a GPU in NVML. Raises an exception if the device is not a GPU of NVML."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def _energy_j(device: torch.device, call: Callable[[], object], seconds: float) -> float | None:
    """Returns the joules of a call as the device counts them, or None if it does not count them."""
    try:
        import pynvml  # of the package nvidia-ml-py

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid(device))  # NVML numbers devices in another order
        before, calls, ends = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), 0, time.monotonic() + seconds
        while time.monotonic() < ends or not calls:
            call()
            calls += 1
        used = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before
    except Exception:  # the package or the driver is missing, or the device has no counter
        return None
    return float(used) / 1000 / calls
