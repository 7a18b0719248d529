"""Tests of the task score: log-likelihoods equal those of GPT-2 in transformers, on every engine."""

from __future__ import annotations

import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from tokenizers import decoders, pre_tokenizers, trainers

from swiftlet_models.artifact import Artifact
from swiftlet_serve.cli.main import main
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.inference.loading import LoadedModel, load_model
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.types import Batch
from swiftlet_serve.types.topk import Ranked, Scored, log_probabilities
from swiftlet_serve.workers.hosted_model import EngineModel, run_batch
from tests.support.checkpoints import Shape, Task, reference
from tests.support.fakes import PATIENCE_S
from tests.support.processes import serving

TEXTS = [
    "The swift sleeps on the wing.",
    "In the evening the swifts rise to two thousand metres, and sleep in flight.",
    "여름 비 🎬 naïve é",
    "Zx",
]
SHAPE = Shape(
    "gpt2", {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 96, "pad_token_id": None}
)
INT8 = 0.05  # of a mean; measured: 0.001 to 0.01
ENGINES = [
    "onnx_cpu",
    pytest.param("torch", marks=pytest.mark.exhaustive),
    pytest.param(
        "native", marks=pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
    ),
]


def checkpoint(directory: Path, task: Task) -> Any:
    """Writes a small GPT-2 with random weights and a byte-level BPE tokenizer. Returns the model of transformers."""
    model = reference(SHAPE, task, pad_is_zero=False)
    model.save_pretrained(directory)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS[:2] * 4, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    return model


def imported(directory: Path, task: Task, precision: Any) -> Artifact:
    artifact, _ = import_checkpoint(
        str(directory),
        task,
        directory / precision,
        name="tiny",
        precision=precision,
        max_loss=0.5,
        report=lambda _: None,
    )
    return artifact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpt2")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return checkpoint(folder, "score")


@pytest.fixture(scope="module")
def fp32(model: Any, folder: Path) -> Artifact:
    return imported(folder, "score", "fp32")


@pytest.fixture(scope="module")
def int8(model: Any, folder: Path) -> Artifact:
    return imported(folder, "score", "int8")


def answer(loaded: LoadedModel, **request: Any) -> Any:
    task = loaded.task
    made = task.Request.model_validate(request)
    encodings = task.encode(made)
    return task.decode(made, encodings, loaded.engine.run(Batch.of(encodings)))


