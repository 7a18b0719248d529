"""The speeds of the papers, on small networks."""

from __future__ import annotations

import pytest

from loadtest.paper_speeds import (
    PARTS,
    WAYS,
    Shape,
    draw,
    make,
    measure,
    measure_shares,
    parameter_ratio,
    part_of,
    report,
    report_shares,
    without,
)
from swiftlet_models.folding import fold
from swiftlet_models.heads import weights_of
from swiftlet_serve.engines import _kernel_selection

SMALL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SHAPES = {"BERT": Shape("bert", "BERT", 1.0, SMALL), "ALBERT": Shape("albert", "BERT", 1.7, SMALL)}


def test_steps_are_of_the_feed_forward_of_attention_or_of_the_rest():
    config = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_feedforward_networks": 3}
    folded = fold("mobilebert", config, weights_of(make(Shape("mobilebert", "BERT", None, config))))
    steps = {part: [step for step in folded.program if part_of(step) == part] for part in PARTS}

    assert len(steps["feed-forward"]) == 2 * 3 * 2  # in two layers, two products of each network
    assert len(steps["attention"]) == 2 * 4  # keys with values, queries with the bottleneck, attention, its output
    assert {getattr(step, "product", "")[8:] for step in steps["rest"]} >= {".leave"}
    plain = without(folded, lambda step: part_of(step) == "attention")
    assert list(plain.program) == [step for step in folded.program if part_of(step) != "attention"]


def test_ratio_of_parameters_counts_products_and_norms():
    attention, feed_forward = 4 * (64 * 64 + 64) + 2 * 64, 2 * 64 * 64 + 64 + 64 + 2 * 64

    assert parameter_ratio(SHAPES["BERT"]) == parameter_ratio(SHAPES["ALBERT"]) == attention / feed_forward


@pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
def test_networks_are_measured_in_each_way_and_told_beside_the_other(tmp_path):
    found = measure(SHAPES, 1, 1)
    assert {name: tuple(seconds) for name, seconds in found.items()} == dict.fromkeys(SHAPES, WAYS)
    assert all(value > 0 for seconds in found.values() for value in seconds.values())

    found = {"BERT": dict.fromkeys(WAYS, 0.5), "ALBERT": dict.fromkeys(WAYS, 0.25)}
    rows = [line for line in report(SHAPES, found, 1).splitlines() if line.startswith("| ALBERT")]
    assert rows == ["| ALBERT | BERT | 1.7× | 250 | 2.0× | 250 | 2.0× | 250 | 2.0× |"]
    draw(SHAPES, found, tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text("utf-8")
    assert picture.count(">2.0</text>") == len(WAYS)


@pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
def test_shares_of_the_time_are_told_for_two_lengths():
    assert tuple(measure_shares(SHAPES["BERT"], 16, 1)) == PARTS

    rows = [line.split(" | ") for line in report_shares({"BERT": SHAPES["BERT"]}, 1).splitlines()[4:]]
    assert [row[:3] for row in rows] == [["| BERT", "128", "1.98"], ["| BERT", "512", "1.98"]]
    assert [sum(int(share.removesuffix(" %")) for share in row[3:6]) for row in rows] == pytest.approx([100] * 2, abs=1)
