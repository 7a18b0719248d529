"""A new task is a new file in `tasks`, and one in `evaluation` to measure and release its models."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from swiftlet_models.artifact import Artifact, Manifest
from swiftlet_models.heads import build, weights_of
from swiftlet_serve import evaluation, tasks
from swiftlet_serve.cli.main import main
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.evaluate import Measure
from swiftlet_serve.offline.release import release
from swiftlet_serve.types import Batch
from tests.support.artifacts import make_tokenizer
from tests.support.checkpoints import randomise
from tests.support.fakes import PATIENCE_S
from tests.support.networks import CONFIGS, VOCABULARY
from tests.support.paths import TESTS
from tests.support.processes import serving

LABELS = ("other", "person", "place")
TEXTS = ("clara lives in bern", "no", "bern lies on the aare", "dora knows clara")
ENGINES = [
    "onnx_cpu",
    pytest.param(
        "native", marks=pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the task's file. While the fixture lives, it is part of the tasks, and the evaluator is one too."""
    files = {tasks: "tag_words.py", evaluation: "tag_words_evaluation.py"}
    with pytest.MonkeyPatch.context() as patch:
        for package, file in files.items():
            directory = tmp_path_factory.mktemp("plugins")
            shutil.copy(TESTS / "support/extensions" / file, directory / "tag_words.py")
            patch.setattr(package, "__path__", [*package.__path__, str(directory)])
        yield Path(tasks.__path__[-1])
        for package in files:
            sys.modules.pop(f"{package.__name__}.tag_words", None)
            patch.delattr(package, "tag_words", raising=False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "words.tsv"
    lines = [f"{number % 3}\t{text}" for number, text in enumerate(TEXTS)]
    file.write_text("label\tsentence\n" + "\n".join(lines) + "\n", "utf-8")
    return file


@pytest.fixture(scope="module")
def artifact(folder: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An int8 artifact of the task, with random weights."""
    definition = tasks.load("tag-words")
    network = build("bert", CONFIGS["bert"], definition.HEAD, len(LABELS))
    randomise(network)
    manifest = Manifest(
        name="tiny-tag-words",
        version="1",
        architecture="bert",
        task="tag-words",
        head=definition.HEAD,
        precision="int8",
        max_tokens=512,
        vocab_size=VOCABULARY,
        width=tasks.head_width(definition.OUTPUTS, len(LABELS), VOCABULARY),
        labels=LABELS,
        problem=None,
        tolerance=1.0,
        config=CONFIGS["bert"],
        source={"made": "for a test"},
    )
    draft = Draft(weights_of(network), make_tokenizer(), manifest, {"summary": "Random weights."})
    directory = tmp_path_factory.mktemp("artifacts") / manifest.name
    return release(draft, directory, Measure(data), max_loss=100)


def test_new_task_is_listed_without_being_imported(folder: Path) -> None:
    sys.modules.pop("swiftlet_serve.tasks.tag_words", None)

    assert {"classify", "tag-words"} < set(tasks.names())
    assert "swiftlet_serve.tasks.tag_words" not in sys.modules


def test_release_measures_new_task(artifact: Artifact) -> None:
    scores = artifact.card()["scores"]

    assert scores["int8"]["first_word_accuracy"]["n"] == len(TEXTS)
    assert scores["trivial"]["always the commonest label"]["value"] == 50
    assert artifact.manifest.head == "token"


@pytest.mark.parametrize("engine", ENGINES)
def test_check_replays_golden_answers_of_new_task(artifact: Artifact, engine: str) -> None:
    result = CliRunner().invoke(main, ["check", str(artifact.path), "--engine", engine])

    assert result.exit_code == 0, result.output
    assert "tag-words: other, person, place" in result.output
    assert "largest deviation" in result.output


@pytest.mark.parametrize("engine", ENGINES)
def test_evaluate_measures_new_task(artifact: Artifact, data: Path, engine: str) -> None:
    result = CliRunner().invoke(main, ["evaluate", str(artifact.path), str(data), "--engine", engine])

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tiny-tag-words  first_word_accuracy ")
    assert "n = 4)" in result.stdout
    assert "baseline, always the commonest label: 50.00 %" in result.stderr


@pytest.mark.parametrize("engine", [pytest.param("onnx_cpu", marks=pytest.mark.exhaustive), ENGINES[1]])
def test_server_answers_new_task(artifact: Artifact, folder: Path, engine: str) -> None:
    code = f"from swiftlet_serve import tasks\ntasks.__path__.append({str(folder)!r})"
    with serving(artifact.path.parent, "--engine", engine, "--models", str(artifact.path), code=code) as server:
        found = _ask(f"{server.url}/tag-words", {"inputs": list(TEXTS)})
        (model,) = _ask(f"{server.url}/models")
        document = _ask(f"{server.url}/openapi.json")
        partial = _ask(f"{server.url}/tag-words", {"inputs": ["clara", " "], "partial": True})
        with pytest.raises(urllib.error.HTTPError) as refused:
            _ask(f"{server.url}/tag-words", {"inputs": " "})
        problem = json.load(refused.value)

    assert [[tag["word"] for tag in tags] for tags in found] == [text.split() for text in TEXTS]
    assert _labels(found) == _labels(_answer(artifact, engine))
    assert (model["name"], model["task"], model["labels"]) == ("tiny-tag-words", "tag-words", list(LABELS))
    assert model["card"]["scores"]["int8"]["first_word_accuracy"]["n"] == len(TEXTS)
    assert "TagWordsRequest" in document["components"]["schemas"]
    assert document["paths"]["/tag-words"]["post"]["summary"] == "A request to label the words of a text."
    assert [isinstance(answer, list) for answer in partial] == [True, False]
    assert (refused.value.code, problem["code"]) == (422, "empty_input")


def test_artifact_without_its_task_is_refused(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "__path__", tasks.__path__[:-1])

    with pytest.raises(SetupError, match="There is no task 'tag-words'"):
        load_model(artifact.path, "onnx_cpu")


def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def _answer(artifact: Artifact, engine: str) -> Any:
    """The response that the task makes of the engine's rows in this process."""
    model = load_model(artifact.path, engine)
    request = model.task.Request(inputs=list(TEXTS))
    encodings = model.task.encode(request)
    rows = [np.array(model.engine.run(Batch.of([encoding]))[0]) for encoding in encodings]
    model.engine.close()
    return model.task.decode(request, encodings, rows)


def _labels(found: Any) -> list[list[str]]:
    return [[tag["label"] for tag in tags] for tags in found]
