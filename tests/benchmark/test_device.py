"""The benchmark of a device, run on the CPU with a small network."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from swiftlet_serve.benchmark import device, measure, networks
from swiftlet_serve.benchmark.device import IN_FLIGHT, REFERENCE, SUBJECT, bench_device
from swiftlet_serve.cli.main import main
from tests.support import networks as small_networks

CPU = torch.device("cpu")


@pytest.fixture
def small_network(tmp_path, monkeypatch):
    graph = small_networks.graph("albert", "classify")
    monkeypatch.setattr("swiftlet_models.graphs.export.export", lambda _: graph)
    monkeypatch.setattr(networks, "VOCABULARY_SIZE", small_networks.VOCABULARY)
    manifest = small_networks.draft("albert", "classify").manifest
    model = small_networks.network("albert", "classify")
    network = networks.cached_network(manifest, "", model, None, tmp_path / "runs", lambda _: None)
    monkeypatch.setattr(device, "released_network", lambda *_: network)
    monkeypatch.setattr(device, "MIXED_LENGTHS", [3, 9])
    monkeypatch.setattr(measure, "ROUND_S", 0.0)
    monkeypatch.setattr(measure, "MIN_ROUNDS", 3)
    monkeypatch.setattr(device.PaddedTorch, "compile", lambda _: None)  # it takes a minute


@pytest.mark.exhaustive
def test_ways_compute_the_same_rows_and_the_table_has_them(small_network, tmp_path):
    found = bench_device(CPU, ["albert"], tmp_path, 0.0, lambda _: None, sizes=[(1, 5), (3, 7)], peak_size=64)

    cases = {result.case for result in found.results}
    assert cases == {"albert 1×5", "albert 3×7", "albert mixed lengths"}
    ways = {SUBJECT, IN_FLIGHT, "fp16", "int8", "fp8", "without graphs", REFERENCE, "torch.compile"}
    assert {one.engine for one in found.results} == ways
    tolerances = {"int8": 0.1, "fp8": 0.4}
    assert all(one.error <= tolerances.get(one.engine, 1e-5) for one in found.results)
    assert all(result.multiply_adds > 0 for result in found.results)
    assert found.peak > 0
    assert found.joules == {}
    rows = [line for line in device.text(found).splitlines() if line.startswith("| albert")]
    beside_itself = [row for row, one in zip(rows, found.results, strict=True) if one.engine == REFERENCE]
    assert len(beside_itself) == len(cases)
    assert all("| 1.0 (1.0 to 1.0) |" in row for row in beside_itself)


def test_energy_is_that_of_a_call(monkeypatch):
    counter = iter([5_000, 5_000 + 3 * 250])  # millijoules, before and after three calls
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-1234": 0}.get,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(counter) if handle == 0 else None,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(device, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    calls = []

    used = device._energy_j(CPU, lambda: calls.append(1), 4.0)

    assert len(calls) == 3
    assert used == pytest.approx(0.25)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_command_refuses_a_device_that_is_not_there():
    result = CliRunner().invoke(main, ["bench", "--device", "cuda"])

    assert result.exit_code != 0
    assert "There is no CUDA device" in result.output


def test_report_is_also_written_to_a_file(small_network, tmp_path, monkeypatch):
    monkeypatch.setattr(device, "SIZES", [(1, 5)])
    monkeypatch.setattr(device, "SIZE", 64)
    shown = device.report("cpu", ["albert"], tmp_path, 0.0, lambda _: None, tmp_path / "new", "gpu")

    assert (tmp_path / "new/gpu.md").read_text() == shown + "\n"
    assert "| albert 1×5 | swiftlet |" in shown
