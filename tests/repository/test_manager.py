"""The manager serves what the repository wants, and what serves stays when a change fails."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from swiftlet_models.artifact import CARD, GOLDEN, MANIFEST, open_artifact
from swiftlet_serve.errors import NotFound, SetupError, Unavailable
from swiftlet_serve.repository import manager as manager_module
from swiftlet_serve.repository.manager import LoadFailed
from swiftlet_serve.repository.version import Version
from tests.support.artifacts import reseal
from tests.support.fakes import PATIENCE_S
from tests.support.repositories import Served, StallingStore, make_version, served, want


@pytest.fixture
def root(tmp_path) -> Path:
    path = tmp_path / "repository"
    make_version(path, "flowers", 1)
    return path


def damage(version: Path) -> None:
    with (version / CARD).open("a") as file:
        file.write(" ")


async def test_latest_version_is_served_and_followed(root):
    make_version(root, "flowers", 2)
    async with served(root) as server:
        assert await server.version() == await server.version("flowers") == 2
        make_version(root, "flowers", 10)
        await server.manager.look()
        assert await server.version() == 10
        shutil.rmtree(root / "flowers" / "10")
        await server.manager.look()
        assert await server.version() == 2


async def test_desired_state_chooses_versions_and_aliases(root):
    make_version(root, "flowers", 2)
    make_version(root, "flowers", 3)
    want(root, flowers={"version": 1, "aliases": {"canary": 3}})
    async with served(root) as server:
        assert [await server.version(name) for name in (None, "flowers", "flowers@1", "flowers@canary")] == [1, 1, 1, 3]
        assert await server.version("flowers@default") == 1
        assert await server.version(x_model_version="3") == 3
        for name in ("flowers@2", "flowers@x", "flowers@", "flowers@0", "flowers@" + "9" * 30):
            assert (await server.classify(name)).json()["code"] == "unknown_model"
        assert (await server.classify(x_model_version="2")).status_code == 404
        assert (await server.classify(x_model_version="two")).json()["errors"][0]["code"] == "version_header"
        want(root, flowers={"version": 2})
        await server.manager.look()
        assert await server.version() == 2
        assert (await server.classify("flowers@canary")).status_code == 404


async def test_split_divides_requests_by_their_keys(root):
    make_version(root, "flowers", 2)
    want(root, flowers={"version": 1, "split": {"1": 3, "2": 1}})
    async with served(root) as server:
        first = [await server.version(x_routing_key=f"user {i}") for i in range(200)]
        again = [await server.version(x_routing_key=f"user {i}") for i in range(200)]
        assert first == again
        assert 30 <= first.count(2) <= 70
        assert {await server.version() for _ in range(100)} == {1, 2}
        assert await server.version("flowers@1", x_routing_key="user 0") == 1
        versions = (await server.models())["flowers"]["versions"]
        assert [(one["version"], one["share"]) for one in versions] == [(1, 0.75), (2, 0.25)]


@pytest.mark.parametrize("fault", ["damaged", "golden", "task", "name", "no manifest", "not JSON", "nested"])
async def test_version_that_cannot_be_loaded_leaves_the_earlier_one(fault, root, caplog):
    async with served(root, engine="onnx_cpu") as server:
        version = make_version(root, "flowers", 2)
        artifact = open_artifact(version)
        if fault == "damaged":
            damage(version)
        elif fault == "golden":
            arrays = dict(np.load(version / GOLDEN))
            np.savez(version / GOLDEN, **(arrays | {"rows": arrays["rows"] + 1}))
            reseal(artifact)
        elif fault == "task":
            shutil.rmtree(version)
            make_version(root, "flowers", 2, "qa", labels=())
        elif fault == "name":
            shutil.rmtree(version)
            make_version(root, "trees", 2)
            shutil.move(root / "trees" / "2", version)
            shutil.rmtree(root / "trees")
        elif fault == "no manifest":
            (version / MANIFEST).unlink()
        elif fault == "nested":
            (version / MANIFEST).write_text("[" * 100_000)
        else:
            (version / MANIFEST).write_text("[]")
        await server.manager.look()

        assert await server.version() == 1
        states = {one.version: one.state for one in server.manager.state().versions}
        assert states[1] == "ready"
        if fault != "no manifest":
            assert states[2] == "failed"
            assert server.manager.loads["flowers", "failed"] == 1
        shutil.rmtree(version)
        await server.manager.look()
        assert {one.version for one in server.manager.state().versions} == {1}


async def test_unforeseen_fault_leaves_the_earlier_version(root, caplog, monkeypatch):
    async with served(root) as server:

        async def fail(*_):
            raise ZeroDivisionError("secret".upper())

        monkeypatch.setattr(server.runtime, "add_version", fail)
        make_version(root, "flowers", 2)
        await server.manager.look()
        assert await server.version() == 1
        (failed,) = (one for one in server.manager.state().versions if one.version == 2)
        assert (failed.state, "ZeroDivisionError" in failed.reason) == ("failed", True)
        assert "SECRET" not in caplog.text


async def test_watcher_outlives_a_look_that_raises(root, monkeypatch):
    async with served(root) as server:
        looks, look = [], server.manager.look

        async def fail_once():
            looks.append(1)
            if len(looks) == 1:
                raise ZeroDivisionError
            await look()

        monkeypatch.setattr(server.manager, "look", fail_once)
        server.manager._poll_s = 0.001
        make_version(root, "flowers", 2)
        watcher = asyncio.create_task(server.manager._watch())
        async with asyncio.timeout(PATIENCE_S):
            while await server.version() == 1:
                await asyncio.sleep(0.01)
            server.manager.stop()
            await watcher


async def test_folder_that_is_no_version_stops_no_other_model(root, caplog):
    shutil.copytree(root / "flowers" / "1", root / "trees" / "v1")
    async with served(root) as server:
        make_version(root, "flowers", 2)
        for _ in range(2):
            await server.manager.look()
        assert await server.version() == 2
        assert caplog.text.count("'trees/v1' in the model repository is no version") == 1


async def test_default_is_an_alias_like_others(root):
    make_version(root, "flowers", 2)
    want(root, flowers={"aliases": {"default": 1, "canary": 2}})
    async with served(root) as server:
        for name in (None, "flowers", "flowers@default"):
            assert await server.version(name) == 1
        assert await server.version("flowers@canary") == 2
        await server.manager.load("flowers", 2, "default")
        assert await server.version() == await server.version("flowers@default") == 2
        want(root, flowers={"version": 1, "aliases": {"default": 2}})
        await server.manager.look()
        assert await server.version() == 2
        assert not server.manager.reachable


@pytest.mark.parametrize("name", ["flowers@01", "flowers@\uff11", "flowers@+1", "flowers@1.0"])
async def test_version_in_a_name_is_written_in_one_way(root, name):
    async with served(root) as server:
        assert (await server.classify(name)).json()["code"] == "unknown_model"


async def test_fetch_that_stalls_delays_neither_requests_nor_the_end(root):
    store = StallingStore(root, "fetch")
    async with served(root, store=store) as server:
        store.stall()
        make_version(root, "flowers", 2)
        looking = asyncio.create_task(server.manager.look())
        await asyncio.to_thread(store.started.wait, PATIENCE_S)
        assert await server.version() == 1
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        assert await server.version() == 1
        async with asyncio.timeout(PATIENCE_S):
            await server.manager.close()
        assert not store.goes_on.is_set()
    store.goes_on.set()


async def test_repository_that_stalls_changes_nothing(root, caplog, monkeypatch):
    store = StallingStore(root, "desired")
    async with served(root, store=store) as server:
        store.stall()
        monkeypatch.setattr(manager_module, "LOOK_S", 0.01)
        make_version(root, "flowers", 2)
        for _ in range(3):
            await server.manager.look()
        assert (await server.version(), server.manager.reachable) == (1, False)
        assert caplog.text.count("does not respond") == 1
        assert threading.active_count() < 20
        monkeypatch.setattr(manager_module, "LOOK_S", PATIENCE_S)
        store.goes_on.set()
        await server.manager.look()
        assert (await server.version(), server.manager.reachable) == (2, True)


async def test_failed_version_is_shown_with_its_reason_and_tried_again(root, caplog):
    async with served(root) as server:
        version = make_version(root, "flowers", 2)
        content = (version / CARD).read_bytes()
        damage(version)  # as if it were still being copied
        await server.manager.look()

        shown = {one["version"]: one for one in (await server.models())["flowers"]["versions"]}
        assert (shown[2]["state"], shown[1]["state"]) == ("failed", "ready")
        assert "card.json" in shown[2]["reason"]
        assert "flowers cannot be served" in caplog.text
        (version / CARD).write_bytes(content)
        server.manager._retry_at = 0.0
        await server.manager.look()
        assert await server.version() == 2


async def test_start_falls_back_from_a_broken_latest_version(root, tmp_path):
    damage(make_version(root, "flowers", 2))
    async with served(root) as server:
        assert await server.version() == 1


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda root: damage(root / "flowers" / "1"), "card.json"),
        (lambda root: shutil.rmtree(root / "flowers"), "no models"),
        (lambda root: want(root, flowers={"version": 2}), "no version 2 of flowers"),
        (lambda root: want(root, trees={}), "no version of trees"),
        (lambda root: want(root, flowers={"wersion": 2}), "invalid at models/flowers/wersion"),
        (lambda root: (root / "desired.json").write_text("{"), "invalid at its root"),
        (lambda root: want(root), "names no model"),
        (lambda root: want(root, flowers={"version": True}), "invalid at models/flowers/version"),
        (lambda root: want(root, flowers={"version": 1, "aliases": {"default": 2}}), "alias default differ"),
        (lambda root: (root / "desired.json").write_text('{"models": {"../x": {}}}'), "no name of a model"),
    ],
)
async def test_start_fails_without_a_version_that_serves(prepare, message, root):
    prepare(root)
    with pytest.raises(SetupError, match=message):
        async with served(root):
            pass


async def test_unreadable_repository_changes_nothing(root, caplog):
    async with served(root) as server:
        for content in ("{", '{"models": {}}', '{"models": {"flowers": {"version": 7}}}'):
            (root / "desired.json").write_text(content)
            await server.manager.look()
            assert await server.version() == 1
            assert not server.manager.reachable
        root.rename(root.with_name("gone"))
        await server.manager.look()
        assert not server.manager.reachable
        assert await server.version() == 1
        root.mkdir()  # an empty mount
        await server.manager.look()
        assert await server.version() == 1
        root.rmdir()
        root.with_name("gone").rename(root)
        (root / "desired.json").unlink()
        make_version(root, "flowers", 2)
        await server.manager.look()
        assert server.manager.reachable
        assert await server.version() == 2


async def test_models_come_and_go(root):
    async with served(root) as server:
        make_version(root, "answers", 1, "qa", labels=())
        await server.manager.look()
        assert list(await server.models()) == ["answers", "flowers"]
        shutil.rmtree(root / "flowers")
        await server.manager.look()
        assert list(await server.models()) == ["answers"]
        assert (await server.classify()).json()["code"] == "unknown_model"
        assert list(server.runtime.dispatcher.models) == ["answers@1"]


async def test_switch_waits_for_requests_of_the_earlier_version(root):
    async with served(root) as server:
        pipeline = server.runtime.pipelines["flowers"]
        pipeline._begin()  # a request
        make_version(root, "flowers", 2)
        looking = asyncio.create_task(server.manager.look())
        while "flowers@2" not in server.runtime.dispatcher.models:
            await asyncio.sleep(0.001)
        assert "flowers@1" in server.runtime.dispatcher.models
        assert await server.version() == 2
        pipeline._end()
        await looking
        assert list(server.runtime.dispatcher.models) == ["flowers@2"]


async def test_switches_under_load_lose_and_mix_nothing(root):
    make_version(root, "flowers", 2)
    async with served(root) as server:
        stop = asyncio.Event()

        async def client() -> list[int]:
            seen = []
            while not stop.is_set():
                seen.append(await server.version())
            return seen

        clients = [asyncio.create_task(client()) for _ in range(8)]
        for number in range(20):
            await server.manager.load("flowers", 1 + number % 2)
        stop.set()
        seen = [version for one in await asyncio.gather(*clients) for version in one]

        assert {1, 2} == set(seen)
        stats = server.runtime.stats.models["flowers"]
        assert stats.accepted == stats.durations["answered"].count == len(seen)
        assert list(server.runtime.dispatcher.models) == ["flowers@2"]


async def test_control_loads_versions_and_aliases_and_unloads(root):
    make_version(root, "flowers", 2)
    async with served(root) as server:
        await server.manager.load("flowers", 1)
        assert await server.version() == 1
        await server.manager.load("flowers", 2, "canary")
        assert [await server.version(), await server.version("flowers@canary")] == [1, 2]
        make_version(root, "trees", 1)
        await server.manager.look()  # what the repository wants of other models does not undo the control
        assert await server.version("flowers") == 1
        await server.manager.load("flowers")
        assert await server.version("flowers") == 2
        await server.manager.unload("flowers")
        assert (await server.classify("flowers")).status_code == 404
        for name, number in (("flowers", 9), ("weeds", None)):
            with pytest.raises(NotFound):
                await server.manager.load(name, number)
        with pytest.raises(NotFound):
            await server.manager.unload("flowers")
        damage(make_version(root, "flowers", 3))
        with pytest.raises(LoadFailed, match=CARD):
            await server.manager.load("flowers", 3)


async def test_changes_at_the_same_time_all_take_effect(root):
    for number in (2, 3):
        make_version(root, "flowers", number)
    want(root, flowers={"version": 1})
    async with served(root) as server:
        load = server.manager.load
        await asyncio.gather(load("flowers", 2, "canary"), load("flowers", 3, "beta"))
        assert [await server.version(f"flowers@{alias}") for alias in ("canary", "beta")] == [2, 3]
        make_version(root, "trees", 1)  # the look sees it, and waits for the load
        await asyncio.gather(load("flowers", 2), server.manager.look())
        assert await server.version() == 2


async def test_version_that_failed_for_a_week_is_tried_again(root):
    version = Version("flowers", 1)
    async with served(root) as server:
        version.failures = 5000
        server.manager._note_failure(version, "It is broken.")
        assert 590 < version.retry_at - time.monotonic() < 601


def size_of(version: Path) -> int:
    manifest = json.loads((version / MANIFEST).read_text())
    return sum(file["size"] for file in manifest["files"].values())


async def test_least_recently_used_models_leave_the_memory_and_return_on_request(root):
    for name in ("trees", "weeds"):
        make_version(root, name, 1)
    limit = int(2.5 * size_of(root / "flowers" / "1"))
    async with served(root, max_bytes=limit) as server:
        in_memory = server.runtime.dispatcher.models
        assert list(in_memory) == ["flowers@1", "trees@1"]
        await server.version("trees")
        await server.version("flowers")
        assert await server.version("weeds") == 1  # it waits for its load
        assert list(in_memory) == ["flowers@1", "weeds@1"]
        assert await server.version("trees") == 1
        assert list(in_memory) == ["weeds@1", "trees@1"]
        states = {one.model: one.state for one in server.manager.state().versions}
        assert states == {"flowers": "unloaded", "trees": "ready", "weeds": "ready"}
        assert server.manager.state().bytes <= limit


@pytest.mark.parametrize("names", [("flowers", "trees"), ("trees", "flowers")])
@pytest.mark.parametrize("partial", [False, True])
async def test_batch_for_models_that_are_not_in_memory_together_is_refused(root, names, partial):
    make_version(root, "trees", 1)
    requests = [{"task": "classify", "inputs": "abc", "model": name} for name in names]
    async with served(root, max_bytes=int(1.5 * size_of(root / "flowers" / "1"))) as server:
        response = await server.client.post("/batch", json={"requests": requests, "partial": partial})
        assert (response.status_code, response.json()["code"]) == (503, "model_loading")
        assert "a batch for each" in response.json()["detail"]
        response = await server.client.post("/batch", json={"requests": requests[:1] * 2})
        assert response.status_code == 200


async def test_batch_waits_for_a_model_and_answers(root):
    for name in ("trees", "weeds"):
        make_version(root, name, 1)
    requests = [{"task": "classify", "inputs": "abc", "model": name} for name in ("trees", "weeds")]
    async with served(root, max_bytes=int(2.5 * size_of(root / "flowers" / "1"))) as server:
        response = await server.client.post("/batch", json={"requests": requests})
        assert response.status_code == 200
        assert list(server.runtime.dispatcher.models) == ["trees@1", "weeds@1"]


async def test_request_whose_version_has_just_left_is_refused(root):
    async with served(root) as server:
        pipeline = server.runtime.catalog.pipeline("classify", "flowers")
        make_version(root, "flowers", 2)
        want(root, flowers={"version": 2})
        await server.manager.look()
        assert list(server.runtime.dispatcher.models) == ["flowers@2"]
        request = pipeline.model.task.Request.model_validate({"inputs": "abc"})
        with pytest.raises(Unavailable, match="just been replaced"):
            await pipeline.answer(request, time.monotonic() + PATIENCE_S)


async def test_pinned_models_stay(root):
    for name in ("trees", "weeds"):
        make_version(root, name, 1)
    want(root, flowers={"pinned": True}, trees={}, weeds={})
    async with served(root, max_bytes=int(1.5 * size_of(root / "flowers" / "1"))) as server:
        response = await server.classify("weeds")
        assert (response.status_code, response.json()["code"]) == (503, "model_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        assert await server.version("flowers") == 1
        assert list(server.runtime.dispatcher.models) == ["flowers@1"]


async def test_model_above_the_limit_is_refused_and_none_makes_room_for_it(root):
    size = size_of(root / "flowers" / "1")
    make_version(root, "trees", 1)
    async with served(root, max_bytes=int(2.5 * size)) as server:
        version = make_version(root, "weeds", 1)
        manifest = json.loads((version / MANIFEST).read_text())
        manifest["files"][CARD]["size"] = 3 * size
        (version / MANIFEST).write_text(json.dumps(manifest))
        await server.manager.look()
        assert list(server.runtime.dispatcher.models) == ["flowers@1", "trees@1"]
        assert (await server.classify("weeds")).status_code == 404
        (failed,) = (one for one in server.manager.state().versions if one.model == "weeds")
        assert "max_models_mb" in failed.reason
    with pytest.raises(SetupError, match="max_models_mb"):
        async with served(root, max_bytes=size // 2):
            pass


async def test_version_that_serves_leaves_last_for_its_successor(root):
    size = size_of(root / "flowers" / "1")
    make_version(root, "trees", 1)
    async with served(root, max_bytes=int(2.5 * size)) as server:
        await server.version("flowers")
        await server.version("trees")  # flowers was used less recently
        damage(make_version(root, "flowers", 2))
        await server.manager.look()
        shutil.rmtree(root / "flowers" / "2")
        make_version(root, "flowers", 3)
        await server.manager.look()
        assert await server.version("flowers") == 3
        assert list(server.runtime.dispatcher.models) == ["flowers@3"]


async def test_request_for_a_model_that_loads_slowly_gets_503_with_the_time(root, monkeypatch):
    make_version(root, "trees", 1)
    async with served(root, max_bytes=int(1.5 * size_of(root / "flowers" / "1"))) as server:
        may_load, add = asyncio.Event(), server.runtime.add_version

        async def slow(*args):
            await may_load.wait()
            return await add(*args)

        monkeypatch.setattr(server.runtime, "add_version", slow)
        response = await server.classify("trees", x_request_timeout_ms="20")
        assert (response.status_code, response.json()["code"]) == (503, "model_loading")
        assert int(response.headers["retry-after"]) >= 1
        waiting = asyncio.create_task(server.version("trees"))
        may_load.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting == 1
        assert not server.runtime.admission._reserved


async def test_shadow_traffic_is_compared_and_never_served(root, monkeypatch):
    make_version(root, "flowers", 2, labels=("v1-bad", "v1-good", "v1-neither"))  # its answers are equal
    want(root, flowers={"version": 1, "shadow": {"version": 2, "share": 1.0}})
    async with served(root) as server:
        for _ in range(5):
            assert await server.version() == 1
            await _until_idle(server)
        (stats,) = server.manager.state().shadows.values()
        assert dict(stats.results) == {"agreed": 5}
        assert stats.shifts.count == stats.served_s.count == stats.candidate_s.count == 5
        assert server.runtime.stats.models["flowers"].accepted == 5
        monkeypatch.setattr(server.runtime, "has_idle_core", lambda: False)
        await server.version()
        (stats,) = server.manager.state().shadows.values()
        assert stats.results["dropped"] == 1
        monkeypatch.undo()

        async def fail(*_):
            raise RuntimeError

        monkeypatch.setattr(server.manager._shadows._current["flowers"]._pipeline, "answer", fail)
        await server.version()
        await _until_idle(server)
        (stats,) = server.manager.state().shadows.values()
        assert stats.results["failed"] == 1
        want(root, flowers={"version": 2})
        await server.manager.look()
        assert server.manager.state().shadows == {}
        assert all(pipeline.on_answer is None for pipeline in server.runtime.pipelines.values())


async def test_versions_answer_all_their_tasks(root):
    for number in (1, 2):
        make_version(root, "vectors", number, "embed")
    want(root, vectors={"version": 1, "aliases": {"canary": 2}, "shadow": {"version": 2, "share": 1.0}})
    body = {"inputs": {"query": "abc", "texts": ["a", "b"]}}
    async with served(root) as server:
        for model, version in ((None, "1"), ("vectors", "1"), ("vectors@canary", "2")):
            response = await server.client.post("/rerank", json=body if model is None else body | {"model": model})
            assert (response.status_code, response.headers["x-model-version"]) == (200, version)
            await _until_idle(server, "vectors")
        (stats,) = server.manager.state().shadows.values()
        assert dict(stats.results) == {"agreed": 2}  # the candidate's own answers are not compared
        tensors = [
            {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": texts}
            for name, texts in (("query", ["abc"]), ("texts", ["a", "b"]))
        ]
        response = await server.client.post("/v2/models/rerank/versions/2/infer", json={"inputs": tensors})
        assert (response.status_code, response.headers["x-model-version"]) == (200, "2")
        response = await server.client.post("/rerank", json=body | {"model": "flowers"})
        assert (response.status_code, response.json()["code"]) == (404, "unknown_model")


async def test_model_for_a_task_that_this_server_lacks_stops_no_other(root):
    size = sum(file.size for file in open_artifact(root / "flowers" / "1").manifest.files.values())
    want(root, flowers={"version": 1, "pinned": True})
    async with served(root, max_bytes=size * 3 // 2) as server:
        newer = make_version(root, "newer", 1)
        manifest = newer / MANIFEST
        manifest.write_text(manifest.read_text("utf-8").replace('"classify"', '"summarise"'), "utf-8")
        want(root, flowers={"version": 1, "pinned": True}, newer={"version": 1})
        for _ in range(2):
            await server.manager.look()
            assert await server.version() == 1
        states = {one.model: one.state for one in server.manager.state().versions}
        assert states == {"flowers": "ready", "newer": "failed"}


async def test_model_of_the_task_is_asked_also_while_it_is_not_in_memory(root):
    make_version(root, "cross", 1, "rerank", labels=("relevance",))
    make_version(root, "vectors", 1, "embed")
    size = sum(file.size for file in open_artifact(root / "vectors" / "1").manifest.files.values())
    want(root, vectors={"version": 1, "pinned": True}, cross={"version": 1})
    async with served(root, max_bytes=size * 3 // 2) as server:  # too small for both
        bodies = ({"inputs": {"query": "abc", "texts": ["a"]}}, {"query": "abc", "texts": ["a"]})
        for body in bodies:  # of our own route, and TEI's
            response = await server.client.post("/rerank", json=body)
            assert (response.status_code, response.json()["code"]) == (503, "model_unavailable")


async def test_version_that_has_gone_is_freed_without_the_garbage_collector(root):
    make_version(root, "vectors", 1, "embed")
    async with served(root) as server:
        body = {"inputs": {"query": "abc", "texts": ["a", "b"]}}
        assert (await server.client.post("/rerank", json=body)).status_code == 200
        pipeline = weakref.ref(server.runtime.catalog.find("vectors"))
        gc.disable()
        try:
            shutil.rmtree(root / "vectors")
            await server.manager.look()
            async with asyncio.timeout(PATIENCE_S):
                while pipeline() is not None:
                    await asyncio.sleep(0)
        finally:
            gc.enable()


async def test_version_leaves_the_memory_after_its_requests_for_all_tasks(root):
    make_version(root, "vectors", 1, "embed")
    async with served(root) as server:
        pipeline = server.runtime.catalog.pipeline("rerank", "vectors")
        pipeline._begin()
        leaving = asyncio.create_task(server.runtime.catalog.find("vectors").close())
        await asyncio.sleep(0)
        assert not leaving.done()
        pipeline._end()
        async with asyncio.timeout(PATIENCE_S):
            await leaving
        assert server.runtime.catalog.find("vectors").last_used == pipeline.last_used > 0


async def _until_idle(server: Served, model: str = "flowers") -> None:
    while server.manager._shadows._current[model]._tasks:
        await asyncio.sleep(0)
