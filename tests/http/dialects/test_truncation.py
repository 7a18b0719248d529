"""Every answer tells how many tokens the texts have and how many were read, in our format and in all protocols."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from swiftlet_serve.http.dialects import cohere, openai
from swiftlet_serve.telemetry.observers import TRUNCATION_LOG_S, TruncationLog
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.artifacts import MAX_TOKENS
from tests.support.hostile_dialects import tensor

LONG = "a " * 100
WINDOW = {"truncation": "window"}
LABELS = {"candidate_labels": ["b", "c"], "hypothesis_template": "{}"}

OWN: dict[str, tuple[str, dict[str, Any], int, int, list[str]]] = {
    "classify": ("/classify", {"inputs": [LONG, "b"]}, 102 + 3, MAX_TOKENS + 3, ["/inputs/0"]),
    "pair": ("/classify", {"inputs": {"text": LONG, "text_pair": "b c"}}, 105, MAX_TOKENS, ["/inputs"]),
    "partial": (
        "/classify",
        {"inputs": [LONG, " ", "b", LONG], "partial": True},
        207,
        2 * MAX_TOKENS + 3,
        ["/inputs/0", "/inputs/3"],
    ),
    "embed": ("/embed", {"inputs": LONG}, 102, MAX_TOKENS, ["/inputs"]),
    "fill-mask": ("/fill-mask", {"inputs": ["a [MASK]", f"[MASK] {LONG}"]}, 4 + 103, 4 + MAX_TOKENS, ["/inputs/1"]),
    "entities": ("/entities", {"inputs": ["a", LONG]}, 3 + 102, 3 + MAX_TOKENS, ["/inputs/1"]),
    "rerank": (
        "/rerank",
        {"inputs": {"query": "q", "texts": ["b", LONG]}},
        5 + 104,
        5 + MAX_TOKENS,
        ["/inputs/texts/1"],
    ),
    "zero-shot": ("/zero-shot", {"inputs": LONG, "parameters": LABELS}, 2 * 104, 2 * MAX_TOKENS, ["/inputs"]),
    "zero-shot, partial": (
        "/zero-shot",
        {"inputs": ["a", LONG], "parameters": LABELS, "partial": True},
        2 * 5 + 2 * 104,
        2 * 5 + 2 * MAX_TOKENS,
        ["/inputs/1"],
    ),
    "score": ("/score", {"inputs": "a b"}, 4, 4, []),
    "blanks": ("/classify", {"inputs": " \u200b\n" * 9000 + "a b"}, 4, 4, []),
}


@pytest.mark.parametrize("case", OWN)
def test_own_routes_tell_how_much_was_read(every_client, case):
    path, body, whole, read, truncated = OWN[case]
    plain = every_client.post(path, json=body)
    detailed = every_client.post(path, json=body | {"details": True})

    assert (plain.status_code, detailed.status_code) == (200, 200), plain.text
    for response in (plain, detailed):
        told = [response.headers[name] for name in ("x-input-tokens", "x-compute-tokens", "x-truncated")]
        assert told == [str(whole), str(read), str(len(truncated))]
    details = {"input_tokens": whole, "tokens_read": read, "truncated": truncated}
    assert detailed.json() == {"answer": plain.json(), "details": details}


def test_windows_leave_nothing_out(every_client):
    """The tokens of overlapping windows count in each of them."""
    for path, body in (
        ("/qa", {"inputs": {"question": "q", "context": LONG}}),
        ("/entities", {"inputs": LONG, "parameters": {"stride": 8}}),
        ("/classify", {"inputs": LONG, "parameters": WINDOW}),
        ("/embed", {"inputs": LONG, "parameters": WINDOW}),
        ("/rerank", {"inputs": {"query": "q", "texts": ["b", LONG]}, "parameters": WINDOW}),
        ("/zero-shot", {"inputs": LONG, "parameters": LABELS | WINDOW}),
        ("/models/embed", {"inputs": LONG, "parameters": WINDOW}),
        ("/v2/models/classify/infer", {"inputs": [tensor("text", LONG)], "parameters": WINDOW}),
    ):
        told = every_client.post(path, json=body).headers
        assert int(told["x-input-tokens"]) == int(told["x-compute-tokens"]) > 100 + 2 * MAX_TOKENS // 8
        assert told["x-truncated"] == "0"


def test_an_answer_from_windows_is_the_mean_of_theirs(every_client):
    """100 tokens in windows of 46, of which neighbours share 5."""

    def scores(inputs, parameters):
        answers = every_client.post("/classify", json={"inputs": inputs, "parameters": parameters}).json()
        return [{each["label"]: each["score"] for each in labels} for labels in answers]

    windows, counts = scores(["a " * 46, "a " * 46, "a " * 18], {}), [48, 48, 20]
    (found,) = scores([LONG], WINDOW)
    for label, score in found.items():
        expected = sum(count * window[label] for count, window in zip(counts, windows, strict=True)) / sum(counts)
        assert score == pytest.approx(expected)


BODIES: dict[str, tuple[str, dict[str, Any], int]] = {
    "openai": ("/v1/embeddings", {"model": "embed", "input": [LONG, "b"], "truncate_prompt_tokens": -1}, 1),
    "sglang": ("/v1/classify", {"model": "classify", "input": [LONG, "b", LONG]}, 2),
    "vllm": ("/classify", {"input": LONG}, 1),
    "tei predict": ("/predict", {"inputs": [[LONG], ["b", LONG]], "truncate": True}, 2),
    "tei embed": ("/embed", {"inputs": LONG, "truncate": True}, 1),
    "tei rerank": ("/rerank", {"query": "q", "texts": ["b", LONG], "truncate": True}, 1),
    "cohere": ("/v2/rerank", {"model": "rerank", "query": "q", "documents": ["b", {"text": LONG}]}, 1),
    "cohere embed": ("/v1/embed", {"model": "embed", "texts": ["b", LONG]}, 1),
    "kserve v1": ("/v1/models/classify:predict", {"instances": ["b", LONG]}, 1),
    "hugging face": ("/models/classify", {"inputs": ["b", LONG]}, 1),
    "open inference": ("/v2/models/classify/infer", {"inputs": [tensor("text", LONG, "b")]}, 1),
}


@pytest.mark.parametrize("case", BODIES)
def test_protocols_tell_how_much_was_read(every_client, case):
    path, body, truncated = BODIES[case]
    response = every_client.post(path, json=body)

    assert response.status_code == 200, response.text
    whole, read = (int(response.headers[name]) for name in ("x-input-tokens", "x-compute-tokens"))
    assert whole > read
    assert response.headers["x-truncated"] == str(truncated)
    answer = response.json()
    if isinstance(answer, dict) and "usage" in answer:
        assert answer["usage"]["total_tokens"] == read  # as vLLM counts a truncated prompt


def test_ranking_of_cohere_warns_of_truncated_documents(every_client):
    body = {"model": "rerank", "query": "q", "documents": ["b", LONG]}
    (warning,) = every_client.post("/v1/rerank", json=body).json()["meta"]["warnings"]
    assert warning == "Truncated to the model's 48 tokens: /documents/1. To refuse, set truncate to NONE."
    (warning,) = every_client.post("/v1/rerank", json=body | {"documents": [LONG] * 20}).json()["meta"]["warnings"]
    assert "/documents/9, and others." in warning
    assert "warnings" not in every_client.post("/v1/rerank", json=body | {"documents": ["b"]}).json()["meta"]


def words(first: int, last: int) -> str:
    return " ".join("abcdefgh"[number % 8] for number in range(first, last))


TEXT = words(0, 60)
CUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
    # A request, the same with texts that are cut already, and the tokens that are read.
    "vllm": (
        "/v1/embeddings",
        {"model": "embed", "input": [TEXT, "a"], "truncate_prompt_tokens": 12},
        {"input": [words(0, 10), "a"]},
        12 + 3,
    ),
    "vllm, left": (
        "/v1/embeddings",
        {"model": "embed", "input": TEXT, "truncate_prompt_tokens": 12, "truncation_side": "left"},
        {"input": words(50, 60)},
        12,
    ),
    "vllm classify": ("/classify", {"input": [TEXT], "truncate_prompt_tokens": 3}, {"input": ["a"]}, 3),
    "vllm rerank": (
        "/rerank",
        {"query": words(0, 9), "documents": ["b", TEXT], "max_tokens_per_query": 2, "max_tokens_per_doc": 5},
        {"query": "a b", "documents": ["b", words(0, 5)]},
        (2 + 1 + 3) + (2 + 5 + 3),
    ),
    "vllm rerank, the whole": (
        "/v1/rerank",
        {"query": "a b", "documents": ["b", TEXT], "truncate_prompt_tokens": 10, "truncation_side": "left"},
        {"documents": ["b", words(55, 60)]},
        (2 + 1 + 3) + 10,
    ),
    "cohere rerank": (
        "/v2/rerank",
        {"model": "rerank", "query": "a", "documents": ["b", {"text": TEXT}], "max_tokens_per_doc": 7},
        {"documents": ["b", words(0, 7)]},
        (1 + 1 + 3) + (1 + 7 + 3),
    ),
    "cohere": (
        "/v2/embed",
        {"model": "embed", "texts": ["a", TEXT], "truncate": "START"},
        {"texts": ["a", words(14, 60)]},
        3 + MAX_TOKENS,
    ),
    "cohere, a limit": (
        "/v1/embed",
        {"model": "embed", "texts": ["a", TEXT], "truncate": "START", "max_tokens": 6},
        {"texts": ["a", words(56, 60)]},
        3 + 6,
    ),
    "tei": (
        "/embed",
        {"inputs": [TEXT, "a"], "truncate": True, "truncation_direction": "Left"},
        {"inputs": [words(14, 60), "a"]},
        MAX_TOKENS + 3,
    ),
    "tei pair": (
        "/predict",
        {"inputs": [["a b", TEXT]], "truncate": True, "truncation_direction": "left"},
        {"inputs": [["a b", words(17, 60)]]},
        MAX_TOKENS,
    ),
    "tei rerank": (
        "/rerank",
        {"query": "a b", "texts": [TEXT], "truncate": True, "truncation_direction": "left"},
        {"texts": [words(17, 60)]},
        MAX_TOKENS,
    ),
    "tei similarity": (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": [TEXT]}, "parameters": {"truncation_direction": "left"}},
        {"inputs": {"source_sentence": "a", "sentences": [words(14, 60)]}},
        3 + MAX_TOKENS,
    ),
}


@pytest.mark.parametrize("case", CUTS)
def test_clients_choose_how_much_is_read_and_on_which_side_texts_are_cut(every_client, case):
    path, body, cut_before, tokens = CUTS[case]
    response, expected = every_client.post(path, json=body), every_client.post(path, json=body | cut_before)

    assert (response.status_code, expected.status_code) == (200, 200), response.text
    assert response.headers["x-truncated"] != expected.headers["x-truncated"] == "0"
    read = {answer.headers["x-compute-tokens"] for answer in (response, expected)}
    assert read == {str(tokens)}
    answers = [answer.json() for answer in (response, expected)]
    for answer in answers:
        if isinstance(answer, dict):
            counted = answer.get("usage", {}).get("total_tokens") or answer["meta"]["tokens"]["input_tokens"]
            assert counted == tokens
            for volatile in ("id", "created", "meta", "texts"):
                answer.pop(volatile, None)
    assert answers[0] == answers[1]


def test_limit_of_the_request_refuses_long_texts_if_it_says_so(every_client):
    long = {"model": "embed", "texts": ["a", words(0, 5)], "max_tokens": 6, "truncate": "NONE"}
    message = every_client.post("/v2/embed", json=long).json()["message"]
    assert message.startswith("The text has 7 tokens, and 6 at most are read. Shorten it, or set truncate to END.")
    assert every_client.post("/v2/embed", json=long | {"max_tokens": 7}).status_code == 200
    long = {"query": "a", "documents": ["b", words(0, 5)], "max_tokens_per_doc": 4, "truncate": "NONE"}
    message = every_client.post("/rerank", json=long).json()["message"]
    assert message.startswith("The text has 5 tokens, and 4 at most are read.")


def test_none_of_cohere_refuses_long_texts_whatever_limit_is_named(every_client):
    body = {"query": "a", "documents": ["b", TEXT], "truncate": "NONE"}
    for tokens, limit in ((9, 9), (9999, MAX_TOKENS), (-1, MAX_TOKENS)):
        message = every_client.post("/v2/rerank", json=body | {"truncate_prompt_tokens": tokens}).json()["message"]
        assert message.startswith(f"The text has 64 tokens, and {limit} at most are read.")


def test_warning_names_the_limits_that_may_have_cut(every_client):
    for limits, words_of_limits in (
        ({"truncate_prompt_tokens": 9}, "the limits of the request"),
        ({"max_tokens_per_doc": 4}, "the limits of the request and the model's 48 tokens"),
        ({"max_tokens_per_doc": 4096, "truncate_prompt_tokens": 4096}, "the model's 48 tokens"),
    ):
        body = {"query": "a", "documents": ["b", TEXT], "truncate": "END"} | limits
        (warning,) = every_client.post("/rerank", json=body).json()["meta"]["warnings"]
        assert warning == f"Truncated to {words_of_limits}: /documents/1. To refuse, set truncate to NONE."


def test_query_that_is_cut_by_itself_is_told_as_the_query(every_client):
    """A cross-encoder reads it with each document, which is not cut."""
    body = {"model": "rerank", "query": words(0, 9), "documents": ["a", "b c"], "max_tokens_per_query": 3}
    response = every_client.post("/v2/rerank", json=body)
    assert response.headers["x-truncated"] == "1"
    (warning,) = response.json()["meta"]["warnings"]
    assert ": /query. To refuse" in warning
    refused = every_client.post("/v2/rerank", json=body | {"truncate": "NONE"})
    assert refused.status_code == 422
    assert refused.json()["message"].startswith("The text has 9 tokens, and 3 at most are read.")

    documents = {"documents": ["a", TEXT], "max_tokens_per_doc": 5}
    (warning,) = every_client.post("/v2/rerank", json=body | documents).json()["meta"]["warnings"]
    assert ": /query, /documents/1. To refuse" in warning


def test_end_cuts_the_right_side_of_any_model():
    """Also if the model's own side is the left one."""
    for value, side in (("END", "right"), ("START", "left"), (None, None)):
        assert openai.EmbeddingsRequest(model="embed", input="a", truncate=value).cut().side == side
        assert cohere.EmbedRequest(texts=["a"], truncate=value).cut().side == side
    assert (
        openai.EmbeddingsRequest(model="embed", input="a", truncate=True, truncation_side="left").cut().side == "left"
    )


