"""Makes artifacts in released shapes, with random weights: speed does not depend on the weights.

python -m loadtest.released_shapes DIRECTORY [--shape mobilebert] [--vocabulary FILE] [--only TASK ...]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from swiftlet_models.artifact import Head, Manifest
from swiftlet_models.heads import build, weights_of
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.benchmark.networks import RELEASED
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.release import release

VOCABULARY: Final = Path("../shared/data/bert-base-uncased-vocab.txt")
LABELS: Final[Mapping[str, tuple[str, ...]]] = {"classify": ("NEGATIVE", "POSITIVE"), "qa": (), "fill-mask": ()}
VOCABULARY_SIZE: Final = 30_522
HEADS: Final[Mapping[str, Head]] = {"classify": "classification", "qa": "token", "fill-mask": "masked_lm"}
WIDTHS: Final = {"classify": 2, "qa": 2, "fill-mask": VOCABULARY_SIZE}


def make_artifact(task: str, directory: Path, vocabulary: Path = VOCABULARY, shape: str = "mobilebert") -> Path:
    """Returns the path of a task's artifact. Makes it if it does not exist."""
    path = directory / f"{shape}-released-{task}"
    if path.exists():
        return path
    torch.manual_seed(0)
    released = RELEASED[shape]
    config = {"vocab_size": VOCABULARY_SIZE, **released.changes}
    model = build(released.architecture, config, HEADS[task], WIDTHS[task])
    with tempfile.TemporaryDirectory() as temporary:
        shutil.copyfile(vocabulary, Path(temporary, "vocab.txt"))
        tokenizer = Tokenizer.from_directory(Path(temporary))
    manifest = Manifest(
        name=path.name,
        version="0",
        architecture=released.architecture,
        task=task,
        head=HEADS[task],
        precision="int8",
        max_tokens=512,
        vocab_size=VOCABULARY_SIZE,
        width=WIDTHS[task],
        labels=LABELS[task],
        problem="single_label" if task == "classify" else None,
        tolerance=1.0,
        config=config,
        source={"weights": "random"},
    )
    release(Draft(weights_of(model), tokenizer, manifest, {"summary": "Random weights."}), path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", default="mobilebert", choices=RELEASED)
    parser.add_argument("--only", nargs="+", default=[*LABELS], choices=LABELS, metavar="TASK")
    parser.add_argument("--vocabulary", type=Path, default=VOCABULARY)
    arguments = parser.parse_args()
    for task in arguments.only:
        print(make_artifact(task, arguments.directory, arguments.vocabulary, arguments.shape), flush=True)


if __name__ == "__main__":
    main()
