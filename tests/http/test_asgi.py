"""The application under other ASGI servers: uvicorn, and mounted in another application."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message

from swiftlet_serve.http.app import create_app
from tests.support.apps import assert_problem, make_runtime
from tests.support.fakes import PATIENCE_S
from tests.support.processes import BODY


def test_mounted_application_answers_below_its_path(artifact_dir):
    """Starlette sends it no start-up event. The first request opens the runtime."""
    runtime = make_runtime(artifact_dir)
    outer = FastAPI()
    outer.mount("/nlp", create_app(runtime))
    with TestClient(outer) as client:
        answered = client.post("/nlp/classify", json={"inputs": "a"})
        model = client.get("/nlp/v1/models/tiny-classify")
        page = client.get("/nlp/")
        document = client.get("/nlp/openapi.json").json()

        assert answered.status_code == model.status_code == page.status_code == 200
        assert answered.headers["x-request-id"]
        assert document["servers"] == [{"url": "/nlp"}]
        assert "/classify" in document["paths"]
        assert_problem(client.post("/nlp/nowhere"), 404, "unknown_route")
        assert_problem(client.get("/nlp/classify"), 405, "method_not_allowed")
        assert client.post("/classify", json={"inputs": "a"}).json() == {"detail": "Not Found"}  # the outer one's


def test_lifespan_of_a_mounted_application_can_be_entered(artifact_dir):
    runtime = make_runtime(artifact_dir)
    inner = create_app(runtime)
    outer = FastAPI(lifespan=lambda _: inner.router.lifespan_context(inner))
    outer.mount("/nlp", inner)
    with TestClient(outer) as client:
        assert client.get("/nlp/health/ready").status_code == 200

    assert runtime.draining


def test_routes_and_middleware_of_the_owner_work(artifact_dir):
    app = create_app(make_runtime(artifact_dir))

    @app.get("/mine")
    def mine() -> dict[str, int]:
        return {"mine": 1}

    with TestClient(app) as client:
        assert client.get("/mine").json() == {"mine": 1}
        assert "/mine" in client.get("/openapi.json").json()["paths"]
        assert client.post("/classify", json={"inputs": "a"}).status_code == 200


@pytest.mark.parametrize("fault", [asyncio.CancelledError, OSError])
async def test_record_of_a_request_that_the_other_server_ends_is_finished(fault, artifact_dir):
    runtime, records = make_runtime(artifact_dir), []
    app = create_app(runtime, observers=[records.append])

    async def receive() -> Message:
        raise fault

    async def send(_: Message) -> None:
        """The answer to an error, which the other server discards."""

    scope = {"type": "http", "method": "POST", "path": "/classify", "headers": [], "query_string": b""}
    with pytest.raises(fault):
        await app(scope, receive, send)
    await runtime.close()
    assert [record.status for record in records] == [None]


@pytest.mark.parametrize("prefix", ["", "/behind/a/proxy"])
def test_uvicorn_serves_the_application(artifact_dir, prefix):
    command = [sys.executable, "-m", "uvicorn", "swiftlet_serve.asgi:app", "--port", "0", "--root-path", prefix]
    settings = {"MODELS": str(artifact_dir / "tiny-classify"), "ENGINE": "echo", "SPARE_ENGINE": "false", "CORES": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    environment |= {f"SWIFTLET_{name}": value for name, value in settings.items()}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            started = next(line for line in process.stderr if "running on" in line)
            url = started.partition("running on ")[2].split()[0]
            answered = httpx2.post(f"{url}/classify", content=BODY, timeout=PATIENCE_S)
            refused = httpx2.post(f"{url}/classify", content=b"{", timeout=PATIENCE_S)
            chunked = httpx2.post(f"{url}/classify", content=iter([BODY[:5], BODY[5:]]), timeout=PATIENCE_S)
            process.terminate()
            _, log = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()

    assert answered.status_code == chunked.status_code == 200
    assert answered.json() == chunked.json()
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_json")
    assert "Application shutdown complete" in log
    assert "Traceback" not in log
