"""The benchmark: what work is counted, how rounds become intervals, and that tables hold what was measured."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from swiftlet_serve.models.artifact import Artifact
from swiftlet_serve.models.heads import build
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.models.work import Work
from swiftlet_serve.service.benchmark import baselines, bench, report
from swiftlet_serve.service.benchmark.baselines import CONTENDERS, Loaded, Unfit, batch_of
from swiftlet_serve.service.benchmark.bench import (
    LEAST_ROUNDS,
    Case,
    Found,
    Interval,
    Memory,
    Plan,
    Result,
    Scaling,
    measure,
    together,
)
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.offline.environment import setting
from swiftlet_serve.service.types import Batch
from tests.support import native_kernels, networks

# --- work


def work_of(architecture, config, head, width=0):
    with torch.device("meta"):
        model = build(architecture, config, head, width)
    return model, Work.of(architecture, config, {name: tuple(one.shape) for name, one in model.state_dict().items()})


@pytest.mark.parametrize("architecture", native_kernels.CONFIGS)
def test_work_is_what_torch_does_where_every_row_is_read(architecture):
    """Without padding, and with a head that reads every token, nothing that torch multiplies is superfluous."""
    rows, tokens = 3, 11
    model, work = work_of(architecture, native_kernels.CONFIGS[architecture], "token", 2)
    ids = torch.zeros((rows, tokens), dtype=torch.int64, device="meta")
    lengths = torch.full((rows,), tokens, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(ids, ids, lengths, torch.arange(rows * tokens, device="meta"))

    assert 2 * work.needed([tokens] * rows, [tokens] * rows) == counter.get_total_flops()


@pytest.mark.parametrize("tokens", [1, 16, 384])
def test_of_the_last_layer_only_what_is_read_counts(tokens):
    """By hand, for google/mobilebert-uncased as a classifier, and for albert-base-v2 as a masked LM with two masks."""
    _, mobilebert = work_of("mobilebert", {}, "classification", 2)
    keys = 512 * 128 + 128 * 128 + 512 * 128  # bottleneck, key, value
    rest = 128 * 128 + 512 * 128 + 128 * 128 + 4 * 2 * 128 * 512 + 128 * 512  # query to leave
    layers = 23 * tokens * (keys + rest + 2 * 128 * tokens) + tokens * keys + rest + 2 * 128 * tokens
    assert mobilebert.needed([tokens], [1]) == tokens * 384 * 512 + layers + 2 * 512

    _, albert = work_of("albert", {}, "masked_lm")
    keys, rest = 2 * 768 * 768, 2 * 768 * 768 + 2 * 768 * 3072
    layers = 11 * tokens * (keys + rest + 2 * 768 * tokens) + tokens * keys + 2 * (rest + 2 * 768 * tokens)
    assert albert.needed([tokens], [2]) == tokens * 128 * 768 + layers + 2 * (768 * 128 + 128 * 30_000)


def test_rows_add_up_and_padding_counts_for_nothing():
    _, work = work_of("albert", native_kernels.CONFIGS["albert"], "classification", 2)

    assert work.needed([3, 40], [1, 1]) == work.needed([3], [1]) + work.needed([40], [1])


def test_the_peak_says_how_much_it_multiplied():
    library = native_kernels.best()

    assert library.multiply(1) > 0
    assert library.multiply(300) == 300 * library.multiply(1)


# --- rounds


@pytest.mark.parametrize(
    ("n", "first", "last"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61)]
)
def test_an_interval_is_that_of_the_tables_for_a_median(n, first, last):
    """The order statistics that cover the median with 95 %, as tables of the sign test have them."""
    interval = Interval.of([float(value) for value in range(n, 0, -1)])

    assert (interval.value, interval.low, interval.high) == ((n + 1) / 2, first, last)


class Fake:
    """Contenders that do nothing but note who was called."""

    def __init__(self, *names):
        self.calls = []
        self.answers = dict.fromkeys(names, 1.0)
        self.loaded = {name: Loaded(name, partial(self.call, name)) for name in names}

    def call(self, name, batch):
        self.calls.append((name, batch))
        return [np.full((len(batch), 2), self.answers[name], np.float32)]


def test_contenders_take_turns_at_every_batch_in_every_round(monkeypatch):
    monkeypatch.setattr(bench, "TURN_S", 0.0)
    fake = Fake("a", "b")
    batches = [batch_of(1, 3), batch_of(2, 5)]
    done = []
    results = measure(Case("case", None, batches), fake.loaded, Work(1, 1, 1, 1, 1, 1), 0, lambda: done.append(1))  # type: ignore[arg-type]
    results = {result.contender: result for result in results}

    assert list(results) == ["a", "b"]
    for result in results.values():
        assert len(result.rounds) == len(done) == LEAST_ROUNDS
        assert result.rows == 3
        assert result.needed == sum(Work(1, 1, 1, 1, 1, 1).needed([n] * k, [1] * k) for k, n in ((1, 3), (2, 5)))
    for name in fake.loaded:
        assert {id(batch) for caller, batch in fake.calls if caller == name} == {id(batch) for batch in batches}


def test_answers_are_compared_with_those_of_torch(monkeypatch):
    monkeypatch.setattr(bench, "TURN_S", 0.0)
    fake = Fake("a", "torch")
    fake.answers |= {"a": 3.9, "torch": 4.0}
    results = measure(Case("case", None, [batch_of(2, 3)]), fake.loaded, Work(1, 1, 1, 1, 1, 1), 0)

    assert [result.off for result in results] == pytest.approx([0.025, 0.0], abs=1e-6)


def test_every_thread_warms_up_and_passes():
    callers = []
    rate = bench._rate(lambda _: callers.append(threading.current_thread()), [batch_of(1, 2)], 3, 0.0)

    assert rate > 0
    assert sorted(Counter(callers).values()) == [2, 2, 2]


@given(st.lists(st.integers(1, 600), min_size=1, max_size=40), st.integers(1, 600))
def test_texts_come_together_with_those_of_like_length(lengths, most):
    texts = [Encoding(np.full(n, i), np.zeros(n, np.int64), np.zeros(1, np.int64)) for i, n in enumerate(lengths)]
    groups = list(together(texts, most))
    sizes = [[len(text.input_ids) for text in group] for group in groups]

    assert [n for group in sizes for n in group] == sorted(lengths)
    assert all(len(group) == 1 or len(group) * max(group) <= most for group in sizes)


# --- the whole


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Of one small network, which other tests export too, and two contenders more: one absent, one unwilling."""

    def refuse(_):
        raise Unfit("it does not feel like it")

    monkeypatch.setattr("swiftlet_serve.models.graphs.export.export", lambda _: networks.graph("albert", "classify"))
    monkeypatch.setattr(baselines, "WORDS", networks.VOCABULARY)
    manifest = networks.draft("albert", "classify").manifest
    model = networks.network("albert", "classify")
    network = baselines._kept(manifest, "", model, None, tmp_path / "runs", lambda _: None)
    monkeypatch.setattr(bench, "released", lambda *_: network)
    monkeypatch.setattr(bench, "TURN_S", 0.0)
    theirs = CONTENDERS["native"]
    monkeypatch.setitem(CONTENDERS, "absent", replace(theirs, needs=("a_package_that_nobody_has",)))
    monkeypatch.setitem(CONTENDERS, "unwilling", replace(theirs, load=refuse))
    return network, Plan((), {"albert": [(2, 5)]}, (), tmp_path / "no data", tmp_path / "runs", 0.0, memory=False)


