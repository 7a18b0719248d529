"""The memory that a worker process takes while it loads a model, the interpreter and all libraries included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.machine import memory
from swiftlet_serve.workers.process_executor import ProcessExecutor
from tests.support.large_artifacts import make_bert
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(_kernel_selection.best() is None, reason="no kernel is compiled for this CPU")


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("classify", {"words": 20_000, "hidden": 512, "layers": 12}),
        ("fill-mask", {"words": 120_000, "hidden": 256, "layers": 2}),
    ],
)
def test_loading_takes_at_most_the_documented_memory(tmp_path, task, sizes):
    artifact = make_bert(tmp_path, task, **sizes)
    size = sum(file.size for file in artifact.manifest.files.values())
    executor = ProcessExecutor("native", [[artifact.path]], 1, spare=False)
    try:
        executor.load()
        assert executor.runtime(artifact.manifest.name).startswith("native")
        status = Path(f"/proc/{executor.workers['serving']}/status").read_text("ascii")
    finally:
        executor.abandon()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None

    assert size > 30 * memory.MEBIBYTE
    assert int(match[1]) * 1024 <= memory.needed_to_load(size)


def test_the_guide_has_the_rule_for_the_memory_limit():
    guide = (ROOT / "docs/how-to/scale.md").read_text("utf-8")
    rules = {tuple(map(int, rule)) for rule in re.findall(r"(\d+) \+ (\d+) · size", guide)}
    loading = re.search(r"at most twice the size of their artifacts plus (\d+) MiB", guide)
    size, unit = 104 * memory.MEBIBYTE, memory.MEBIBYTE

    assert rules == {(350, 3), (250, 2)}
    assert loading is not None
    assert memory.needed_to_load(size) == 2 * size + int(loading[1]) * unit
    assert memory.needed_to_serve(size, spare=True) == 350 * unit + 3 * size
    assert memory.needed_to_serve(size, spare=False) == 250 * unit + 2 * size
    assert f"104 MiB) needs {memory.needed_to_serve(size, spare=True) // unit} MiB" in guide
