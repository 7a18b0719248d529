"""Support for the tests of the native engine: libraries, networks, batches, and a folded network in numpy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch

from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded
from swiftlet_models.folding import fold
from swiftlet_models.heads import Model
from swiftlet_models.program import WORDS, Attend, Gate, LookUp, Multiply, Norm, NormHeads, Place, Read, Rotate
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.types import Batch, Engine
from tests.support.checkpoints import TASKS, Task, randomise, untrained
from tests.support.compiler import EMULATION, SOURCES, compile_kernels
from tests.support.network_sizes import CONFIGS as CONFIGS
from tests.support.network_sizes import POSITIONS as POSITIONS
from tests.support.network_sizes import STANDARD as STANDARD
from tests.support.network_sizes import VOCABULARY as VOCABULARY
from tests.support.remote import EXTENSIONS

NETWORKS: Final[tuple[tuple[str, Task], ...]] = (
    *((architecture, task) for architecture in CONFIGS for task in TASKS),
    ("gpt2", "score"),
    ("eurobert", "classify"),
    ("gemma3_text", "qa"),
    ("gte", "fill-mask"),
    ("qwen3", "classify"),
    ("t5", "qa"),
    ("qwen2", "classify"),
)
SETTINGS: Final = CONFIGS | STANDARD
SANITIZE: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@cache
def best() -> Library:
    """Returns the kernels that would serve on this CPU. Skips the test if there are none."""
    library = _kernel_selection.best()
    if library is None:
        pytest.skip("the native engine was not compiled, or has no kernel for this CPU")
    return library


def compile_library(source: str, to: Path, *options: str) -> Path:
    """Compiles a file of `native`, unoptimised to save time. Skips the test if there is no compiler."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    flags = ["-std=c++17", "-O0", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-w"]
    return compile_kernels(compiler, [*flags, *options, str(SOURCES / source)], to)


class Pair(NamedTuple):
    """Kernels, and the reference kernels, which agree with them to the bit."""

    library: Library
    plain: Library


def kernels(kernel: str, directory: Path) -> Library:
    """Returns compiled kernels that this CPU can run, or else emulated ones."""
    library = _kernel_selection._library(kernel)
    return library if library is not None and library.supported else emulated(kernel, directory)


def emulated(kernel: str, directory: Path) -> Library:
    """Compiles kernels with Intel's instructions emulated."""
    if not Path("/usr/include/simde").is_dir():
        pytest.skip("SIMDe, which emulates instructions, is not installed (Debian's package libsimde-dev)")
    options = "-I", str(EMULATION), "-DSWIFTLET_TILE_MODEL"
    return Library(compile_library(f"{kernel}.cpp", directory / f"{kernel}.so", *options))


def sanitized(directory: Path) -> Path:
    """Compiles kernels that this CPU can run, with the sanitizers for addresses and undefined behaviour."""
    flags = {
        "avx2": ["-mavx2", "-mfma"],
        "avxvnni": ["-mavx2", "-mfma", "-mavxvnni"],
        **{kernel: [f"-march=armv8.2-a+{extension}"] for kernel, extension in EXTENSIONS.items()},
    }
    # A CPU with AVX-512 has AVX2 as well.
    kernel = best().kernel if best().kernel in flags else "avx2"
    return compile_library(f"{kernel}.cpp", directory / "sanitized.so", *SANITIZE, *flags[kernel])


def plain_tiles(directory: Path, *options: str) -> Path:
    """Compiles the reference kernels in the shape of AMX, with tiles in software."""
    shape = {"LANES": 16, "LOWEST": 0, "LEVELS": 255, "FLOATS_PER_LANE": 2, "TILES": 1}
    defined = [f"-DSWIFTLET_{name}={value}" for name, value in shape.items()]
    return compile_library("plain.cpp", directory / "plain_tiles.so", *defined, *options)


