"""The workload: request bodies of the tasks, each with the route that its form implies.

Of 100 default requests 60 classify, 20 ask a question and 20 fill a mask. Half of the texts to classify are one
sentence. One in twenty fills the model's window, as long reviews, tickets and pages do. Other tasks are asked only if
they are named.
"""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

TEXTS: Final = Path(__file__).parent / "texts.toml"
MASK: Final = "[MASK]"
LONG_BYTES: Final = 400  # a body of more bytes is long
TASKS: Final = {"/classify": 0.6, "/qa": 0.2, "/fill-mask": 0.2}
OTHERS: Final = {"/embed": 0.6, "/rerank": 0.1, "/entities": 0.2, "/zero-shot": 0.1, "/score": 0.2}
# Shares of texts to classify, by their smallest and largest number of sentences.
SENTENCES: Final = {(1, 1): 0.5, (2, 3): 0.3, (4, 10): 0.15, (20, 35): 0.05}
RESPONSE_FIELDS: Final = {
    "/classify": b'"label"',
    "/qa": b'"answer"',
    "/fill-mask": b'"token_str"',
    "/embed": b"[[",
    "/rerank": b'"index"',
    "/entities": b"[",  # there may be none
    "/zero-shot": b'"label"',
    "/score": b'"log_likelihood"',
}


@dataclass(frozen=True, slots=True)
class Body:
    path: str
    data: bytes

    def is_answered_by(self, response: bytes) -> bool:
        """Whether a response body has the field that this task's responses have."""
        return RESPONSE_FIELDS[self.path] in response


def default_workload(count: int, seed: int = 1, tasks: Collection[str] = TASKS.keys()) -> list[Body]:
    """Returns bodies of built-in texts for these routes. Equal seeds give equal bodies."""
    texts, draw = tomllib.loads(TEXTS.read_text("utf-8")), random.Random(seed)
    make = {"/qa": _qa, "/fill-mask": _fill_mask, "/rerank": _rerank, "/zero-shot": _zero_shot}
    weights = {path: weight for path, weight in (TASKS | OTHERS).items() if path in tasks}
    paths = draw.choices(list(weights), list(weights.values()), k=count)
    return [Body(path, json.dumps(make.get(path, _text)(texts, draw)).encode()) for path in paths]


def _text(texts: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    ((fewest, most),) = draw.choices(list(SENTENCES), list(SENTENCES.values()))
    return {"inputs": " ".join(draw.choices(texts["sentences"], k=draw.randint(fewest, most)))}


def _qa(texts: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Returns a question on one of up to three passages."""
    passages = draw.sample(texts["passages"], draw.choice([1, 1, 2, 3]))
    context = "\n".join(passage["context"] for passage in passages)
    return {"inputs": {"question": draw.choice(draw.choice(passages)["questions"]), "context": context}}


def _fill_mask(texts: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    words = " ".join(draw.choices(texts["sentences"], k=draw.choice([1, 1, 1, 2]))).split()
    words[draw.randrange(len(words))] = MASK
    return {"inputs": " ".join(words), "parameters": {"top_k": 5}}


def _rerank(texts: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Returns a question with ten sentences to rank."""
    question = draw.choice(draw.choice(texts["passages"])["questions"])
    return {"inputs": {"query": question, "texts": draw.choices(texts["sentences"], k=10)}}


def _zero_shot(texts: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    return {
        "inputs": draw.choice(texts["sentences"]),
        "parameters": {"candidate_labels": "praise, complaint, question"},
    }


def read_workload(paths: Sequence[Path]) -> list[Body]:
    """Reads bodies from files, one on each line.

    Raises:
        ValueError: a line is not a body of a task.
    """
    return [Body(route_of(line), line) for path in paths for line in path.read_bytes().splitlines() if line.strip()]


def route_of(data: bytes) -> str:
    """Returns the route of a body.

    Raises:
        ValueError: it is not a body of a task.
    """
    body = json.loads(data)
    if not isinstance(body, dict) or "inputs" not in body:
        raise ValueError('A body must be a JSON object with the field "inputs".')
    first = body["inputs"][0] if isinstance(body["inputs"], list) and body["inputs"] else body["inputs"]
    if isinstance(first, dict):
        return "/qa" if first.keys() & {"question", "questions"} else "/classify"
    return "/fill-mask" if MASK in first else "/classify"
