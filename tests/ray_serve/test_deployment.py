"""The deployment of Ray Serve: its arguments, and a replica without Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import uvicorn
from uvicorn.lifespan.on import LifespanOn

from swiftlet_serve.errors import SetupError, Unavailable
from swiftlet_serve.ray_serve import application
from swiftlet_serve.ray_serve.autoscaling import QUEUE_WAIT, UTILIZATION
from swiftlet_serve.ray_serve.deployment import DEPLOYMENT, RAYS_OWN, Replica
from swiftlet_serve.settings import Settings
from tests.support.repositories import make_version

BODY = {"inputs": "hello"}


@pytest.fixture(autouse=True)
def no_log_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica owns the log of its process, and a test does not."""
    monkeypatch.setattr("swiftlet_serve.ray_serve.deployment.QueuedLogHandler", lambda *_, **__: None)


@asynccontextmanager
async def running(prefix: str = "", **settings: Any) -> AsyncIterator[tuple[Replica, httpx2.AsyncClient]]:
    replica = Replica({"engine": "echo", "spare_engine": False, "cores": 1} | settings)
    app = replica.__serve_build_asgi_app__()
    lifespan = LifespanOn(uvicorn.Config(app, lifespan="on"))  # as Ray runs it
    await lifespan.startup()
    transport = httpx2.ASGITransport(app, root_path=prefix)
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://replica{prefix}/") as client:
        yield replica, client
    await lifespan.shutdown()


async def test_replica_answers_as_a_server_does(artifact_dir):
    async with running(models=str(artifact_dir / "tiny-classify")) as (replica, client):
        await replica.check_health()
        answer = await client.post("classify", json=BODY)
        late = await client.post("classify", json=BODY, headers={"X-Request-Timeout-Ms": "x"})

    assert answer.status_code == 200
    assert "Server-Timing" in answer.headers
    assert late.status_code == 422


async def test_replica_answers_below_a_route_prefix(artifact_dir):
    async with running("/texts", models=str(artifact_dir / "tiny-classify")) as (_, client):
        answer = await client.post("classify", json=BODY)
        models = await client.get("models")
        unknown = await client.get("nothing")

    assert [one.status_code for one in (answer, models, unknown)] == [200, 200, 404]


async def test_replica_reports_its_queue_and_its_engines(artifact_dir):
    async with running(models=str(artifact_dir / "tiny-classify")) as (replica, client):
        idle = await replica.record_autoscaling_stats()
        for _ in range(20):
            assert (await client.post("classify", json=BODY)).status_code == 200
        busy = await replica.record_autoscaling_stats()

    assert idle == {QUEUE_WAIT: 0.0, UTILIZATION: 0.0}
    assert 0 < busy[UTILIZATION] <= 1


async def test_replica_that_stops_is_not_healthy(artifact_dir):
    async with running(models=str(artifact_dir / "tiny-classify")) as (replica, _):
        pass

    with pytest.raises(Unavailable):
        await replica.check_health()


async def test_replica_serves_a_model_repository(tmp_path):
    make_version(tmp_path, "one", 1)
    async with running(repository=str(tmp_path)) as (_, client):
        answer = await client.post("classify", json=BODY)

    assert answer.status_code == 200
    assert answer.headers["X-Model-Version"] == "1"


async def test_replica_requires_api_keys(artifact_dir, tmp_path):
    (tmp_path / "keys").write_text("")
    with pytest.raises(SetupError, match="key"):
        Replica({"engine": "echo", "models": str(artifact_dir / "tiny-classify"), "api_keys_file": tmp_path / "keys"})


def test_arguments_become_the_options_of_the_deployment():
    deployment = application(
        {"models": "a", "cores": "4", "num_gpus": 1, "min_replicas": "2", "max_replicas": 9, "target_wait_ms": 50}
    )._bound_deployment

    assert deployment.name == DEPLOYMENT
    assert deployment.ray_actor_options == {"num_cpus": 4, "num_gpus": 1}
    assert deployment.init_args == ({"models": "a", "cores": "4"},)
    scaling = deployment._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 9)
    assert scaling.policy.policy_kwargs == {"target_wait_s": 0.05, "target_utilization": 0.7}
    assert scaling.policy.policy_function.endswith("autoscaling:QueueWaitPolicy")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"prot": 80}, "Invalid argument prot: Extra inputs are not permitted."),
        ({"port": 80}, "Ray Serve has its own setting for port."),
        ({"fronts": 2, "tls_cert": "x"}, "own setting for fronts, tls_cert."),
        ({"cores": "many"}, "Invalid argument cores: "),
        ({"min_replicas": 0}, "Invalid argument min_replicas: "),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas is less than min_replicas."),
        ({"target_utilization": 1.5}, "Invalid argument target_utilization: "),
    ],
)
def test_wrong_arguments_are_refused(args, message):
    with pytest.raises(SetupError) as refused:
        application(args)

    assert message in str(refused.value)


def test_settings_of_a_server_are_settings_of_a_replica_or_rays():
    assert set(RAYS_OWN) <= Settings.model_fields.keys()
