"""Several models that answer as one: their mean by hand, what is refused, and requests that end early."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from swiftlet_serve.errors import DeadlineExceeded, Internal, SetupError, TooManyRequests, Unavailable
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.ensemble import Words
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks.classify import ClassifyRequest
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.workers.hosted_model import EngineModel
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support import artifacts
from tests.support.artifacts import make_artifact, reseal
from tests.support.fakes import ManualEngine, settle, soon

ORDERS = {"one": ("bad", "good", "neither"), "two": ("neither", "bad", "good")}
LOGITS = {"one": (1.5, 1.25, -2.0), "two": (-4.0, 0.5, 2.75)}
SST2 = ("mobilebert-sst2", "albert-sst2")


@pytest.fixture
def two(tmp_path, monkeypatch) -> dict[str, Path]:
    """Two classifiers with the same labels in another order, whose logits are those of `LOGITS` for every text."""
    paths = {}
    for name, logits in LOGITS.items():
        rows = np.tile(np.float32(logits), (len(artifacts.VOCABULARY), 1))
        monkeypatch.setattr(artifacts, "table", lambda width, rows=rows: rows)
        paths[name] = reseal(make_artifact(tmp_path, "classify", name), labels=ORDERS[name])
    return paths


def serve(paths: dict[str, Path], engine: str = "onnx_cpu", **settings: Any) -> LocalRuntime:
    return LocalRuntime.load(Settings(models=tuple(map(str, paths.values())), engine=engine, cores=1, **settings))


def ask(client: TestClient, **body: Any) -> Any:
    response = client.post("/classify", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def scores(labels: list[dict[str, Any]]) -> dict[str, float]:
    return {one["label"]: one["score"] for one in labels}


def softmax(logits: list[float]) -> list[float]:
    total = sum(map(math.exp, logits))
    return [math.exp(logit) / total for logit in logits]


@pytest.mark.parametrize("function", [None, "sigmoid", "none"])
@pytest.mark.parametrize("mean", ["probabilities", "logits"])
def test_answer_is_the_mean_of_the_members(two, mean, function):
    parameters = {} if function is None else {"function_to_apply": function}
    with TestClient(create_app(serve(two, ensembles={"both": f"one+two:{mean}"}))) as client:
        (ranked,) = ask(client, inputs="fine", parameters=parameters)  # the ensemble is the default
        best = ask(client, inputs="fine", model="both", parameters=parameters | {"top_k": 1})
        one, other = (scores(ask(client, inputs="a", model=name, parameters=parameters)[0]) for name in two)

    apply = {None: softmax, "sigmoid": lambda x: [1 / (1 + math.exp(-one)) for one in x], "none": list}[function]
    logits, others = (dict(zip(ORDERS[name], LOGITS[name], strict=True)) for name in two)
    by_logits = apply([(logits[label] + others[label]) / 2 for label in logits])
    by_answers = [(one[label] + other[label]) / 2 for label in logits]
    expected = dict(zip(logits, by_answers if mean == "probabilities" else by_logits, strict=True))
    assert scores(ranked) == pytest.approx(expected, abs=1e-12)
    assert best == [[max(ranked, key=lambda label: label["score"])]]


def test_ensemble_is_listed_with_its_members_and_a_version_of_theirs(two):
    names = {"both": "one+two", "other": "one+two:logits"}
    with TestClient(create_app(serve(two, ensembles=names))) as client:
        models = {model["name"]: model for model in client.get("/models").json()}
    with TestClient(create_app(serve(two, ensembles=names))) as client:
        again = {model["name"]: model["version"] for model in client.get("/models").json()}
    reseal(make_artifact(two["two"].parent / "new", "classify", "two"), labels=ORDERS["two"], version="2")
    with TestClient(create_app(serve(two | {"two": two["two"].parent / "new" / "two"}, ensembles=names))) as client:
        changed = {model["name"]: model["version"] for model in client.get("/models").json()}

    assert {name: model["members"] for name, model in models.items()} == {
        "both": ["one", "two"], "other": ["one", "two"], "one": [], "two": []
    }  # fmt: skip
    assert [name for name, model in models.items() if model["default"]] == ["both"]
    assert models["both"]["card"] == {"summary": "The mean of the probabilities of one and two."}
    assert (models["both"]["labels"], models["both"]["certificate"]) == (list(ORDERS["one"]), None)
    versions = {name: model["version"] for name, model in models.items()}
    assert versions == again
    assert len({versions["both"], versions["other"], changed["both"], changed["other"]}) == 4


def test_inputs_of_a_batch_are_answered_as_alone():
    """Each bundled model reads texts with its own tokenizer: short ones, windows of a long one, and none of a blank."""
    texts = ["A warm film.", "no", " ", "dull " * 520, "It is neither good nor bad."]
    asked = {"parameters": {"truncation": "window"}, "partial": True}
    settings = Settings(models=SST2, cores=1, ensembles={"both": "+".join(SST2)})
    with TestClient(create_app(LocalRuntime.load(settings))) as client:
        whole = {
            name: client.post("/classify", json={"inputs": texts, "model": name} | asked) for name in ("both", *SST2)
        }
        alone = [ask(client, inputs=text, **asked)[0] for text in texts if text.strip()]

    answers = {name: response.json() for name, response in whole.items()}
    tokens = {name: int(response.headers["x-compute-tokens"]) for name, response in whole.items()}
    assert tokens["both"] == sum(tokens[name] for name in SST2) > 2 * 512
    blank = {name: answer.pop(2) for name, answer in answers.items()}
    assert blank["both"] == blank[SST2[0]]
    assert blank["both"]["code"] == "empty_input"
    assert answers["both"] == alone
    for together, *own in zip(*answers.values(), strict=True):
        one, other = map(scores, own)
        assert scores(together) == pytest.approx({label: (one[label] + other[label]) / 2 for label in one}, abs=1e-12)


@pytest.mark.parametrize(
    ("words", "changes", "reason"),
    [
        ("one+three", {}, "does not name two or more of the models .* Use one, two"),
        ("one", {}, "does not name two or more"),
        ("one+one", {}, "each once"),
        ("one+two:median", {}, "does not name two or more"),
        ("one+two", {"labels": ("bad", "good", "fair")}, "the labels differ: bad, good, neither, and bad, good, fair"),
        ("one+two", {"problem": "multi_label"}, "one tells a label of each text, another several"),
        (
            "one+two",
            {"task": "zero-shot", "labels": ("contradiction", "entailment", "other")},
            "classify and zero-shot",
        ),
    ],
)
def test_models_that_cannot_answer_as_one_are_refused(tmp_path, words, changes, reason):
    paths = {"one": make_artifact(tmp_path, "classify", "one").path}
    paths["two"] = reseal(make_artifact(tmp_path, "classify", "two"), **changes)

    with pytest.raises(SetupError, match=reason):
        serve(paths, ensembles={"both": words})


@pytest.mark.parametrize(("name", "reason"), [("one", "have the name 'one'"), ("A b", "not a valid name")])
def test_names_of_ensembles_are_checked(two, name, reason):
    with pytest.raises(SetupError, match=reason):
        serve(two, ensembles={name: "one+two"})


def test_words_name_members_and_a_mean(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a+b").mkdir()
    monkeypatch.setenv("SWIFTLET_ENSEMBLES", "both=x+y:logits, all = x+y+z")

    assert Settings().ensembles == {"both": "x+y:logits", "all": "x+y+z"}
    assert Words.parse("x+y") == (("x", "y"), "probabilities")
    assert Words.parse("./x:task=classify+org/y:logits") == (("./x:task=classify", "org/y"), "logits")
    assert Words.parse("a+b") == (("a+b",), "probabilities")
    assert Words.parse("x:logits") == (("x:logits",), "probabilities")


def gated(two: dict[str, Path], **settings: Any) -> tuple[LocalRuntime, dict[str, ManualEngine]]:
    """Returns a runtime with one call at a time, whose engines answer when the test says so."""
    runtime = serve(two, "echo", ensembles={"both": "one+two"}, **settings)
    assert isinstance(runtime._executor, ThreadExecutor)
    engines = {name: ManualEngine() for name in two}
    runtime._executor._models |= {name: EngineModel(engine, [2]) for name, engine in engines.items()}
    return runtime, engines


def counts(runtime: LocalRuntime) -> tuple[int, int]:
    """Returns how many requests the ensemble has accepted, and how many its members have."""
    models = runtime.stats.models
    return models["both"].accepted, models["one"].accepted + models["two"].accepted


@pytest.mark.parametrize("how", ["late", "failed", "gone"])
async def test_a_request_ends_for_all_members_at_once(two, how):
    """If one member fails, is late or nobody waits any more, no sequence of the request stays queued."""
    runtime, engines = gated(two)
    record = RequestRecord(model="both")
    deadline = time.monotonic() + 0.05 if how == "late" else soon()
    request = ClassifyRequest(inputs="fine")
    answer = asyncio.ensure_future(runtime.pipelines["both"].answer(request, deadline, record=record))
    call = await engines["one"].called()
    if how == "failed":
        call.finish(error=RuntimeError("the engine failed"))
        with pytest.raises(Internal):
            await answer
    elif how == "gone":
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
    else:
        with pytest.raises(DeadlineExceeded):
            await answer
    await settle()
    queued = runtime.dispatcher.queue_state()
    call.finish()
    if not engines["two"].calls.empty():
        engines["two"].calls.get().finish()
    await runtime.close()

    assert queued.sequences == 0
    assert (record.accepted, record.sequences) == (True, 2)
    assert counts(runtime) == (1, 0)


async def test_a_request_that_a_member_does_not_admit_is_refused_as_a_whole(two):
    """There is room for the sequence of one member, and not for that of the other."""
    runtime, engines = gated(two, max_queued_tokens=12)
    small = ClassifyRequest(inputs="ab")
    filling = [asyncio.ensure_future(runtime.pipelines["one"].answer(small, soon()))]
    call = await engines["one"].called()
    filling.append(asyncio.ensure_future(runtime.pipelines["one"].answer(small, soon())))
    await settle()  # it is queued
    record = RequestRecord(model="both")
    with pytest.raises(Unavailable):
        await runtime.pipelines["both"].answer(ClassifyRequest(inputs="abcd"), soon(), record=record)
    await settle()
    queued = runtime.dispatcher.queue_state()
    for waiting in filling:
        waiting.cancel()
    call.finish()
    await runtime.close()

    assert queued.sequences == 1
    assert not record.accepted
    assert counts(runtime) == (0, 0)


async def test_rate_limit_of_tokens_counts_all_members_as_one_request(two):
    runtime = serve(two, ensembles={"both": "one+two"}, client_token_rate_limit=0.01)
    request = ClassifyRequest(inputs="hello")
    first, second = (RequestRecord(model="both", account="a") for _ in range(2))
    await runtime.pipelines["both"].answer(request, soon(), record=first)
    with pytest.raises(TooManyRequests):
        await runtime.pipelines["both"].answer(request, soon(), record=second)
    await runtime.close()

    assert (first.accepted, first.tokens, second.accepted) == (True, 14, False)
