"""The three tasks, with each of two tokenizers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.tasks import classify, fill_mask, qa
from tests.goldens import cases
from tests.support.task_requests import LABELS, manifest

FILES = {"vocab": "vocab.txt", "spiece": "spiece.model"}


@pytest.fixture(scope="module", params=list(FILES))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(cases.HERE / FILES[request.param], directory)
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def classifier(tokenizer: Tokenizer) -> classify.Classify:
    return classify.create(tokenizer, manifest("classify", 3, LABELS, problem="single_label"))


@pytest.fixture(scope="module")
def answerer(tokenizer: Tokenizer) -> qa.Qa:
    return qa.create(tokenizer, manifest("qa", 2))


@pytest.fixture(scope="module")
def filler(tokenizer: Tokenizer) -> fill_mask.FillMask:
    return fill_mask.create(tokenizer, manifest("fill-mask", tokenizer.vocab_size))
