"""The golden answers of an artifact are replayed on the engine that loads it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from swiftlet_serve.models.artifact import GOLDEN, ArtifactError, open_artifact, seal
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.workers.golden import replay
from tests.support.artifacts import make_artifact, reseal


class FaultyEcho(Echo):
    """An echo engine whose golden answers are checked."""

    runs_network = True
    extra_tolerance = 0.0


class TooWide(FaultyEcho):
    def run(self, batch):
        return Echo(self.width + 1).run(batch)


class WrongRanking(FaultyEcho):
    def run(self, batch):
        rows = super().run(batch)
        return [-row if top_k else row for row, top_k in zip(rows, batch.top_k, strict=True)]


class NotFinite(FaultyEcho):
    """Returns NaN in the last column, which the golden answers do not hold."""

    def run(self, batch):
        rows = super().run(batch)
        for row in rows:
            row[:, -1] = np.nan
        return rows


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (TooWide, r"a row of shape \(2, 4\), expected \(2, 3\)"),
        (WrongRanking, "does not match its outputs"),
        (NotFinite, "the engine returned NaN or infinity"),
    ],
)
def test_replay_rejects_faults_beside_the_golden_columns(tmp_path, kind, message):
    artifact = make_artifact(tmp_path, "classify")

    with pytest.raises(ArtifactError, match=f"cannot be replayed: .*{message}"):
        replay(artifact, kind(3))


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (-1, -1)])
def test_replay_rejects_golden_answers_that_are_not_finite(tmp_path, damage, place):
    """The tolerance of some engines depends on the largest golden answer. No difference exceeds NaN."""
    artifact = make_artifact(tmp_path, "classify")
    with np.load(artifact.file(GOLDEN)) as file:
        arrays = dict(file)
    arrays["rows"][place] = damage
    np.savez(artifact.path / GOLDEN, allow_pickle=False, **arrays)
    reseal(artifact)

    with pytest.raises(ArtifactError, match=r"golden\.npz holds answers that are not finite numbers"):
        replay(open_artifact(artifact.path), FaultyEcho(3))


def test_replay_accepts_no_tolerance_that_is_nan(tmp_path):
    """A manifest cannot hold one, but an engine of an extension may ask for it."""
    artifact = make_artifact(tmp_path, "classify")
    engine = FaultyEcho(3)
    engine.extra_tolerance = math.nan

    with pytest.raises(ArtifactError, match="differ from the golden answers"):
        replay(artifact, engine)


@pytest.mark.parametrize("tolerance", [math.nan, math.inf, -1.0, 0.0, True, "1", None])
def test_manifest_holds_a_finite_tolerance(tmp_path, tolerance):
    artifact = make_artifact(tmp_path, "classify")

    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        seal(artifact.path, replace(artifact.manifest, tolerance=tolerance))
