"""The configuration of a front process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FrontConfig:
    """Configuration of a front, which it reads from its standard input as JSON.

    An argument would show the settings, and so possibly a password, in the list of processes.
    """

    index: int  # of its listening socket
    parent_pid: int
    channel_fd: int
    load_fd: int  # the load page
    listening_fds: list[int]  # of all fronts: the kernel gives each its share of the connections
    settings: dict[str, Any]
    models: list[str]  # directories of the artifacts, in the coordinator's order
    costs: dict[str, dict[str, Any]]  # `Cost` by the name of the model, in the same order
