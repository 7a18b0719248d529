"""A folded network in torch, over a ragged batch: it runs the operations of its plan.

Query, residual, key and value are one product, and the last layer computes only the N positions that the head reads. A
network that pools, or attends causally or with a position bias, computes all T tokens in every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swiftlet_models.folded import Folded
from swiftlet_models.program import Attend, joined, reading_late
from swiftlet_models.ragged import in_torch
from swiftlet_models.ragged.in_torch import Kernels
from swiftlet_models.ragged.layout import Layout
from swiftlet_models.ragged.operations import Parameters, State, operation
from swiftlet_models.ragged.plan import FUSIONS, FUSIONS_IN_FLOATS, plan
from swiftlet_models.ragged.products import MakeProduct, in_floats


class Network:
    """A folded network on a device."""

    def __init__(
        self,
        folded: Folded,
        device: torch.device,
        dtype: torch.dtype,
        make_product: MakeProduct = in_floats,
        kernels: Kernels = in_torch,
    ) -> None:
        """Puts a network on a device.

        Args:
            folded: the network, which is not kept.
            device: where it computes.
            dtype: of its activations.
            make_product: how its products are computed. Those that are exact are in floats.
            kernels: what it computes between its products and attentions.
        """
        self.kernels, self.dtype = kernels, dtype
        self.vocabulary, self.outputs = 0 if folded.words is None else len(folded.words), folded.outputs
        program = reading_late(folded.program) if folded.program.attends_by_position else folded.program
        fusions = FUSIONS_IN_FLOATS if make_product is in_floats else FUSIONS
        self._results, self.plan = program.results, plan(joined(program), fusions)
        parameters = Parameters(folded, device, dtype, make_product)
        # Operations do not hold the network: its memory is freed at once when nothing else holds it.
        self._operations = [operation(part, parameters) for part in self.plan]
        self.reads_all = not any(isinstance(part.unit, Attend) and part.in_focus for part in self.plan)
        """Whether every layer computes all tokens."""
        self.has_static_shapes = not any(isinstance(step, Attend) and (step.bias or step.relative) for step in program)
        """Whether all shapes follow from the sizes of the layout. A position bias needs the longest length."""

    def __call__(self, at: Layout) -> Tensor:
        """Returns the outputs at the N positions in focus, (N, O)."""
        state = State(at, self.kernels.locate(at.ends, at.focus_ends, at.focus, at.sizes.tokens), self.kernels)
        for part, run in zip(self.plan, self._operations, strict=True):
            state.values[part.out] = run(state)
            for value in part.ended:
                state.values.pop(value, None)
        results = [state.values[result] for result in self._results]
        return torch.cat(results, 1) if len(results) > 1 else results[0]
