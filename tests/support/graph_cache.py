"""Keeps the ONNX graphs that tests export, because a trace takes seconds even for a tiny network.

A graph without its weights depends only on the network's code, settings and shapes. Networks that differ in their
weights alone share one trace, also across the processes of a test run, and across runs of the same code.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import pickle
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import onnx
import torch

from swiftlet_models.heads import Model
from tests.support.paths import ROOT
from tests.support.selection import closure, imports, module_file

CODE: Final = ("swiftlet_models.graphs.export", "swiftlet_models.heads")
"""The modules that trace a network. The graphs depend on what these import, and on the architectures."""
Trace = Callable[[Model], onnx.ModelProto]


def directory() -> Path:
    """Returns the directory of the graphs that this code and these packages make."""
    code = hashlib.sha256(repr([metadata.version(name) for name in ("onnx", "onnxscript", "torch")]).encode())
    for file in sorted(_files()):
        code.update(file.read_bytes())
    path = ROOT / "build/graphs" / code.hexdigest()[:20]
    path.mkdir(parents=True, exist_ok=True)
    return path


@cache
def _files() -> frozenset[Path]:
    modules = {one for name in CODE for one in closure(name, imports)}
    files = {file for one in modules if (file := module_file(one))}
    return frozenset(files | set((ROOT / "models/swiftlet_models/architectures").glob("*.py")))


def cached(trace: Trace, directory: Path) -> Trace:
    """Returns a function like `trace` that keeps its graphs in the directory and exchanges their weights."""

    def trace_or_read(model: Model) -> onnx.ModelProto:
        key = structure(model.eval())
        if not key:
            return trace(model)
        path = directory / f"{key}.onnx"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may trace the same network
            if path.is_file():
                return _with_weights(onnx.load(path), model)
            graph = trace(model)
            weights = {tensor.name for tensor in graph.graph.initializer}
            if weights == model.state_dict().keys():  # another initializer could depend on the weights
                new = path.with_suffix(".new")
                new.write_bytes(graph.SerializeToString())
                new.rename(path)
        return graph

    return trace_or_read


def structure(model: Model) -> str:
    """Returns a hash of all that a network consists of, except its weights.

    Empty if it cannot be pickled, or has code of this repository that `directory` does not depend on, as of a test.
    """
    content = io.BytesIO()
    try:
        _StructurePickler(content).dump(model)
    except (AttributeError, TypeError, pickle.PicklingError):  # a network of a test may hold anything
        return ""
    return hashlib.sha256(content.getvalue()).hexdigest()


class _StructurePickler(pickle.Pickler):
    """Writes the shape of a tensor instead of its values, and the same number for the same tensor."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._tensors: dict[int, int] = {}

    def reducer_override(self, obj: Any) -> Any:
        module = obj.__module__ if isinstance(obj, type | FunctionType) else ""
        if module.startswith(("swiftlet_", "tests")) and module_file(module) not in _files():
            raise pickle.PicklingError(f"another file may define {obj}")
        return NotImplemented

    def persistent_id(self, obj: Any) -> tuple[int, str, tuple[int, ...]] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        number = self._tensors.setdefault(id(obj), len(self._tensors))
        return number, str(obj.dtype), tuple(obj.shape)


def _with_weights(graph: onnx.ModelProto, model: Model) -> onnx.ModelProto:
    weights = model.state_dict()
    for tensor in graph.graph.initializer:
        values = weights[tensor.name].detach().numpy()
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    return graph
