"""Runs the torture cases and prints a table. The exit status is 1 if a goal was missed.

python -m tests.torture [--scale 0.1] [--out FILE] [CASE ...]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from swiftlet_serve.offline.environment import current_environment, load_warnings
from tests.support.artifacts import make_artifact
from tests.support.hostile import TASKS
from tests.torture.cases import CASES, table
from tests.torture.outcome import Outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"Default: all of {', '.join(CASES)}.")
    parser.add_argument("--scale", type=float, default=1.0, help="Share of all requests. 1 takes about an hour.")
    parser.add_argument("--out", type=Path, help="File for the machine and the table.")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - CASES.keys()
    if unknown:
        parser.error(f"unknown case: {', '.join(sorted(unknown))}")
    logging.disable(logging.CRITICAL)  # the engines of this process's pipelines fail on purpose
    outcomes: list[Outcome] = []
    where = current_environment()
    head = [where.description(), *load_warnings(where.load, where.cores), ""]
    with tempfile.TemporaryDirectory() as directory:
        for task in TASKS:
            make_artifact(Path(directory), task)
        for name in arguments.cases or CASES:
            started = time.monotonic()
            outcomes += CASES[name](Path(directory), arguments.scale)
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            if arguments.out:  # after each case, so that an interrupted run leaves its results
                arguments.out.write_text("\n".join([*head, table(outcomes), ""]), "utf-8")
    print(table(outcomes))
    sys.exit(not all(one.passed for one in outcomes))


main()
