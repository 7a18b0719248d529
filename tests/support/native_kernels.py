"""Support for the tests of the native engine: libraries, networks, batches, and a folded network in numpy."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch

from swiftlet_models.folding import Folded, Product, fold
from swiftlet_models.heads import Model
from swiftlet_models.tokenizer import Encoding
from swiftlet_serve.engines import native
from swiftlet_serve.engines.native import Library
from swiftlet_serve.types import Batch
from tests.support.checkpoints import TASKS, Task, randomise, untrained
from tests.support.compiler import EMULATION, SOURCES, compile_kernels
from tests.support.network_sizes import CONFIGS as CONFIGS
from tests.support.network_sizes import POSITIONS as POSITIONS
from tests.support.network_sizes import VOCABULARY as VOCABULARY
from tests.support.remote import EXTENSIONS

NETWORKS: Final[tuple[tuple[str, Task], ...]] = (
    *((architecture, task) for architecture in CONFIGS for task in TASKS),
    ("gpt2", "score"),
)
SANITIZE: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@cache
def best() -> Library:
    """Returns the kernels that would serve on this CPU. Skips the test if there are none."""
    library = native.best()
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
    """Returns compiled kernels that this CPU can run, or else emulated ones.

    The kernels that serve on this CPU are emulated, too, because other tests run the compiled ones.
    """
    serving = native.best()
    if serving is None or kernel != serving.kernel:
        library = native._library(kernel)
        if library is not None and library.supported:
            return library
    return emulated(kernel, directory)


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
def network(architecture: str, task: Task, seed: int = 0) -> Model:
    """Returns a network whose activations are near 1. Tests must not change it."""
    model = untrained(architecture, CONFIGS[architecture], task)
    randomise(model)
    return model.eval()


def weights(model: Model, dtype: type = np.float32) -> dict[str, Any]:
    return {name: tensor.detach().numpy().astype(dtype) for name, tensor in model.state_dict().items()}


def folded(architecture: str, task: Task, dtype: type = np.float32) -> Folded:
    return fold(architecture, CONFIGS[architecture], weights(network(architecture, task), dtype))


def encoding(length: int, focus: Sequence[int], seed: int) -> Encoding:
    draw = np.random.default_rng(seed)
    return Encoding(draw.integers(0, VOCABULARY, length), draw.integers(0, 2, length), np.array(focus, np.int64))


@torch.no_grad()
def torch_rows(model: Model, batch: Batch) -> np.ndarray:
    """Returns the rows that torch computes, (N, O)."""
    rows: torch.Tensor = model(*(torch.from_numpy(array) for array in batch.padded()))
    return rows.numpy()


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


def apply(product: Product, x: np.ndarray) -> np.ndarray:
    return x @ product.weight.T + product.bias


def run_folded(f: Folded, batch: Batch) -> np.ndarray:
    """Computes a folded network in numpy, one sequence after another, in the precision of its parameters: (N, O)."""
    return np.concatenate([_run(f, one) for one in batch.encodings()])


def _run(f: Folded, one: Encoding) -> np.ndarray:
    p, v, traits, act = f.products, f.vectors, f.traits, ACTIVATIONS[f.traits.activation]
    norm_first = traits.norm_position == "before"

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + f.epsilon)
        normed: np.ndarray = centred / deviation * v[name + ".weight"] + v[name + ".bias"]
        return normed

    def add_and_norm(name: str, x: np.ndarray, residual: np.ndarray) -> np.ndarray:
        y = apply(p[name], x)
        if traits.norm == "no_norm":
            return y + residual * v[name + ".gain"]
        return y + residual if norm_first else norm(y + residual, name + ".norm")

    words = np.asarray(f.words)[one.input_ids]
    if traits.embedding.window == 3:
        zero = np.zeros_like(words[:1])
        window = [np.concatenate([words[1:], zero]), words, np.concatenate([zero, words[:-1]])]
        words = np.concatenate(window, axis=1)
    if traits.embedding.projection == "words":
        words = apply(p["embeddings.projection"], words)
    x = words + v["embeddings.position"][: len(words)]
    if traits.embedding.token_types:
        x = x + v["embeddings.token_type"][one.token_type_ids]
    if traits.embedding.norm == "layer_norm":
        x = norm(x, "embeddings.norm")
    if traits.embedding.projection == "sum":
        x = apply(p["embeddings.projection"], x)
    keys = positions = np.arange(len(words))
    for depth, i in enumerate(f.order):
        name, entered = f"layers.{i}.", x
        if norm_first:
            x = norm(x, name + "attention_norm")
        key, value = np.split(apply(p[name + "key_value"], x), 2, axis=1)
        if depth == len(f.order) - 1:
            x, entered, positions = x[one.focus], entered[one.focus], one.focus
        query = apply(p[name + "query_residual"], x)
        residual = query[:, f.inner :] if traits.bottleneck else entered
        attended = np.empty_like(query[:, : f.inner])
        distances = keys[None, :] - positions[:, None]
        for number, head in enumerate(np.split(np.arange(f.inner), traits.heads)):
            scores = query[:, head] @ key[:, head].T
            if traits.position_bias:
                scores += v["position_bias"][number][distances + len(v["embeddings.position"]) - 1]
            if traits.causal:
                scores[distances > 0] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            attended[:, head] = scores @ value[:, head] / scores.sum(-1, keepdims=True)
        y = add_and_norm(name + "output", attended, residual)
        for j in range(len(traits.feed_forward)):
            network = f"{name}feed_forward.{j}."
            normed = norm(y, network + "norm") if norm_first else y
            y = add_and_norm(network + "outer", act(apply(p[network + "inner"], normed)), y)
        x = add_and_norm(name + "leave", y, entered) if traits.bottleneck else y
    if norm_first:
        x = norm(x, "final_norm")
    head_act = ACTIVATIONS[f.head_activation or "none"]
    if "head.decoder" in p and "head.transform" not in p:
        return apply(p["head.decoder"], x)
    if "head.decoder" in p:
        return apply(p["head.decoder"], norm(head_act(apply(p["head.transform"], x)), "head.norm"))
    if "head.pooler" in p:
        x = head_act(apply(p["head.pooler"], x))
    return x @ v["head.output"].T + v["head.output_bias"]
