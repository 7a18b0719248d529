"""The application over small artifacts and the echo engine, and assertions on its responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from swiftlet_serve.http.asgi_transport import AsgiTransport
from swiftlet_serve.http.endpoints.repository_control import RepositoryControl
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gates import create_admin_gate
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.settings import Settings
from tests.support.fakes import ManualEngine
from tests.support.gated_runtime import gate_classify

SECRET = "xyzzyplugh"  # part of bad requests; no response to them may contain it
TASKS = ("classify", "qa", "fill-mask")
MAX_BODY_BYTES = 2000


def make_runtime(artifact_dir: Path, max_body_bytes: int = MAX_BODY_BYTES, **settings: Any) -> LocalRuntime:
    """Loads the small artifact of each task into the echo engine."""
    models = tuple(str(artifact_dir / f"tiny-{task}") for task in TASKS)
    return LocalRuntime.load(Settings(models=models, engine="echo", cores=2, max_body_bytes=max_body_bytes, **settings))


def make_gated_runtime(artifact_dir: Path, **settings: Any) -> tuple[LocalRuntime, ManualEngine]:
    """Returns a runtime whose classify model answers when the test says so."""
    runtime = make_runtime(artifact_dir, **settings)
    return runtime, gate_classify(runtime, width=2)


def assert_problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Asserts that a response is this error, with everything that all errors have. Returns its body."""
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["code"]) == (status, code)
    assert problem["status"] == status
    assert problem["error_type"] == code
    assert problem["error"] == problem["detail"]
    assert problem["type"] == f"urn:swiftlet:error:{code}"
    assert problem["instance"] == f"urn:request:{response.headers['x-request-id']}"
    assert len(response.content) <= 2048
    assert SECRET not in response.text + str(response.headers)
    return problem


def admin_app(runtime: Runtime, control: RepositoryControl | None = None, keys: ApiKeys | None = None) -> ASGIApp:
    """Returns the admin port's gate as an ASGI application."""

    async def opened() -> None:
        """Does nothing: the public application opens the runtime, on its own event loop."""

    transport = AsgiTransport(create_admin_gate(runtime, control, keys), opened)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await transport(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})

    return app
