"""The golden answers of an artifact are replayed on the engine that loads it."""

from __future__ import annotations

import pytest

from swiftlet_serve.models.artifact import ArtifactError
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.workers.golden import replay
from tests.support.artifacts import make_artifact


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


@pytest.mark.parametrize(
    ("kind", "message"),
    [(TooWide, r"a row of shape \(2, 4\), expected \(2, 3\)"), (WrongRanking, "does not match its outputs")],
)
def test_replay_rejects_faults_beside_the_golden_columns(tmp_path, kind, message):
    artifact = make_artifact(tmp_path, "classify")

    with pytest.raises(ArtifactError, match=f"cannot be replayed: .*{message}"):
        replay(artifact, kind(3))
