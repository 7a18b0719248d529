"""The Open Inference Protocol over REST. The answers are those of our own routes."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.apps import MAX_BODY_BYTES, SECRET

TEXTS = ["A warm film.", "서울의 봄은 짧지만 아름답다 🎬", "e\u0301"]


def infer(client, model: str, inputs: list[dict[str, Any]], **fields: Any) -> Any:
    return client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **fields})


def texts(values: list[str], name: str = "text", shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": shape or [len(values)], "datatype": "BYTES", "data": values}


def columns(response: Any) -> dict[str, Any]:
    """Returns the outputs by name, as lists of the shape that the response declares."""
    assert response.status_code == 200, response.text
    return {
        one["name"]: np.array(one["data"], object).reshape(one["shape"]).tolist() for one in response.json()["outputs"]
    }


def test_classify_gives_labels_and_scores_of_our_route(client):
    own = client.post("/classify", json={"inputs": TEXTS, "parameters": {"top_k": 2}}).json()
    response = infer(client, "classify", [texts(TEXTS, shape=[3, 1])], id="42", parameters={"top_k": 2})

    assert columns(response) == {
        "label": [[one["label"] for one in row] for row in own],
        "score": [[one["score"] for one in row] for row in own],
    }
    body = response.json()
    assert (body["id"], body["model_name"], body["model_version"]) == ("42", "tiny-classify", "1")


def test_pairs_have_an_input_of_second_texts(client):
    own = client.post("/classify", json={"inputs": [{"text": "a", "text_pair": "b"}, {"text": "c", "text_pair": "b"}]})
    for name in ("text", "inputs"):
        found = columns(infer(client, "classify", [texts(["a", "c"], name), texts(["b"], "text_pair")]))
        assert found["score"] == [[one["score"] for one in row] for row in own.json()]


@pytest.mark.parametrize("count", [1, 2])
def test_qa_gives_the_answers_of_our_route(count, client):
    questions, context = ["Who?", "Where is it?"][:count], "Clara lives in 서울 🎬 since May."
    own = client.post("/qa", json={"inputs": [{"question": question, "context": context} for question in questions]})
    answers = own.json() if count > 1 else [own.json()] if isinstance(own.json(), dict) else own.json()
    found = columns(infer(client, "qa", [texts(questions, "question"), texts([context], "context")]))

    assert found == {name: [[one[name]] for one in answers] for name in ("score", "start", "end", "answer")}


def test_fill_mask_with_any_name_of_the_only_input(client):
    own = client.post("/fill-mask", json={"inputs": "the [MASK] .", "parameters": {"top_k": 3}}).json()
    found = columns(infer(client, "fill-mask", [texts(["the [MASK] ."], "input-0")], parameters={"top_k": 3}))

    assert found == {name: [[one[name] for one in own]] for name in ("score", "token", "token_str", "sequence")}


def test_list_parameter_is_json(client):
    own = client.post("/fill-mask", json={"inputs": "the [MASK] .", "parameters": {"targets": ["the", "a"]}}).json()
    found = columns(infer(client, "fill-mask", [texts(["the [MASK] ."])], parameters={"targets": '["the", "a"]'}))

    assert found["token"] == [[one["token"] for one in own]]


@pytest.mark.parametrize("name", ["args", "array_inputs"])
def test_names_of_mlserver_also_give_json(name, client):
    own = client.post("/classify", json={"inputs": TEXTS}).json()
    found = columns(infer(client, "classify", [texts(TEXTS, name)]))

    assert [json.loads(row[0]) for row in found["output"]] == own


def test_input_of_one_value_is_a_parameter(client):
    number = {"name": "top_k", "shape": [1], "datatype": "INT32", "data": [1]}

    assert columns(infer(client, "classify", [texts(["a", "b"]), number])).keys() == {"label", "score"}
    assert np.shape(columns(infer(client, "classify", [texts(["a", "b"]), number]))["label"]) == (2, 1)


def test_answers_of_different_shapes_are_json(client):
    inputs = ["the [MASK] .", "[MASK] [MASK]"]
    own = client.post("/fill-mask", json={"inputs": inputs}).json()
    found = columns(infer(client, "fill-mask", [texts(inputs)]))

    assert found.keys() == {"output"}
    assert [json.loads(row[0]) for row in found["output"]] == own


def binary(values: list[str], name: str = "text") -> tuple[dict[str, Any], bytes]:
    packed = b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)
    head = {"name": name, "shape": [len(values)], "datatype": "BYTES", "parameters": {"binary_data_size": len(packed)}}
    return head, packed


def post_binary(client, document: Any, tail: bytes, length: str | None = None) -> Any:
    head = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(head))}
    return client.post("/v2/models/classify/infer", content=head + tail, headers=headers)


def test_binary_tensors_go_in_and_out(client):
    head, packed = binary(TEXTS)
    own = client.post("/classify", json={"inputs": TEXTS}).json()
    response = post_binary(client, {"inputs": [head], "parameters": {"binary_data_output": True}}, packed)

    length = int(response.headers["inference-header-content-length"])
    described, tail = json.loads(response.content[:length]), response.content[length:]
    sizes = {one["name"]: one["parameters"]["binary_data_size"] for one in described["outputs"]}
    assert sum(sizes.values()) == len(tail)
    scores = np.frombuffer(tail[sizes["label"] :], "<f4").reshape(3, -1)
    assert scores.tolist() == [[np.float32(one["score"]) for one in row] for row in own]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_body_may_be_compressed(encoding, client):
    body = json.dumps({"inputs": [texts(TEXTS)]}).encode()
    packed = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding](body)
    path, headers = "/v2/models/classify/infer", {"Content-Encoding": encoding}

    assert client.post(path, content=packed, headers=headers).json() == client.post(path, content=body).json()
    for bad in (packed[:-5], packed + b"x", body):
        response = client.post(path, content=bad, headers=headers)
        assert (response.status_code, response.json()["code"]) == (400, "bad_framing")


def test_decompressed_body_is_limited(client):
    bomb = gzip.compress(b" " * 10_000_000)
    response = client.post(
        "/v2/models/classify/infer", content=bomb[:MAX_BODY_BYTES], headers={"Content-Encoding": "gzip"}
    )

    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


def test_raw_body_is_one_text_and_gives_binary_outputs(client):
    response = client.post(
        "/v2/models/classify/infer", content=TEXTS[1].encode(), headers={"Inference-Header-Content-Length": "0"}
    )
    own = client.post("/classify", json={"inputs": TEXTS[1]}).json()

    scores = response.content[-4 * len(own[0]) :]
    assert np.frombuffer(scores, "<f4").tolist() == [np.float32(one["score"]) for one in own[0]]


def test_output_is_binary_where_asked(client):
    outputs = [{"name": "score", "parameters": {"binary_data": True}}, {"name": "label"}]
    response = infer(client, "classify", [texts(["a"])], outputs=outputs)

    described = json.loads(response.content[: int(response.headers["inference-header-content-length"])])["outputs"]
    assert ["data" in one for one in described] == [False, True]


BAD_JSON = {
    "no inputs": {"inputs": []},
    "shape of other data": {"inputs": [texts([SECRET], shape=[2])]},
    "2**31 elements": {"inputs": [texts([SECRET], shape=[1 << 31, 1 << 31])]},
    "negative shape": {"inputs": [texts([SECRET], shape=[-1, -1])]},
    "empty": {"inputs": [texts([], shape=[0])]},
    "datatype": {"inputs": [texts([SECRET]) | {"datatype": SECRET}]},
    "numbers as texts": {"inputs": [texts([SECRET]) | {"data": [1]}]},
    "texts as numbers": {"inputs": [texts([SECRET]) | {"datatype": "FP32"}]},
    "nested too deep": {"inputs": [texts([SECRET]) | {"data": [[[SECRET]]]}]},
    "nested parameters": {"inputs": [texts([SECRET])], "parameters": {"a": {SECRET: 1}}},
    "unknown parameter": {"inputs": [texts([SECRET])], "parameters": {SECRET: 1}},
    "list that is not JSON": {"inputs": [texts([SECRET])], "parameters": {"top_k": "[" + SECRET}},
    "unknown output": {"inputs": [texts([SECRET])], "outputs": [{"name": SECRET}]},
    "another input": {"inputs": [texts([SECRET]), texts([SECRET, SECRET], "more")]},
    "two names of one field, before a pair": {
        "inputs": [texts([SECRET]), texts(["b"], "args"), texts(["c"], "text_pair")]
    },
    "two texts without a name": {"inputs": [texts([SECRET], "a"), texts([SECRET], "b")]},
}


@pytest.mark.parametrize("body", BAD_JSON.values(), ids=BAD_JSON)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(body, client):
    response = client.post("/v2/models/classify/infer", json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error", "code"}
    assert SECRET not in response.text


@pytest.mark.parametrize(
    ("tail", "length"),
    [(b"\x05\0\0\0ab", None), (b"\x01\0\0\0ab", None), (b"\x01\0", None), (b"", "99999"), (b"", "-1")],
)
def test_binary_data_of_another_length_is_refused(tail, length, client):
    head = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}
    response = post_binary(client, {"inputs": [head]}, tail, length)

    assert (response.status_code, response.json()["code"]) == (400, "bad_framing")


def test_binary_data_that_is_not_utf8_is_refused(client):
    tail = b"\x02\0\0\0\xff\xfe"
    head = {"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(tail)}}

    assert post_binary(client, {"inputs": [head]}, tail).json()["code"] == "invalid_utf8"


@pytest.mark.parametrize("path", ["no", "tiny-classify/versions/2", "%2e%2e"])
def test_unknown_model_or_version_is_404(path, client):
    for response in (client.post(f"/v2/models/{path}/infer", json={}), client.get(f"/v2/models/{path}")):
        assert (response.status_code, response.json()["code"]) == (404, "unknown_model")


def test_timeout_of_the_request_is_its_deadline(client):
    response = infer(client, "classify", [texts(["a"])], parameters={"timeout": 1})

    assert response.json()["code"].startswith("deadline_")  # which one depends on what engines took before
    for timeout in (10_000_000, 600_000_000, None):
        assert infer(client, "classify", [texts(["a"])], parameters={"timeout": timeout}).status_code == 200


@pytest.mark.parametrize("timeout", [True, False, 0, -1, 600_000_001, 1e30, 0.5, "5"])
def test_timeout_out_of_range_is_refused(client, timeout):
    response = infer(client, "classify", [texts(["a"])], parameters={"timeout": timeout})

    assert response.status_code == 422
    assert "Send a whole number of microseconds from 1 to 600000000." in response.json()["error"]


def test_input_that_would_be_dropped_is_refused(client):
    for name in ("text", "inputs", "args"):
        response = infer(client, "classify", [texts(["a"]), texts(["b"], name)])
        assert response.status_code == 422
        assert "Send one of them, with all values." in response.json()["error"]
    for name in ("priority", "headers", "timeout", "triton_model"):  # of parameters that have no effect on the task
        response = infer(client, "classify", [texts(["a"]), texts(["b"], name)])
        assert (response.status_code, "Send it under parameters" in response.json()["error"]) == (422, True)
    number = {"name": "top_k", "shape": [1], "datatype": "INT32", "data": [1]}
    response = infer(client, "classify", [texts(["a"]), number], parameters={"top_k": 2})
    assert (response.status_code, "have the same name" in response.json()["error"]) == (422, True)
    response = infer(client, "qa", [texts(["a"], "question"), texts(["b"], "context"), texts(["c"], "inputs")])
    assert (response.status_code, "no such parameter" in response.json()["error"]) == (422, True)


def test_models_and_versions_are_described(client):
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data", "model_repository"]
    assert client.get("/v2/health/ready").json() == {"live": True, "ready": True}
    assert client.get("/v2/models/qa/versions/1/ready").json() == {"name": "tiny-qa", "ready": True}
    described = client.get("/v2/models/tiny-qa").json()
    assert [one["name"] for one in described["inputs"]] == ["question", "context"]
    assert {one["name"]: one["datatype"] for one in described["outputs"]} == {
        "score": "FP32",
        "start": "INT64",
        "end": "INT64",
        "answer": "BYTES",
        "output": "BYTES",
    }
    assert [one["state"] for one in client.post("/v2/repository/index", content=b"").json()] == ["READY"] * 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([SECRET, "text", "BYTES"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "shape", "datatype", "data", "parameters", "inputs", "outputs", "binary_data_size"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(
    st.fixed_dictionaries(
        {
            "inputs": st.lists(
                st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), JSON)
            )
        }
    ),
    st.binary(max_size=20),
    st.none() | st.integers(0, 300).map(str) | st.text("0123456789-²x", max_size=12),
)
def test_no_request_fails_in_the_server(client, inputs, tail, length):
    head = json.dumps({"inputs": inputs}).encode()
    headers = {} if length is None else {"Inference-Header-Content-Length": length.encode()}
    response = client.post("/v2/models/classify/infer", content=head + tail, headers=headers)

    assert response.status_code < 500
    if response.status_code != 200:
        assert SECRET not in response.text


def test_texts_are_ranked_for_a_query(search_client):
    texts = ["Rain is wet.", "꿀벌은 춤춘다 🐝", "Bees waggle."]
    own = search_client.post("/rerank", json={"inputs": {"query": "Bees?", "texts": texts}}).json()
    inputs = [
        {"name": "query", "shape": [1], "datatype": "BYTES", "data": ["Bees?"]},
        {"name": "texts", "shape": [3], "datatype": "BYTES", "data": texts},
    ]

    outputs = search_client.post("/v2/models/rerank/infer", json={"inputs": inputs}).json()["outputs"]
    found = {one["name"]: (one["shape"], one["data"]) for one in outputs}
    assert found["index"] == ([1, 3], [one["index"] for one in own])
    assert found["score"] == ([1, 3], pytest.approx([one["score"] for one in own]))


def test_vectors_are_one_output(search_client):
    own = search_client.post("/embed", json={"inputs": ["a", "b"]}).json()
    inputs = [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]

    (output,) = search_client.post("/v2/models/embed/infer", json={"inputs": inputs}).json()["outputs"]
    assert (output["name"], output["shape"]) == ("embedding", [2, 8])
    assert output["data"] == pytest.approx([number for vector in own for number in vector])


def test_error_names_the_first_invalid_value(search_client):
    inputs = [
        {"name": "query", "shape": [1], "datatype": "BYTES", "data": ["Bees?"]},
        {"name": "texts", "shape": [1], "datatype": "BYTES", "data": ["a"]},
    ]
    body = {"inputs": inputs, "parameters": {"top_n": 0}}

    response = search_client.post("/v2/models/rerank/infer", json=body)
    assert (response.status_code, response.json()["error"]) == (
        422,
        "/parameters/top_n must be at least 1.",
    )
