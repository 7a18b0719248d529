"""Calibration by the type of question: fits on every other example, and what they do to the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from swiftlet_models import calibration
from swiftlet_models.artifact import Fit
from swiftlet_models.calibration import Bin
from swiftlet_serve.errors import SetupError

LEAST: Final = 20  # cases that each half needs: a bin of the error then has one or two
DIGITS: Final = 4
EVEN: Final = 0.5  # the probability above which the answer to a predicate is yes


@dataclass(frozen=True)
class TypeFit:
    """The fit of a type of question, and what it does to other examples. All but the first two are from 0 to 1."""

    temperature: float
    offset: float
    threshold: float
    raw_error: float  # the expected calibration error without the fit
    calibrated_error: float  # and with it
    precision: float | None  # the share of right ones among the answers that are not refused; None if all are
    coverage: float  # the share of answers that are not refused
    raw_bins: Sequence[Bin]
    calibrated_bins: Sequence[Bin]

    @property
    def fit(self) -> Fit:
        return Fit(self.temperature, self.offset, self.threshold)


class Example(NamedTuple):
    """The log-odds of the labels of a text."""

    odds: Sequence[float]
    right: int
    """The position of its label."""
    wrong: int
    """The position of another label, which the text does not have."""


class Outcomes(NamedTuple):
    """Probabilities, and whether what they are of is true."""

    probabilities: Sequence[float]
    true: Sequence[bool]

    @property
    def bins(self) -> list[Bin]:
        return calibration.reliability(self.probabilities, self.true)

    def answers(self) -> Outcomes:
        """Returns the outcomes of predicates' answers: the answer to an unlikely one is no."""
        return Outcomes(
            [max(likely, 1 - likely) for likely in self.probabilities],
            [(likely > EVEN) == true for likely, true in zip(self.probabilities, self.true, strict=True)],
        )


def examples(rows: Sequence[Sequence[float]], right: Sequence[int]) -> list[Example]:
    """Returns examples, given the log-odds of each text and the position of its label. The wrong labels take turns."""
    return [
        Example(row, label, (label + 1 + number // 2 % (len(row) - 1)) % len(row))  # in each half of the examples
        for number, (row, label) in enumerate(zip(rows, right, strict=True))
    ]


def choice(cases: Sequence[Example], temperature: float, precision: float | None) -> TypeFit:
    """Returns the fit of choices among labels, given their temperature.

    Raises:
        SetupError: no answers reach the precision.
    """

    def outcomes(part: Sequence[Example], temperature: float) -> Outcomes:
        rows = [calibration.softmax(case.odds, temperature) for case in part]
        correct = [int(row.argmax()) == case.right for row, case in zip(rows, part, strict=True)]
        return Outcomes([float(row.max()) for row in rows], correct)

    raw = outcomes(cases[1::2], 1.0)
    fitted, other = (outcomes(cases[half::2], temperature) for half in (0, 1))
    return _judged("choice", Fit(temperature), raw.bins, other.bins, (fitted, other), precision)


def predicate(cases: Sequence[Example], temperature: float, precision: float | None, *, exclusive: bool) -> TypeFit:
    """Returns the fit of predicates: whether a text has a label. Each example asks for its label, and for a wrong one.

    Args:
        cases: the examples.
        temperature: that of choices.
        precision: the share of right answers that is asked for, from 0 to 1; None refuses no answer.
        exclusive: whether a label's probability depends on the other labels. The temperature is then that of choices.

    Raises:
        SetupError: no answers reach the precision.
    """

    def outcomes(part: Sequence[Example], temperature: float, offset: float) -> Outcomes:
        likely: list[float] = []
        for case in part:
            if exclusive:
                row = calibration.softmax(case.odds, temperature)
                likely += [float(row[case.right]), float(row[case.wrong])]
            else:
                odds = case.odds[case.right], case.odds[case.wrong]
                likely += [calibration.sigmoid(one + offset, temperature) for one in odds]
        return Outcomes(likely, [True, False] * len(part))

    offset = 0.0
    if not exclusive:
        odds = [one for case in cases[::2] for one in (case.odds[case.right], case.odds[case.wrong])]
        found = calibration.fit_answers(odds, [True, False] * (len(odds) // 2))
        temperature, offset = (round(value, DIGITS) for value in found)
    raw = outcomes(cases[1::2], 1.0, 0.0)
    fitted, other = (outcomes(cases[half::2], temperature, offset) for half in (0, 1))
    halves = fitted.answers(), other.answers()
    return _judged("predicate", Fit(temperature, offset), raw.bins, other.bins, halves, precision)


def _judged(
    kind: str,
    fit: Fit,
    raw: Sequence[Bin],
    calibrated: Sequence[Bin],
    halves: tuple[Outcomes, Outcomes],
    precision: float | None,
) -> TypeFit:
    """Returns a fit with the threshold for a precision on the first half, and what it refuses of the second one.

    Raises:
        SetupError: no answers reach the precision.
    """
    threshold = 0.0
    if precision is not None:
        found = calibration.find_threshold(*halves[0], precision, LEAST)
        if found is None:
            share = f"{100 * precision:g} %"
            detail = f"No {LEAST} answers to questions of the type {kind} are right in {share} of cases. Ask for less."
            raise SetupError(detail)
        threshold = found
    probabilities, true = (np.array(values) for values in halves[1])
    sure = true[probabilities >= threshold]
    reached = round(float(sure.mean()), DIGITS) if len(sure) else None
    raw_error, error = (round(calibration.expected_calibration_error(bins), DIGITS) for bins in (raw, calibrated))
    coverage = round(len(sure) / len(true), DIGITS)
    return TypeFit(fit.temperature, fit.offset, threshold, raw_error, error, reached, coverage, raw, calibrated)
