"""The application: routes, models, request IDs, errors and concurrent requests."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from swiftlet_models.artifact import seal
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.http import playground
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.endpoints.pages import paced
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import Batch
from tests.support.app_client import AppClient
from tests.support.apps import SECRET, TASKS, assert_problem, make_runtime
from tests.support.artifacts import certify, make_artifact
from tests.support.dialects import dialect_routes
from tests.support.fakes import ManualExecutor


def test_app_lists_models_with_their_cards(client):
    listed = client.get("/models").json()

    assert [(model["name"], model["task"], model["default"]) for model in listed] == [
        (f"tiny-{task}", task, True) for task in TASKS
    ]
    assert listed[0]["labels"] == ["bad", "good", "neither"]
    assert listed[0]["card"] == {"data": "none", "n": 0}
    assert (listed[0]["engine"], listed[0]["runtime"]) == ("echo", "echo")
    assert [model["languages"] for model in listed] == [[], [], []]
    assert [model["certificate"] for model in listed] == [None, None, None]
    assert [model["mask"] for model in listed] == [None, None, "[MASK]"]


def test_app_lists_no_paths_of_the_machine_that_made_a_model(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    seal(artifact.path, artifact.manifest, {"summary": "Imported from /home/me/secret/model."})
    certificate = certify(artifact.path)
    runtime = LocalRuntime.load(Settings(models=(str(artifact.path),), engine="echo", cores=2))
    with AppClient(create_app(runtime)) as client:
        listed = client.get("/models")

    assert listed.json()[0]["card"] == {"summary": "Imported from model."}
    assert listed.json()[0]["certificate"] == certificate
    assert not any(part in listed.text for part in ("secret", str(tmp_path)))


def test_app_keeps_a_safe_request_id_and_replaces_others(client):
    assert client.get("/health/live", headers={"x-request-id": "a-1"}).headers["x-request-id"] == "a-1"
    assert client.get("/health/live", headers={"x-amzn-trace-id": "b=2"}).headers["x-request-id"] == "b=2"
    for unfit in ("a b", "x" * 200, "é"):
        response = client.get("/health/live", headers={"x-request-id": unfit.encode()})
        assert re.fullmatch("[0-9a-f]{32}", response.headers["x-request-id"])


@pytest.mark.parametrize("path", ["/page", f"/{SECRET}", "/classify/", "/docs", "/redoc", "/%00"])
def test_app_responds_404_to_unknown_paths(path, client):
    assert_problem(client.get(path), 404, "unknown_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/classify", "POST"),
        ("PUT", "/qa", "POST"),
        ("POST", "/models", "GET, HEAD"),
        (SECRET, "/models", "GET, HEAD"),
        ("POST", "/page/style.css", "GET, HEAD"),
        ("DELETE", "/health/live", "GET, HEAD"),
    ],
)
def test_app_responds_405_with_the_allowed_methods(method, path, allowed, client):
    response = client.request(method, path)

    assert_problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == allowed


def test_app_describes_exactly_these_routes(client):
    paths = client.get("/openapi.json").json()["paths"]

    others = {"/models", "/health/live", "/health/ready", "/metrics", "/status"}
    foreign = {path for _, path in dialect_routes()}
    assert set(paths) == {"/classify", "/qa", "/fill-mask", "/batch", *others, *foreign}


def test_app_hides_the_message_of_an_unexpected_error(artifact_dir, monkeypatch, caplog):
    runtime = make_runtime(artifact_dir)

    def fail(request):
        raise RuntimeError(f"cannot read {request.inputs}")

    monkeypatch.setattr(runtime.tasks["classify"].model.task, "encode", fail)
    with AppClient(create_app(runtime), raise_server_exceptions=False) as client:
        response = client.post("/classify", json={"inputs": SECRET}, headers={"x-request-id": "r1"})

    assert_problem(response, 500, "internal")
    assert "request r1 failed: RuntimeError" in caplog.text
    assert SECRET not in caplog.text


def test_readiness_fails_without_an_engine(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with AppClient(create_app(runtime)) as client:
        assert client.get("/health/ready").status_code == 200
        runtime._executor = ManualExecutor(1)
        runtime._executor.ready = False
        response = client.get("/health/ready")

    assert_problem(response, 503, "engine_unavailable")
    assert response.headers["retry-after"] == "1"


def test_app_is_live_but_not_ready_while_draining(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with AppClient(create_app(runtime)) as client:
        assert client.get("/health/ready").json() == {"ready": True}
        runtime.admission.close()

        assert client.get("/health/live").json() == {"live": True}
        assert_problem(client.get("/health/ready"), 503, "draining")
        assert_problem(client.post("/classify", json={"inputs": "a"}), 503, "draining")


async def test_app_answers_200_interleaved_requests_correctly(artifact_dir):
    runtime = make_runtime(artifact_dir)
    requests = [
        ("classify", {"inputs": f"text {i} " + "z" * (i % 7)})
        if i % 3 == 0
        else ("qa", {"inputs": {"question": f"which {i}?", "context": f"it is the one of {i} " * (1 + i % 5)}})
        if i % 3 == 1
        else ("fill-mask", {"inputs": f"[MASK] and {i} [MASK]"})
        for i in range(200)
    ]

    def alone(task: str, body: dict):
        served = runtime.tasks[task].model
        request = served.task.Request.model_validate(body)
        encodings = served.task.encode(request)
        return served.task.decode(request, encodings, Echo(served.manifest.width).run(Batch.of(encodings)))

    transport = httpx2.ASGITransport(app=create_app(runtime))
    async with httpx2.AsyncClient(transport=transport, base_url="http://swiftlet") as client:
        result = await asyncio.gather(*(client.post(f"/{task}", json=body) for task, body in requests))
    for (task, body), response in zip(requests, result, strict=True):
        assert response.status_code == 200
        assert response.json() == alone(task, body)
    assert len({json.dumps(alone(*request)) for request in requests}) == 200


def test_request_to_the_server_s_own_address_is_told_the_routes_of_the_tasks(client):
    """A client of Hugging Face that is given the server's address posts to it."""
    problem = assert_problem(client.post("/", json={"inputs": SECRET}), 404, "unknown_route")

    assert "/classify, /qa, /fill-mask" in problem["detail"]
    assert client.put("/").status_code == 405