def test_contenders_run_the_same_network_and_who_is_not_there_is_left_out(plan):
    native_kernels.best()
    _, plan = plan
    names = ("native", "onnx_cpu", "ort_stock", "torch", "absent", "unwilling")
    found = bench.bench(replace(plan, contenders=names), lambda _: None)

    assert [result.contender for result in found.results] == ["native", "onnx_cpu", "ort_stock", "torch"]
    assert found.left_out == {
        "absent": "a_package_that_nobody_has is not installed",
        "unwilling": "albert-classify: it does not feel like it",
    }
    assert [result.off < 0.1 for result in found.results] == [True] * 4
    assert found.results[-1].off == 0
    assert found.peak > 0
    assert found.texts == "our own sentences"
    assert "absent is left out: a_package_that_nobody_has is not installed." in report.tell(found)


def test_a_network_is_exported_once(plan, monkeypatch):
    _, plan = plan
    monkeypatch.setattr("swiftlet_serve.models.graphs.export.export", lambda _: pytest.fail("it was exported before"))
    manifest = networks.draft("albert", "classify").manifest
    baselines._kept(manifest, "", networks.network("albert", "classify"), None, plan.runs, lambda _: None)


def test_the_stock_quantiser_finds_a_table_that_only_looks_up(tmp_path):
    """The masked-LM head multiplies with the word table, which the quantiser would transpose under the look-up."""
    manifest = networks.draft("mobilebert", "fill-mask").manifest
    graph = networks.graph("mobilebert", "fill-mask")
    onnx.save(graph, tmp_path / baselines.GRAPH)
    network = baselines.Network(Artifact(tmp_path, manifest))
    (rows,) = CONTENDERS["ort_stock"].load(network).call(Batch.of([Encoding(*np.ones((3, 4), np.int64))]))

    assert rows.shape == (4, networks.VOCABULARY)


