"""Questions as System One asks them. The answers are those of OpenAI's form of the same questions."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from swiftlet_models.artifact.directory import Artifact
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.app import create_app
from tests.support.apps import SECRET, make_runtime

TEXT = "A warm 영화 🎬 e\u0301."


def ask(client, *, model="zero-shot", state=TEXT, **questions):
    return client.post("/v1/systemone", json={"model": model, "state": state, "questions": questions})


def answer(client, question, **options):
    return ask(client, q=question, **options).json()["answers"]["q"]


def predicate(client, statement):
    """The probability of a statement, from the other protocol."""
    body = {"model": "zero-shot", "input": TEXT, "questions": [{"type": "predicate", "instructions": statement}]}
    return client.post("/v1/decisions", json=body).json()["answers"][0]["probability"]


def test_answers_have_the_names_of_the_questions(every_client):
    criteria = {"good": "It is good.", "나쁨 🙂": None}
    levels = ["low", "high"]
    choices = [{"value": name, "description": meaning} for name, meaning in criteria.items()]
    body = {
        "model": "zero-shot",
        "input": TEXT,
        "questions": [
            {"type": "predicate", "instructions": "Warm?"},
            {"type": "choice", "instructions": "Which?", "choices": choices},
            {"type": "score", "instructions": "How?", "levels": [{"label": level} for level in levels]},
        ],
    }
    yes, choice, score = every_client.post("/v1/decisions", json=body).json()["answers"]

    response = ask(
        every_client,
        **{
            "질문": {"type": "noul", "instructions": "Warm?"},
            "which": {"type": "choice", "instructions": "Which?", "criteria": criteria},
            "🎯": {"type": "score", "instructions": "How?", "criteria": levels},
        },
    ).json()

    assert response["answers"] == {
        "질문": {"type": "noul", "noul": yes["probability"]},
        "which": {
            "type": "choice",
            "choice": choice["choice"],
            "probabilities": {one["value"]: one["probability"] for one in choice["probabilities"]},
            "confidence": choice["confidence"],
        },
        "🎯": {
            "type": "score",
            "score": score["score"],
            "legend": {"0": "low", "1": "high"},
            "probabilities": {str(one["value"]): one["probability"] for one in score["probabilities"]},
            "confidence": score["confidence"],
        },
    }
    assert set(response["usage"]) == {"input_tokens", "output_tokens"}


@pytest.mark.parametrize("state", [{"a": "영화 é"}, ["🎬", {"b": None}]])
def test_structures_are_read_as_json(state, every_client):
    as_text = json.dumps(state, ensure_ascii=False)
    question = {"type": "choice", "instructions": state, "criteria": {"a": ["A"], "b": "B"}}
    written = {"type": "choice", "instructions": as_text, "criteria": {"a": '["A"]', "b": "B"}}

    assert answer(every_client, question, state=state) == answer(every_client, written, state=as_text)


def test_legend_has_the_levels_as_they_were_sent(every_client):
    levels = [{"label": "low"}, ["high"]]

    assert answer(every_client, {"type": "score", "criteria": levels})["legend"] == {"0": levels[0], "1": levels[1]}


def test_one_side_of_a_noul_is_enough(every_client):
    question = {"type": "noul", "instructions": "Warm?"}
    yes = predicate(every_client, "Warm? Hot.")
    true, false, none = (
        answer(every_client, question | {"criteria": criteria})["noul"]
        for criteria in ({"true": "Hot."}, {"false": "Hot.", "true": None}, {})
    )

    assert (true, false) == (yes, pytest.approx(1 - yes))
    assert none == answer(every_client, question | {"criteria": None})["noul"] == predicate(every_client, "Warm?")


def test_both_sides_of_a_noul_are_weighed(every_client):
    criteria = {"true": "Hot.", "false": "Cold."}
    weighed = answer(every_client, {"type": "choice", "instructions": "Warm?", "criteria": criteria})

    found = answer(every_client, {"type": "noul", "instructions": "Warm?", "criteria": criteria})
    assert found["noul"] == weighed["probabilities"]["true"]


def test_instructions_may_be_left_out_if_the_criteria_say_everything(every_client):
    assert answer(every_client, {"type": "noul", "criteria": {"true": "Hot."}})["noul"] == predicate(
        every_client, "Hot."
    )


def test_classifier_does_not_read_the_criteria_of_a_noul(every_client):
    """Its label says what yes means, and it is the same with what no means."""
    question = {"type": "noul", "instructions": SECRET}
    plain, negated = (
        answer(every_client, question | more, model="classify") for more in ({}, {"criteria": {"false": "Cold."}})
    )

    assert plain == negated


def test_client_names_the_default_model(every_client):
    question = {"type": "noul", "instructions": "Warm?"}

    assert ask(every_client, q=question, model="jev-latest").json() == ask(every_client, q=question).json()


NOUL = {"type": "noul", "instructions": "Warm?"}
CHOICE = {"type": "choice", "instructions": "Which?"}


@pytest.mark.parametrize(
    ("question", "loc"),
    [
        ({"type": "noul"}, ["questions", 0, "instructions"]),
        ({"type": "noul", "criteria": {}}, ["questions", 0, "instructions"]),
        ({"type": "noul", "instructions": {}}, ["questions", 0, "instructions"]),
        ({"type": "noul", "instructions": "\u200b", "criteria": {"true": SECRET}}, ["questions", 0, "instructions"]),
        ({"type": "noul", "instructions": 1}, ["questions", "instructions"]),
        (NOUL | {"criteria": {"true": " "}}, ["questions", 0, "criteria", "true"]),
        (NOUL | {"criteria": [SECRET]}, ["questions", "criteria"]),
        (NOUL | {"type": SECRET}, ["questions"]),
        (CHOICE | {"criteria": {SECRET: None}}, ["questions", "criteria"]),
        (CHOICE | {"criteria": {f"{SECRET}{i}": None for i in range(256)}}, ["questions", "criteria"]),
        (CHOICE | {"criteria": {"a": None, "": None}}, ["questions", 0, "criteria", 1]),
        (CHOICE | {"criteria": {"a": None, "b": []}}, ["questions", 0, "criteria", 1]),
        (CHOICE | {"criteria": [SECRET, "a"]}, ["questions", "criteria"]),
        ({"type": "score", "criteria": {"0": SECRET, "1": "b"}}, ["questions", "criteria"]),
        ({"type": "score", "criteria": ["a", "\u200b"]}, ["questions", 0, "criteria", 1]),
        ({"type": "score", "criteria": [SECRET] * 11}, ["questions", "criteria"]),
    ],
)
def test_question_that_cannot_be_answered_is_refused(question, loc, every_client):
    response = ask(every_client, **{SECRET: question})

    assert response.status_code == 422
    (first,) = response.json()["detail"]
    assert first["loc"] == ["body", *loc]
    assert set(first) == {"loc", "msg", "type"}
    assert SECRET not in response.text


@pytest.mark.parametrize("state", [None, 1, True, {}, [], " "])
def test_state_that_says_nothing_is_refused(state, every_client):
    response = ask(every_client, state=state, q=NOUL)

    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", "state"])


def test_choice_has_up_to_255_options(every_client):
    options = {f"{i:03}": None for i in range(255)}

    assert [*answer(every_client, CHOICE | {"criteria": options})["probabilities"]] == [*options]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"model": "zero-shot", "state": "',
        b'{"model": "zero-shot", "state": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"model": "zero-shot", "questions": {}, "state": ' + b'{"a":' * 150_000 + b"1" + b"}" * 150_000 + b"}",
        b'{"model": "zero-shot", "questions": {"q": {"type": "noul", "instructions": "a"}}, "state": ["\\ud800"]}',
    ],
)
def test_hostile_body_is_refused(body, every_client):
    response = every_client.post("/v1/systemone", content=body, headers={"content-type": "application/json"})

    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize("number", ["9" * 5000, "1e400", "NaN", "-0"])
def test_numbers_of_a_state_are_text(number, every_client):
    body = '{"model": "zero-shot", "state": {"a": %s}, "truncation": true, "questions": {"q": %s}}'
    content = (body % (number, json.dumps(NOUL))).encode()
    response = every_client.post("/v1/systemone", content=content, headers={"content-type": "application/json"})

    assert response.status_code == (200 if number == "-0" else 422)
    if number in {"1e400", "NaN"}:
        assert response.json()["detail"][0]["loc"] == ["body", "state"]


def test_level_is_a_finite_number_in_the_legend(every_client):
    body = b'{"model": "zero-shot", "state": "x", "questions": {"q": {"type": "score", "criteria": [[1e999], "b"]}}}'
    response = every_client.post("/v1/systemone", content=body, headers={"content-type": "application/json"})

    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "questions", 0, "criteria", 0]


@pytest.mark.parametrize(("model", "status"), [(SECRET, 404), ("qa", 404), ("zero-shot@9", 404), ("jev-latest@9", 404)])
def test_model_that_does_not_exist_is_named_by_the_kind_of_the_error(model, status, every_client):
    response = ask(every_client, model=model, q=NOUL)

    assert response.status_code == status
    detail = response.json()["detail"]
    assert (detail["error_type"], detail["code"]) == ("not_found_error", "unknown_model")
    assert SECRET not in response.text


def test_models_are_described(every_client):
    listed = every_client.get("/v1/models").json()

    assert [one["name"] for one in listed["models"]] == [one["id"] for one in listed["data"]]
    assert listed["models"][-1] == {"name": "jev-latest", "description": "", "release_date": ""}


def test_date_of_a_model_is_that_of_its_certificate(artifact_dir, monkeypatch):
    monkeypatch.setattr(Artifact, "certificate", lambda _: {"date": "2026-11-29"})
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        assert client.get("/v1/models").json()["models"][0]["release_date"] == "2026-11-29"


def test_further_names_work_in_every_protocol(artifact_dir):
    names = {"gpt-4o-mini": "tiny-classify", "jev-latest": "classify", "first": "tiny-classify@1"}
    with TestClient(create_app(make_runtime(artifact_dir, model_names=names))) as client:
        own = client.post("/classify", json={"inputs": TEXT}).json()
        for name in names:
            assert client.post("/classify", json={"inputs": TEXT, "model": name}).json() == own
        assert client.post("/classify", json={"inputs": TEXT, "model": "gpt-4o-mini@1"}).json() == own
        assert client.post("/v1/models/gpt-4o-mini:predict", json={"instances": [TEXT]}).status_code == 200
        assert client.post("/models/gpt-4o-mini", json={"inputs": TEXT}).json() == own
        assert client.get("/v2/models/gpt-4o-mini/ready").status_code == 200
        assert client.get("/v1/models/gpt-4o-mini").json()["id"] == "tiny-classify"
        wrong = client.post("/qa", json={"inputs": {"question": "a", "context": "b"}, "model": "gpt-4o-mini"})
        assert (wrong.status_code, wrong.json()["code"]) == (404, "unknown_model")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a": "none"}, "a=none means no served model. Use one of tiny-classify"),
        ({"a": "tiny-classify@7"}, "means no served model"),
        ({"a": "zero-shot"}, "means no served model"),
        ({"a": "b", "b": "tiny-classify"}, "a=b means no served model"),
        ({"tiny-qa": "tiny-classify"}, "already"),
        ({"embed": "tiny-classify"}, "already"),
    ],
)
def test_further_name_that_means_nothing_stops_the_start(names, message, artifact_dir):
    with pytest.raises(SetupError, match=message):
        make_runtime(artifact_dir, model_names=names)
