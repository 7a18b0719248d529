"""Networks that an adapter changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from swiftlet_models.tensors import Adapted


def adapted(weights: Mapping[str, Any], rank: int, seed: int, parts: tuple[str, ...] = ()) -> dict[str, Any]:
    """Returns parameters. Those of the encoder's linear maps, or of the `parts`, have an adapter."""
    draw, found = np.random.default_rng(seed), dict(weights)
    for name, weight in weights.items():
        layer, _, kind = name.rpartition(".")
        is_part = not parts or layer.rpartition(".")[2] in parts
        if (
            name.startswith("encoder.")
            and kind == "weight"
            and f"{layer}.bias" in weights
            and is_part
            and weight.ndim == 2
        ):
            scale = np.sqrt(np.square(weight).mean() / rank, dtype=np.float32)
            b, a = (draw.standard_normal(size, np.float32) for size in ((len(weight), rank), (rank, weight.shape[1])))
            found[name] = Adapted(weight, scale / 2 * b, a)
    return found
