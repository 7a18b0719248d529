"""The Open Inference Protocol over gRPC. The answers are those of its REST form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from starlette.testclient import TestClient

from swiftlet_serve import build_info
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.artifacts import LABELS, make_artifact
from tests.support.grpc_server import columns, request, serving

TEXTS = ["a warm film", "서울의 봄은 짧지만 아름답다 🎬", "e\u0301"]
LABEL_LIST = json.dumps(["kind", "cruel"])

CASES: dict[str, tuple[dict[str, list[str]], dict[str, Any]]] = {
    "classify": ({"text": TEXTS}, {"top_k": 2}),
    "qa": ({"question": ["who?", "where?"], "context": ["clara lives in 서울 🎬 since may"]}, {"top_k": 1}),
    "fill-mask": ({"input-0": ["the [MASK] ."]}, {"top_k": 3}),
    "score": ({"text": TEXTS}, {}),
    "embed": ({"text": TEXTS}, {"normalize": True}),
    "rerank": ({"query": ["how?"], "texts": TEXTS}, {"top_n": 2}),
    "zero-shot": ({"args": TEXTS[:1]}, {"candidate_labels": LABEL_LIST, "multi_label": True}),
    "entities": ({"text": TEXTS}, {"aggregation_strategy": "simple"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    directory: Path = tmp_path_factory.mktemp("every")
    return tuple(str(make_artifact(directory, task).path) for task in LABELS)


@pytest.fixture
def settings(models: tuple[str, ...]) -> Settings:
    return Settings(models=models, engine="echo", cores=2, grpc_port=0)


@pytest.mark.parametrize("task", sorted(LABELS))
async def test_answers_are_those_of_the_rest_form(task, settings):
    texts, parameters = CASES[task]
    tensors = [
        {"name": name, "shape": [len(values)], "datatype": "BYTES", "data": values} for name, values in texts.items()
    ]
    with TestClient(create_app(LocalRuntime.load(settings))) as client:
        body = {"id": "42", "inputs": tensors, "parameters": parameters}
        response = client.post(f"/v2/models/{task}/infer", json=body)
        assert response.status_code == 200, response.text
        rest = response.json()

    async with serving(LocalRuntime.load(settings)) as (_, client):
        plain, packed = [
            await client.call("ModelInfer", request(task, texts, packed=packed, id="42", parameters=parameters))
            for packed in (False, True)
        ]
    assert plain == packed
    assert (plain.id, plain.model_name, plain.model_version) == ("42", f"tiny-{task}", "1")
    assert [(one.name, one.datatype, list(one.shape)) for one in plain.outputs] == [
        (one["name"], one["datatype"], one["shape"]) for one in rest["outputs"]
    ]
    found = columns(plain)
    for one in rest["outputs"]:
        expected = np.array(one["data"], object).reshape(one["shape"]).tolist()
        if one["datatype"] == "FP32":
            assert found[one["name"]] == np.array(expected, np.float32).tolist()
        else:
            assert found[one["name"]] == expected


async def test_requested_outputs_are_given_in_order(settings):
    asked = request("classify", {"text": TEXTS})
    asked.outputs.add(name="output")
    asked.outputs.add(name="label")

    async with serving(LocalRuntime.load(settings)) as (_, client):
        response = await client.call("ModelInfer", asked)
    assert [one.name for one in response.outputs] == ["output", "label"]
    assert response.outputs[0].parameters["content_type"].string_param == "hg_jsonlist"
    (rows, labels) = columns(response).values()
    assert [[one["label"] for one in json.loads(row)] for (row,) in rows] == labels


async def test_input_of_one_value_is_a_parameter(settings):
    asked = request("classify", {"args": TEXTS[:1]})
    asked.inputs.add(name="top_k", datatype="INT32", shape=[1]).contents.int_contents.append(2)

    async with serving(LocalRuntime.load(settings)) as (_, client):
        result = await client.call("ModelInfer", asked)
    assert [len(row) for row in columns(result)["label"]] == [2]


@pytest.mark.parametrize("timeout", [True, 0, -5, 600_000_001, 1e30, float("nan"), "5"])
async def test_timeout_out_of_range_is_refused(timeout, settings):
    async with serving(LocalRuntime.load(settings)) as (_, client):
        error = await client.fail("ModelInfer", request("classify", {"text": TEXTS}, parameters={"timeout": timeout}))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Send a whole number of microseconds from 1 to 600000000." in (error.details() or "")


@pytest.mark.parametrize("name", ["text", "inputs"])
async def test_input_that_would_be_dropped_is_refused(name, settings):
    asked = request("classify", {"text": TEXTS})
    asked.inputs.add(name=name, datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"b")

    async with serving(LocalRuntime.load(settings)) as (_, client):
        error = await client.fail("ModelInfer", asked)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Send one of them, with all values." in (error.details() or "")


async def test_server_and_models_are_described(settings):
    async with serving(LocalRuntime.load(settings)) as (_, client):
        live, ready, server, model_ready, model, index = [
            await client.call("ServerLive", pb.ServerLiveRequest()),
            await client.call("ServerReady", pb.ServerReadyRequest()),
            await client.call("ServerMetadata", pb.ServerMetadataRequest()),
            await client.call("ModelReady", pb.ModelReadyRequest(name="qa", version="1")),
            await client.call("ModelMetadata", pb.ModelMetadataRequest(name="tiny-qa")),
            await client.call("RepositoryIndex", pb.RepositoryIndexRequest()),
        ]
    assert (live.live, ready.ready, model_ready.ready) == (True, True, True)
    assert (server.name, server.version) == ("swiftlet", build_info.version())
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [
        ("question", "BYTES", [-1]),
        ("context", "BYTES", [-1]),
    ]
    assert {one.name: one.datatype for one in model.outputs} == {
        "score": "FP32",
        "start": "INT64",
        "end": "INT64",
        "answer": "BYTES",
        "output": "BYTES",
    }
    assert [(one.name, one.state) for one in index.models] == [(f"tiny-{task}", "READY") for task in LABELS]


async def test_server_that_leaves_is_not_ready(settings):
    runtime = LocalRuntime.load(settings)
    async with serving(runtime) as (_, client):
        runtime.leave()
        ready = await client.call("ServerReady", pb.ServerReadyRequest())
        model = await client.call("ModelReady", pb.ModelReadyRequest(name="qa"))
        response = await client.call("ModelInfer", request("classify", {"text": TEXTS}))
    assert (ready.ready, model.ready) == (False, False)
    assert len(columns(response)["label"]) == 3


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("ModelInfer", request("no", {"text": TEXTS})),
        ("ModelInfer", request("classify", {"text": TEXTS}, model_version="9")),
        ("ModelReady", pb.ModelReadyRequest(name="no")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="qa", version="9")),
    ],
)
async def test_unknown_model_is_not_found(method, message, settings):
    async with serving(LocalRuntime.load(settings)) as (_, client):
        error = await client.fail(method, message)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.trailing_metadata()["error-code"] == "unknown_model"
