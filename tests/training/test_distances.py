"""The study `distances`: how far the layers of artifacts move the vectors of tokens."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from swiftlet_models.encodings import Encoding
from swiftlet_serve.cli.main import main
from swiftlet_train.distances import layer_distances
from tests.support.networks import network
from tests.support.tiers import first

TEXTS = "a fine film\n\n   \n아주 좋은 영화 🎬\ncafe\u0301\n"


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text(TEXTS, "utf-8")
    return path


def study(*arguments):
    return CliRunner().invoke(main, ["study", *map(str, arguments)])


@pytest.mark.parametrize("architecture", first(["albert", "bert", "mobilebert"], "albert", "mobilebert"))
def test_distances_are_means_over_the_tokens_of_all_texts(architecture):
    model = network(architecture, "qa")
    rows = [np.arange(5, 5 + length) for length in (5, 9)]
    given = [Encoding(ids, ids % 2, ids[:1]) for ids in rows]
    expected = []  # for each token, the distances of each layer
    for encoding in given:
        ids, types = torch.from_numpy(encoding.input_ids)[None], torch.from_numpy(encoding.token_type_ids)[None]
        with torch.no_grad():
            states = [x[0].numpy() for x in model.encoder.features(ids, types, ids > 0)]
        for token in range(len(encoding.input_ids)):
            steps = [(before[token], after[token]) for before, after in pairwise(states)]
            cosines = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in steps]
            angles = [math.degrees(math.acos(cosine)) for cosine in cosines]
            expected.append([[np.linalg.norm(y - x) for x, y in steps], angles])

    measured = layer_distances(model, given)
    assert np.allclose([(layer.l2, layer.degrees) for layer in measured], np.mean(expected, 0).T, rtol=1e-3)


def test_study_prints_a_row_for_each_layer_and_writes_a_picture(texts, tmp_path):
    arguments = ["distances", "albert-cola", "--texts", texts, "--out", tmp_path / "out"]
    result, again = study(*arguments), study(*arguments)
    head, _, *rows = result.stdout.splitlines()

    assert result.exit_code == 0
    assert head == "| model | layer | L2 distance | angle (degrees) |"
    assert [row.split(" | ")[1] for row in rows if row.startswith("| albert-cola")] == list("123456")
    assert "<svg" in (tmp_path / "out/distances.svg").read_text("utf-8")
    assert again.stdout == result.stdout


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", "is not a readable file in UTF-8"),
        (b" \n\n", "holds no text"),
        (b"a\n" + b"word " * 3000, "Text 2 has 300"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(texts, content, reason):
    texts.write_bytes(content)
    result = study("distances", "albert-cola", "--texts", texts)

    assert result.exit_code == 1
    assert reason in result.stderr


@pytest.mark.parametrize("arguments", [["distances"], ["distances", "albert-cola"], ["shapes", "albert-cola"]])
def test_other_arguments_are_refused(arguments):
    result = study(*arguments)

    assert result.exit_code == 1
    assert "The study distances needs ARTIFACT and --texts" in result.stderr


def test_texts_for_another_study_are_refused(texts):
    assert "No other study takes them" in study("shapes", "--texts", texts).stderr
