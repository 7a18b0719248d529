"""A network that is to become an artifact: its description, and what it answers in fp32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import FoldingError
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32
from swiftlet_models.operations import Operations
from swiftlet_models.parameters import ParametersError, check_parameters, configure
from swiftlet_models.tensors import HeadWeights, Weights, is_finite
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.engines._shared_trunk import Apart
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.offline.fidelity import Outputs
from swiftlet_serve.offline.label_network import LabelNetwork
from swiftlet_serve.offline.probe import Probe, run
from swiftlet_serve.types import Batch

GOLDEN_COLUMNS: Final = 512  # of an output; with the whole vocabulary the golden answers would take megabytes
DAMAGED: Final = "No artifact is written. Train or download the checkpoint again."


class ReleaseError(SetupError):
    """Raised when an artifact is not good enough to be written. The message is one sentence."""


@dataclass(frozen=True)
class Draft:
    """A trained network and its description. `release` fills in the tolerance and the files of the manifest."""

    weights: Weights  # in fp32, named as in `swiftlet_models/architectures/traits.py` and `heads.py`
    tokenizer: Tokenizer
    manifest: Manifest
    card: Mapping[str, Any]
    head: HeadWeights | None = None  # the parameters behind the network
    of_labels: LabelNetwork | None = None
    finite: bool = False  # whether the weights are known to be finite

    def operations(self) -> Operations:
        """Returns the multiply-adds of the network.

        Raises:
            ReleaseError: a parameter is missing, or does not fit the configuration.
        """
        architecture, config, embedding = self.manifest.architecture, self.manifest.config, self.manifest.embedding
        shapes = {name: weight.shape for name, weight in self.weights.items()}
        try:
            check_parameters(configure(architecture, config), shapes, embedding=embedding)
        except ParametersError as error:
            raise ReleaseError(f"The network cannot be served: {error}.") from None
        return Operations.of(architecture, config, shapes, embedding)

    def answers(self, encodings: Sequence[Encoding]) -> Outputs:
        """Returns the outputs of the network in fp32 for each of some sequences, (positions, width).

        Raises:
            ReleaseError: a parameter is NaN or infinite, or missing, or the network cannot be folded.
        """
        for name, weight in () if self.finite else self.weights.items():
            if not is_finite(weight):
                raise ReleaseError(f"The network's parameter {name} holds NaN or infinity. {DAMAGED}")
        engines = [_in_fp32(about, weights) for about, weights in self.networks]
        return run(engines[0] if len(engines) == 1 else Apart(engines), encodings)

    @property
    def networks(self) -> Sequence[tuple[Manifest, Weights]]:
        """The description and the parameters of each network: the one for texts, and one for labels if there is one."""
        second = self.manifest.of_labels
        return [
            (self.manifest, self.weights),
            *([(second, self.of_labels.weights)] if second and self.of_labels else []),
        ]


def _in_fp32(about: Manifest, weights: Weights) -> RaggedOnnx:
    """Raises ReleaseError if the network cannot be folded."""
    try:
        folded = fold(about.architecture, about.config, weights, 1, about.embedding)
    except (FoldingError, ParametersError) as error:
        raise ReleaseError(f"The network cannot be served: {error}.") from None
    return RaggedOnnx(folded, in_fp32, threads=usable_cores())


def golden(encodings: Sequence[Encoding], rows: Outputs) -> dict[str, NDArray[Any]]:
    """Returns the arrays of `golden.npz`: sequences end to end, and the network's outputs for each of them alone."""
    outputs, batch = np.concatenate(rows), Batch.of(encodings)
    columns = np.unique(np.linspace(0, outputs.shape[1] - 1, GOLDEN_COLUMNS).astype(np.int64))
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "offsets": batch.offsets,
        "focus": batch.focus,
        "focus_offsets": batch.focus_offsets,
        "columns": columns,
        "rows": outputs[:, columns].astype(np.float32),
    }


def golden_encodings(tokenizer: Tokenizer, manifest: Manifest) -> list[Encoding]:
    """Encodes the requests that an artifact's golden answers record.

    Raises:
        SetupError: the tokenizer or the manifest does not fit the task.
    """
    return Probe.golden(tokenizer, manifest).encodings
