"""A new architecture is one new file: a file from outside the repository is folded, released and served."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from swiftlet_models import architectures
from swiftlet_models.architectures import descriptions
from swiftlet_models.artifact import Artifact, Manifest
from swiftlet_models.folding import fold
from swiftlet_models.heads import weights_of
from swiftlet_models.operations import Operations
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.release import release
from swiftlet_serve.types import Batch
from tests.support import native_kernels
from tests.support.artifacts import LABELS, make_tokenizer
from tests.support.checkpoints import randomise, relative_error, untrained
from tests.support.engines import TEST_ENGINES
from tests.support.fakes import PATIENCE_S
from tests.support.native_kernels import encoding, run_folded, torch_rows, weights
from tests.support.paths import TESTS
from tests.support.processes import serving

NAME = "toy_bert"
CONFIG = {"vocab_size": 211, "num_hidden_layers": 4}
TEXTS = ["a swift sleeps on the wing", "no", "they eat, drink and gather feathers in flight"]
TASKS = ("classify", "qa", "fill-mask")
EXACT = 1e-13  # in float64
# Of the differences between the rows of texts. Measured: 0.08 with AVX2, 0.24 with activations in 8 bits.
INT8 = 0.35
ENGINES = [
    "onnx_cpu",
    pytest.param(
        "native", marks=pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with one architecture file, which is part of the package while the fixture lives."""
    folder = tmp_path_factory.mktemp("architectures")
    shutil.copy(TESTS / "support/extensions" / f"{NAME}.py", folder)
    architectures.__path__.append(str(folder))
    yield folder
    architectures.__path__.remove(str(folder))
    for package in (architectures, descriptions):
        sys.modules.pop(f"{package.__name__}.{NAME}", None)
        vars(package).pop(NAME, None)


@pytest.fixture(scope="module")
def network(folder: Path) -> torch.nn.Module:
    """A classifier with random weights."""
    model = untrained(NAME, CONFIG, "classify", len(LABELS["classify"]))
    randomise(model)
    return model.eval()


@pytest.fixture(scope="module")
def artifact(network: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An int8 artifact of the architecture."""
    manifest = Manifest(
        name="toy-classify",
        version="1",
        architecture=NAME,
        task="classify",
        head="classification",
        precision="int8",
        max_tokens=512,
        vocab_size=CONFIG["vocab_size"],
        width=len(LABELS["classify"]),
        labels=LABELS["classify"],
        problem="single_label",
        tolerance=1.0,
        config=CONFIG,
        source={"made": "for a test"},
    )
    draft = Draft(weights_of(network), make_tokenizer(), manifest, {"summary": "Random weights."})
    return release(draft, tmp_path_factory.mktemp("artifacts") / manifest.name, None)


def test_new_architecture_is_described_without_torch(folder: Path) -> None:
    code = f"""
import sys
from swiftlet_models import architectures
architectures.__path__.append({str(folder)!r})
traits = architectures.describe({NAME!r}).Config(num_hidden_layers=4).traits()
print(architectures.names(), *traits.layers, traits.norm, "torch" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )

    known = sorted({*architectures.names(), NAME})
    assert result.stdout == f"{known} layers.0 layers.1 layers.1 layers.1 no_norm False\n"


@pytest.mark.parametrize("task", TASKS)
def test_new_architecture_is_folded_exactly(folder: Path, task: str) -> None:
    model = untrained(NAME, CONFIG, task, 3)
    randomise(model)
    model.double().eval()
    batch = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5], 3)])

    folded = fold(NAME, CONFIG, weights(model, np.float64))

    expected = torch.from_numpy(torch_rows(model, batch))
    assert relative_error(torch.from_numpy(run_folded(folded, batch)), expected) <= EXACT


def test_operations_of_new_architecture_equal_the_products_of_torch(folder: Path) -> None:
    with torch.device("meta"):
        model = untrained(NAME, CONFIG, "qa")
    operations = Operations.of(NAME, CONFIG, {name: tuple(one.shape) for name, one in model.state_dict().items()})
    ids = torch.zeros((3, 11), dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(ids, ids, torch.full((3,), 11, device="meta"), torch.arange(33, device="meta"))

    assert 2 * operations.count([11] * 3, [11] * 3) == counter.get_total_flops()


@pytest.mark.parametrize("engine", [pytest.param("onnx_cpu", marks=pytest.mark.exhaustive), ENGINES[1]])
def test_server_serves_new_architecture(
    artifact: Artifact, network: torch.nn.Module, folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ARCHITECTURES", str(folder))
    options = ("--engine", engine, "--models", str(artifact.path))
    with serving(artifact.path.parent, *options, code=TEST_ENGINES) as server:
        body = json.dumps({"inputs": TEXTS}).encode()
        request = urllib.request.Request(f"{server.url}/classify", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            found = [{entry["label"]: entry["score"] for entry in scores} for scores in json.load(response)]

    loaded = load_model(artifact.path, engine)
    batch = Batch.of(loaded.task.encode(loaded.task.Request(inputs=TEXTS)))
    rows = np.concatenate(loaded.engine.run(batch))
    expected = torch.from_numpy(torch_rows(network, batch))
    scores = [[answer[label] for label in artifact.manifest.labels] for answer in found]

    assert np.array(scores) == pytest.approx(torch.from_numpy(rows).softmax(-1).numpy(), abs=1e-6)
    differences = torch.from_numpy(rows - rows.mean(0))
    assert relative_error(differences, expected - expected.mean(0)) <= INT8
    if engine == "native":
        assert loaded.engine.title == f"native ({native_kernels.best().kernel})"
    else:
        assert isinstance(loaded.engine, RaggedOnnx)
    loaded.engine.close()
