"""What requests ask: bodies of the three tasks, each for the route that its form tells.

Of 100 requests 60 classify, 20 ask a question and 20 fill a mask. Half of the texts that are classified are one
sentence; one in twenty fills the model's window, as the long tail of reviews, tickets and pages does.
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
TASKS: Final = {"/classify": 0.6, "/qa": 0.2, "/fill-mask": 0.2}
SENTENCES: Final = {(1, 1): 0.5, (2, 3): 0.3, (4, 10): 0.15, (20, 35): 0.05}  # of a text that is classified
SIGNS: Final = {"/classify": b'"label"', "/qa": b'"answer"', "/fill-mask": b'"token_str"'}


@dataclass(frozen=True, slots=True)
class Body:
    path: str
    data: bytes

    def answered(self, answer: bytes) -> bool:
        """Whether this may be an answer to it, and is none to something else."""
        return SIGNS[self.path] in answer


def mix(count: int, seed: int = 1, tasks: Collection[str] = TASKS.keys()) -> list[Body]:
    """Bodies of our own texts, for these routes; the same for the same seed."""
    texts, pick = tomllib.loads(TEXTS.read_text("utf-8")), random.Random(seed)
    make = {"/classify": _classify, "/qa": _qa, "/fill-mask": _fill_mask}
    weights = {path: weight for path, weight in TASKS.items() if path in tasks}
    paths = pick.choices(list(weights), list(weights.values()), k=count)
    return [Body(path, json.dumps(make[path](texts, pick)).encode()) for path in paths]


def _classify(texts: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    ((least, most),) = pick.choices(list(SENTENCES), list(SENTENCES.values()))
    return {"inputs": " ".join(pick.choices(texts["sentences"], k=pick.randint(least, most)))}


def _qa(texts: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    """A question on the first, second or third of up to three passages."""
    passages = pick.sample(texts["passages"], pick.choice([1, 1, 2, 3]))
    context = "\n".join(passage["context"] for passage in passages)
    return {"inputs": {"question": pick.choice(pick.choice(passages)["questions"]), "context": context}}


def _fill_mask(texts: dict[str, Any], pick: random.Random) -> dict[str, Any]:
    words = " ".join(pick.choices(texts["sentences"], k=pick.choice([1, 1, 1, 2]))).split()
    words[pick.randrange(len(words))] = MASK
    return {"inputs": " ".join(words), "parameters": {"top_k": 5}}


def read(paths: Sequence[Path]) -> list[Body]:
    """The bodies of files, one a line.

    Raises:
        ValueError: a line is no body of a task.
    """
    return [Body(route(line), line) for path in paths for line in path.read_bytes().splitlines() if line.strip()]


def route(data: bytes) -> str:
    """Where a body belongs.

    Raises:
        ValueError: it is no body of a task.
    """
    body = json.loads(data)
    if not isinstance(body, dict) or "inputs" not in body:
        raise ValueError("a body needs inputs")
    first = body["inputs"][0] if isinstance(body["inputs"], list) and body["inputs"] else body["inputs"]
    if isinstance(first, dict):
        return "/qa" if first.keys() & {"question", "questions"} else "/classify"
    return "/fill-mask" if MASK in first else "/classify"
