"""The report on shadow traffic promotes only what the figures prove."""

from __future__ import annotations

import pytest

from swiftlet_serve.repository.report import lines, objection, read


def page(agreed: int, differed: int, failed: int = 0, candidate_s: float = 1.0) -> str:
    label = 'model="flowers",version="2"'
    results = {"agreed": agreed, "differed": differed, "failed": failed, "dropped": 3}
    return "\n".join(
        [
            "# TYPE swiftlet_shadow_requests counter",
            *(f'swiftlet_shadow_requests_total{{{label},result="{name}"}} {n}' for name, n in results.items()),
            "# TYPE swiftlet_shadow_score_shift histogram",
            f'swiftlet_shadow_score_shift_bucket{{{label},le="+Inf"}} {agreed}',
            f"swiftlet_shadow_score_shift_sum{{{label}}} {0.01 * agreed}",
            f"swiftlet_shadow_score_shift_count{{{label}}} {agreed}",
            "# TYPE swiftlet_shadow_engine_seconds histogram",
            f'swiftlet_shadow_engine_seconds_sum{{{label},side="served"}} 1.0',
            f'swiftlet_shadow_engine_seconds_sum{{{label},side="candidate"}} {candidate_s}',
            "",
        ]
    )


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (page(1000, 0), None),
        (page(100, 0), "only 100 answers"),
        (page(985, 15), "its agreement may be below 98 %"),
        (page(9000, 0, failed=100), "it failed on"),
        (page(1000, 0, candidate_s=1.5), "it takes more than 1.2 times"),
    ],
)
def test_candidate_is_promoted_only_with_proof(metrics, expected):
    (one,) = read([metrics]).values()
    found = objection(one, 0.98, 1.2)
    assert found is None if expected is None else expected in found


def test_report_adds_up_servers():
    report = list(lines(read([page(600, 0), page(500, 1)]), 0.98, 1.2))
    assert report == [
        "flowers 2: may be promoted",
        "  agreement 99.91 % (99.49 to 99.98) of 1101 answers",
        "  mean difference of the scores 0.0100",
        "  engine time 1.00 times the served version's",
        "  failed 0, dropped 6",
    ]
