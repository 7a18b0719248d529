"""When a call counts as hung."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.scheduling.call_limit import LONG_FACTOR, MIN_CALL_TIMEOUT_S, OVERDUE_FACTOR, call_limit_s


@given(st.floats(0.001, 1000), st.floats(0, 1000), st.booleans())
def test_limit_is_a_multiple_of_the_prediction_within_bounds(timeout_s, expected_s, calibrated):
    limit_s = call_limit_s(timeout_s, expected_s, calibrated=calibrated)

    assert limit_s <= max(timeout_s, LONG_FACTOR * expected_s)
    if not calibrated:
        assert limit_s == timeout_s
    elif limit_s < timeout_s:
        assert limit_s in (MIN_CALL_TIMEOUT_S, OVERDUE_FACTOR * expected_s)


@given(st.floats(0.001, 1000), st.floats(0, 1000))
def test_call_may_always_take_several_times_its_prediction(timeout_s, expected_s):
    """Also if the prediction alone is longer than the limit of short calls."""
    assert call_limit_s(timeout_s, expected_s, calibrated=True) >= LONG_FACTOR * expected_s
