"""Loads hostile artifacts into sanitized kernels: each must be refused in the documented way, or run.

A child process takes many artifacts, one after another. A sanitizer's report, a crash, and too much processor time for
one artifact end it. The seed in progress is then known.

python -m tests.support.artifact_fuzz LIBRARY FIRST COUNT FILE   (the child; FILE receives the seed in progress)
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import Artifact, ArtifactError, Precision
from swiftlet_models.artifact.parsing import parse
from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded, FoldingError
from swiftlet_models.folding import Part, fold_artifact
from swiftlet_serve.engines import _kernel_selection, _program_numbers
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines._matrices import PRECISIONS
from swiftlet_serve.engines.native import Native
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.types import Batch, Engine
from swiftlet_serve.types.topk import Ranked, Scored
from tests.support.hostile_artifacts import Hostile, hostile, write
from tests.support.paths import ROOT

SECONDS: Final = 5  # of processor time to load one artifact
RUN_SECONDS: Final = 60  # to run its batches: sanitizers make a legal network of hundreds of layers 50 times as slow
MOST_BYTES: Final = 256 << 20  # that the process may grow by, and that it may ask for at once
MOST_FAILURES: Final = 20
IN_FILES: Final = 16  # one artifact of so many is written to a directory, and loaded as the server does
OPTIONS: Final = "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=256:quarantine_size_mb=16"


@dataclass
class Report:
    """What became of artifacts."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    grown: int = 0  # bytes that a process grew by, at most
    slowest: tuple[float, int] = (0.0, 0)  # seconds of processor time to load and run an artifact, and its seed

    @property
    def count(self) -> int:
        """The artifacts that were refused in the documented way, or ran."""
        return self.outcomes.total()


def fuzz(library: Path, first: int, count: int) -> Report:
    """Loads the artifacts of `count` seeds in a child process. If it ends early, another one goes on."""
    report, end = Report(), first + count
    while first < end and len(report.failures) < MOST_FAILURES:
        with tempfile.NamedTemporaryFile("r+") as progress:
            command = [sys.executable, "-m", __name__, str(library), str(first), str(end - first), progress.name]
            child = subprocess.run(
                command, cwd=ROOT, env=sanitizer_environment(), capture_output=True, text=True, check=False
            )
            seed = int(progress.read() or first)
        lines = child.stdout.splitlines()
        if lines and child.returncode == 0:
            found = json.loads(lines[-1])
            report.outcomes.update(found["outcomes"])
            report.failures += found["failures"]
            report.grown, report.slowest = (
                max(report.grown, found["grown"]),
                max(report.slowest, tuple(found["slowest"])),
            )
            break
        too_long = f"more than {SECONDS} s to load, or {RUN_SECONDS} s to run"
        reason = too_long if child.returncode == -signal.SIGPROF else _reason(child.stderr)
        report.failures.append(f"seed {seed}: exit status {child.returncode}: {reason}")
        first = seed + 1
    return report


def sanitizer_environment() -> dict[str, str]:
    """Returns the environment of a process that loads sanitized kernels."""
    compiler = shutil.which("c++") or shutil.which("g++")
    # The sanitizer looks for the functions of exceptions when the process starts.
    libraries = [f"-print-file-name={name}" for name in ("libasan.so", "libstdc++.so")]
    found = [subprocess.run([str(compiler), one], capture_output=True, text=True, check=True) for one in libraries]
    runtime = " ".join(one.stdout.strip() for one in found)
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": OPTIONS, "PYTHONPATH": paths}


def _reason(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if "ERROR: AddressSanitizer" in line or "runtime error" in line]
    return (lines or stderr.splitlines()[-1:] or ["no message"])[0]


# The child


def main() -> None:
    library, first, count = Library(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    _kernel_selection.select = lambda: _kernel_selection.Selection(library, ())  # for load_model
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    slowest = (0.0, 0)
    _load(library, hostile(0), 0)
    before = _peak()
    with Path(sys.argv[4]).open("w") as progress:
        for seed in range(first, first + count):
            os.pwrite(progress.fileno(), str(seed).encode(), 0)
            artifact = hostile(seed)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            started = time.process_time()
            try:
                outcomes[_load(library, artifact, seed)] += 1
            except Exception as error:
                failures.append(f"seed {seed}: {type(error).__name__}: {error}"[:500])
            signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, (time.process_time() - started, seed))
            if _peak() - before > MOST_BYTES + 4 * artifact.bytes:
                failures.append(f"seed {seed}: the process grew by {_peak() - before} bytes")
                before = _peak()
    grown = _peak() - before
    print(json.dumps({"outcomes": outcomes, "failures": failures, "grown": grown, "slowest": slowest}))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _load(library: Library, artifact: Hostile, seed: int) -> str:
    """Loads an artifact and runs it. Returns what became of it. Any exception is a failure."""
    draw = Random(seed)
    if seed % IN_FILES == 0:
        with tempfile.TemporaryDirectory() as directory:
            write(artifact, Path(directory), seed)
            try:
                loaded = load_model(Path(directory), "native")
            except (ArtifactError, SetupError):
                return "refused as files"
            _run(loaded.engine, loaded.manifest.vocab_size, loaded.manifest.max_tokens, draw)
            loaded.engine.close()
            return "loaded from files"
    try:
        manifest = parse(json.loads(json.dumps(artifact.manifest | {"files": _FILES})))
    except ValueError:
        return "refused: manifest"
    try:
        part: Part = draw.choice(("network", "network", "trunk", "head"))
        folded = fold_artifact(Artifact(Path("hostile"), manifest), artifact.weights, part=part)
    except (ArtifactError, FoldingError) as error:
        return f"refused: {type(error).__name__}"
    precision: Precision = manifest.precision if manifest.precision in PRECISIONS else "int8"
    refused = draw.random() < 0.3 and _load_contradictory(library, folded, precision, draw)
    try:
        engine = Native(library, folded, precision=precision)
    except (ValueError, FoldingError) as error:
        return f"refused by the engine: {type(error).__name__}"
    _run(engine, manifest.vocab_size, manifest.max_tokens, draw, folded.given)
    engine.close()
    return "loaded, and refused by C++ after a change" if refused else "loaded"


