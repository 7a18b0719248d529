"""Temperatures and calibration errors, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from swiftlet_models import calibration
from tests.support.tiers import first


def test_softmax_divides_logits_by_the_temperature():
    logits = np.log([0.5, 0.3, 0.2])

    assert calibration.softmax(2 * logits, 2.0) == pytest.approx(np.array([0.5, 0.3, 0.2]))
    assert calibration.softmax([1e9, -1e9]) == pytest.approx(np.array([1.0, 0.0]))
    assert calibration.sigmoid(np.log(3)) == pytest.approx(0.75)


def test_log_odds_are_finite():
    assert calibration.log_odds(0.75) == pytest.approx(np.log(3))
    assert calibration.log_odds(0.0) == -calibration.log_odds(1.0) == -calibration.LARGEST


@pytest.mark.parametrize("temperature", first([0.25, 1.0, 3.0], 0.25))
def test_fitted_temperature_is_that_of_the_sampled_labels(temperature):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(20_000, 3)) * 2
    reached = calibration.softmax(logits, temperature).cumsum(1)
    labels = (rng.random((20_000, 1)) > reached[:, :2]).sum(1).tolist()  # at once, which is faster than `rng.choice`

    assert calibration.fit_temperature(logits.tolist(), labels) == pytest.approx(temperature, rel=0.05)


def test_fitted_temperature_takes_rows_of_any_length():
    assert calibration.fit_temperature([[5.0, 0.0], [5.0, 0.0, 0.0]], [1, 0]) > 1


@pytest.mark.parametrize(("temperature", "offset"), first([(0.5, 1.0), (1.0, 0.0), (3.0, -2.0)], (3.0, -2.0)))
def test_fitted_answers_have_the_temperature_and_the_offset_of_the_sampled_results(temperature, offset):
    rng = np.random.default_rng(4)
    log_odds = rng.normal(size=5_000) * 3
    correct = rng.random(5_000) < 1 / (1 + np.exp(-(log_odds + offset) / temperature))
    found = calibration.fit_answers(log_odds.tolist(), correct.tolist())

    assert found[0] == pytest.approx(temperature, rel=0.1)
    assert found[1] == pytest.approx(offset, abs=0.1)


@pytest.mark.filterwarnings("error")
def test_fitted_answers_separate_right_from_wrong_ones():
    """The likelihood is highest at the lowest temperature."""
    log_odds = [9.0] * 20 + [10.0] * 20 + [calibration.log_odds(0.0)]
    temperature, offset = calibration.fit_answers(log_odds, [False] * 20 + [True] * 20 + [False])

    assert temperature == pytest.approx(calibration.TEMPERATURES[0])
    assert 9 < -offset < 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("correct", [True, False])
def test_fitted_answers_are_finite_if_all_results_are_equal(correct):
    temperature, offset = calibration.fit_answers([0.5, 1.0, -1.0], [correct] * 3)

    assert calibration.sigmoid(0.5 + offset, temperature) == pytest.approx(float(correct), abs=1e-6)


@pytest.mark.parametrize("arguments", [([], []), ([0.5], [])])
def test_answers_need_cases(arguments):
    with pytest.raises(ValueError, match="there must be cases"):
        calibration.fit_answers(*arguments)


def test_bins_hold_the_answers_of_equal_intervals():
    bins = calibration.reliability([0.01, 0.05, 0.999, 1.0, 0.5], [False, True, True, True, False])

    assert bins == [(2, 0.03, 0.5), (1, 0.5, 0.0), (2, 0.9995, 1.0)]


def test_error_is_zero_if_confidence_matches_accuracy():
    assert error([0.75] * 4, [True, True, True, False]) == pytest.approx(0)


def test_error_is_weighted_by_the_cases_of_a_bin():
    assert error([1.0, 1.0, 1.0, 0.5], [True, True, False, True]) == pytest.approx((1 + 0.5) / 4, abs=1e-6)


def error(confidences, correct):
    return calibration.expected_calibration_error(calibration.reliability(confidences, correct))


@pytest.mark.parametrize("arguments", [([], []), ([0.5], [])])
def test_bins_need_cases(arguments):
    with pytest.raises(ValueError, match="there must be cases"):
        calibration.reliability(*arguments)


def test_temperature_needs_cases():
    with pytest.raises(ValueError, match="there are no cases"):
        calibration.fit_temperature([], [])


@pytest.mark.parametrize(
    ("precision", "least", "threshold"),
    [
        (1.0, 1, 0.9),
        (0.75, 1, 0.6),  # more would be right often enough at 0.9, but fewer are answered
        (0.75, 5, None),
        (0.5, 5, 0.5),
        (1.0, 3, None),
    ],
)
def test_threshold_is_the_lowest_that_is_right_often_enough(precision, least, threshold):
    confidences, correct = [0.5, 0.9, 0.6, 0.9, 0.6, 0.5], [False, True, True, True, False, False]

    assert calibration.find_threshold(confidences, correct, precision, least) == threshold


def test_threshold_does_not_part_equal_confidences():
    assert calibration.find_threshold([0.8, 0.8], [True, False], 1.0, 1) is None
