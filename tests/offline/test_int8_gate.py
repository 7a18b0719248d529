"""The gate of int8: what examples tell, what they cannot tell, and the fidelity of the answers to built-in texts."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from swiftlet_models.artifact import GOLDEN, WEIGHTS, Artifact, Embedding, Manifest, open_artifact, seal
from swiftlet_models.metrics import mean
from swiftlet_serve import engines, plugins
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.offline.evaluate import Evaluation
from swiftlet_serve.offline.fidelity import LEAST, Fidelity, fidelity
from swiftlet_serve.offline.int8_gate import judge, loss_of
from swiftlet_serve.types import Batch

GOOD = Fidelity("probability", 0.99, 0.98, 7)
BAD = Fidelity("probability", 0.9, 0.3, 7)
MANIFEST = Manifest(
    name="m",
    version="1",
    architecture="bert",
    task="classify",
    head="classification",
    precision="int8",
    max_tokens=8,
    vocab_size=9,
    width=3,
    labels=("a", "b", "c"),
    problem="single_label",
    tolerance=1.0,
    config={},
    source={},
)
EMBEDDING = replace(
    MANIFEST, head="embedding", width=8, labels=(), problem=None, embedding=Embedding("mean", normalize=True)
)


def evaluation(marks: list[float], min_agreement: float = 0.0) -> Evaluation:
    return Evaluation({"accuracy": mean(marks)}, tuple(marks), tuple(marks), {}, min_agreement=min_agreement)


def compared(n: int, lost: int, won: int = 0, **options: float) -> tuple[Evaluation, Evaluation]:
    """Returns the results of fp32, which is right on half of n examples, and of int8, which loses and wins some."""
    fp32 = [float(i < n // 2) for i in range(n)]
    int8 = [1 - mark if i in range(n // 2 - lost, n // 2 + won) else mark for i, mark in enumerate(fp32)]
    return evaluation(fp32, **options), evaluation(int8, **options)


@pytest.mark.parametrize(
    ("n", "lost", "won"),
    [(20, 8, 0), (100, 6, 0), (872, 20, 5), (1000, 6, 0), (5000, 60, 20), (100, 50, 0)],
)
def test_significant_loss_is_refused(n, lost, won):
    verdict = judge(*compared(n, lost, won), GOOD, 0.5)

    assert verdict.refusal.startswith(f"loses {100 * (lost - won) / n:.2f} points of accuracy (95 % interval ")
    assert verdict.refusal.endswith("and at most 0.5 are allowed")


@pytest.mark.parametrize(
    ("n", "lost", "won"), [(60, 1, 0), (100, 1, 0), (150, 1, 0), (100, 0, 0), (872, 8, 2), (2, 1, 0)]
)
def test_examples_that_cannot_tell_leave_the_decision_to_the_built_in_texts(n, lost, won):
    """100 rows, one of which changed, refused a classifier that lost nothing on 1,000."""
    accepted, refused = (judge(*compared(n, lost, won), kept, 0.5) for kept in (GOOD, BAD))

    assert not accepted.refusal
    assert accepted.warning.startswith(f"loses {100 * (lost - won) / n:.2f} points of accuracy")
    assert "so few examples cannot tell whether it loses more than 0.5" in accepted.warning
    assert refused.refusal.startswith("keeps 90.0 % of the answers to built-in texts (probability), and at least 95 %")


@pytest.mark.parametrize(("n", "lost", "won"), [(1000, 0, 0), (5000, 15, 10), (1000, 0, 40), (100, 0, 30)])
def test_examples_that_show_no_loss_accept(n, lost, won):
    assert judge(*compared(n, lost, won), BAD, 0.5) == judge(None, None, GOOD, 0.5)


def test_loss_within_the_limit_is_accepted_even_if_it_is_significant():
    verdict = judge(*compared(100_000, 300), BAD, 0.5)

    assert loss_of(*compared(100_000, 300)).low > 0
    assert not verdict.refusal
    assert not verdict.warning


@pytest.mark.parametrize("kept", [replace(GOOD, mean=math.nan), BAD])
def test_without_examples_the_built_in_texts_decide(kept):
    assert judge(None, None, kept, 0.5).refusal.startswith("keeps ")
    assert judge(None, None, GOOD, 0.5).refusal == ""


def test_vectors_far_from_those_of_fp32_are_refused():
    fp32, int8 = compared(100, 1, 0, min_agreement=99.5)

    assert judge(fp32, int8, GOOD, 0.5).refusal == "agrees with fp32 to 99.00 %, and at least 99.5 % are required"


def rows(width: int, scale: float = 1.0, positions: int = 1) -> list[np.ndarray]:
    chance = np.random.default_rng(1)
    return [(scale * chance.normal(size=(positions, width))).astype(np.float32) for _ in range(6)]


@pytest.mark.parametrize(
    ("changes", "measure"),
    [
        ({}, "probability"),
        ({"problem": "multi_label"}, "probability"),
        ({"problem": "regression"}, "score"),
        ({"width": 1, "labels": ("a",)}, "score"),
        ({"head": "token"}, "probability"),
        ({"head": "token", "labels": (), "width": 2, "problem": None}, "probability"),
        ({"head": "masked_lm", "labels": (), "width": 9, "problem": None}, "probability of words"),
    ],
)
def test_fidelity_is_1_for_equal_outputs_and_low_for_others(changes, measure):
    manifest = replace(MANIFEST, **changes)
    exact = rows(manifest.width, 3, 5 if manifest.head == "token" else 1)

    same = fidelity(manifest, exact, exact)
    assert (same.measure, same.mean, same.lowest, same.n) == (measure, 1, 1, 6)
    near = fidelity(manifest, exact, [row + np.float32(0.01) * np.sign(row) for row in exact])
    assert near.sufficient
    assert LEAST[measure] < near.lowest <= near.mean < 1
    assert near.low < near.mean < near.high <= 1
    assert near.score.value == 100 * near.mean
    far = fidelity(manifest, exact, [-row for row in exact])
    assert not far.sufficient
    assert far.lowest <= far.mean < 0.9
    assert not fidelity(manifest, exact, [np.full_like(row, np.nan) for row in exact]).sufficient


def test_fidelity_of_vectors_ignores_scale_and_outliers():
    """An element far above the others hid errors, and its absence made sound vectors fail."""
    exact, noise = rows(384), rows(384)[::-1]
    found = [5 * (one + 0.05 * other) for one, other in zip(exact, noise, strict=True)]
    manifest = replace(EMBEDDING, width=384)

    assert fidelity(manifest, exact, found).mean == pytest.approx(1 / math.sqrt(1 + 0.05**2), abs=1e-3)
    assert fidelity(manifest, exact, found).sufficient
    assert not fidelity(
        manifest, exact, [one + 0.3 * other for one, other in zip(exact, noise, strict=True)]
    ).sufficient


def test_fidelity_needs_sequences():
    with pytest.raises(ValueError, match="no sequences"):
        fidelity(MANIFEST, [], [])


@pytest.mark.parametrize("engine", ["native", "onnx_cpu"])
@pytest.mark.parametrize("name", ["albert-sst2", "mobilebert-qa", "mobilebert-embed", "albert-fill-mask"])
def test_fidelity_separates_sound_weights_from_damaged_ones(tmp_path, name, engine):
    """The golden answers of bundled models are those of fp32. The damage is a wrong scale of one matrix."""
    sound = open_artifact(BUNDLED / name)
    path = tmp_path / name
    shutil.copytree(sound.path, path)
    tensors = load_file(path / WEIGHTS)
    tensors["encoder.embeddings.word.weight.scale"] /= 2
    save_file(tensors, path / WEIGHTS)
    damaged = seal(path, replace(sound.manifest, tolerance=1e9))

    assert golden_fidelity(sound, engine).sufficient
    assert not golden_fidelity(damaged, engine).sufficient


def golden_fidelity(artifact: Artifact, engine_name: str) -> Fidelity:
    with np.load(artifact.file(GOLDEN)) as file:
        arrays = dict(file)
    exact, columns = arrays.pop("rows"), arrays.pop("columns")
    batch = Batch.without_top_k(**arrays)
    engine = plugins.load(engines, engine_name).create(artifact, threads=1)
    found = [engine.run(Batch.of([one]))[0][:, columns] for one in batch.encodings()]
    engine.close()
    return fidelity(artifact.manifest, list(batch.split_rows(exact)), found)
