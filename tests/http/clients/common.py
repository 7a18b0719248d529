"""The arguments of the programs, the texts that they send, and what they do with errors."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version

SERVERS, TEXTS = json.loads(sys.argv[1]), json.loads(sys.argv[2])
QUESTION, QUERY, LABELS = "Who?", "Who?", ["film", "서울"]
MASKED = ["the [MASK] .", "서울 [MASK] 🎬"]
LONG, END = "b " + "a " * 60, "a " * 46  # a text that is cut, and what is left of it if its beginning is
DEADLINE_MS = "100"
DEADLINE_HEADERS = {"X-Request-Timeout-Ms": DEADLINE_MS}


def failure(call, kind, message=str):
    """Returns the class and the message of the error of a call."""
    try:
        call()
    except kind as error:
        return [type(error).__name__, message(error)]
    return None


def overload(call, kind, message=str):
    """Returns the errors of two refusals, None where the client tried again by itself. Else calls once more."""
    errors = []
    for _ in range(2):
        errors.append(failure(call, kind, message))
        if errors[-1]:
            call()
    return errors


def top(answers):
    """Returns label and score of the first answer to each text."""
    return [[answer[0]["label"], answer[0]["score"]] for answer in answers]


def report(**clients):
    """Prints what the clients did. Each has its package in `package`."""
    for found in clients.values():
        found["version"] = found.get("version") or version(found.pop("package"))
    print(json.dumps(clients))
