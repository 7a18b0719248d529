"""Runs the cases and ends with a table; the exit status is 1 if a goal was missed.

PYTHONPATH=.:tests:loadtest python -m torture [--scale 0.1] [--out FILE] [CASE ...]
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from swiftlet_serve.service.offline.environment import other_work, setting
from tests.support.artifacts import make_artifact
from tests.support.hostile import TASKS
from tests.torture.cases import CASES, Outcome, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"all if left out: {', '.join(CASES)}")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of requests; 1 takes about an hour")
    parser.add_argument("--out", type=Path, help="a file for the table, which has the machine above it")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - CASES.keys()
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}")
    logging.disable(logging.CRITICAL)  # of the pipelines in this process, whose engines fail on purpose
    outcomes: list[Outcome] = []
    where = setting()
    head = [where.told(), *other_work(where.load, where.cores), ""]
    with tempfile.TemporaryDirectory() as directory:
        for task in TASKS:
            make_artifact(Path(directory), task)
        for name in arguments.cases or CASES:
            started = time.monotonic()
            outcomes += CASES[name](Path(directory), arguments.scale)
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            if arguments.out:  # an hour is long: what there is, is kept
                arguments.out.write_text("\n".join([*head, table(outcomes), ""]), "utf-8")
    print(table(outcomes))
    sys.exit(not all(one.passed for one in outcomes))


main()
