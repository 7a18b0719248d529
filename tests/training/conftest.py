"""Fixtures for the tests of training: a folder with a recipe, its data and its teacher, and trained models.

The fixtures import what trains: pytest imports this file in every process, also for tests that need no torch, and torch
with all that trains takes ten seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from swiftlet_models.artifact import Artifact
    from swiftlet_models.heads import Model


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the recipe `tiny.toml`, its data, and a teacher that can be imported."""
    from tests.support.training import make_workshop

    folder = tmp_path_factory.mktemp("project")
    make_workshop(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder / "packages"), *sys.path])
        yield folder


@pytest.fixture(scope="session")
def pretrained(project: Path) -> Model:
    """The pre-trained model of the recipe. Its run is in the folder `runs/tiny` of the project."""
    from swiftlet_train.pretraining.pretrain import pretrain
    from swiftlet_train.run_recipe import load_recipe
    from tests.support.training import SILENT

    recipe = load_recipe(str(project / "tiny.toml"))
    model, _ = pretrain(recipe, project / "data", project / "runs/tiny", SILENT)
    return model


@pytest.fixture(scope="session")
def trained(project: Path) -> tuple[list[Artifact], list[str]]:
    """The recipe's artifacts and reports. The loss of int8 on so little data is random, and therefore not limited."""
    from swiftlet_serve.offline.release import release
    from swiftlet_train import run_recipe as recipe_module

    reports: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe_module, "release", partial(release, max_loss=100))
        file, places = str(project / "tiny.toml"), (project / "data", project / "trained_runs", project / "out")
        artifacts = recipe_module.run_recipe(file, (), *places, reports.append)
    return artifacts, reports


@pytest.fixture(scope="session")
def teacher_model(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A pre-trained model with a wide bottleneck, like an IB-BERT."""
    from swiftlet_train.pretraining.pretrain import pretrain
    from tests.support.training import SILENT, tiny

    recipe = tiny(project)
    recipe = replace(recipe, config=recipe.config | {"intra_bottleneck_size": 64})
    model, _ = pretrain(recipe, project / "data", tmp_path_factory.mktemp("teacher"), SILENT)
    return model
