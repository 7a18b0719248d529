"""The count of items and fields in JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from swiftlet_serve.http.endpoints.bodies import FEW, PART, has_more_items

WORDS = ["", "a", ",", "[{,", '"', '\\"', "\\", "\\\\", '",[', "é,", "\u2028[", "\n", '\\",{']


def count(value: Any) -> int:
    """Returns the items and fields of all lists and objects; an empty one counts as one."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else max(1, len(inner)) + sum(map(count, inner))


def draw(pick: random.Random, depth: int = 0) -> Any:
    kind = pick.randrange(5 if depth < 4 else 3)
    if kind < 2:
        return "".join(pick.choices(WORDS, k=pick.randrange(5)))
    if kind == 2:
        return pick.choice([1, -2.5, None, True])
    if kind == 3:
        return [draw(pick, depth + 1) for _ in range(pick.randrange(6))]
    return {"".join(pick.choices(WORDS, k=3)) + str(i): draw(pick, depth + 1) for i in range(pick.randrange(6))}


@pytest.mark.parametrize("seed", range(300))
def test_exceeds_counts_exactly_whatever_strings_hold(seed):
    pick = random.Random(seed)
    value = [draw(pick)]
    text = json.dumps(value, ensure_ascii=pick.random() < 0.5, indent=pick.choice([None, 2])).encode()
    expected = count(value)

    assert not has_more_items(text, expected)
    assert has_more_items(text, expected - 1)
    assert has_more_items(bytearray(text), expected - 1)


@pytest.mark.parametrize("seed", range(20))
def test_exceeds_counts_across_the_parts_of_a_long_text(seed):
    """The first part ends within the drawn values, or within the backslashes before them."""
    pick = random.Random(seed)
    most = (PART - len(json.dumps(["0"] * FEW))) // 2
    value = [["0"] * FEW, "\\" * pick.randrange(most - 1500, most), *(draw(pick) for _ in range(300))]
    text = json.dumps(value, ensure_ascii=pick.random() < 0.5).encode()

    assert not has_more_items(text, count(value))
    assert has_more_items(text, count(value) - 1)


@pytest.mark.parametrize("shift", [-401, -400, -399, -1, 0, 1])
def test_a_number_is_too_long_wherever_a_part_ends(shift):
    """Numbers in strings do not count, but those outside do, also of texts with few items."""
    for digits, refused in ((400, False), (401, True)):
        number = b"1" * digits
        before = b'["' + b" " * (2 * PART + shift - 4)
        assert has_more_items(before + b'",' + number + b"]", 1 << 16) == refused
        assert not has_more_items(before + number + b'"]', 1 << 16)


@pytest.mark.parametrize("after", [b"", b"]", b'"', b'\\"', b"\\", b'", "', b'}"\\'])
def test_exceeds_counts_what_a_parser_reads_of_invalid_json(after):
    """A parser stops at the first error. What follows must not hide the items before it."""
    assert has_more_items(b'{"a": [' + b"1," * 50 + after, 49)


@pytest.mark.parametrize(
    ("items", "allowed"),
    [
        (["1"] * 9000, True),
        (["-123456789012345678"] * 9000, True),
        (['"1234567890123456789"'] * 9000, True),
        (["1"] * 8999 + ["1234567890123456789"], False),
        (['{"a":1,"b":2,"c":3}'] * 3000, True),
        (['{"a":1,"b":2,"c":3}'] * 3100, False),
        (["[]"] * 8_000, True),
        (["[]"] * 8_500, False),
        (["1"] * 65_000, True),
        (["1"] * 66_000, False),
        (["1234567890123456789"] * 4000, True),
        (["1" * 400] * 400, True),
        (["1" * 4000] * 100, False),
        ([f'"{"1" * 4000}"'] * 100, True),
    ],
)
def test_text_with_many_items_has_few_fields_and_small_numbers(items, allowed):
    assert has_more_items(f'{{"a":[{",".join(items)}]}}'.encode(), 1 << 16) != allowed
