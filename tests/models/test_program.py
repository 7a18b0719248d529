"""Rewrites of programs."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import swiftlet_models.ragged.operations
import swiftlet_models.ragged.plan
import tests.support.native_kernels
from swiftlet_models.graphs import ragged
from swiftlet_models.program import Attend, Block, Multiply, Norm, Place, Program, Read, Step, joined, reading_late
from swiftlet_serve.engines import _kernel_selection, _program_numbers

EXECUTORS = (
    _program_numbers,
    ragged,
    swiftlet_models.ragged.operations,
    swiftlet_models.ragged.plan,
    tests.support.native_kernels,
)
WIDTHS = {"x": 8, "normed": 8, "query": 16, "key_value": 16, "attended": 8, "y": 8}
NORM = Norm("normed", "x", "norm", 1e-5)
KEY_VALUE, QUERY = Multiply("key_value", "normed", "key_value"), Multiply("query", "normed", "query")
ATTEND = Attend(
    "attended", Place("query", 0, 8), Place("key_value", 0, 8), Place("key_value", 8, 8), heads=2, key_heads=2
)
ADD = Multiply("x", "attended", "output", residual=Place("query", 8, 8))


def program(*steps: Step) -> Program:
    return Program((Block(steps),), WIDTHS, ("x",))


def test_products_of_a_value_are_joined_and_the_steps_that_read_them_follow():
    both = "key_value+query"
    attend = replace(ATTEND, query=Place(both, 16, 8), key=Place(both, 0, 8), value=Place(both, 8, 8))
    found = joined(program(NORM, KEY_VALUE, QUERY, ATTEND, ADD))

    assert list(found) == [NORM, Multiply(both, "normed", both), attend, replace(ADD, residual=Place(both, 24, 8))]
    assert found.widths == WIDTHS | {both: 32}


def test_products_stay_apart_that_cannot_be_joined():
    for steps in (
        (KEY_VALUE, replace(QUERY, x="x"), ATTEND),  # of two values
        (KEY_VALUE, replace(QUERY, activation="relu"), ATTEND),
        (KEY_VALUE, QUERY, Norm("query", "query", "norm", 1e-5), ATTEND),  # reads a whole output
        (KEY_VALUE, QUERY, Multiply("y", "query", "output"), ATTEND),
        (replace(QUERY, out="y"), replace(QUERY, out="x"), ADD),  # the second is the result
        (replace(QUERY, out="y"), replace(QUERY, out="y"), ADD),
    ):
        assert joined(program(*steps)) == program(*steps)


def test_a_late_read_leaves_out_the_norm_that_was_repeated_for_it():
    read = Read("x", "x")

    assert reading_late(program(NORM, KEY_VALUE, read, NORM, QUERY, ATTEND)) == program(
        NORM, KEY_VALUE, QUERY, ATTEND, read
    )
    for replaced in ("x", "normed"):
        steps = NORM, Multiply(replaced, "attended", "output"), NORM, QUERY
        assert reading_late(program(*steps, read)) == program(*steps, read)
    twice = Norm("x", "x", "norm", 1e-5)
    assert reading_late(program(twice, twice, read)) == program(twice, twice, read)


@pytest.mark.parametrize("module", EXECUTORS, ids=lambda module: module.__name__)
def test_every_executor_has_a_handler_for_every_step(module):
    tree = ast.parse(Path(module.__file__).read_text())
    handled = {
        node.cls.id for node in ast.walk(tree) if isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name)
    }

    assert {step.__name__ for step in get_args(Step)} <= handled


def test_cpp_has_a_handler_for_every_step():
    """The kinds are in the order of `Step`, whose places are their numbers."""
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", step.__name__).lower() for step in get_args(Step)]
    program, call = ((_kernel_selection.LIBRARIES / name).read_text() for name in ("program.h", "call.h"))
    kinds = re.search(r"enum class Kind : int {(.*)}", program)

    assert kinds is not None
    assert sorted(kinds[1].replace(" ", "").split(",")) == sorted(names)
    for name in names:
        assert f"case Kind::{name}:" in program
        assert f"case Kind::{name}:" in call