def test_pages_answer_head_as_get_without_the_body(client):
    """/metrics and /status hold times, so that their lengths may differ."""
    pages = {path for path, operations in client.get("/openapi.json").json()["paths"].items() if "get" in operations}
    parameters = {"model": "tiny-classify", "version": "1"}
    for page in ("/", "/openapi.json", *playground.FILES, *pages):
        path = page.format_map(parameters)
        got, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        changing = {"x-request-id", *(["content-length"] if path in ("/metrics", "/status") else [])}
        assert head.headers.keys() == got.headers.keys()
        assert {**head.headers, **dict.fromkeys(changing)} == {**got.headers, **dict.fromkeys(changing)}


def test_head_of_a_route_for_post_gets_405(client):
    response = client.head("/classify")

    assert (response.status_code, response.headers["allow"], response.content) == (405, "POST", b"")


def test_openapi_describes_no_head(client):
    assert not any("head" in operations for operations in client.get("/openapi.json").json()["paths"].values())


@pytest.mark.parametrize("path", ["/", "/models", "/openapi.json", "/nope", "/classify", "/health/live", "/metrics"])
def test_responses_of_other_servers_forbid_sniffing_too(path, client):
    for method in ("GET", "HEAD", "POST"):
        assert client.request(method, path).headers.get_list("x-content-type-options") == ["nosniff"]


async def test_scrapes_of_clients_that_have_gone_give_up_their_turn():
    """Otherwise clients that ask and leave would keep the monitoring waiting."""
    answered: list[int] = []

    release = asyncio.Event()

    @paced
    async def respond(request: Any) -> Response:
        answered.append(request)
        await release.wait()
        return Response()

    scrapes = [asyncio.ensure_future(respond(number)) for number in range(4)]
    await asyncio.sleep(0)
    for scrape in scrapes[1:3]:
        scrape.cancel()  # as the gate does when a client has gone
    release.set()
    assert [type(one) for one in await asyncio.gather(*scrapes, return_exceptions=True)] == [
        Response,
        *2 * [asyncio.CancelledError],
        Response,
    ]
    assert answered == [0, 3]


async def test_scrape_whose_client_has_gone_keeps_its_turn_until_its_work_ends():
    """A thread goes on with the work, and no second one must start beside it."""
    running, most, release = 0, 0, asyncio.Event()

    @paced
    async def respond(_: Any) -> Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return Response()

    scrapes = [asyncio.ensure_future(respond(None)) for _ in range(3)]
    for act in (lambda: None, scrapes[0].cancel, release.set):
        for _ in range(10):  # so that each task is where it waits
            await asyncio.sleep(0)
        act()
    await asyncio.gather(*scrapes, return_exceptions=True)

    assert most == 1
