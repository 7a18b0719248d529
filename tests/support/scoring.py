"""Jobs of bulk scoring: inputs, the command, and what it writes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from swiftlet_serve.cli.main import main

INPUTS: Mapping[str, Any] = {
    "classify": "a fine film",
    "embed": "a fine film",
    "entities": "clara lives here",
    "fill-mask": "a [MASK] film",
    "qa": {"question": "who is it?", "context": "it is clara. she bakes."},
    "rerank": {"query": "who bakes?", "texts": ["clara bakes.", "rain", "bread"]},
    "score": {"prompt": "it is", "continuation": " clara"},
    "zero-shot": "a fine film",
}
"""An input of each task."""

PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "classify": {"top_k": 2},
    "embed": {"dimensions": 4},
    "zero-shot": {"candidate_labels": ["film", "bread"]},
    "qa": {"top_k": 2},
}


def score(*arguments: object) -> Result:
    """Runs `swiftlet score`."""
    return CliRunner().invoke(main, ["score", *map(str, arguments)])


def done(*arguments: object) -> Result:
    """Runs `swiftlet score`, which must succeed."""
    result = score(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: object) -> str:
    """Runs `swiftlet score`, which must fail. Returns its sentence."""
    result = score(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    return result.stderr.splitlines()[-1]


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("id", "text")) -> Path:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    path.write_bytes(text.getvalue().encode())
    return path


def texts(count: int) -> list[list[str]]:
    """Returns rows of an id and a text. The texts differ, in length too, and some have line ends and quotes."""
    ends = ("", '\nand "more"', ", so", "\r\n")
    return [[str(i), f"text {i}{' word' * (i * 7 % 11)}{ends[i % 4]}"] for i in range(count)]


def read_jsonl(out: Path) -> list[dict[str, Any]]:
    """Returns the rows of all output files."""
    return [
        json.loads(line)
        for path in sorted(out.glob("part-*.jsonl"))
        for line in path.read_text("utf-8").split("\n")
        if line
    ]


def read_csv(out: Path) -> list[dict[str, str]]:
    rows = []
    for path in sorted(out.glob("part-*.csv")):
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
            rows += list(csv.DictReader(stream))
    return rows


def content(out: Path) -> dict[str, bytes]:
    """Returns the bytes of all files of a finished job."""
    return {path.name: path.read_bytes() for path in out.iterdir()}
