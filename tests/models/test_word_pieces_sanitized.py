"""The compiled word pieces under the sanitizers for addresses and undefined behaviour."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from swiftlet_models import word_pieces
from swiftlet_models.word_pieces import BLOCK, BLOCKS
from tests.models.test_word_pieces import CASES, VOCAB, encoded, library, own, rows
from tests.support.artifact_fuzz import sanitizer_environment
from tests.support.compiler import WORD_PIECES, compile_kernels


def hostile(seed: int, count: int) -> Iterable[str]:
    """Yields texts of characters of all blocks, and of words of the vocabulary."""
    draw = random.Random(seed)
    for _ in range(count):
        blocks = [draw.randrange(draw.choice((0x34, BLOCKS, 2 * BLOCKS))) for _ in range(2)]
        characters = [chr(draw.choice(blocks) * BLOCK + draw.randrange(BLOCK)) for _ in range(draw.choice((2, 9, 300)))]
        units = [*characters, *draw.sample(VOCAB, 5), " "]
        yield "".join(draw.choices(units, k=draw.choice((1, 9, 3000))))


def main() -> None:
    word_pieces.FILE = Path(sys.argv[1])
    word_pieces._library.cache_clear()  # of the modules above, which have loaded the usual one
    for name in ("uncased", "long words", "unused prefix"):
        pieces, tokenizer = own(CASES[name]), library(CASES[name])
        for text in hostile(1, 100):
            found = pieces.encode(text)
            assert found is None or rows(pieces, text) == encoded(tokenizer, text)
    print("passed")


@pytest.mark.exhaustive
def test_word_pieces_pass_the_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    built = compile_kernels(compiler, [*flags, str(WORD_PIECES / "word_pieces.cpp")], tmp_path / "word_pieces.so")
    command = [sys.executable, "-m", __name__, str(built)]
    result = subprocess.run(command, env=sanitizer_environment(), capture_output=True, text=True, timeout=500)
    assert result.stdout == "passed\n", result.stderr


if __name__ == "__main__":
    main()
