"""Hostile request bodies. The codes I-01 to I-26 are those of the catalogue of failures."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.tasks import fill_mask
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.types import Batch
from tests.goldens import cases
from tests.support.app_client import AppClient
from tests.support.apps import make_runtime
from tests.support.fakes import PATIENCE_S
from tests.support.hostile import CANARY, MAX_ANSWER_BYTES, TASKS, Attack, attacks, canary, complaint
from tests.support.tiers import first

MAX_BODY_BYTES = 1 << 20


VALID: dict[str, Any] = {
    "classify": "a film",
    "qa": {"question": "who?", "context": "it was me."},
    "fill-mask": "a [MASK] b",
}


@pytest.fixture(scope="module")
def client(artifact_dir):
    with AppClient(create_app(make_runtime(artifact_dir, MAX_BODY_BYTES)), raise_server_exceptions=False) as client:
        yield client


class CountingBody:
    """A body that arrives in pieces and counts the pieces that were read."""

    def __init__(self, pieces: int, piece: bytes) -> None:
        self.left = pieces
        self.piece = piece
        self.read = 0

    async def __call__(self) -> dict[str, Any]:
        if not self.left:
            return await asyncio.Event().wait()  # type: ignore[return-value]  # a client that waits for its answer
        self.left -= 1
        self.read += len(self.piece)
        return {"type": "http.request", "body": self.piece, "more_body": self.left > 0}


async def call(app: Any, attack: Attack, receive: Any = None) -> tuple[int, str, bytes]:
    """Returns the status, the headers and the body of a response. Calls the application as a server does."""
    found: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    path, _, query = attack.path.partition("?")
    headers = [(name.encode(), value.encode()) for name, value in attack.headers.items()]
    scope = {"type": "http", "method": attack.method, "path": path, "query_string": query.encode(), "headers": headers}
    await app(scope, receive or CountingBody(1, attack.body), send)
    start, *rest = found
    shown = "\n".join(f"{name.decode()}: {value.decode()}" for name, value in start["headers"])
    return start["status"], shown, b"".join(message.get("body", b"") for message in rest)


def run_app(artifact_dir: Path, scenario: Any) -> Any:
    """Runs `scenario(app)` on an event loop of its own, and closes the runtime after it."""

    async def run() -> Any:
        runtime = make_runtime(artifact_dir, MAX_BODY_BYTES)
        try:
            return await scenario(create_app(runtime))
        finally:
            await runtime.close()

    return asyncio.run(asyncio.wait_for(run(), 10 * PATIENCE_S))


def code_of(answer: tuple[int, str, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["code"]


def test_declared_10_mb_body_is_rejected_unread(artifact_dir):
    body = CountingBody(10, b"x" * (MAX_BODY_BYTES))
    attack = Attack("-", "/classify", b"", headers={"content-length": str(10 * MAX_BODY_BYTES)})

    assert code_of(run_app(artifact_dir, lambda app: call(app, attack, body))) == (413, "body_too_large")
    assert body.read == 0


def test_chunked_10_mb_body_is_read_up_to_the_limit(artifact_dir):
    body = CountingBody(160, b"x" * (1 << 16))

    assert code_of(run_app(artifact_dir, lambda app: call(app, Attack("-", "/qa", b""), body))) == (
        413,
        "body_too_large",
    )
    assert body.read <= MAX_BODY_BYTES + (1 << 16)


def test_100_000_one_byte_chunks_are_read_quickly(artifact_dir):
    body, started = CountingBody(100_000, b" "), time.monotonic()

    assert code_of(run_app(artifact_dir, lambda app: call(app, Attack("-", "/qa", b""), body))) == (400, "invalid_json")
    assert time.monotonic() - started < PATIENCE_S / 3


def test_compressed_body_is_rejected_unread(artifact_dir):
    body = CountingBody(10, b"\x1f\x8b" * 1000)
    attack = Attack("-", "/classify", b"", headers={"content-encoding": "gzip"})

    assert code_of(run_app(artifact_dir, lambda app: call(app, attack, body))) == (415, "unsupported_encoding")
    assert body.read == 0


@pytest.fixture(scope="module", params=["vocab.txt", "spiece.model"])
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(cases.HERE / request.param, directory)
    return Tokenizer.from_directory(directory)


PROSE = "The river was low that summer, and the boats lay on their sides. " * 1600

ODD = {
    "a word without end": "a" * 100_000,
    "only punctuation": "!?" * 50_000,
    "only combining marks": "\u0301" * 100_000,
    "marks on a letter": "e" + "\u0301" * 100_000,
    "only blanks": " " * 100_000,
    "only emoji": "😀" * 100_000,
    "only hangul": "한" * 100_000,
    "only unknown": "\U0001f9ff\u0e01" * 50_000,
}


def seconds(text: str, tokenizer: Tokenizer) -> float:
    """Returns the CPU time of a tokenization, which other processes do not affect."""
    started = time.process_time()
    tokenizer.encode([text[: len(PROSE)]], 512)
    return time.process_time() - started


@pytest.fixture(scope="module")
def prose_seconds(tokenizer: Tokenizer) -> float:
    return min(seconds(PROSE, tokenizer) for _ in range(5))


@pytest.mark.parametrize("kind", ODD)
def test_unusual_text_is_tokenized_as_fast_as_prose(kind, tokenizer, prose_seconds):
    # A tokenizer that takes quadratic time needs thousands of times as long.
    assert any(seconds(ODD[kind], tokenizer) <= 10 * prose_seconds + 0.01 for _ in range(5))


def test_context_of_a_million_tokens_is_rejected(client):
    response = client.post("/qa", json={"inputs": {"question": "who?", "context": "a " * (MAX_BODY_BYTES // 2 - 100)}})

    assert (response.status_code, response.json()["code"]) == (422, "input_too_long")


@pytest.mark.parametrize("depth", [10**5, 10**6 // 2])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"inputs":', "}"), ("[", "")])
def test_deeply_nested_body_is_rejected_quickly(depth, brackets, client, caplog):
    opening, closing = brackets
    body = (opening * depth)[: MAX_BODY_BYTES - 1 - depth // 2] + closing * (depth // 2)
    started = time.monotonic()
    response = client.post("/classify", content=body[:MAX_BODY_BYTES])

    assert (response.status_code, response.json()["code"]) == (422, "validation_failed")  # too many items
    assert time.monotonic() - started < 1.0
    assert "RecursionError" not in caplog.text


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("NaN", "validation_failed"),
        ("-Infinity", "validation_failed"),
        ("1e400", "validation_failed"),
        ("9" * 4000, "validation_failed"),
        ("9" * 5000, "invalid_json"),  # more digits than Python's int accepts
        ("1E-400", "validation_failed"),
        ("-0", "validation_failed"),
        ("-1", "validation_failed"),
        ("0", "validation_failed"),
        ("1001", "validation_failed"),
        ("1000000000", "validation_failed"),
        ("5.0", "validation_failed"),
        ('"5"', "validation_failed"),
        ("true", "validation_failed"),
        ("[]", "validation_failed"),
        ("{}", "validation_failed"),
        ("01", "invalid_json"),
        ("+1", "invalid_json"),
        (".5", "invalid_json"),
        ('"\\ud800"', "invalid_json"),
        ('"\\ud83d"', "invalid_json"),
        ('"\\udc00\\ud83d"', "invalid_json"),
        ("'5'", "invalid_json"),
    ],
)
def test_numbers_are_never_converted(value, code, task, client):
    for parameters in (f'{{"top_k": {value}}}', f'{{"{canary(1)}": {value}}}', f'[{{"top_k": {value}}}]'):
        body = f'{{"inputs": {json.dumps(VALID[task])}, "parameters": {parameters}}}'
        response = client.post(f"/{task}", content=body.encode())

        assert response.json()["code"] == code
        assert response.status_code == (400 if code == "invalid_json" else 422)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("field", ["parameters", "options", "model", "partial", "inputs"])
@pytest.mark.parametrize("value", [True, "5", 5, 5.0, [], {"a": 1}, [[]], [None], None])
def test_value_of_another_type_is_rejected(value, field, task, client):
    described = (field == "partial" and value is True) or (value is None and field != "inputs")
    absent = field == "model" and value == "5"
    response = client.post(f"/{task}", json={"inputs": VALID[task]} | {field: value})
    text = field == "inputs" and value == "5" and task != "qa"  # is text; in fill-mask without a mask

    expected = 200 if described or (text and task == "classify") else 404 if absent else 422
    assert response.status_code == expected


@pytest.mark.parametrize("task", TASKS)
def test_last_of_repeated_keys_counts_at_every_depth(task, client):
    inputs = json.dumps(VALID[task])

    def ask(body: str) -> tuple[int, Any]:
        response = client.post(f"/{task}", content=body.encode())
        return response.status_code, response.json()

    once = ask(f'{{"inputs": {inputs}, "parameters": {{"top_k": 2}}}}')
    assert once[0] == 200
    for twice in (
        f'{{"inputs": 5, "inputs": {inputs}, "parameters": {{"top_k": 2}}}}',
        f'{{"inputs": {inputs}, "parameters": null, "parameters": {{"top_k": 2}}}}',
        f'{{"inputs": {inputs}, "parameters": {{"top_k": 0, "top_k": 2}}}}',
        f'{{"inputs": {inputs}, "parameters": {{"top_k": "2", "top_\\u006b": 2}}}}',
    ):
        assert ask(twice) == once
    assert ask(f'{{"inputs": {inputs}, "parameters": {{"top_k": 2, "top_k": 0}}}}')[0] == 422
    assert ask(f'{{"inputs": {inputs}, "inputs": 5}}')[0] == 422


def test_body_with_100_000_errors_is_rejected_quickly(client):
    body = "{" + ", ".join(f'"{number}": 1' for number in range(70_000)) + "}"
    started = time.monotonic()
    problem = client.post("/classify", content=body).json()

    assert problem["code"] == "validation_failed"
    assert [error["code"] for error in problem["errors"]] == ["too_many_items"]
    assert time.monotonic() - started < PATIENCE_S / 10


def expected_response(runtime: LocalRuntime, task: str, inputs: Any) -> Any:
    """Returns the response that the task gives for the rows of the echo engine."""
    model = runtime.tasks[task].model
    request = model.task.Request.model_validate({"inputs": inputs})
    encodings = model.task.encode(request)
    return model.task.decode(request, encodings, Echo(model.manifest.width).run(Batch.of(encodings)))


@pytest.fixture(scope="module")
def runtime(artifact_dir):
    return make_runtime(artifact_dir, MAX_BODY_BYTES)


@pytest.mark.parametrize("mark", "\x00\x07\x1b\x7f\x85\u200b\u202e\u2066\ufeff\u00ad")
def test_invisible_characters_change_no_answer_and_offsets_refer_to_the_request(mark, runtime):
    assert expected_response(runtime, "classify", f"fi{mark}ne") == expected_response(runtime, "classify", "fine")
    context = f"{mark}it{mark} was {mark}me"
    answer = expected_response(runtime, "qa", {"question": "who?", "context": context})

    assert answer["answer"] == context[answer["start"] : answer["end"]]


@given(
    context=st.text(
        st.sampled_from("aé한😀\u0301\u200b\u200d\u202e\ufe0f\ufeff\0 İﬁ\U000e0061👩👧🇩")
        | st.characters(codec="utf-8"),
        min_size=1,
        max_size=120,
    )
)
@example(context="👩\u200d👩\u200d👧 e\u0301 \U0001f1e9\U0001f1ea \ufeffİ")
def test_qa_answer_is_the_context_between_its_offsets(context, runtime):
    body = {"inputs": {"question": "who?", "context": context}}
    request = runtime.tasks["qa"].model.task.Request.model_validate_json(json.dumps(body))
    if not context.strip():
        return
    try:
        answer = expected_response(runtime, "qa", request.inputs.model_dump())
    except Exception as error:
        assert getattr(error, "code", None) == "empty_input", error  # noqa: PT017  # nothing but invisible characters
        return

    assert context[answer["start"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize("text", ["\u200b", "\u2060\u00ad", "\ufeff", "\x00\x01", "\ufe0f"])
def test_text_without_visible_characters_has_a_defined_response(text, client):
    labels = client.post("/classify", json={"inputs": text})
    assert labels.status_code == 200
    assert "NaN" not in labels.text
    for qa in ({"question": text, "context": "a"}, {"question": "a", "context": text}):
        assert client.post("/qa", json={"inputs": qa}).json()["code"] == "empty_input"


@pytest.mark.parametrize("text", ["[SEP]", "[CLS] a [SEP] b [SEP]", "[PAD][PAD]", "[UNK]", "[MASK]"])
def test_special_tokens_in_a_text_are_plain_characters(text, runtime):
    (row,) = runtime.tasks["classify"].model.task.encode(
        runtime.tasks["classify"].model.task.Request.model_validate({"inputs": text})
    )
    specials = runtime.tasks["classify"].model.task.tokenizer.special_ids

    assert sum(int(token) in specials for token in row.input_ids) == 2  # of the frame


@pytest.mark.parametrize("masks", [0, 65, 1000])
def test_missing_and_excess_masks_are_rejected(masks, client):
    response = client.post("/fill-mask", json={"inputs": "a " + "[MASK]" * masks})

    assert response.status_code == 422
    assert response.json()["code"] == ("too_many_masks" if masks else "no_mask")


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("count", "status"), [(0, 422), (1, 200), (12, 200), (64, 200), (MAX_INPUTS + 1, 422)])
def test_list_has_1_to_2048_inputs(count, status, task, client):
    body = {"inputs": [VALID[task]] * count, "parameters": {"top_k": 1}}
    nested = {"inputs": [[VALID[task]]] * max(count, 1)}

    assert client.post(f"/{task}", json=body).status_code == status
    assert client.post(f"/{task}", json=nested).status_code == 422


def test_small_body_cannot_cause_a_large_response(client):
    response = client.post("/fill-mask", json={"inputs": "[MASK]" * 40, "parameters": {"top_k": 100}})
    assert (response.status_code, response.json()["code"]) == (422, "answer_too_large")

    question = {"question": ["who?"] * 64, "context": "it was me and you and him and her"}
    response = client.post("/qa", json={"inputs": question, "parameters": {"top_k": 100}})
    assert (response.status_code, response.json()["code"]) == (422, "answer_too_large")
    assert response.json()["errors"] == [{"pointer": "", "code": "answer_too_large", "limit": MAX_ANSWER_BYTES}]


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("qa", {"inputs": {"question": ["who?"] * 64, "context": "it was me " * 140}, "parameters": {"top_k": 100}}),
        ("qa", {"inputs": [{"question": "who?", "context": "it was me " * 5}] * 32, "parameters": {"topk": 100}}),
        ("fill-mask", {"inputs": ["[MASK]"] * 64, "parameters": {"top_k": 100}}),
    ],
)
def test_answer_that_would_be_too_large_is_refused_before_the_model_runs(task, body, client, runtime, monkeypatch):
    pipeline = runtime.tasks[task]
    monkeypatch.setattr(type(pipeline), "answer", None)
    response = client.post(f"/{task}", json=body)

    assert (response.status_code, response.json()["code"]) == (422, "answer_too_large")


def test_answers_that_fit_run(client):
    question = {"question": ["who?"] * 64, "context": "it was me and you and him and her"}
    response = client.post("/qa", json={"inputs": question, "parameters": {"top_k": 40}})

    assert response.status_code == 200


def test_large_body_may_cause_a_large_response(client):
    """Clients need not know a limit for 64 texts of usual length."""
    text = "[MASK]" + " it was me and you and him and her" * 4
    answer = client.post("/fill-mask", json={"inputs": [text] * 64, "parameters": {"top_k": 10}})

    assert answer.status_code == 200
    assert len(answer.content) > MAX_ANSWER_BYTES


def test_fill_mask_limits_its_response_for_any_split_of_inputs(runtime):
    task = runtime.tasks["fill-mask"].model.task
    length = task.max_tokens
    inputs = ["[MASK]" + "a " * length] * 30

    for partial in (False, True):
        top_k = fill_mask.MAX_WRITTEN // sum(min(len(one), 8 * length) for one in inputs) + 1
        body = {"inputs": inputs, "parameters": {"top_k": top_k}, "partial": partial}
        request = task.Request.model_validate(body)
        with pytest.raises(Exception, match="repeat the texts"):
            task.split(request) if partial else task.encode(request)


@pytest.mark.parametrize("count", first([2_000, 10_000], 2_000))
def test_attacks_cause_no_5xx_and_no_echo(artifact_dir, caplog, count):
    caplog.set_level(logging.DEBUG)

    async def scenario(app: Any) -> tuple[dict[str, int], dict[int, int]]:
        complaints: dict[str, int] = {}
        statuses: dict[int, int] = {}
        flood = attacks(seed=1, count=count)
        while wave := list(islice(flood, 20)):
            for attack, answer in zip(wave, await asyncio.gather(*(call(app, one) for one in wave)), strict=True):
                statuses[answer[0]] = statuses.get(answer[0], 0) + 1
                if (wrong := complaint(attack, *answer)) is not None:
                    complaints[wrong] = complaints.get(wrong, 0) + 1
        return complaints, statuses

    complaints, statuses = run_app(artifact_dir, scenario)

    assert complaints == {}
    assert statuses.keys() >= {200, 400, 404, 405, 413, 415, 422}  # otherwise the attacks are too weak
    assert statuses[200] < count / 3
    assert CANARY.search(caplog.text) is None
