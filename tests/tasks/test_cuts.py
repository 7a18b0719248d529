"""Texts cut as a client asks, in tasks whose models read a text with a prompt, a prefix or fillers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from swiftlet_models.artifact import Embedding, MultiVector, PairPrompt, Reading
from swiftlet_models.encodings import Encoding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks import classify, embed, rerank
from swiftlet_serve.tasks._requests import Cut
from tests.support.task_requests import LABELS, MAX_TOKENS, manifest

TEXT = "꿀벌은 춤으로 말한다 🐝, and a long film was made of it in the warm summer rain."
QUERY = "which animals talk and dance in the rain"
PROMPTS = {"query": "find ", "document": "a page: "}


def encoded(task: Any, cut: Cut, inputs: Any, **fields: Any) -> list[Encoding]:
    request = task.Request.model_validate_json(json.dumps({"inputs": inputs, **fields}))
    encodings: list[Encoding] = task.encode(request.cutting(cut))
    return encodings


def least(task: Any, inputs: Any) -> Any:
    """Returns the smallest limit that the error of a request for one token names. One less is refused, too."""
    limits = []
    for tokens in (1, 2, 3):
        with pytest.raises(Unprocessable) as caught:
            encoded(task, Cut(tokens), inputs)
        (fault,) = caught.value.field_errors
        assert (fault.pointer, fault.code) == ("/parameters/tokens", "no_token_left")
        limits.append(fault.limit)
        if fault.limit == tokens + 1:
            break
    assert len(set(limits)) == 1
    return limits[0]


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.ids([text])[0].tolist()
    return ids


def ids(encoding: Encoding) -> list[int]:
    return encoding.input_ids.tolist()


def ranked(query: str, *texts: str) -> dict[str, Any]:
    return {"query": query, "texts": texts}


def test_a_limit_leaves_a_token_of_each_text(tokenizer: Tokenizer) -> None:
    classifier = classify.create(tokenizer, manifest("classify", 3, LABELS, "single_label"))
    pairs = rerank.create(tokenizer, manifest("rerank", 1, ("score",), "single_label"))
    embedder = embed.create(tokenizer, replace(manifest("embed", 4), embedding=Embedding("mean")))
    ranker = rerank.create(tokenizer, embedder_manifest(MultiVector(4, prefixes={"query": 5, "document": 6})))

    assert [least(task, TEXT) for task in (classifier, embedder)] == [3, 3]
    assert len(encoded(classifier, Cut(3), TEXT)[0].input_ids) == 3
    assert least(embedder, TEXT) == 3
    pair = {"text": TEXT, "text_pair": TEXT}
    with pytest.raises(Unprocessable):
        encoded(classifier, Cut(4), pair)
    assert ids(encoded(classifier, Cut(5), pair)[0])[1::2] == [text_ids(tokenizer, TEXT)[0]] * 2
    with pytest.raises(Unprocessable):
        encoded(pairs, Cut(4), ranked(QUERY, TEXT))
    assert [len(one.input_ids) for one in encoded(pairs, Cut(5), ranked(QUERY, TEXT, "a"))] == [5, 5]
    prompt = len(text_ids(tokenizer, PROMPTS["document"]))
    with pytest.raises(Unprocessable):
        encoded(ranker, Cut(3 + prompt), ranked("a", TEXT))
    (_, text) = encoded(ranker, Cut(4 + prompt), ranked("a", TEXT))
    assert (len(text.input_ids), text.input_ids[1]) == (4 + prompt, 6)
    for tokens in (MAX_TOKENS, 9999):  # more than the model reads
        assert len(encoded(classifier, Cut(tokens), TEXT * 9)[0].input_ids) == MAX_TOKENS


def test_a_limit_that_the_model_bounds_is_no_fault_of_the_request(tokenizer: Tokenizer) -> None:
    """Its own limit leaves nothing beside a long prompt. An error never names a limit above it."""
    several = MultiVector(4, query_tokens=4, prefixes={"query": 5})
    ranker = rerank.create(tokenizer, embedder_manifest(several))
    expected = [ids(one) for one in encoded(ranker, Cut(), ranked("a", "b"))]
    assert [ids(one) for one in encoded(ranker, Cut(MAX_TOKENS), ranked("a", "b"))] == expected
    with pytest.raises(Unprocessable) as caught:
        encoded(ranker, Cut(2), ranked("a", "b"))
    (fault,) = caught.value.field_errors
    assert fault.limit == 4
    assert encoded(ranker, Cut(MAX_TOKENS, "left", 2), ranked("a b c d", "b"))


def test_texts_that_were_cut_are_told_apart(tokenizer: Tokenizer) -> None:
    """The query by its own limit, a text by its own limit or the model's. Errors name the limit that was exceeded."""
    end = " in: " if tokenizer.marks_continuation else "[SEP]"
    about = manifest("rerank", 1, ("score",), "single_label")
    prompted = replace(about, reading=Reading(pair_prompt=PairPrompt(("[CLS] find ", "query", end), "[SEP]")))
    inputs, cut = ranked("a b c d e", "a", "a b c", "a " * 99), Cut(query_tokens=3, document_tokens=2)
    refusing = {"parameters": {"truncation": False}}
    for each in (about, prompted, embedder_manifest()):
        ranker = rerank.create(tokenizer, each)
        assert ranker.truncated(encoded(ranker, cut, inputs)) == ["/inputs/query", "/inputs/texts/1", "/inputs/texts/2"]
        assert ranker.truncated(encoded(ranker, Cut(), inputs)) == ["/inputs/texts/2"]
        for own, pointer, limit in (
            (cut, "/inputs/query", 3),
            (cut._replace(query_tokens=9), "/inputs/texts/1", 2),
            (Cut(), "/inputs/texts/2", MAX_TOKENS),
        ):
            with pytest.raises(Unprocessable) as caught:
                encoded(ranker, own, inputs, **refusing)
            (fault,) = caught.value.field_errors
            assert (fault.pointer, fault.limit) == (pointer, limit)
        with pytest.raises(Unprocessable):  # in any case: it is no fault of one text
            encoded(ranker, cut, inputs, partial=True, **refusing)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_prompt_longer_than_the_limit_is_cut(tokenizer: Tokenizer, side: Any) -> None:
    about = Embedding("mean", prompts={"query": "a ", "document": "a long page: " * MAX_TOKENS})
    ranker = rerank.create(tokenizer, replace(manifest("embed", 4), embedding=about))
    for cut in (Cut(side=side), Cut(side=side, document_tokens=3)):
        (_, text) = encoded(ranker, cut, ranked("a", TEXT))
        assert len(text.input_ids) == MAX_TOKENS


