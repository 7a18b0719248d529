"""Which artifacts share a trunk."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftlet_models import trunks
from swiftlet_models.artifact import MANIFEST, WEIGHTS, seal
from swiftlet_models.tensors import Adapted
from tests.support.artifacts import make_artifact
from tests.support.networks import draft, make
from tests.support.shared_trunks import make_heads


def test_groups_holds_artifacts_with_the_same_encoder_in_their_order(tmp_path):
    heads = [artifact.path for artifact in make_heads("bert")]
    plan = draft("bert", "classify")
    changed = {name: np.array(weight) for name, weight in plan.weights.items()}
    changed["encoder.embeddings.norm.bias"][7] += 1e-3
    other = make(tmp_path, replace(plan, weights=changed, manifest=replace(plan.manifest, name="tuned"))).path
    table = make_artifact(tmp_path / "onnx", "classify").path

    assert trunks.groups([heads[0], other, *heads[1:3], table]) == [[heads[0], heads[1], heads[2]], [other], [table]]
    assert trunks.groups([table, table]) == [[table], [table]]
    assert trunks.groups([]) == []


def test_groups_keeps_other_precisions_and_other_structures_apart(tmp_path):
    int8 = make_heads("bert")[0].path
    fp32 = make_heads("bert", "fp32")[0].path
    assert trunks.groups([int8, fp32]) == [[int8], [fp32]]

    causes = tmp_path / "epsilon" / "bert-classify"
    shutil.copytree(int8, causes)
    artifact = trunks.read_manifest(causes)
    seal(causes, replace(artifact, config={**artifact.config, "layer_norm_eps": 0.25}))
    assert trunks.groups([int8, causes]) == [[int8], [causes]]


def test_groups_leaves_a_directory_that_is_no_artifact_to_whom_opens_it(tmp_path):
    one, two = (shutil.copytree(head.path, tmp_path / head.path.name) for head in make_heads("bert")[:2])
    missing = tmp_path / "missing"
    (two / MANIFEST).write_text(json.dumps({"format": 1}))
    assert trunks.groups([one, two, missing]) == [[one], [two], [missing]]


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_bytes(bytes(9))], ids=["removed", "damaged"])
def test_groups_leaves_weights_that_change_meanwhile_to_whom_opens_them(tmp_path, monkeypatch, change):
    paths = [shutil.copytree(head.path, tmp_path / head.path.name) for head in make_heads("bert")[:2]]
    same = trunks._same_parameters

    def changed_first(path: Path, other: Path) -> bool:
        change(other / WEIGHTS)
        return same(path, other)

    monkeypatch.setattr(trunks, "_same_parameters", changed_first)
    assert trunks.groups(paths) == [[path] for path in paths]


def test_groups_keeps_adapters_apart_that_change_more_than_products(tmp_path):
    """Also in artifacts that an import would not write."""
    for architecture, parts in (("mobilebert", ("key",)), ("deberta_v2", ("key",)), ("bert", ("word",))):
        plan = draft(architecture, "classify")
        own = {**plan.weights}
        for name, weight in plan.weights.items():
            if name.startswith("encoder.") and name.endswith(f".{parts[0]}.weight"):
                rows, columns = weight.shape
                own[name] = Adapted(weight, np.full((rows, 1), 1e-3, np.float32), np.ones((1, columns), np.float32))
        directories = []
        for number, weights in enumerate((plan.weights, own)):
            manifest = replace(plan.manifest, name=f"{architecture}-{number}")
            directories.append(make(tmp_path, replace(plan, weights=weights, manifest=manifest)).path)
        assert trunks.groups(directories) == [[one] for one in directories]
