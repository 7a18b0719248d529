"""The speeds of the papers, on small networks."""

from __future__ import annotations

import pytest

from loadtest.paper_speeds import WAYS, Shape, draw, measure, report
from swiftlet_serve.engines import native

SMALL = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SHAPES = {"BERT": Shape("bert", "BERT", 1.0, SMALL), "ALBERT": Shape("albert", "BERT", 1.7, SMALL)}


@pytest.mark.skipif(native.best() is None, reason="there are no kernels for this CPU")
def test_networks_are_measured_in_each_way_and_told_beside_the_other(tmp_path):
    found = measure(SHAPES, 1, 1)
    assert {name: tuple(seconds) for name, seconds in found.items()} == dict.fromkeys(SHAPES, WAYS)
    assert all(value > 0 for seconds in found.values() for value in seconds.values())

    found = {"BERT": dict.fromkeys(WAYS, 0.5), "ALBERT": dict.fromkeys(WAYS, 0.25)}
    rows = [line for line in report(SHAPES, found, 1).splitlines() if line.startswith("| ALBERT")]
    assert rows == ["| ALBERT | BERT | 1.7× | 250 | 2.0× | 250 | 2.0× | 250 | 2.0× |"]
    draw(SHAPES, found, tmp_path / "picture.svg")
    picture = (tmp_path / "picture.svg").read_text("utf-8")
    assert picture.count("<!-- 2.0 -->") == len(WAYS)
