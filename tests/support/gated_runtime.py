"""A runtime with one core whose engine answers on command."""

from __future__ import annotations

from pathlib import Path

from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.workers.hosted_model import EngineModel
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support.fakes import ManualEngine


def make_gated_runtime(artifact_dir: Path) -> tuple[LocalRuntime, ManualEngine]:
    """Returns a runtime that serves tiny-classify, and its engine."""
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo", cores=1))
    return runtime, gate_classify(runtime, width=3)


def gate_classify(runtime: LocalRuntime, width: int) -> ManualEngine:
    """Gives tiny-classify an engine that answers when the test says so, with `width` outputs. Returns the engine."""
    engine = ManualEngine()
    assert isinstance(runtime._executor, ThreadExecutor)
    runtime._executor._models["tiny-classify"] = EngineModel(engine, [width])
    return engine
