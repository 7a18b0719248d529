"""Calibration by the type of question, on examples whose truth is known."""

from __future__ import annotations

import math
import random

import pytest

from swiftlet_models.calibration import fit_temperature
from swiftlet_serve.errors import SetupError
from swiftlet_serve.offline import type_fits
from swiftlet_serve.offline.type_fits import Example

COUNT = 1500


def drawn(temperature: float, offset: float) -> list[Example]:
    """Returns examples of two labels. A text has a label with the chance sigmoid((odds + offset) / temperature)."""
    pick = random.Random(1)
    found = []
    for _ in range(COUNT):
        right = next(
            odds for odds in iter(lambda: pick.gauss(-offset, 3), None) if true(odds, temperature, offset, pick)
        )
        wrong = next(
            odds for odds in iter(lambda: pick.gauss(-offset, 3), None) if not true(odds, temperature, offset, pick)
        )
        found.append(Example([right, wrong], 0, 1))
    return found


def true(odds: float, temperature: float, offset: float, pick: random.Random) -> bool:
    return pick.random() < 1 / (1 + math.exp(-(odds + offset) / temperature))


def test_predicates_get_the_temperature_and_the_offset_that_made_the_truth():
    found = type_fits.predicate(drawn(2.0, 1.5), 1.0, None, exclusive=False)

    assert (found.temperature, found.offset) == (pytest.approx(2.0, rel=0.15), pytest.approx(1.5, abs=0.3))
    assert found.calibrated_error < 0.05 < 3 * found.calibrated_error < found.raw_error
    assert (found.threshold, found.coverage) == (0.0, 1.0)


def test_predicates_of_a_classifier_keep_the_temperature_of_choices():
    found = type_fits.predicate(drawn(2.0, 0.0), 1.5, None, exclusive=True)

    assert (found.temperature, found.offset) == (1.5, 0.0)


@pytest.mark.parametrize("precision", [0.9, 0.97])
def test_precision_holds_on_other_examples(precision):
    cases = drawn(1.0, 0.0)
    predicate = type_fits.predicate(cases, 1.0, precision, exclusive=False)
    temperature = fit_temperature([case.odds for case in cases[::2]], [0] * len(cases[::2]))
    choice = type_fits.choice(cases, temperature, precision)

    for found in (predicate, choice):
        assert found.precision is not None
        assert precision - 0.02 < found.precision
        assert 0 < found.coverage <= 1


def test_precision_that_no_answers_reach_is_an_error():
    cases = [Example([0.0, 1.0], number % 2, 1 - number % 2) for number in range(200)]

    with pytest.raises(SetupError, match="type choice are right in 99 %"):
        type_fits.choice(cases, 1.0, 0.99)


def test_wrong_labels_take_turns_and_are_never_the_right_one():
    found = type_fits.examples([[0.0, 1.0, 2.0]] * 6, [0, 1, 2] * 2)

    assert all(one.wrong != one.right for one in found)
    assert {one.wrong for one in found if one.right == 0} == {1, 2}
