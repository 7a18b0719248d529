"""Histograms."""

from __future__ import annotations

import pytest

from swiftlet_serve.telemetry.histogram import Histogram


def test_copy_does_not_change_with_the_original():
    histogram = Histogram((1, 2))
    histogram.add(1.5)
    copy = histogram.copy()
    histogram.add(1.5)

    assert (copy.counts, copy.sum, histogram.count) == ([0, 1, 0], 1.5, 2)


def test_histograms_of_other_buckets_cannot_be_added():
    histogram = Histogram((1, 2))
    histogram.add_counts([1, 0, 2], 7.0)

    assert (histogram.counts, histogram.sum) == ([1, 0, 2], 7.0)
    with pytest.raises(ValueError, match="zip"):
        histogram.add_counts([1, 0], 1.0)
