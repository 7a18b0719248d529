"""Hostile requests: valid ones that a seeded generator mutates, with a canary in every string."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

TASKS: Final = ("classify", "qa", "fill-mask")
CANARY: Final = re.compile(r"zqx[0-9a-f]{8}")
MAX_ERROR_BYTES: Final = 2048
MAX_ANSWER_BYTES: Final = 1 << 16
ANSWER_SHARE: Final = 16  # of the body's bytes
ECHOED: Final = frozenset({"answer", "sequence", "targets"})  # fields of a response that contain text by definition


def canary(number: int) -> str:
    """Returns a word that does not occur by chance."""
    return f"zqx{number:08x}"


@dataclass(frozen=True)
class Attack:
    """A request, and the canary that the response must not contain."""

    canary: str
    path: str
    body: bytes
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


class Raw(str):
    """JSON that is inserted into a body verbatim, well-formed or not."""

    __slots__ = ()


def dump(value: Any) -> str:
    """Returns a value as JSON, with `Raw` parts verbatim."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(key)}: {dump(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return json.dumps(value)


DEEP: Final = 300_000
STRINGS: Final = [
    "", " ", "\\u200b\\u2060\\u00ad", "\\ud800", "\\udc00\\ud800MARK", "\\u0000MARK", "\\u0007\\u001b[31m",
    "\\ufeff", "\\u202eMARK", "e\\u0301" * 2000, "MARK " * 3000, "MARK" * 9000, "\\ud83d\\ude00" * 500,
    "[SEP] MARK [CLS] [PAD]", "[MASK]", "[MASK] " * 65, "[MASK]" * 1000, "<mask>", "x" * 100_000, "! " * 50_000,
    "..%2f..%2fMARK", "\\r\\nX-Injected: MARK", '{\\"MARK\\": 1}', "\\x41", "\\u12", "\n", "tiny-qa",
]  # fmt: skip
OTHERS: Final = [
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1E-400", "9" * 5000, "-" + "9" * 20, "-0", "01", "0x10",
    "5.0", "1e2", "0", "-1", "1000000000", "4294967296", "true", "false", "null", "[]", "{}", "[[]]", "[{}]", "[null]",
    "[" * 200 + "]" * 200, "[" * DEEP, "[" * DEEP + "]" * DEEP, '{"a":' * DEEP, "[" + '"MARK", ' * 80 + '"MARK"]',
    '{"MARK": "MARK"}', '{"text": "MARK"}', '{"text": "MARK", "text": 5}', '"MARK', "MARK", "",
    '{"question": "MARK", "context": ["MARK"]}', "'single'", "undefined", "/* */ 1", "+1", ".5", "1.",
]  # fmt: skip
VALUES: Final = [f'"{string}"' for string in STRINGS] + OTHERS
"""Replacements for any value. MARK stands for the canary."""


def value(mark: str, pick: random.Random) -> Raw:
    return Raw(pick.choice(VALUES).replace("MARK", mark))


def valid(task: str, mark: str, pick: random.Random) -> dict[str, Any]:
    """Returns a valid body with the canary in every text."""
    inputs: Any
    if task == "classify":
        inputs = pick.choice([mark, {"text": mark, "text_pair": mark}, [mark, {"text": mark}]])
        parameters: dict[str, Any] = {"top_k": 2, "function_to_apply": "softmax", "truncation": True}
    elif task == "qa":
        one = {"question": f"{mark}?", "context": f"It is {mark}."}
        inputs = pick.choice([one, [one, one], {"question": [mark, mark], "context": mark}])
        parameters = {"top_k": 2, "max_answer_len": 5, "align_to_words": False, "handle_impossible_answer": True}
    else:
        inputs = pick.choice([f"{mark} [MASK]", [f"{mark} [MASK]", f"[MASK] {mark} [MASK]"]])
        parameters = {"top_k": 2, "targets": ["a", mark], "truncation": True}
    return {"inputs": inputs, "parameters": parameters, "model": f"tiny-{task}", "options": {"use_cache": True}}


def attacks(seed: int, count: int) -> Iterator[Attack]:
    """Yields `count` hostile requests, which depend on the seed only."""
    pick = random.Random(seed)
    for number in range(count):
        mark = canary(pick.getrandbits(32))
        yield _attack(TASKS[number % len(TASKS)], mark, pick)


def _attack(task: str, mark: str, pick: random.Random) -> Attack:
    body: Any = valid(task, mark, pick)
    for _ in range(pick.choice([0, 1, 1, 1, 2, 3])):
        body = pick.choice(CHANGES)(body, mark, pick)
    data = dump(body).encode()
    if data and pick.random() < 0.25:
        data = pick.choice(MUTATIONS)(data, mark, pick)
    path, method, headers = f"/{task}", "POST", {"content-type": "application/json"}
    if pick.random() < 0.1:
        path = pick.choice([f"/{mark}", f"/{task}/{mark}", f"/{task}?{mark}={mark}", f"/..%2f{mark}", f"//{task}"])
    if pick.random() < 0.05:
        method = pick.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", mark.upper()])
    if pick.random() < 0.15:
        name, value = pick.choice(HEADERS)
        headers[name] = value.replace("MARK", mark)
    return Attack(mark, path, data, method, headers)


