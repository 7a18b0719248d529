"""Exports a torch model to one ONNX file, for other runtimes.

The graph is not optimised: every parameter is one initializer under its own name. A shared layer is stored once,
`quantize.py` finds the parameters, and the weights can be read from the file. ONNX Runtime optimises the graph when it
loads it.

Inputs: `input_ids` and `token_type_ids` (B, S) int64, padded with 0; `lengths` (B,) int64; `focus` (N,) int64,
positions b * S + s. Output: `rows` (N, O) float32.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Final

import onnx
import torch
from torch.export import Dim

from swiftlet_models.errors import ModelError
from swiftlet_models.heads import Model

OPSET: Final = 20
INPUTS: Final = ("input_ids", "token_type_ids", "lengths", "focus")


class ExportError(ModelError):
    """Raised when a model cannot be exported. The message is one sentence."""


def export(model: Model) -> onnx.ModelProto:
    """Returns the model as an ONNX graph in fp32.

    Raises:
        ExportError: torch returned no graph, or a parameter is not in the graph under its name.
    """
    graph = _trace(model)
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    for name, parameter in model.named_parameters():
        if stored.get(name) != tuple(parameter.shape):
            raise ExportError(f"the parameter {name} is not in the graph.")
    onnx.checker.check_model(graph)
    return graph


def _trace(model: Model) -> onnx.ModelProto:
    """Returns the model's graph with its weights, without notes about its origin. Takes seconds even if it is tiny.

    Raises:
        ExportError: torch returned no graph.
    """
    dynamic = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    ids = torch.ones((2, 5), dtype=torch.int64)
    example = (ids, torch.zeros_like(ids), torch.tensor([5, 3]), torch.tensor([0, 5, 6]))
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model.eval(),
            example,
            input_names=INPUTS,
            output_names=("rows",),
            dynamic_shapes=(dynamic, dynamic, {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}),
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            external_data=False,
            verbose=False,
        )
    if program is None:
        raise ExportError("torch returned no graph.")
    graph = program.model_proto
    _forget_origin(graph)
    return graph


def write(graph: onnx.ModelProto, path: Path) -> None:
    """Writes the graph as one file."""
    path.write_bytes(graph.SerializeToString(deterministic=True))


def _forget_origin(graph: onnx.ModelProto) -> None:
    """Removes the exporter's notes about the traced code: file names, lines and stack traces."""
    graph.ClearField("metadata_props")
    for part in (graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.graph.initializer, *graph.functions):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    graph.graph.ClearField("value_info")


class _quiet:  # noqa: N801  # used like a function
    """Silences one logger within a block. The exporter warns about libraries that are not needed."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def __enter__(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self._logger.setLevel(self._level)
