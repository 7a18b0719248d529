"""Measures the CPU time of tokenising: word pieces in compiled code, and the tokenizers library, in turn.

    python -m loadtest.tokenizer_speed [--model DIRECTORY] [--texts FILE]

The file has one text a line. Before they are timed, both have to give the same ids and places for each text.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from loadtest.workload import TEXTS
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.loading import BUNDLED

ROUNDS: Final = 20
LENGTHS: Final = (1, 10, 100)  # sentences of a text


def cpu_us(read: Callable[[Tokenizer, str], object], tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Returns the microseconds of CPU time for each text."""
    before = time.process_time()
    for text in texts:
        read(tokenizer, text)
    return 1e6 * (time.process_time() - before) / len(texts)


def compare(own: Tokenizer, library: Tokenizer, texts: Sequence[str]) -> str:
    """Returns a row of the table.

    Raises:
        AssertionError: the two differ.
    """
    for text in texts:
        (one,), (other,) = own.tokenize([text]), library.tokenize([text])
        for name, values in vars(other).items():
            np.testing.assert_array_equal(getattr(one, name), values)
    cells = [f"{statistics.mean(len(own.tokenize([text])[0]) for text in texts):.0f}"]
    reads: list[Callable[[Tokenizer, str], object]] = [
        lambda tokenizer, text: tokenizer.encode([text], 512),
        lambda tokenizer, text: tokenizer.tokenize([text]),
    ]
    for read in reads:
        times = [(cpu_us(read, own, texts), cpu_us(read, library, texts)) for _ in range(ROUNDS)]
        ratio = statistics.median(theirs / ours for ours, theirs in times)
        ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
        cells += [f"{ours:.0f}", f"{theirs:.0f}", f"{ratio:.1f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=BUNDLED / "mobilebert-sst2")
    parser.add_argument("--texts", type=Path)
    arguments = parser.parse_args()
    own = Tokenizer.load(arguments.model / "tokenizer.json")
    library = copy.copy(own)
    library._word_pieces = None
    print("| Tokens | Sequence (µs) | Library (µs) | Times | With places (µs) | Library (µs) | Times |")
    print("|---|---|---|---|---|---|---|")
    if arguments.texts:
        print(compare(own, library, arguments.texts.read_text("utf-8").splitlines()))
        return
    sentences = 5 * tomllib.loads(TEXTS.read_text("utf-8"))["sentences"]
    for length in LENGTHS:
        print(compare(own, library, [" ".join(sentences[i : i + length]) for i in range(20)]))


if __name__ == "__main__":
    main()
