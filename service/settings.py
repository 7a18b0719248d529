"""Everything that can be set, read once at start. Nothing needs to be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, IPvAnyNetwork, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

CGROUP: Final = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """The cores this process may use: its affinity, cut to its control group's CPU quota (version 2, else 1)."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no such call
        cores = os.cpu_count() or 1
    # Rounded down: a thread too many is throttled by the kernel in the middle of a batch, with every request it holds.
    return max(1, min(cores, int(_quota(cgroup))))


def _quota(cgroup: Path) -> float:
    """Cores' worth of CPU time per period; infinite where none is set."""
    try:
        try:
            quota, period = (cgroup / "cpu.max").read_text("ascii").split()
        except FileNotFoundError:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text("ascii")
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text("ascii")
        limit = int(quota) / int(period)
    except (OSError, ValueError):  # no control group here, or the quota is "max"
        return float(1 << 20)
    return limit if limit > 0 else float(1 << 20)


class Settings(BaseSettings):
    """Each setting is an environment variable SWIFTLET_<NAME> and an option of `swiftlet serve`."""

    model_config = SettingsConfigDict(env_prefix="SWIFTLET_", frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 lets the system choose.")
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Models to serve, separated by commas: names of embedded ones or directories of artifacts. "
        "The first of each task answers requests that name none. Empty: every embedded model, and of each task the one "
        "that scores best answers.",
    )
    admin_host: str = Field("127.0.0.1", description="Address of the own port, if there is one.")
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Own port for whoever runs the server: it has /health and /metrics only, and answers on a thread "
        "of its own while the public port is flooded. Unset: none, and /metrics is on the public port.",
    )
    reuse_port: bool = Field(
        False,
        description="Lets several servers listen on one port (SO_REUSEPORT), so that a new one can take over from an "
        "old one without a balancer.",
    )
    tls_cert: Path | None = Field(
        None, description="PEM file with the certificate and its chain. Unset: the public port speaks plain HTTP."
    )
    tls_key: Path | None = Field(
        None, description="PEM file with the key of the certificate, without a password. Unset: it is in tls_cert."
    )
    api_keys_file: Path | None = Field(
        None,
        description="File with the API keys that are let in, one line each, as the command swiftlet key makes them. "
        "Unset: everybody is.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins whose pages may ask from a browser, separated by commas; * for all. Empty: none may.",
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of proxies, separated by commas, whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed. Empty: nobody's.",
    )
    engine: str = Field("native", description="Engine that runs the models: native, onnx_cpu, openvino, torch or echo.")
    spare_engine: bool = Field(
        True,
        description="Whether a second engine process stands by and serves at once when the first is lost; "
        "it takes as much memory.",
    )
    cores: int = Field(
        default_factory=usable_cores,
        ge=1,
        description="Engine calls that run at the same time, of all models together. "
        "Unset: the cores this process may use.",
    )
    timeout_ms: int = Field(
        10_000,
        ge=1,
        description="Deadline of a request that brings no X-Request-Timeout-Ms header, in milliseconds.",
    )
    client_rate: float | None = Field(
        None,
        gt=0,
        description="Requests a second that each client may make, and a second's worth of them at once; beyond it, "
        "requests get a 429. Unset: as many as can be served.",
    )
    max_body_bytes: int = Field(1 << 20, ge=1, description="Largest request body that is read, in bytes.")
    max_answer_bytes: int = Field(
        1 << 16,
        ge=1,
        description="Largest answer that is sent, in bytes, or 16 times the body where that is more; a request that "
        "asks for a larger one gets a 422.",
    )
    max_queued_tokens: int = Field(
        1 << 17,
        ge=1,
        description="Work that may wait for a core, in tokens of all models together; beyond it, requests get a 503.",
    )
    drain_s: float = Field(
        0,
        ge=0,
        description="How long to go on serving after SIGTERM while /health/ready says no, in seconds: as long as a "
        "balancer takes to notice.",
    )
    shutdown_timeout_s: int = Field(
        15, ge=1, description="How long requests under way may take to finish after that, in seconds."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="How a line of the log is written: text, for a person; or json, one object a line."
    )
    access_log: bool = Field(
        False, description="Whether each request is logged: who asked, what became of it and its times, and no text."
    )
    traces_endpoint: str | None = Field(
        None,
        description="Where OpenTelemetry traces are sent, as OTLP over HTTP: http://collector:4318/v1/traces. Needs "
        "the extra otel. Unset: where OTEL_EXPORTER_OTLP_ENDPOINT says, or nowhere.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe messages that are logged: debug, info, warning or error."
    )

    @field_validator("models", "cors_origins", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
