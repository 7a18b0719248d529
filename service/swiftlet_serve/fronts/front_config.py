"""The configuration of a front process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrontConfig:
    """Configuration of a front, which it reads as JSON."""

    index: int  # of its listening socket
    channel_fd: int
    load_fd: int  # the load page
    listening_fds: list[int]  # of all fronts: the kernel gives each its share of the connections
    settings: dict[str, Any]
    models: list[str]  # directories of the artifacts, in the coordinator's order
    costs: dict[str, dict[str, Any]]  # `Cost` by the name of the model, in the same order
    heads: dict[str, int]  # of the models that share a trunk
