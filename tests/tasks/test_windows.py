"""Long texts in windows: what each window reads, and how the rows of windows become one answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.artifact import Embedding
from swiftlet_models.encodings import Encoding, TooManyWindows
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks import classify, embed, rerank, zero_shot
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.tasks._vector_forms import cosine
from swiftlet_serve.types import json_text
from tests.support.task_requests import LABELS, MAX_TOKENS, encode, manifest, rejection

WIDTH = 4
LONG = " ".join(f"film {number}" for number in range(MAX_TOKENS))
QUERY_PROMPT = "find "


def ids(encodings: list[Encoding]) -> list[list[int]]:
    return [encoding.input_ids.tolist() for encoding in encodings]


def merged(windows: list[list[int]], shared: int) -> list[int]:
    """Returns the tokens of windows that share `shared` tokens with the next."""
    return windows[0] + [token for window in windows[1:] for token in window[shared:]]


@given(words=st.integers(0, 300), limit=st.integers(10, 80))
def test_windows_cover_every_token_of_a_text(tokenizer: Tokenizer, words: int, limit: int) -> None:
    text = " ".join(f"{number}" for number in range(words))
    (whole,) = tokenizer.encode([text], 100_000)
    windows = ids(tokenizer.encode_windows([text], limit, 10_000))

    assert all(len(window) <= limit for window in windows)
    assert {(window[0], window[-1]) for window in windows} == {(whole.input_ids[0], whole.input_ids[-1])}
    assert merged([window[1:-1] for window in windows], (limit - 2) // 8) == whole.input_ids[1:-1].tolist()
    assert len(windows) > 1 or len(whole.input_ids) <= limit


def test_each_window_begins_with_the_prompt(tokenizer: Tokenizer) -> None:
    (prompt,) = ids(tokenizer.encode([QUERY_PROMPT.strip()], 99))
    windows = ids(tokenizer.encode_windows([QUERY_PROMPT + LONG, "a"], 32, 99, prefix=QUERY_PROMPT))
    repeated = prompt[:-1]

    assert all(window[: len(repeated)] == repeated for window in windows[:-1])
    (whole,) = ids(tokenizer.encode([LONG], 9999))
    shared = (32 - len(prompt)) // 8
    assert merged([window[len(repeated) : -1] for window in windows[:-1]], shared) == whole[1:-1]
    assert windows[-1] == ids(tokenizer.encode(["a"], 99))[0]


@pytest.mark.parametrize(("pair", "split", "kept"), [((LONG, "a b"), None, 1), (("a b", LONG), None, 0)])
def test_the_longer_text_of_a_pair_is_split(tokenizer: Tokenizer, pair: Any, split: Any, kept: int) -> None:
    whole = ids(tokenizer.encode([pair[kept]], 99))[0][1:-1]
    windows = ids(tokenizer.encode_windows([pair], 32, 99, split=split))

    assert windows == ids(tokenizer.encode_windows([pair], 32, 99, split=1 - kept))
    assert len(windows) > 1
    for window in windows:
        assert window[-1 - len(whole) : -1] == whole if kept else window[1 : 1 + len(whole)] == whole


def test_a_text_that_fits_is_its_only_window(tokenizer: Tokenizer) -> None:
    texts: list[Any] = ["a", ("a", "b"), "a film " * 4]
    plain, windowed = tokenizer.encode(texts, MAX_TOKENS), tokenizer.encode_windows(texts, MAX_TOKENS, 3)
    assert ids(plain) == ids(windowed)
    with pytest.raises(TooManyWindows):
        tokenizer.encode_windows(texts, MAX_TOKENS, 2)


class Network:
    """Gives every token a vector. A row is their mean."""

    def __init__(self, width: int) -> None:
        self.table = np.random.default_rng(0).normal(size=(1 << 16, width))

    def __call__(self, encodings: list[Encoding]) -> list[Any]:
        return [self.table[encoding.input_ids].mean(0, keepdims=True).astype(np.float32) for encoding in encodings]


def answer(task: Any, network: Network, inputs: object, **parameters: object) -> Any:
    request = task.Request.model_validate({"inputs": inputs, "parameters": parameters})
    encodings = task.encode(request)
    return json.loads(json_text.write(task.decode(request, encodings, network(encodings))))


@pytest.fixture(params=[True, False], ids=["normalized", "raw"])
def embedder(request: Any, tokenizer: Tokenizer) -> embed.Embed:
    about = Embedding("mean", normalize=request.param, prompts={"query": QUERY_PROMPT})
    return embed.create(tokenizer, replace(manifest("embed", WIDTH), embedding=about))


def test_a_vector_is_the_mean_of_windows_weighted_by_their_tokens(embedder: embed.Embed) -> None:
    network, normalize = Network(WIDTH), embedder.embedding.normalize
    encodings = encode(embedder, LONG, truncation="window", prompt_name="query")
    rows = np.array([row[0, :3] for row in network(encodings)], np.float64)
    if normalize:
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.average(rows, 0, [len(encoding.input_ids) for encoding in encodings])
    expected /= np.linalg.norm(expected) if normalize else 1
    found = answer(embedder, network, [LONG, "a"], truncation="window", dimensions=3, prompt_name="query")

    assert len(encodings) > 2
    assert found[0] == pytest.approx(expected, abs=1e-8)
    assert found[1:] == answer(embedder, network, ["a"], dimensions=3, prompt_name="query")
    most = rows.max(0)
    most /= np.linalg.norm(most) if normalize else 1
    options = {"truncation": "window", "window": "max", "dimensions": 3, "prompt_name": "query"}
    assert answer(embedder, network, [LONG], **options)[0] == pytest.approx(most, abs=1e-8)


@pytest.mark.parametrize("function", ["softmax", "sigmoid", "none"])
def test_scores_of_windows_become_their_mean_or_the_largest(tokenizer: Tokenizer, function: Any) -> None:
    task = classify.create(tokenizer, manifest("classify", 3, LABELS, "single_label"))
    network = Network(3)
    encodings = encode(task, LONG, truncation="window")
    scores = np.array([classify.FUNCTIONS[function](row[0].tolist()) for row in network(encodings)])
    weights = [len(encoding.input_ids) for encoding in encodings]

    def found(inputs: object, **parameters: object) -> Any:
        return answer(task, network, inputs, truncation="window", function_to_apply=function, **parameters)

    expected = {"mean": np.average(scores, 0, weights), "max": scores.max(0)}
    for window, values in expected.items():
        (labels,) = found(LONG, window=window)
        assert {each["label"]: each["score"] for each in labels} == pytest.approx(
            dict(zip(LABELS, values, strict=True))
        )
        assert [each["score"] for each in labels] == sorted(values, reverse=True)
    assert found(LONG) == found(LONG, window="mean")
    assert found(["a", LONG, "b"])[::2] == answer(task, network, ["a", "b"], function_to_apply=function)


def test_rerank_takes_the_best_window(tokenizer: Tokenizer) -> None:
    task, network = rerank.create(tokenizer, manifest("rerank", 1, ("x",), "regression")), Network(1)
    inputs = {"query": "a", "texts": ["b", LONG, "c"]}
    encodings = encode(task, inputs, truncation="window")
    scores = [float(row[0, 0]) for row in network(encodings)]
    ranked = answer(task, network, inputs, truncation="window")

    assert len(scores) > 4
    assert {each["index"]: each["score"] for each in ranked} == {0: scores[0], 1: max(scores[1:-1]), 2: scores[-1]}
    weights = [len(encoding.input_ids) for encoding in encodings[1:-1]]
    means = {each["index"]: each["score"] for each in answer(task, network, inputs, truncation="window", window="mean")}
    assert means[1] == pytest.approx(np.average(scores[1:-1], weights=weights))


def test_rerank_by_vectors_takes_the_best_window(tokenizer: Tokenizer) -> None:
    about, network = replace(manifest("embed", WIDTH), embedding=Embedding("mean")), Network(WIDTH)
    task = rerank.create(tokenizer, about)
    inputs = {"query": "a", "texts": ["b", LONG]}
    query, *texts = (row[0] for row in network(encode(task, inputs, truncation="window")))
    cosines = [cosine(query, text) for text in texts]
    ranked = {each["index"]: each["score"] for each in answer(task, network, inputs, truncation="window")}

    assert ranked == {0: cosines[0], 1: max(cosines[1:])}
    long_query = {"query": LONG, "texts": ["b"]}
    assert rejection(task, long_query, truncation="window") == ("input_too_long", "/inputs/query", MAX_TOKENS)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("by_vectors", [False, True])
def test_zero_shot_reads_each_label_with_each_window(tokenizer: Tokenizer, independent: bool, by_vectors: bool) -> None:
    nli = manifest("zero-shot", 3, ("contradiction", "neutral", "entailment"), "single_label")
    about = replace(manifest("embed", WIDTH), embedding=Embedding("mean")) if by_vectors else nli
    task, network = zero_shot.create(tokenizer, about), Network(about.width)
    options = {"candidate_labels": ["film", "a long label"], "multi_label": independent}

    def found(inputs: Any, **parameters: Any) -> Any:
        ranked = answer(task, network, inputs, **options, **parameters)
        return ranked if isinstance(inputs, list) else {each["label"]: each["score"] for each in ranked}

    means, largest = found(LONG, truncation="window"), found(LONG, truncation="window", window="max")
    assert found(["a", LONG, "b"], truncation="window")[::2] == found(["a", "b"])
    if independent:
        assert all(largest[label] >= means[label] for label in means)
    else:
        assert sum(means.values()) == pytest.approx(1)
    assert means != found(LONG)


def test_errors_tell_how_long_a_text_is_and_how_many_windows_there_may_be(tokenizer: Tokenizer) -> None:
    task = classify.create(tokenizer, manifest("classify", 3, LABELS, "single_label"))
    (whole,) = tokenizer.encode([LONG], 100_000)
    with pytest.raises(Unprocessable, match=f"has {len(whole.input_ids)} tokens, and {MAX_TOKENS} at most are read"):
        encode(task, ["a", LONG], truncation=False)
    assert rejection(task, ["a " * 300] * 600, truncation="window") == ("input_too_long", "/inputs", MAX_INPUTS)
    pair = {"text": LONG, "text_pair": "a " * (MAX_TOKENS // 4)}
    assert len(encode(task, pair, truncation="window")) > 1  # the longer text is split
    crowded = {"text": "a " * MAX_TOKENS, "text_pair": "b " * MAX_TOKENS}
    assert rejection(task, crowded, truncation="window") == ("input_too_long", "/inputs", MAX_TOKENS)
    for odd in ("windows", "", 1, "true"):
        with pytest.raises(ValueError, match="validation error"):
            encode(task, "a", truncation=odd)


def test_token_ids_have_no_windows(tokenizer: Tokenizer) -> None:
    about = replace(manifest("embed", WIDTH), vocab_size=tokenizer.vocab_size, embedding=Embedding("mean"))
    request = embed.TokenIdsRequest.model_validate({"inputs": [5], "parameters": {"truncation": "window"}})
    with pytest.raises(Unprocessable, match="Send texts"):
        embed.create(tokenizer, about).encode(request)
