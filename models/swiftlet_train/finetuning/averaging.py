"""The mean of models that were trained separately from the same start (Wortsman et al. 2022, arXiv:2203.05482).

Their parameters stay close enough to each other that the mean is a better model than each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from swiftlet_models.heads import Model


@torch.no_grad()
def average(models: Sequence[Model]) -> Model:
    """Returns the first model, with the mean of all models' parameters. The models have the same shapes."""
    first, *others = models
    parameters = [dict(network.named_parameters()) for network in others]
    for name, parameter in first.named_parameters():
        for others_parameters in parameters:
            parameter.add_(others_parameters[name])
        parameter.div_(len(models))
    return first
