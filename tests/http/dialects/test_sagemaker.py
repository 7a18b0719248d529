"""The contract of SageMaker's containers: /ping, /invocations, media types, and the headers that reach a container."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.tasks._requests import MAX_INPUTS
from tests.support.apps import SECRET, assert_problem, make_runtime

TEXTS = ["A warm film.", 'Dull, "long".\n', "서울의 봄 🎬"]
LINES, CSV = "application/jsonlines", "text/csv"
ATTRIBUTES, TARGET = "X-Amzn-SageMaker-Custom-Attributes", "X-Amzn-SageMaker-Target-Model"
SAMPLE = {"question": "Who?", "context": "Clara."}


def invoke(client, body, media_type="application/json", **headers):
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post("/invocations", content=content, headers={"Content-Type": media_type, **headers})


@pytest.fixture(scope="module")
def own(client):
    return client.post("/classify", json={"inputs": TEXTS}).json()


def test_ping_is_empty_and_tells_readiness(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        response = client.get("/ping")
        assert (response.status_code, response.content) == (200, b"")
        runtime.admission.close()
        assert client.get("/ping").status_code == 503


@pytest.mark.parametrize("media_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_json_is_our_own_request(media_type, client, own):
    assert invoke(client, {"inputs": TEXTS}, media_type).json() == own
    assert client.post("/invocations", content=json.dumps({"inputs": TEXTS})).json() == own


@pytest.mark.parametrize("name", ["tiny-qa", "qa"])
def test_model_is_named_by_a_header_an_attribute_or_the_body(name, client):
    expected = client.post("/qa", json={"inputs": SAMPLE}).json()

    assert invoke(client, {"inputs": SAMPLE}, **{TARGET: name}).json() == expected
    assert invoke(client, {"inputs": SAMPLE}, **{ATTRIBUTES: f"accept_eula=true; model={name}"}).json() == expected
    assert invoke(client, {"inputs": SAMPLE, "model": "tiny-qa"}).json() == expected


@pytest.mark.parametrize(
    "lines", ["\n".join(map(json.dumps, TEXTS)), "\n".join(json.dumps({"inputs": t}) for t in TEXTS)]
)
@pytest.mark.parametrize("end", ["", "\n", "\r\n\n"])
def test_line_of_json_has_a_line_of_the_answer(lines, end, client, own):
    response = invoke(client, lines + end, LINES)

    assert response.headers["content-type"] == LINES
    assert [json.loads(line) for line in response.text.splitlines()] == own
    assert invoke(client, lines, LINES, Accept="application/json").json() == own


def test_lines_may_have_equal_parameters(client):
    one = {"parameters": {"top_k": 1}}
    lines = [json.dumps({"inputs": text} | one) for text in TEXTS]
    expected = client.post("/classify", json={"inputs": TEXTS} | one).json()

    assert [json.loads(line) for line in invoke(client, "\n".join(lines), LINES).text.splitlines()] == expected
    problem = assert_problem(
        invoke(client, f"{lines[0]}\n{json.dumps({'inputs': 'a'})}", LINES), 422, "validation_failed"
    )
    assert problem["errors"] == [{"pointer": "/1", "code": "unsupported"}]


def test_lines_may_name_the_model(client):
    expected = client.post("/qa", json={"inputs": SAMPLE}).json()

    assert invoke(client, json.dumps({"inputs": SAMPLE, "model": "tiny-qa"}), LINES).json() == expected
    for model in (5, SECRET):
        assert invoke(client, json.dumps({"inputs": SAMPLE, "model": model}), LINES).status_code in (404, 422)


def test_one_line_is_one_answer(client):
    expected = client.post("/qa", json={"inputs": SAMPLE}).json()

    assert invoke(client, json.dumps(SAMPLE), LINES, **{TARGET: "qa"}).json() == expected


def test_csv_has_named_columns(client, own):
    rows = "".join('"{}"\r\n'.format(text.replace('"', '""')) for text in TEXTS)
    assert invoke(client, f"inputs\r\n{rows}", CSV).json() == own
    samples = invoke(client, "question,context\nWho?,Clara.\nWho?,Clara.\n", CSV, Accept=LINES, **{TARGET: "qa"})
    assert [json.loads(line) for line in samples.text.splitlines()] == 2 * [
        client.post("/qa", json={"inputs": SAMPLE}).json()
    ]


def test_csv_holds_any_text_and_may_begin_with_a_byte_order_mark(wide_client):
    texts = [r"saved in C:\, and D:\ ".strip(), *["[red] {blue}, [green] {x}"] * (MAX_INPUTS - 1)]
    rows = "".join(f'"{text}"\n' for text in texts)
    response = invoke(wide_client, f"\ufefftext\n{rows}".encode(), CSV)

    assert response.status_code == 200
    assert response.json() == wide_client.post("/classify", json={"inputs": texts}).json()


def test_lines_have_no_room_for_details(client):
    problem = assert_problem(invoke(client, '{"inputs": "a", "details": true}', LINES), 422, "validation_failed")

    assert problem["errors"] == [{"pointer": "/0/details", "code": "unsupported"}]


def test_attributes_of_the_response_tell_what_our_headers_tell(client):
    response = invoke(client, {"inputs": ["a " * 100, "b"]}, **{"X-Amzn-Trace-Id": "Root=1-a"})

    assert response.headers[ATTRIBUTES] == "request-id=Root=1-a,model=tiny-classify,input-tokens=105,truncated=1"


def test_attribute_sets_the_deadline(client, artifact_dir):
    records = []
    with TestClient(create_app(make_runtime(artifact_dir), observers=[records.append])) as observed:
        invoke(observed, {"inputs": "a"}, **{ATTRIBUTES: "timeout-ms=4000"})

        invoke(observed, {"inputs": "a"}, **{ATTRIBUTES: "timeout-ms=4000", "X-Request-Timeout-Ms": "3000"})

    assert [record.timeout_s for record in records] == [4, 3]
    for value in ("0", "600001", "1.5", "²", "", SECRET):
        problem = assert_problem(
            invoke(client, {"inputs": "a"}, **{ATTRIBUTES: f"timeout-ms={value}".encode()}), 422, "validation_failed"
        )
        assert problem["errors"][0]["code"] == "timeout_header"


@pytest.mark.parametrize(
    ("media_type", "body", "status", "code"),
    [
        ("application/x-npy", b"\x93NUMPY", 415, "unsupported_media_type"),
        ("text/plain", SECRET, 415, "unsupported_media_type"),
        ("application/json", SECRET, 400, "invalid_json"),
        ("application/json", '{"inputs": "a", "model": 5}', 422, "validation_failed"),
        ("application/json", '{"inputs": "a", "model": "xyzzyplugh"}', 404, "unknown_model"),
        (LINES, "", 422, "validation_failed"),
        (LINES, "\n \n", 422, "validation_failed"),
        (LINES, f'"a"\n{SECRET}', 400, "invalid_json"),
        (LINES, '"a"\nNaN', 400, "invalid_json"),
        (LINES, b'"\xff"', 400, "invalid_utf8"),
        (LINES, '"a"\n" "', 422, "empty_input"),
        (LINES, '"a"\n5', 422, "validation_failed"),
        (LINES, f'{{"{SECRET}": 1}}', 422, "validation_failed"),
        (LINES, "[" * 1900, 400, "invalid_json"),
        (CSV, "", 422, "validation_failed"),
        (CSV, "inputs\n", 422, "validation_failed"),
        (CSV, f'inputs\n"{SECRET}', 422, "validation_failed"),
        (CSV, "inputs\na,b", 422, "validation_failed"),
        (CSV, "text,text\na,b", 422, "validation_failed"),
        (CSV, f"{SECRET},context\na,b", 422, "validation_failed"),
        (CSV, "inputs\na\x00", 200, ""),
    ],
)
def test_invalid_body_is_refused(media_type, body, status, code, artifact_dir, wide_client):
    response = invoke(wide_client, body, media_type)

    if status == 200:
        assert response.status_code == 200
    else:
        assert_problem(response, status, code)


@pytest.fixture(scope="module")
def wide_client(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir, 1 << 20)), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("body", ['"a"\n' * (MAX_INPUTS + 2), "\n" * MAX_INPUTS + '"a"\n"b"\n"c"'])
@pytest.mark.parametrize("media_type", [LINES, CSV])
def test_rows_are_limited_and_none_is_left_out(media_type, body, wide_client):
    problem = assert_problem(invoke(wide_client, body, media_type), 422, "validation_failed")

    assert problem["errors"] == [{"pointer": "", "code": "too_long", "limit": MAX_INPUTS}]