def plain(like: Library, directory: Path) -> Library:
    """Compiles the reference kernels in the shape of other kernels."""
    c = like.c
    names = ("lanes", "lowest", "levels", "floats_per_lane", "tiles")
    shape = {name.upper(): getattr(c, f"swiftlet_{name}")() for name in names}
    options = [f"-DSWIFTLET_{name}={value}" for name, value in shape.items()]
    return Library(compile_library("plain.cpp", directory / "plain.so", *options))


@cache
def network(architecture: str, task: Task) -> Model:
    """Returns a network whose activations are near 1. Tests must not change it."""
    model = untrained(architecture, SETTINGS[architecture], task)
    randomise(model)
    return model.eval()


def weights(model: Model, dtype: type = np.float32) -> dict[str, Any]:
    return {name: tensor.detach().numpy().astype(dtype) for name, tensor in model.state_dict().items()}


def folded(architecture: str, task: Task, dtype: type = np.float32) -> Folded:
    return fold(architecture, SETTINGS[architecture], weights(network(architecture, task), dtype))


def encoding(length: int, focus: Sequence[int], seed: int) -> Encoding:
    draw = np.random.default_rng(seed)
    return Encoding(draw.integers(0, VOCABULARY, length), draw.integers(0, 2, length), np.array(focus, np.int64))


@torch.no_grad()
def torch_rows(model: Model, batch: Batch) -> np.ndarray:
    """Returns the rows that torch computes, (N, O)."""
    rows: torch.Tensor = model(*(torch.from_numpy(array) for array in batch.padded()))
    return rows.numpy()


def rows_of(engine: Engine, encodings: Sequence[Encoding]) -> torch.Tensor:
    """Returns the rows that an engine computes for a batch, (N, O)."""
    return torch.from_numpy(np.concatenate(engine.run(Batch.of(encodings))))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf, [float])(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}
ACTIVATIONS["gelu_pytorch_tanh"] = ACTIVATIONS["gelu_new"]


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight
    return normed


def run_folded(f: Folded, batch: Batch) -> np.ndarray:
    """Computes a folded network in numpy, one sequence after another, in the precision of its parameters: (N, O)."""
    return np.concatenate([_run(f, one) for one in batch.encodings()])


