"""The settings of the server. Each has a default. The server reads them once, at start-up."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, IPvAnyNetwork, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.cores import usable_cores

PREFIX: Final = "SWIFTLET_"  # of environment variables
MAX_WAIT_S: Final = 86_400  # a day
MAX_TIMEOUT_MS: Final = 600_000  # of a request's own deadline
OTHER_VARIABLES: Final = ("NATIVE_KERNEL", "API_KEY")  # of the native engine, and of commands that ask a server
HOST_VARIABLES: Final = {
    "port": "AIP_HTTP_PORT",
    "vertex_predict_route": "AIP_PREDICT_ROUTE",
    "vertex_health_route": "AIP_HEALTH_ROUTE",
}
"""The variables of hosts of containers, by the setting that they are a default of."""
ROUTE: Final = re.compile(r"/[\w./:@~-]*", re.ASCII)


MODEL_OPTION: Final = re.compile(r"[a-z_]+=[^=,]*")  # of a model in a list


class Settings(BaseSettings):
    """Each setting is an environment variable SWIFTLET_<NAME> and an option of `swiftlet serve`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = Field("127.0.0.1", description="Address to listen on. Use 0.0.0.0 for all interfaces.")
    port: int = Field(
        8000,
        ge=0,
        le=65535,
        description="Port to listen on. 0 lets the system choose a free port. Unset: AIP_HTTP_PORT, which Vertex AI "
        "sets, or the default.",
    )
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Models to serve, separated by commas: names of bundled models, directories of artifacts or "
        "checkpoints, names on the Hugging Face hub, each with options such as ./mine:task=qa,name=me, or TOML files. "
        "The first model of a task answers requests that name no model. If no model was made for rerank or zero-shot, "
        "the first embedding model answers these requests. Empty: all bundled models, the best one of each task first.",
    )
    model_names: Annotated[Mapping[str, str], NoDecode] = Field(
        default_factory=dict,
        description="Further names of models, separated by commas, for clients that send those of another service: "
        "text-embedding-3-small=mobilebert-embed. A name means a served model, a version of it, or a task's default "
        "model. jev-latest means zero-shot, unless it is set.",
    )
    ensembles: Annotated[Mapping[str, str], NoDecode] = Field(
        default_factory=dict,
        description="Several of the models that answer as one, separated by commas: both=mobilebert-sst2+albert-sst2 "
        "is the mean of their probabilities, both=mobilebert-sst2+albert-sst2:logits that of their logits. The models "
        "need one task and the same labels. Ensembles precede models for requests that name no model.",
    )
    model_cache: str = Field(
        "",
        description="Directory of the models that were imported from checkpoints. Servers can share it. none: a "
        "temporary one. Empty: swiftlet/models in $XDG_CACHE_HOME or ~/.cache.",
    )
    repository: str | None = Field(
        None,
        description="Model repository to serve, in place of `models`: a directory of name/version/ artifacts, or a URL "
        "such as s3://bucket/models, which needs the extra `repository`. The server follows its changes.",
    )
    repository_poll_s: float = Field(
        5.0,
        gt=0,
        le=MAX_WAIT_S,
        description="Time in seconds between two looks for changes in the model repository.",
    )
    repository_cache: Path | None = Field(
        None,
        description="Directory for copies of the repository's artifacts, kept between starts. Each server needs its "
        "own. Unset: a temporary directory.",
    )
    max_models_mb: int | None = Field(
        None,
        ge=1,
        description="Maximum size of the repository's models in memory, in megabytes of their files. Models that were "
        "used least recently are released first, and loaded again on request. Unset: no limit.",
    )
    admin_keys_file: Path | None = Field(
        None,
        description="File with the API keys that may load and unload models on the admin port, one per line, as "
        "printed by `swiftlet key`. Unset: these endpoints are disabled.",
    )
    admin_host: str = Field("127.0.0.1", description="Address of the admin port.")
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port for administrative endpoints (/health/live, /health/ready, /metrics). It runs on a separate "
        "thread and stays responsive under load. Unset: disabled, and /metrics is on the public port.",
    )
    grpc_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of the Open Inference Protocol over gRPC, on the same address as the public port. Needs the "
        "extra `grpc`. Unset: disabled.",
    )
    reuse_port: bool = Field(
        False,
        description="Allows several servers to listen on the same port (SO_REUSEPORT), for upgrades without a load "
        "balancer.",
    )
    fronts: int = Field(
        1,
        ge=1,
        le=256,
        description="Number of processes that speak HTTP on the public port, over one queue and one set of engines. "
        "Raise it if one process at 100 % of a core is the limit. Above 1 it needs Linux.",
    )
    tls_cert: Path | None = Field(
        None, description="PEM file with the TLS certificate and its chain. Unset: the public port serves plain HTTP."
    )
    tls_key: Path | None = Field(
        None,
        description="PEM file with the private key of the certificate, without a password. Unset: read from tls_cert.",
    )
    api_keys_file: Path | None = Field(
        None,
        description="File with the accepted API keys, one per line, as printed by `swiftlet key`. "
        "Unset: requests need no key.",
    )
    receipt_key: Path | None = Field(
        None,
        description="PEM file with a private Ed25519 key that signs a receipt of each answer, in X-Receipt. "
        "Needs the extra sign. Unset: no receipts.",
    )
    shadow_url: str | None = Field(
        None,
        description="Address of an existing service, before the paths of its requests. It gets copies of requests, and "
        "its answers are compared with this server's and dropped. Unset: no request is copied.",
    )
    shadow_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Routes whose requests are copied to shadow_url, separated by commas, such as /v1/decisions. Their "
        "texts leave this server.",
    )
    shadow_share: float = Field(
        0.01, gt=0, le=1, description="Share of the requests that are copied to shadow_url, from 0 to 1."
    )
    shadow_key_file: Path | None = Field(None, description="File with the API key of shadow_url. Unset: none is sent.")
    shadow_timeout_ms: int = Field(
        10_000, ge=1, le=MAX_TIMEOUT_MS, description="Time for a response of shadow_url, in milliseconds."
    )
    shadow_log: Path | None = Field(
        None,
        description="File that copied requests are added to with what shadow_url answered, as `swiftlet shadow` reads "
        "them. It has users' texts, and only its owner may read it. Unset: no text is stored.",
    )
    signer_key: Path | None = Field(
        None,
        description="PEM file with the public Ed25519 key whose owner must have signed the certificate of each model, "
        "also of bundled ones and of those in the repository. Needs the extra `sign`. Unset: no signature is checked.",
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Origins that may send requests from a browser (CORS), separated by commas. * allows all. "
        "Empty: none.",
    )
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = Field(
        (),
        description="Addresses or networks of proxies, separated by commas, whose X-Forwarded-For headers are trusted. "
        "Empty: none.",
    )
    dialects: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Protocols of other servers to speak beside Swiftlet's own, separated by commas. Empty: all.",
    )
    engine: str = Field("native", description="Engine that runs the models: native, onnx_cpu, openvino, torch or echo.")
    devices: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="GPUs of the engine torch, separated by commas: indices or UUIDs of GPUs, or UUIDs of MIG slices. "
        "Each has a worker process of its own. Empty: all that this process may use (CUDA_VISIBLE_DEVICES).",
    )
    spare_engine: bool = Field(
        True,
        description="Keeps a second worker process ready, which replaces a lost one immediately. It doubles the memory "
        "for the models, except for weights that the native engine shares.",
    )
    cores: int = Field(
        default_factory=usable_cores,
        ge=1,
        description="Number of concurrent engine calls, for all models together. "
        "Unset: the number of cores that this process may use.",
    )
    timeout_ms: int = Field(
        10_000,
        ge=1,
        description="Deadline of requests without an X-Request-Timeout-Ms header, in milliseconds.",
    )
    call_timeout_s: float = Field(
        10,
        gt=0,
        le=MAX_WAIT_S,
        description="Time limit of an engine call, in seconds, after which its worker process is replaced. "
        "A call that is predicted to take long has a longer limit, a multiple of the prediction.",
    )
    client_rate_limit: float | None = Field(
        None,
        gt=0,
        description="Rate limit per client, in requests per second. Allows bursts of up to one second's quota. "
        "Requests beyond the limit get status 429. Unset: no limit.",
    )
    client_token_rate_limit: float | None = Field(
        None,
        gt=0,
        description="Rate limit per client, in tokens per second, as the models read them. Allows bursts of up to one "
        "second's quota and one request more, of any size. Requests beyond the limit get status 429. Unset: no limit.",
    )
    max_body_bytes: int = Field(1 << 20, ge=1, description="Maximum size of a request body, in bytes.")
    max_response_bytes: int = Field(
        1 << 16,
        ge=1,
        description="Maximum size of a response body, in bytes, or 16 times the size of the request body if that is "
        "larger. Requests for a larger response get status 422.",
    )
    max_queued_tokens: int = Field(
        1 << 17,
        ge=1,
        description="Maximum number of queued tokens, for all models together. Requests beyond the limit get status "
        "503.",
    )
    drain_s: float = Field(
        0,
        ge=0,
        le=MAX_WAIT_S,
        description="Time in seconds to continue serving after SIGTERM while /health/ready reports unready, so that a "
        "load balancer can react.",
    )
    shutdown_timeout_s: int = Field(
        15, ge=1, le=MAX_WAIT_S, description="Time in seconds that running requests may take to finish after draining."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of log lines: text, or json with one object per line."
    )
    access_log: bool = Field(
        False,
        description="Logs each request: its client, result and durations, but never its text.",
    )
    vertex_predict_route: str = Field(
        "/vertex",
        description="Path of predictions for Vertex AI. Unset: AIP_PREDICT_ROUTE, which it sets, or the default.",
    )
    vertex_health_route: str = Field(
        "/vertex/health",
        description="Path of the health check of Vertex AI. Unset: AIP_HEALTH_ROUTE, which it sets, or the default.",
    )
    traces_endpoint: str | None = Field(
        None,
        description="URL that OpenTelemetry traces are sent to, with OTLP over HTTP, for example "
        "http://collector:4318/v1/traces. Needs the extra `otel`. Unset: OTEL_EXPORTER_OTLP_ENDPOINT, or disabled.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Minimum severity of log messages: debug, info, warning or error."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # pydantic passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns where values come from. The first one counts."""
        values = {name: os.environ[variable] for name, variable in HOST_VARIABLES.items() if os.environ.get(variable)}
        return init_settings, env_settings, InitSettingsSource(settings_cls, values)

    @property
    def longest_s(self) -> float:
        """The longest time to its deadline that a request can have, in seconds."""
        return max(MAX_TIMEOUT_MS, self.timeout_ms) / 1000

    @field_validator("models", mode="before")
    @classmethod
    def _split_models(cls, value: object) -> object:
        return split_models(value) if isinstance(value, str) else value

    @field_validator("model_names", "ensembles", mode="before")
    @classmethod
    def _split_names(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        pairs = [[word.strip() for word in part.split("=")] for part in value.split(",") if part.strip()]
        if not all(len(pair) == 2 and all(pair) and "@" not in pair[0] for pair in pairs):
            raise ValueError("write name=model, with commas between them")
        if len(names := dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice")
        return names

    @field_validator("vertex_predict_route", "vertex_health_route")
    @classmethod
    def _check_route(cls, value: str) -> str:
        if not ROUTE.fullmatch(value) or value == "/batch":  # whose bodies hold requests, and no instances
            raise ValueError("it is not a path such as /vertex")
        return value

    @field_validator("devices", "dialects", "cors_origins", "trusted_proxies", "shadow_paths", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def split_models(words: str) -> list[str]:
    """Splits a list of models at its commas, but not between the options of a model."""
    parts: list[str] = []
    for part in filter(None, map(str.strip, words.split(","))):
        if parts and MODEL_OPTION.fullmatch(part) and ":" in parts[-1]:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def check_variables(names: Iterable[str]) -> None:
    """Checks that each environment variable with our prefix is a setting. A misspelt one would have no effect.

    Raises:
        SetupError: a variable is not a setting. The message has the most similar one.
    """
    known = [*(name.upper() for name in Settings.model_fields), *OTHER_VARIABLES]
    for name in sorted(names):
        own = name.upper().removeprefix(PREFIX)
        if own != name.upper() and own not in known:
            similar = get_close_matches(own, known, 1)
            hint = f"Did you mean {PREFIX}{similar[0]}?" if similar else "`swiftlet serve --help` lists the settings."
            if "_SERVICE_" in name or "_TCP" in name:
                hint = "Kubernetes sets it for a Service named swiftlet, unless enableServiceLinks is false."
            raise SetupError(f"The environment variable {name} is not a setting. {hint}")