@torch.no_grad()
def losses(model: Any, folder: Path) -> list[float]:
    """Returns the loss that transformers computes for each text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [torch.tensor([tokenizer.encode(text).ids]) for text in TEXTS]
    return [model(input_ids=one, labels=one).loss.item() for one in ids]


@pytest.mark.parametrize("engine", ["onnx_cpu", "torch"])
def test_score_equals_the_loss_of_transformers(fp32: Artifact, model: Any, folder: Path, engine: str) -> None:
    loaded = load_model(fp32.path, engine)
    found = answer(loaded, inputs=TEXTS)

    assert [-one["mean"] for one in found] == pytest.approx(losses(model, folder), abs=1e-4)
    for one in found:
        assert one["log_likelihood"] == pytest.approx(one["mean"] * one["token_count"])
        assert one["perplexity"] == pytest.approx(math.exp(-one["mean"]))
        assert one["tokens"] is None
    assert answer(loaded, inputs=TEXTS[0]) == pytest.approx(found[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_score_in_int8_is_near_transformers(int8: Artifact, model: Any, folder: Path, engine: str) -> None:
    found = answer(load_model(int8.path, engine), inputs=TEXTS)

    assert [-one["mean"] for one in found] == pytest.approx(losses(model, folder), abs=INT8)


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_returns_one_number_for_each_scored_token(int8: Artifact, engine: str) -> None:
    """In one batch with other sequences, and as the log-softmax of all outputs."""
    loaded = load_model(int8.path, engine)
    scored = loaded.task.encode(loaded.task.Request(inputs=TEXTS))
    plain = Batch.of(scored).encodings()[0]
    whole = Batch.without_top_k(
        input_ids=plain.input_ids,
        token_type_ids=plain.token_type_ids,
        offsets=np.array([0, len(plain.input_ids)]),
        focus=plain.focus,
        focus_offsets=np.array([0, len(plain.focus)]),
    ).encodings()[0]
    ranked = Ranked(**vars(whole), top_k=2, candidates=np.zeros(0, np.int64))
    rows = loaded.engine.run(Batch.of([scored[0], whole, ranked, *scored[1:]]))

    assert [row.shape for row in rows[:3]] == [(len(plain.focus), width) for width in (1, 300, 5)]
    assert rows[0] == pytest.approx(log_probabilities(rows[1], scored[0].targets), abs=1e-4)
    assert all(row.shape == (len(one.focus), 1) for one, row in zip(scored[1:], rows[3:], strict=True))


@pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")
def test_score_does_not_depend_on_the_batch(int8: Artifact) -> None:
    loaded = load_model(int8.path, "native")
    together = answer(loaded, inputs=TEXTS, parameters={"return_tokens": True})

    assert together == [answer(loaded, inputs=text, parameters={"return_tokens": True}) for text in TEXTS]


def test_continuation_is_the_rest_of_the_text(fp32: Artifact) -> None:
    loaded = load_model(fp32.path, "onnx_cpu")
    prompt, continuation = TEXTS[1][:11], TEXTS[1][11:]
    tokens = {"return_tokens": True}
    whole = answer(loaded, inputs=TEXTS[1], parameters=tokens)
    (rest,) = answer(loaded, inputs=[{"prompt": prompt, "continuation": continuation}], parameters=tokens)
    empty = answer(loaded, inputs={"prompt": "", "continuation": TEXTS[1]})
    expected = [token for token in whole["tokens"] if token["end"] > len(prompt)]

    assert rest["tokens"] == expected
    assert 0 < rest["token_count"] == len(expected) < whole["token_count"]
    assert rest["log_likelihood"] == pytest.approx(sum(token["log_probability"] for token in expected))
    assert empty["log_likelihood"] == whole["log_likelihood"]


def test_offsets_are_those_of_the_text(fp32: Artifact) -> None:
    loaded = load_model(fp32.path, "onnx_cpu")
    found = answer(loaded, inputs=TEXTS[2], parameters={"return_tokens": True})

    assert len(found["tokens"]) == found["token_count"]
    assert all(0 <= token["start"] < token["end"] <= len(TEXTS[2]) for token in found["tokens"])
    assert found["tokens"][-1]["end"] == len(TEXTS[2])


@pytest.mark.parametrize(
    ("inputs", "code", "pointer"),
    [
        ("", "empty_input", "/inputs"),
        (["ab", " \n"], "empty_input", "/inputs/1"),
        ({"prompt": "ab", "continuation": ""}, "empty_input", "/inputs/continuation"),
        ("a", "too_few_tokens", "/inputs"),
        (["x" * 97], "input_too_long", "/inputs/0"),
        ({"prompt": "x" * 5000, "continuation": "y"}, "input_too_long", "/inputs"),
    ],
)
def test_score_refuses_texts_that_cannot_be_scored(fp32: Artifact, inputs: Any, code: str, pointer: str) -> None:
    task = load_model(fp32.path, "onnx_cpu").task
    with pytest.raises(Unprocessable) as refused:
        task.encode(task.Request(inputs=inputs))

    assert (refused.value.code, refused.value.field_errors[0].pointer) == (code, pointer)


def test_each_text_can_be_scored_alone(fp32: Artifact) -> None:
    task = load_model(fp32.path, "onnx_cpu").task
    request = task.Request(inputs=TEXTS, parameters={"return_tokens": True})

    assert [part.inputs for part in task.split(request)] == TEXTS
    assert all(part.parameters == request.parameters for part in task.split(request))


def test_batch_restores_scored_sequences() -> None:
    """A failing batch is split into its sequences."""
    ids = np.arange(4)
    scored = Scored(ids, ids, focus=np.array([0, 2]), targets=np.array([1, 3]))
    (found,) = Batch.of([scored]).encodings()

    assert isinstance(found, Scored)
    assert found.targets.tolist() == [1, 3]
    assert Batch.of([scored]).row_shapes([300]) == [(2, 1)]


def test_log_probabilities_equal_those_of_torch() -> None:
    rows = np.random.default_rng(1).normal(size=(5, 700)).astype(np.float32) * 30
    targets = np.array([0, 699, 3, 3, 5])
    expected = torch.from_numpy(rows).double().log_softmax(-1)[torch.arange(5), torch.from_numpy(targets)]

    assert log_probabilities(rows, targets)[:, 0] == pytest.approx(expected.numpy(), abs=1e-5)
    rows[1, 4] = np.nan
    assert np.isnan(log_probabilities(rows, targets)[:, 0]).tolist() == [False, True, False, False, False]


def test_numbers_that_are_not_finite_are_an_error(fp32: Artifact) -> None:
    class Broken:
        def run(self, batch: Batch) -> list[np.ndarray]:
            return [np.full(shape, np.nan, np.float32) for shape in batch.row_shapes([300])]

    task = load_model(fp32.path, "onnx_cpu").task
    (outcome,) = run_batch(EngineModel(Broken(), [300]), Batch.of(task.encode(task.Request(inputs="abc"))))  # type: ignore[arg-type]

    assert outcome.code == "invalid_engine_output"  # type: ignore[union-attr]


@pytest.mark.exhaustive
def test_server_scores_texts(fp32: Artifact) -> None:
    """Through a worker process: the sequences and their rows are messages."""
    body = {"inputs": [*TEXTS, "a"], "partial": True, "parameters": {"return_tokens": True}}
    with serving(fp32.path.parent, "--engine", "onnx_cpu", "--models", str(fp32.path)) as server:
        content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{server.url}/score", content, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            found = json.load(response)
    expected = answer(load_model(fp32.path, "onnx_cpu"), inputs=TEXTS, parameters=body["parameters"])

    assert [one["log_likelihood"] for one in found[:-1]] == pytest.approx([one["log_likelihood"] for one in expected])
    assert [len(one["tokens"]) for one in found[:-1]] == [one["token_count"] for one in expected]
    assert found[-1]["code"] == "too_few_tokens"


def test_evaluate_measures_the_probability_of_a_token(fp32: Artifact, tmp_path: Path) -> None:
    data = tmp_path / "texts.txt"
    fits, too_long = "The swift sleeps on the wing. " * 7, "zyx " * 99
    data.write_text(f"{fits}\n{too_long}\nshort\n", "utf-8")
    result = CliRunner().invoke(main, ["evaluate", str(fp32.path), str(data), "--engine", "onnx_cpu"])

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tiny  token_probability ")
    assert "n = 1)" in result.stdout
    assert "baseline, every token equally likely: 0.33 %" in result.stderr


def test_classification_of_a_causal_network_reads_the_last_token(tmp_path: Path) -> None:
    """Parity with transformers, through import, on every engine."""
    model = checkpoint(tmp_path, "classify")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with torch.no_grad():
        expected = [model(input_ids=torch.tensor([tokenizer.encode(text).ids])).logits[0].tolist() for text in TEXTS]
    artifact = imported(tmp_path, "classify", "fp32")
    for engine in ("onnx_cpu", "torch"):
        parameters = {"function_to_apply": "none"}
        found = answer(load_model(artifact.path, engine), inputs=TEXTS, parameters=parameters)
        by_label = [{one["label"]: one["score"] for one in scores} for scores in found]
        ours = [[one[f"LABEL_{i}"] for i in range(3)] for one in by_label]
        assert np.array(ours) == pytest.approx(np.array(expected), abs=1e-4)
    assert json.loads((artifact.path / "manifest.json").read_text())["architecture"] == "gpt2"
