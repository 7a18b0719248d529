"""Bodies for every route of every dialect, and damages to them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from swiftlet_models.artifact import Decisions, MultiVector, Sparse
from tests.support.apps import SECRET
from tests.support.artifacts import LABELS, make_artifact, reseal
from tests.support.hostile import HEADERS, MUTATIONS, Attack, canary

TEXTS = [SECRET, f"{SECRET} 서울 🎬"]
QUESTION = {"type": "predicate", "name": SECRET, "instructions": SECRET}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]}
SCORE = {"type": "score", "instructions": SECRET, "levels": [{"label": "low"}, {"label": SECRET}]}


def tensor(name: str, *texts: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


BODIES: dict[str, Any] = {
    "/v1/embeddings": {"model": "embed", "input": TEXTS, "dimensions": 3, "encoding_format": "float"},
    "/v1/decisions": {"model": "classify", "input": SECRET, "questions": [CHOICE]},
    "/v1/decisions ": {
        "model": "zero-shot",
        "input": [{"role": "user", "content": SECRET}],
        "questions": [QUESTION, SCORE],
    },
    "/v1/systemone": {
        "model": "zero-shot",
        "state": {"a": SECRET},
        "questions": {SECRET: {"type": "noul", "instructions": SECRET, "criteria": {"true": "a", "false": "b"}}},
    },
    "/v1/classify": {"model": "classify", "input": TEXTS},
    "/classify": {"input": TEXTS},
    "/predict": {"inputs": [[SECRET], TEXTS], "truncate": True, "raw_scores": False},
    "/embed": {"inputs": TEXTS, "truncate": True, "normalize": False, "prompt_name": "query"},
    "/embed_sparse": {"inputs": TEXTS, "truncate": True},
    "/embed_all": {"inputs": TEXTS, "truncate": True, "prompt_name": "query"},
    "/tokenize": {"inputs": TEXTS, "add_special_tokens": False},
    "/tokenize ": {"model": "classify", "prompt": SECRET, "return_token_strs": True},
    "/decode": {"ids": [[2, 5], [6]], "skip_special_tokens": False},
    "/detokenize": {"model": "classify", "tokens": [2, 5, 6]},
    "/similarity": {"inputs": {"source_sentence": SECRET, "sentences": TEXTS}},
    "/rerank": {"query": SECRET, "texts": TEXTS, "raw_scores": True, "return_text": False},
    "/rerank ": {"query": SECRET, "documents": TEXTS, "top_n": 1},
    "/v2/rerank": {"model": "rerank", "query": SECRET, "documents": [TEXTS[0], {"text": TEXTS[1]}], "top_n": 1},
    "/v2/embed": {"model": "embed", "texts": TEXTS, "embedding_types": ["float", "int8"], "truncate": "END"},
    "/v1/embed": {"texts": TEXTS, "input_type": "search_query", "max_tokens": 4096},
    "/v1/rerank": {"model": "rerank", "query": SECRET, "documents": TEXTS, "max_tokens_per_doc": 4096},
    "/v1/models/classify:predict": {"instances": TEXTS, "parameters": {"top_k": 1}},
    "/vertex": {"instances": TEXTS, "parameters": {"top_k": 1}},
    "/invocations": {"model": "classify", "inputs": TEXTS, "parameters": {"top_k": 1}},
    "/models/zero-shot": {"inputs": SECRET, "parameters": {"candidate_labels": TEXTS, "multi_label": True}},
    "/v2/models/qa/infer": {
        "id": SECRET,
        "inputs": [tensor("question", *TEXTS), tensor("context", SECRET)],
        "parameters": {"top_k": 2},
        "outputs": [{"name": "answer", "parameters": {"binary_data": True}}],
    },
    "/v2/models/rerank/versions/1/infer": {"inputs": [tensor("query", SECRET), tensor("texts", *TEXTS)]},
    "/v2/models/entities/infer": {"inputs": [tensor("text", *TEXTS)], "parameters": {"stride": 2}},
}
"""A valid body for each route. A space after a path makes another key."""

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    1.5,
    1e308,
    "",
    " ",
    "\x00",
    "[",
    '["',
    "{}",
    SECRET,
    SECRET * 99,
    [],
    {},
    [[]],
    [None],
    [SECRET] * 70,
    [SECRET] * 1100,
    {"text": SECRET},
    {SECRET: SECRET},
    [[[[[[[[SECRET]]]]]]]],
    [tensor("text", SECRET)],
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the path of every value inside a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damage(body: Any, pick: random.Random) -> Any:
    """Returns a body of which one to three values are replaced, removed or doubled."""
    damaged = copy.deepcopy(body)
    for _ in range(pick.randint(1, 3)):
        every = list(places(damaged))
        if not every:
            return copy.deepcopy(pick.choice(VALUES))
        *path, key = pick.choice(every)
        parent = damaged
        for step in path:
            parent = parent[step]
        if pick.random() < 0.2:
            del parent[key]
        elif pick.random() < 0.1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif pick.random() < 0.1 and isinstance(parent, dict):
            parent[pick.choice(("extra", SECRET))] = copy.deepcopy(pick.choice(VALUES))
        else:
            parent[key] = copy.deepcopy(pick.choice(VALUES))
    return damaged


def models(directory: Path) -> tuple[str, ...]:
    """Writes a small artifact for every task. The classifier answers the predicate of `BODIES`.

    The embedding model has all outputs, whose columns the echo engine fills with any numbers.
    """
    artifacts = {task: make_artifact(directory, task) for task in LABELS}
    paths = {task: artifact.path for task, artifact in artifacts.items()}
    paths["classify"] = reseal(artifacts["classify"], decisions=Decisions(predicates={SECRET: "good"}))
    about = artifacts["embed"].manifest.embedding
    assert about is not None
    several = replace(about, sparse=Sparse("tokens"), multi_vector=MultiVector(2))
    paths["embed"] = reseal(artifacts["embed"], embedding=several)
    return tuple(map(str, paths.values()))


def attacks(seed: int, count: int) -> Iterator[Attack]:
    """Yields `count` hostile requests in all dialects, which depend on the seed only. All strings have the canary."""
    pick, paths = random.Random(seed), list(BODIES)
    for number in range(count):
        mark = canary(pick.getrandbits(32))
        path = paths[number % len(paths)]
        body = json.dumps(damage(BODIES[path], pick)).replace(SECRET, mark).encode()
        headers = {"content-type": "application/json"}
        if path.endswith("/infer") and pick.random() < 0.5:
            body, headers = _binary(path, mark, pick)
        elif pick.random() < 0.25:
            body = pick.choice(MUTATIONS)(body, mark, pick)
        if pick.random() < 0.15:
            name, value = pick.choice(HEADERS)
            headers[name] = value.replace("MARK", mark)
        yield Attack(mark, path.strip(), body, "POST", headers)


def _binary(path: str, mark: str, pick: random.Random) -> tuple[bytes, dict[str, str]]:
    """Returns an inference request with binary tensors whose lengths, sizes and shapes may lie."""
    lies = (0, 1, 3, 4, 2**31, 2**32 - 1, 2**63, -1)
    document = copy.deepcopy(BODIES[path])
    packed = b""
    for one in document["inputs"]:
        texts = [text.replace(SECRET, mark).encode() for text in one.pop("data")]
        tensor = b"".join(_lie(len(text), lies, pick).to_bytes(4, "little") + text for text in texts)
        one["parameters"] = {"binary_data_size": _lie(len(tensor), lies, pick, signed=True)}
        one["datatype"] = pick.choice(["BYTES", "BYTES", "BYTES", "FP32", "INT64", "BOOL", mark])
        one["shape"] = [_lie(size, lies, pick, signed=True) for size in one["shape"]]
        packed += tensor
    head = json.dumps(document).replace(SECRET, mark).encode()
    headers = {"content-type": "application/octet-stream"}
    headers["inference-header-content-length"] = str(_lie(len(head), lies, pick, signed=True))
    return head + packed[: len(packed) if pick.random() < 0.8 else pick.randrange(len(packed) + 1)], headers


def _lie(truth: int, lies: tuple[int, ...], pick: random.Random, *, signed: bool = False) -> int:
    """Returns the number, or in one of six cases another one."""
    return (
        truth if pick.random() < 5 / 6 else pick.choice(lies if signed else [lie for lie in lies if 0 <= lie < 2**32])
    )
