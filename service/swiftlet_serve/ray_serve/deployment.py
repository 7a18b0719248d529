"""An application of Ray Serve whose replicas are servers without their sockets.

Ray's proxies speak HTTP with the clients and choose a replica. A replica has its own admission, queue and engines, as
`swiftlet serve` has. It handles deadlines and overload: Ray hands it every request at once, and no request waits in a
queue without deadlines.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from ray import serve
from starlette.types import ASGIApp

from swiftlet_serve.asgi import create_application
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.process_setup import set_up_process
from swiftlet_serve.ray_serve.autoscaling import QUEUE_WAIT, UTILIZATION, QueueWaitPolicy
from swiftlet_serve.settings import Settings, check_variables
from swiftlet_serve.telemetry.logging_setup import QueuedLogHandler

ModelT = TypeVar("ModelT", bound=BaseModel)

DEPLOYMENT: Final = "swiftlet"
UNLIMITED: Final = 1_000_000
"""Requests that Ray may hand a replica at once. The admission of the replica refuses requests."""

RAYS_OWN: Final = (
    "host",
    "port",
    "admin_host",
    "admin_port",
    "admin_keys_file",
    "grpc_port",
    "reuse_port",
    "fronts",
    "tls_cert",
    "tls_key",
    "trusted_proxies",
    "drain_s",
    "shutdown_timeout_s",
    "traces_endpoint",
    "access_log",
)
"""Settings of sockets and of the server's life, which are Ray's."""


class Scale(BaseModel):
    """The arguments of the application beside the settings: the size of a replica, and the number of replicas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_gpus: float = Field(0, ge=0, description="GPUs of a replica.")
    min_replicas: int = Field(1, ge=1, description="Least number of replicas.")
    max_replicas: int = Field(1, ge=1, description="Greatest number of replicas.")
    target_wait_ms: float = Field(100, gt=0, description="Time that a new request may wait before replicas are added.")
    target_utilization: float = Field(0.7, gt=0, lt=1, description="Share of time that the engines should work.")
    upscale_delay_s: float = Field(10, ge=0, description="Time that more replicas are needed before they start.")
    downscale_delay_s: float = Field(300, ge=0, description="Time that fewer replicas are enough before they stop.")
    interval_s: float = Field(5, gt=0, description="Time between two reports of a replica to the autoscaler.")

    @model_validator(mode="after")
    def _check_range(self) -> Scale:
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas is less than min_replicas")
        return self


class Replica:
    """A server without a socket. Ray creates it in a separate process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Loads the models. Ray logs the error of a replica that cannot start, and tries again.

        Raises:
            ArtifactError, SetupError: as `LocalRuntime.start` and `create_manager`.
        """
        own = Settings(**settings)
        set_up_process()
        check_variables(name for name in os.environ if name.startswith("SWIFTLET_"))
        QueuedLogHandler(own.log_level.upper(), kind=own.log_format)
        self._asgi, self._runtime = create_application(own)
        self._measured = (time.monotonic(), 0.0)  # the time, and the engines' busy time until then

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Returns the application that Ray runs. Its lifespan opens and closes the runtime."""
        return self._asgi

    async def check_health(self) -> None:
        """Raises Unavailable if the replica cannot answer. Ray replaces it after three failures in a row."""
        self._runtime.check_ready()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the metrics of `QueueWaitPolicy`. The utilisation is that since the last call."""
        queue, now = self._runtime.dispatcher.queue_state(), time.monotonic()
        before, busy_before = self._measured
        self._measured = now, queue.busy_s
        cores = self._runtime.dispatcher.executor.size
        return {
            QUEUE_WAIT: queue.wait_s,
            UTILIZATION: (queue.busy_s - busy_before) / max(now - before, 1e-3) / cores,
        }


def application(args: dict[str, Any]) -> serve.Application:
    """Builds the application, for `serve run` and for the `import_path` of a Serve configuration.

    Args:
        args: the fields of `Scale`, and settings of `swiftlet serve` by their names. `cores` is the number of CPUs of a
            replica, 1 if it is not given.

    Raises:
        SetupError: an argument is unknown or invalid, or is a setting that Ray replaces.
    """
    args = {"cores": 1} | args
    scale = _parse(Scale, {name: value for name, value in args.items() if name in Scale.model_fields})
    own = {name: value for name, value in args.items() if name not in Scale.model_fields}
    if replaced := sorted(own.keys() & set(RAYS_OWN)):
        raise SetupError(f"Ray Serve has its own setting for {', '.join(replaced)}.")
    settings = _parse(Settings, own)
    deployment = serve.deployment(
        name=DEPLOYMENT,
        ray_actor_options={"num_cpus": settings.cores, "num_gpus": scale.num_gpus},
        max_ongoing_requests=UNLIMITED,
        autoscaling_config={
            "min_replicas": scale.min_replicas,
            "max_replicas": scale.max_replicas,
            "metrics_interval_s": scale.interval_s,
            "look_back_period_s": 3 * scale.interval_s,
            "upscale_delay_s": scale.upscale_delay_s,
            "downscale_delay_s": scale.downscale_delay_s,
            "policy": {
                "policy_function": f"{QueueWaitPolicy.__module__}:{QueueWaitPolicy.__name__}",
                "policy_kwargs": {
                    "target_wait_s": scale.target_wait_ms / 1000,
                    "target_utilization": scale.target_utilization,
                },
            },
        },
        graceful_shutdown_timeout_s=settings.shutdown_timeout_s,
        graceful_shutdown_wait_loop_s=0.5,
    )
    return deployment(serve.ingress()(Replica)).bind(own)


def _parse(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise SetupError(f"Invalid argument {name}: {first['msg']}." if name else f"{first['msg']}.") from None