def test_texts_of_embedded_models_are_requests_of_their_task(tmp_path):
    """Without data, sentences of our own."""
    texts = bench._texts(bench.open_model(bench.locate(["mobilebert-qa"])[0], "native"), tmp_path / "nothing")

    assert len(texts) >= 3
    assert all(len(text.focus) == len(text.input_ids) for text in texts)


def test_all_of_a_row_is_asked_for(tmp_path, monkeypatch):
    model = bench.open_model(bench.locate(["mobilebert-fill-mask"])[0], "native")
    found = model.task.encode(model.task.Request(inputs="The shop is [MASK] on Sundays."))
    monkeypatch.setattr(bench, "encodings", lambda *_: found)
    (text,) = bench._texts(model, tmp_path)

    assert Batch.of(found).row_shapes(8192) != [(1, 8192)]
    assert Batch.of([text]).row_shapes(8192) == [(1, 8192)]


# --- what is told


SETTING = setting()


def found(**changes):
    results = (
        Result("1×16", "native", "native (kernel)", 2, 4_000_000, (0.002,) * 6, 1.5, 0.0123),
        Result("1×16", "ort_stock", "stock", 2, 4_000_000, (0.006, 0.006, 0.006, 0.006, 0.008, 0.010), 6.5, None),
        Result("1×16", "torch", "torch fp32", 2, 4_000_000, (0.02,) * 6, 20.5, 0.0),
    )
    memory = (Memory("net", "native", 3 << 20, 7 << 20),)
    whole = Found(
        SETTING, "kernel", 4e9, {"openvino": "openvino is not installed"}, "texts", results, memory,
        (Scaling("1×16", "native", Interval(1.97, 1.95, 1.99)),),
    )  # fmt: skip
    return replace(whole, **changes)


def cells(told, *start):
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in told.splitlines()]
    return next(row for row in rows if row[: len(start)] == list(start))


def test_the_table_is_made_of_what_was_measured():
    told = report.tell(found())

    assert cells(told, "1×16", "native (kernel)")[2:] == ["1,000 (1,000 to 1,000)", "1.50", "50%", "1.2%", "–"]
    assert cells(told, "1×16", "stock")[2:] == ["333 (200 to 333)", "6.50", "17%", "–", "3.00× (3.00 to 5.00)"]
    assert cells(told, "1×16", "2") == ["1×16", "2", "6", "stock", "3.00× (3.00 to 5.00)"]
    assert cells(told, "1×16", "native") == ["1×16", "native", "1.97× (1.95 to 1.99)"]
    assert cells(told, "net", "native") == ["net", "native", "3.0", "7.0"]
    assert "openvino is left out: openvino is not installed." in told


def test_without_our_engine_the_first_is_compared_and_without_a_peak_no_share_is_told():
    without = found(results=found().results[1:], peak=None, kernel=None)
    told = report.tell(without)

    assert cells(told, "1×16", "stock")[4:] == ["–", "–", "–"]
    assert cells(told, "1×16", "2")[3:] == ["torch fp32", "3.33× (2.00 to 3.33)"]


def test_files_hold_the_tables_the_data_and_a_picture(tmp_path):
    markdown, data, picture = report.write(found(), tmp_path / "out")

    assert report.tell(found()) in markdown.read_text("utf-8")
    assert json.loads(data.read_text("utf-8"))["results"][1]["rounds"][-1] == 0.01
    assert picture.read_bytes().startswith(b"\x89PNG")


# --- the command


def test_the_command_refuses_a_contender_that_it_does_not_know():
    result = CliRunner().invoke(main, ["bench", "--engine", "abacus"])

    assert result.exit_code == 2
    assert "'abacus' is none of native, onnx_cpu" in result.output


def test_the_command_says_that_there_is_no_such_artifact(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "SHAPES", {})
    result = CliRunner().invoke(main, ["bench", "--artifact", str(tmp_path / "none"), "--engine", "native"])

    assert result.exit_code == 1
    assert "There is no model" in result.output
