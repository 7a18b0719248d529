"""The golden answers of an artifact are replayed on the engine that loads it."""

from __future__ import annotations

import math
import tracemalloc
import zipfile
from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest

from swiftlet_models.artifact import GOLDEN, ArtifactError, open_artifact, seal
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.workers.golden import replay
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


def damaged(tmp_path, change):
    """Returns an artifact with other golden arrays. `change` gets them, and returns the content of the file or None."""
    artifact = make_artifact(tmp_path, "classify")
    with np.load(artifact.file(GOLDEN)) as file:
        arrays = dict(file)
    content = change(arrays)
    if content is None:
        np.savez_compressed(artifact.path / GOLDEN, allow_pickle=True, **arrays)
    else:
        (artifact.path / GOLDEN).write_bytes(content)
    reseal(artifact)
    return open_artifact(artifact.path)


def header(shape: str, descr: str = "<f4") -> bytes:
    """Returns an array file that has a header and no numbers."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(arrays, name=None, content=b"", size=None):
    """Returns an archive of the arrays, with another content for one of them. `size` is the one that it claims."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as into:
        for key, array in arrays.items():
            stored = BytesIO()
            np.lib.format.write_array(stored, array)
            into.writestr(f"{key}.npy", content if key == name else stored.getvalue())
    written = file.getvalue()
    if size is not None:  # in the local header and in the directory
        written = written.replace(len(content).to_bytes(4, "little"), size.to_bytes(4, "little"))
    return written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: b"PK", "cannot be read"),
        (lambda arrays: arrays.__delitem__("rows"), "must hold exactly the arrays"),
        (lambda arrays: arrays.update(more=np.zeros(2)), "must hold exactly the arrays"),
        (lambda arrays: arrays.update(rows=np.array([{"a": 1}], object)), "other numbers or dimensions in rows"),
        (lambda arrays: arrays.update(rows=arrays["rows"].astype(np.float64)), "other numbers or dimensions in rows"),
        (lambda arrays: arrays.update(rows=arrays["rows"][0]), "other numbers or dimensions in rows"),
        (lambda arrays: arrays.update(input_ids=np.array(["a"] * 5)), "other numbers or dimensions in input_ids"),
        (lambda arrays: arrays.update(offsets=np.array(5)), "other numbers or dimensions in offsets"),
        (lambda arrays: arrays.update(offsets=np.array([0])), "holds no answers"),
        (lambda arrays: arrays.update(offsets=np.array([0, 2**40, 5])), "offsets that do not divide"),
        (lambda arrays: arrays.update(offsets=np.array([-1, 3, 5])), "offsets that do not divide"),
        (lambda arrays: arrays.update(offsets=np.array([0, 0, 5])), "offsets that do not divide"),
        (lambda arrays: arrays.update(focus_offsets=np.array([0, 3, 2])), "offsets that do not divide"),
        (lambda arrays: arrays.update(focus_offsets=np.array([0, 3])), "offsets that do not divide"),
        (lambda arrays: arrays.update(token_type_ids=np.zeros(4, np.int64)), "arrays of different lengths"),
        (lambda arrays: arrays.update(columns=np.array([0, 3])), "columns that the head does not have"),
        (lambda arrays: arrays.update(columns=np.array([0, -1])), "columns that the head does not have"),
        (lambda arrays: arrays.update(columns=np.array([0])), "arrays of different lengths"),
        (lambda arrays: arrays.update(input_ids=np.zeros(16385, np.int64)), "more than 16384 tokens"),
        (lambda arrays: arrays.update(rows=np.zeros((1, 1 << 22), np.float32)), "holds more than 4194304 bytes"),
        (lambda arrays: archive(arrays, "rows", header("(3, 1073741824)")), "the bytes of the shape of rows"),
        (lambda arrays: archive(arrays, "rows", header("(-3, -2)")), "the bytes of the shape of rows"),
        (lambda arrays: archive(arrays, "rows", header("(1, 2)", "|O")), "other numbers or dimensions in rows"),
        (lambda arrays: archive(arrays, "rows", header("(" * 5000)), "cannot be read"),
        (lambda arrays: archive(arrays, "rows", bytes(1 << 24), 77), "cannot be read"),
    ],
)
def test_replay_rejects_other_arrays_before_it_reads_them(tmp_path, change, message):
    artifact = damaged(tmp_path, change)
    tracemalloc.start()
    with pytest.raises(ArtifactError, match=message):
        replay(artifact, FaultyEcho(3))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 8 << 20