def embedder_manifest(several: MultiVector | None = None) -> Any:
    about = Embedding("mean", prompts=PROMPTS, multi_vector=several, vector=several is None)
    return replace(manifest("embed", 4), embedding=about)


@pytest.mark.parametrize("side", ["left", "right"])
def test_limits_of_query_and_texts_do_not_count_prompts_and_special_tokens(tokenizer: Tokenizer, side: Any) -> None:
    """The prompt of an embedding model stays."""
    cut = Cut(side=side, query_tokens=3, document_tokens=5)
    found = encoded(rerank.create(tokenizer, embedder_manifest()), cut, ranked(QUERY, TEXT))
    for one, prompt, text, size in zip(found, PROMPTS.values(), (QUERY, TEXT), (3, 5), strict=True):
        start, whole = text_ids(tokenizer, prompt), text_ids(tokenizer, prompt + text)
        kept = next((i for i, pair in enumerate(zip(start, whole, strict=False)) if len({*pair}) > 1), len(start))
        text_tokens = whole[kept:][:size] if side == "right" else whole[-size:]
        assert ids(one)[1:-1] == whole[:kept] + text_tokens
        assert one.left_out == len(whole) - kept - size

    (pair,) = encoded(
        rerank.create(tokenizer, manifest("rerank", 1, ("score",), "single_label")), cut, ranked(QUERY, TEXT)
    )
    query, text_tokens = text_ids(tokenizer, QUERY), text_ids(tokenizer, TEXT)
    kept = (query[:3], text_tokens[:5]) if side == "right" else (query[-3:], text_tokens[-5:])
    assert (ids(pair)[1:4], ids(pair)[5:-1]) == kept
    assert pair.left_out == len(query) + len(text_tokens) - 8


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompt_around_a_pair_is_never_cut(tokenizer: Tokenizer, side: Any) -> None:
    end = " in: " if tokenizer.marks_continuation else "[SEP]"  # which no token of the text crosses
    prompt = PairPrompt(("[CLS] find ", "query", end), "[SEP]")
    about = replace(manifest("rerank", 1, ("score",), "single_label"), reading=Reading(pair_prompt=prompt))
    task = rerank.create(tokenizer, about)
    (whole,) = encoded(task, Cut(), ranked(QUERY, TEXT))
    before = ids(whole)[: -len(text_ids(tokenizer, TEXT)) - 1]

    (found,) = encoded(task, Cut(side=side, document_tokens=4), ranked(QUERY, TEXT))
    text = text_ids(tokenizer, TEXT)
    assert ids(found) == [*before, *(text[:4] if side == "right" else text[-4:]), ids(whole)[-1]]
    assert found.left_out == len(text) - 4
    (found,) = encoded(task, Cut(len(before) + 3, side), ranked(QUERY, TEXT))
    assert ids(found) == [*before, *(text[:2] if side == "right" else text[-2:]), ids(whole)[-1]]
    with pytest.raises(Unprocessable, match="at most are read"):
        encoded(task, Cut(len(before) + 1, side), ranked(QUERY, TEXT))

    (query,) = tokenizer.cutting(side).tokenize([QUERY], 3)
    shorter = QUERY[query.offsets[0, 0] : query.offsets[-1, 1]]
    (found,) = encoded(task, Cut(side=side, query_tokens=3), ranked(QUERY, TEXT))
    (expected,) = encoded(task, Cut(), ranked(shorter, TEXT))
    assert (ids(found), found.left_out) == (ids(expected), query.left_out)
    assert query.left_out >= 5


def test_windows_and_other_requests_are_cut_as_the_model_does(tokenizer: Tokenizer) -> None:
    task = classify.create(tokenizer, manifest("classify", 3, LABELS, "single_label"))
    request = task.Request(inputs=[TEXT * 9, "a"], partial=True)
    whole = [ids(one) for one in task.encode(request)]
    assert len(whole[0]) == MAX_TOKENS
    parts = task.split(request.cutting(Cut(7, "left")))
    assert [ids(one) for part in parts for one in task.encode(part)][1] == whole[1]
    assert ids(task.encode(parts[0])[0])[1:-1] == text_ids(tokenizer, TEXT * 9)[-5:]