def test_error_names_the_field_that_was_sent(every_client):
    for field in ("dimensions", "output_dimension"):
        body = {"model": "embed", "input": "a", field: 99999}
        assert every_client.post("/v1/embeddings", json=body).json()["error"]["param"] == f"/{field}"


def test_details_are_told_on_the_addresses_of_hugging_face(every_client):
    answer = every_client.post("/models/embed", json={"inputs": LONG, "details": True}).json()
    assert answer["details"]["truncated"] == ["/inputs"]


def test_truncated_texts_are_counted_by_model(every_client):
    def count() -> float:
        families = text_string_to_metric_families(every_client.get("/metrics").text)
        labels = {"model": "tiny-classify", "task": "classify"}
        (found,) = (
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "swiftlet_truncated_texts_total" and sample.labels == labels
        )
        return found

    before = count()
    every_client.post("/classify", json={"inputs": [LONG, "b", LONG]})
    every_client.post("/classify", json={"inputs": [LONG], "parameters": {"truncation": False}})
    assert count() == before + 2


def test_log_has_at_most_one_line_a_minute(caplog):
    caplog.set_level(logging.INFO)
    observe = TruncationLog().observe
    for second, model, texts, accepted in (
        (0.0, "one", 2, True),
        (1.0, "one", 3, True),
        (2.0, "two", 1, True),
        (3.0, "two", 0, True),
        (TRUNCATION_LOG_S - 1, "one", 1, False),
        (TRUNCATION_LOG_S, "one", 1, True),
        (TRUNCATION_LOG_S + 1, "one", 1, True),
    ):
        record = RequestRecord(model=model, truncated=("/inputs",) * texts, ended=second, accepted=accepted)
        observe(record)

    told = [record.getMessage().partition(": ")[2].partition(";")[0] for record in caplog.records]
    assert told == ["2 by one", "4 by one, 1 by two"]