Change = Callable[[Any, str, random.Random], Any]


def _replace(body: Any, mark: str, pick: random.Random) -> Any:
    """Replaces a value at any depth."""
    if isinstance(body, dict) and body and pick.random() < 0.85:
        key = pick.choice(list(body))
        return body | {key: _replace(body[key], mark, pick)}
    if isinstance(body, list) and body and pick.random() < 0.7:
        place = pick.randrange(len(body))
        return [*body[:place], _replace(body[place], mark, pick), *body[place + 1 :]]
    return value(mark, pick)


def _rename(body: Any, mark: str, pick: random.Random) -> Any:
    if not isinstance(body, dict) or not body:
        return [body]
    key = pick.choice(list(body))
    new = pick.choice([mark, Raw(f'"\\ud800{mark}"'), Raw(f'"{key}\\u0000"'), Raw(mark), Raw(f'"{key}": 1, "{key}"')])
    return {new if name == key else name: value for name, value in body.items()}


def _add(body: Any, mark: str, pick: random.Random) -> Any:
    if not isinstance(body, dict):
        return [body, mark]
    inner = [key for key, value in body.items() if isinstance(value, dict)]
    if inner and pick.random() < 0.6:
        key = pick.choice(inner)
        return body | {key: _add(body[key], mark, pick)}
    return body | {
        pick.choice([mark, f"{mark}/~", "__class__", "partial"]): pick.choice([mark, True, value(mark, pick)])
    }


def _drop(body: Any, mark: str, pick: random.Random) -> Any:
    return {key: value for key, value in body.items() if pick.random() < 0.5} if isinstance(body, dict) else None


def _many(body: Any, mark: str, pick: random.Random) -> Any:
    if not isinstance(body, dict) or "inputs" not in body:
        return [body] * 3
    count = pick.choice([0, 1, 1, 3, 3, 64, 65, 1000])
    return body | {"inputs": Raw(f"[{', '.join([dump(body['inputs'])] * count)}]"), "partial": pick.random() < 0.5}


CHANGES: Final[list[Change]] = [_replace, _replace, _replace, _rename, _add, _drop, _many]

Mutation = Callable[[bytes, str, random.Random], bytes]


def _flip(data: bytes, mark: str, pick: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(pick.choice([1, 1, 3, 20])):
        mutated[pick.randrange(len(mutated))] ^= 1 << pick.randrange(8)
    return bytes(mutated)


def _insert(data: bytes, mark: str, pick: random.Random) -> bytes:
    place = pick.randrange(len(data))
    junk = pick.choice([b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"}", b'"', mark.encode()])
    return data[:place] + junk + data[place:]


MUTATIONS: Final[list[Mutation]] = [
    _flip,
    _insert,
    lambda data, mark, pick: data[: pick.randrange(len(data))],
    lambda data, mark, pick: data[pick.randrange(len(data)) :],
    lambda data, mark, pick: data + pick.choice([b" ", data, b"\x00", mark.encode()]),
    lambda data, mark, pick: data.decode().encode(pick.choice(["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7"])),
    lambda data, mark, pick: pick.randbytes(pick.choice([1, 10, 1000])),
    lambda data, mark, pick: b"",
]

HEADERS: Final = [
    ("content-type", "text/plain"),
    ("content-type", "MARK/json"),
    ("content-type", "application/json; charset=MARK"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-type", "application/json;;;"),
    ("content-type", "multipart/form-data; boundary=MARK"),
    ("content-encoding", "gzip"),
    ("content-encoding", "MARK"),
    ("content-encoding", "identity, br"),
    ("x-request-timeout-ms", "MARK"),
    ("x-request-timeout-ms", "-1"),
    ("x-request-timeout-ms", "1e3"),
    ("x-request-timeout-ms", "9" * 400),
    ("x-request-id", "MARK MARK"),
    ("x-request-id", "MARK" + "a" * 200),
    ("x-amzn-trace-id", '"MARK"'),
    ("accept", "MARK/*"),
    ("accept-language", "MARK"),
    ("authorization", "Bearer MARK"),
    ("cookie", "MARK=MARK"),
    ("x-forwarded-for", "MARK"),
    ("expect", "MARK"),
    ("range", "bytes=0-MARK"),
]


def complaint(attack: Attack, status: int, headers: str, body: bytes) -> str | None:
    """Returns what is wrong with the response to an attack; None if it is correct. Contains no text of the attack."""
    if status >= 500:
        return f"status {status}"
    limit = max(MAX_ANSWER_BYTES, ANSWER_SHARE * len(attack.body)) if status == 200 else MAX_ERROR_BYTES
    if len(body) > limit:
        return f"{len(body)} bytes with status {status}"
    if status != 200 and attack.method != "HEAD" and "application/problem+json" not in headers:
        return f"status {status} without a problem"
    content = body.decode() if status != 200 else json.dumps(_without_text(json.loads(body or b"null")))
    if attack.canary in (headers + content).lower():
        return f"an echo with status {status}"
    return None


def _without_text(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: _without_text(value) for key, value in answer.items() if key not in ECHOED}
    if isinstance(answer, list):
        return [_without_text(each) for each in answer]
    return answer