_FILES: Final = {
    name: {"size": 1, "sha256": "0" * 64}
    for name in ("weights.safetensors", "tokenizer.json", "golden.npz", "card.json")
}


def _load_contradictory(library: Library, folded: Folded, precision: Precision, draw: Random) -> bool:
    """Gives C++ a program and parameters that contradict each other, as if Python had not checked.

    Returns whether it refused them.
    """
    folded, wrong_numbers = copy(folded), 0
    folded.products, folded.vectors = dict(folded.products), dict(folded.vectors)
    for _ in range(draw.choice((1, 2))):
        match draw.randrange(4):
            case 0 | 1:
                wrong_numbers += 1
            case 2:
                name = draw.choice(sorted(folded.vectors))
                vector = folded.vectors[name]
                folded.vectors[name] = np.resize(vector, draw.choice(((1,), (16,), (96,), (2, 96), (40, 96))))
            case 3:
                name, other = draw.choice(sorted(folded.products)), draw.choice(sorted(folded.products))
                folded.products[name] = folded.products[other]
    own = _program_numbers.program_numbers

    def changed(folded: Folded, parameters: _program_numbers.Parameters) -> NDArray[np.int32]:
        numbers = own(folded, parameters)
        for _ in range(wrong_numbers):
            # Mostly a number that another place of the program has, which is more often plausible.
            chosen = draw.choice((*_NUMBERS, *[int(draw.choice(numbers)) for _ in _NUMBERS]))
            numbers[draw.randrange(len(numbers))] = chosen
        return numbers[: len(numbers) - (draw.random() < 0.02)] if wrong_numbers else numbers

    _program_numbers.program_numbers = changed
    try:
        engine = Native(library, folded, precision=precision)
    except (ValueError, FoldingError, MemoryError):
        return True
    finally:
        _program_numbers.program_numbers = own
    words = 1 if folded.words is None else len(folded.words)
    _run(engine, words, folded.positions, draw, folded.given, valid=False)
    engine.close()
    return False


_NUMBERS: Final = (-(1 << 31), -16, -1, 0, 1, 2, 3, 4, 15, 16, 32, 64, 96, 112, 1 << 20, 1 << 24, (1 << 31) - 1)


def _run(engine: Engine, words: int, positions: int, draw: Random, given: int = 0, *, valid: bool = True) -> None:
    """Runs valid batches and, on the native engine, one that may be invalid. All may be if the program was changed."""
    signal.setitimer(signal.ITIMER_PROF, RUN_SECONDS)
    rng = np.random.default_rng(draw.randrange(1 << 30))
    for wrong in (False, False, isinstance(engine, Native)):
        encodings: list[Any] = []
        for _ in range(draw.choice((1, 2, 5))):
            length = draw.choice((1, 2, min(positions, 40)))
            focus = rng.integers(0, length, draw.randrange(4))
            parts = rng.integers(0, words, length), np.zeros(length, np.int64), focus
            kind = draw.randrange(3)
            if kind == 1:
                encodings.append(Ranked(*parts, top_k=draw.choice((1, 3, 200)), candidates=np.array([], np.int64)))
            elif kind == 2 and len(focus):
                encodings.append(Scored(*parts, targets=np.zeros(len(focus), np.int64)))
            else:
                encodings.append(Encoding(*parts))
        batch = Batch.of(encodings)
        if given:
            count = len(batch.input_ids) - (wrong and draw.random() < 0.2)
            batch = replace(batch, given=rng.normal(size=(count, given)).astype(np.float32))
        if wrong:
            array = draw.choice([one for one in vars(batch).values() if one is not None and one.ndim == 1 and len(one)])
            array[draw.randrange(len(array))] = draw.choice(
                (-1, 0, 1, 7, 40, words, 1 << 31, -(1 << 63), (1 << 63) - 1)
            )
        try:
            engine.run(batch)
        except ValueError:
            if valid and not wrong:
                raise


if __name__ == "__main__":
    main()
