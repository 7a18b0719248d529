"""Compares imported models with transformers and sentence-transformers, text by text, and int8 with fp32.

    python -m loadtest.own_models TEXTS QUESTIONS DIRECTORY... [--reference PYTHON]

TEXTS holds a JSON string in each line, QUESTIONS an object with `question` and `context`. A DIRECTORY is what
`swiftlet import` takes, for embed, classify, entities or qa. PYTHON is that of an environment with the reference
packages. Two answers are equal if the numbers of their vectors are within 1e-5, or if they have the same labels in the
order of their scores, or the same spans with their labels. The standard error names the texts that differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from swiftlet_models.artifact import Artifact
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.settings import Settings

REFERENCE: Final = Path(__file__).with_name("reference_answers.py")
TITLES: Final = (
    "model",
    "task",
    "texts",
    "answered by both",
    "equal",
    "largest difference of a number",
    "int8: first label, span or vector as in fp32",
    "int8: mean and lowest cosine, or largest difference of a score",
)
TOLERANCE: Final = 1e-5  # of a number of a vector
TIMEOUT_S: Final = 3600.0


def ours(artifact: Artifact, engine: str, texts: Sequence[Any]) -> list[Any]:
    """Returns the answers of an artifact, None for a text that is refused."""

    async def ask() -> list[Any]:
        model = load_model(artifact.path, engine)
        runtime = LocalRuntime.of(Settings(), [model])
        (pipeline,) = runtime.pipelines.values()
        answers: list[Any] = []
        for text in texts:
            try:
                request = model.task.Request.model_validate({"inputs": text})
                answer = await pipeline.answer(request, time.monotonic() + TIMEOUT_S)
                answers.append(answer[0] if artifact.manifest.task in ("embed", "classify") else answer)
            except (SwiftletError, ValidationError):
                answers.append(None)
        await runtime.close()
        return json.loads(json.dumps(answers, default=dumped))  # type: ignore[no-any-return]

    return asyncio.run(ask())


def dumped(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else np.asarray(value).tolist()


def decided(task: str, answer: Any) -> Any:
    """Returns what an answer decides: the labels by their scores, or the spans."""
    if task == "classify":
        return [entry["label"] for entry in answer]
    spans = [answer] if isinstance(answer, dict) else answer
    return [
        (span.get("entity_group"), span["start"], span["end"], span.get("answer", span.get("word"))) for span in spans
    ]


def numbers(task: str, answer: Any) -> list[float]:
    """Returns the numbers of an answer. Those of two answers that decide the same belong together."""
    if task == "embed":
        return answer  # type: ignore[no-any-return]
    return [entry["score"] for entry in ([answer] if isinstance(answer, dict) else answer)]


def difference(task: str, first: Any, second: Any) -> float:
    """Returns the largest difference of a number; infinite if the answers decide otherwise."""
    if task != "embed" and decided(task, first) != decided(task, second):
        return float("inf")
    return float(np.abs(np.subtract(numbers(task, first), numbers(task, second))).max(initial=0.0))


def against_reference(task: str, texts: Sequence[Any], found: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    differences = []
    for text, a, b in zip(texts, found, expected, strict=True):
        if (a is None) != (b is None):
            print(f"answered by {'the reference' if a is None else 'Swiftlet'} alone: {text!r:.200}", file=sys.stderr)
        elif a is not None:
            differences.append(difference(task, a, b))
            if differences[-1] > (TOLERANCE if task == "embed" else 1):
                print(f"{text!r:.200}\n  {str(a)[:300]}\n  {str(b)[:300]}", file=sys.stderr)
    equal = [d for d in differences if d <= (TOLERANCE if task == "embed" else 1)]
    return [f"{len(texts):,}", f"{len(differences):,}", f"{len(equal):,}", f"{max(equal, default=math.nan):.1e}"]


def against_fp32(task: str, fp32: Sequence[Any], int8: Sequence[Any]) -> list[str]:
    pairs = [(a, b) for a, b in zip(fp32, int8, strict=True) if a is not None]
    if task == "embed":
        cosines = [float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs]
        return ["–", f"{np.mean(cosines):.4f}, {min(cosines):.3f}"]
    first = slice(0, 1) if task == "classify" else slice(None)
    same = [(a, b) for a, b in pairs if decided(task, a)[first] == decided(task, b)[first]]
    scores = [
        abs(x - y) for a, b in same for x, y in zip(numbers(task, a)[first], numbers(task, b)[first], strict=True)
    ]
    return [f"{100 * len(same) / len(pairs):.1f} %", f"{max(scores, default=0):.2f}"]


def row(directory: Path, files: dict[str, Path], python: str, work: Path) -> list[str]:
    """Imports a directory in fp32 and in int8, and returns its row of the table."""
    made = {
        precision: import_checkpoint(
            str(directory), None, work / precision, precision=precision, max_loss=0.5, report=lambda _: None
        )[0]
        for precision in ("fp32", "int8")
    }  # type: dict[str, Artifact]
    task = made["fp32"].manifest.task
    file = files.get(task, files["classify"])
    texts = [json.loads(line) for line in file.read_text("utf-8").rstrip("\n").split("\n")]
    command = [python, str(REFERENCE), str(directory), task, str(file)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    fp32 = ours(made["fp32"], "onnx_cpu", texts)
    cells = against_reference(task, texts, fp32, [json.loads(line) for line in lines])
    written = made["int8"].manifest.precision
    if written != "int8":
        return [directory.name, task, *cells, f"int8 was refused for {written}", "–"]
    return [directory.name, task, *cells, *against_fp32(task, fp32, ours(made["int8"], Settings().engine, texts))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("directories", type=Path, nargs="+")
    parser.add_argument("--reference", default=sys.executable, metavar="PYTHON")
    arguments = parser.parse_args()
    print(f"{current_environment('tokenizers').description('')}\n\n| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    files = {"classify": arguments.texts, "qa": arguments.questions}
    for directory in arguments.directories:
        with tempfile.TemporaryDirectory() as work:
            print(f"| {' | '.join(row(directory, files, arguments.reference, Path(work)))} |", flush=True)


if __name__ == "__main__":
    main()
