"""A short version of `make torture`: the goals that do not depend on the machine's other work."""

from __future__ import annotations

import pytest

from tests.support.tiers import first
from tests.torture.cases import CASES, table

SCALES = {
    "hostile": 0.01,
    "hostile-dialects": 0.01,
    "deliveries": 0.01,
    "restarts": 0.1,
    "memory": 0.004,
    "ray-serve": 0.1,
    "scoring": 0.03,
    "switches": 0.02,
}


@pytest.mark.parametrize("case", first(SCALES, "hostile"))
def test_torture_case_reaches_its_goals(case, artifact_dir):
    outcomes = CASES[case](artifact_dir, SCALES[case])

    assert all(one.passed for one in outcomes), table(outcomes)
