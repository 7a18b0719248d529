"""The choice of a version for a request."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import NotFound
from swiftlet_serve.inference.catalog import (
    DEFAULT,
    Catalog,
    ModelLoading,
    ServedVersions,
    VersionChoice,
    version_for_key,
)

SPLITS = st.lists(st.tuples(st.integers(1, 99), st.floats(0.01, 100)), min_size=1, max_size=5, unique_by=lambda x: x[0])


@given(SPLITS, st.text(max_size=20), st.text(max_size=20))
def test_split_is_sticky_and_chooses_one_of_its_versions(split, name, key):
    version = version_for_key(split, name, key)
    assert version in [one for one, _ in split]
    if key:
        assert version_for_key(split, name, key) == version


def test_shares_are_met():
    split = [(1, 90.0), (2, 9.0), (3, 1.0)]
    counts = Counter(version_for_key(split, "flowers", str(i)) for i in range(20_000))
    assert 17_800 < counts[1] < 18_200
    assert 1_650 < counts[2] < 1_950
    assert 140 < counts[3] < 260


def test_growing_share_keeps_the_requests_that_it_had():
    keys = [str(i) for i in range(1000)]
    small = {key for key in keys if version_for_key([(2, 10.0), (1, 90.0)], "flowers", key) == 2}
    large = {key for key in keys if version_for_key([(2, 50.0), (1, 50.0)], "flowers", key) == 2}
    assert small < large


def test_models_are_split_independently():
    split = [(1, 1.0), (2, 1.0)]
    same = sum(version_for_key(split, "a", str(i)) == version_for_key(split, "b", str(i)) for i in range(1000))
    assert 400 < same < 600


def test_first_model_is_the_first_served_one():
    """In memory or not: a request must not get another model's answer."""
    catalog = Catalog()
    with pytest.raises(NotFound):
        catalog.find(None)
    catalog.update({name: ServedVersions("classify", {2: None}, {DEFAULT: 2}) for name in ("one", "another")})
    with pytest.raises(ModelLoading) as caught:
        catalog.find(None)
    assert (caught.value.name, caught.value.version) == ("one", 2)
    with pytest.raises(NotFound, match="no such version"):
        catalog.find(None, VersionChoice(3))