def _run(f: Folded, one: Encoding) -> np.ndarray:
    values: dict[str, np.ndarray] = {}
    rows = len(one.input_ids)
    positions = np.arange(rows)  # of the values' rows

    def read(place: Place) -> np.ndarray:
        return values[place.value][:, place.first : place.first + place.width]

    def look_up(step: LookUp) -> None:
        table, zero = (
            np.asarray(f.words if step.table == WORDS else f.vectors[step.table]),
            np.zeros((1, step.out.width)),
        )
        found = table[{"position": positions, "token_type": one.token_type_ids}.get(step.index, one.input_ids)]
        if step.index == "next_word":
            found = np.concatenate([found[1:], zero])
        if step.index == "previous_word":
            found = np.concatenate([zero, found[:-1]])
        value = values.setdefault(step.out.value, np.zeros((rows, f.program.widths[step.out.value]), table.dtype))
        read(step.out)[...] = found + (read(step.out) if step.adds else 0)
        assert value.shape[1] >= step.out.first + step.out.width

    def multiply(step: Multiply) -> np.ndarray:
        product = f.product(step.product)
        y: np.ndarray = values[step.x] @ product.weight.T + product.bias
        if step.residual:
            y += read(step.residual) * (f.vectors[step.gain] if step.gain else 1)
        return ACTIVATIONS[step.activation or "none"](y)

    def norm(step: Norm) -> np.ndarray:
        x, weight = values[step.x], f.vectors[step.norm + ".weight"]
        if step.centres:
            normed = rms_norm(x - x.mean(-1, keepdims=True), weight, step.epsilon) + f.vectors[step.norm + ".bias"]
        else:
            normed = rms_norm(x, weight, step.epsilon)
        return normed if step.residual is None else normed + read(step.residual)

    def norm_heads(step: NormHeads) -> None:
        parts = np.split(read(step.x), step.heads, axis=1)
        read(step.x)[...] = np.concatenate([rms_norm(x, f.vectors[step.norm], step.epsilon) for x in parts], axis=1)

    def gate(step: Gate) -> np.ndarray:
        first, second = np.split(values[step.x], 2, axis=1)
        gated: np.ndarray = ACTIVATIONS[step.activation](first) * second
        return gated

    def rotate(step: Rotate) -> None:
        parts = np.split(read(step.x), 2 * step.heads, axis=1)
        points = np.array([a + 1j * b for a, b in zip(parts[::2], parts[1::2], strict=True)])  # (A, rows, D / 2)
        cos, sin = np.split(f.vectors[step.table][positions], 2, axis=1)
        turned = points * (cos + 1j * sin)
        read(step.x)[...] = np.concatenate([part for x in turned for part in (x.real, x.imag)], axis=1)

    def attend(step: Attend) -> np.ndarray:
        query = np.split(read(step.query), step.heads, axis=1)
        key, value = (
            [x for x in np.split(read(place), step.key_heads, axis=1) for _ in range(step.heads // step.key_heads)]
            for place in (step.key, step.value)
        )
        distances = np.arange(rows)[None, :] - positions[:, None]
        attended = []
        for head in range(step.heads):
            scores = query[head] @ key[head].T
            if step.bias:
                bias = f.vectors[step.bias][head]
                scores += bias[distances + len(bias) // 2]
            if step.relative:
                chosen = f.vectors[step.relative.rows].astype(int)[distances + f.positions - 1]
                tables = (step.relative.keys, step.relative.queries)
                for name, x, axes in zip(tables, (query[head], key[head]), ((0, 1), (1, 0)), strict=True):
                    if name is not None:
                        table = np.split(f.vectors[name], step.heads, axis=1)[head]
                        scores += np.take_along_axis(x @ table.T, chosen.transpose(axes), 1).transpose(axes)
            if step.causal:
                scores[distances > 0] = -np.inf
            scores[:, one.attends_to :] = -np.inf
            if step.window is not None:
                scores[np.abs(distances) > step.window // 2] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            attended.append(scores @ value[head] / scores.sum(-1, keepdims=True))
        return np.concatenate(attended, axis=1)

    for step in [step for block in f.program.blocks for _ in range(block.times) for step in block.steps]:
        match step:
            case LookUp():
                look_up(step)
            case Multiply():
                values[step.out] = multiply(step)
            case Norm():
                values[step.out] = norm(step)
            case NormHeads():
                norm_heads(step)
            case Gate():
                values[step.out] = gate(step)
            case Rotate():
                rotate(step)
            case Attend():
                values[step.out] = attend(step)
            case Read(how="focus"):
                positions = one.focus
                values[step.out] = values[step.x][positions]
            case Read():
                pooled = values[step.x].max(0) if step.how == "max" else values[step.x].mean(0)
                values[step.out] = np.tile(pooled, (len(one.focus), 1))
    return np.concatenate([values[result] for result in f.program.results], axis=1)


Change = Callable[[Any], Any]


def _without_positions(step: Any) -> Any:
    return None if isinstance(step, LookUp) and step.index == "position" else step


def _with_window(step: Any) -> Any:
    return replace(step, window=9) if isinstance(step, Attend) else step


# Networks that no family has yet. Without positions, their sequences may have any length.
VARIANTS: Final[Mapping[str, tuple[str, Change]]] = {
    "no positions": ("bert", _without_positions),
    "window without positions": ("albert", lambda step: _with_window(_without_positions(step))),
    "causal window": ("gpt2", _with_window),
    "window with bias": ("mpnet", _with_window),
}


def variant(name: str, positions: int = POSITIONS) -> Folded:
    """Returns a network of a head for tokens with other steps."""
    architecture, change = VARIANTS[name]
    given = folded(architecture, "qa")
    kept = (
        replace(block, steps=tuple(step for step in map(change, block.steps) if step)) for block in given.program.blocks
    )
    return replace(given, program=replace(given.program, blocks=tuple(kept)), positions=positions)
