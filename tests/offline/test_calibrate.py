"""Tests of `swiftlet calibrate`."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from swiftlet_models.artifact import ACTIVATIONS, WEIGHTS, Decisions, Fit, open_artifact, seal
from swiftlet_serve.cli.main import main
from swiftlet_serve.engines import onnx_cpu
from swiftlet_serve.engines.onnx_cpu import adds_in_32_bits
from swiftlet_serve.inference.loading import BUNDLED, load_model, open_model
from swiftlet_serve.offline import activations
from swiftlet_serve.offline.evaluate import evaluate, respond
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.golden import golden_inputs
from tests.support.artifacts import make_artifact

COUNT = 60


def table(path: Path, rows: int = COUNT) -> Path:
    """Writes texts of one letter. A third of the labels is right whatever the small network answers."""
    lines = [f"{i % 3}\t{chr(97 + i % 26)}" for i in range(rows)]
    (path / "data.tsv").write_text("\n".join(["label\tsentence", *lines]) + "\n", "utf-8")
    return path / "data.tsv"


def calibrate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments), "--engine", "onnx_cpu"])


def test_calibrate_writes_temperature_labels_and_errors(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    result = calibrate(
        artifact.path, table(tmp_path), "--predicate", "Is it good?", "good", "--score", "How good?", "bad,neither,good"
    )

    assert result.exit_code == 0, result.output
    found = open_artifact(artifact.path)
    card = found.card()["calibration"]
    assert (card["data"], card["fitted_on"], card["measured_on"]) == (
        f"{tmp_path.name}/data.tsv",
        COUNT // 2,
        COUNT // 2,
    )
    assert card["calibrated_error"] < card["raw_error"]
    assert found.manifest.decisions == Decisions(
        card["temperature"],
        {"Is it good?": "good"},
        {"How good?": ["bad", "neither", "good"]},
        {kind: Fit(card["temperature"]) for kind in ("choice", "predicate")},
    )
    assert card["temperature"] > 1  # labels that do not follow the answers lower every confidence
    assert f"temperature {card['temperature']:g} (fitted on 30 examples)" in result.output
    open_model(artifact.path, "onnx_cpu")


def test_calibrate_keeps_what_was_mapped_before(tmp_path):
    artifact, data = make_artifact(tmp_path, "classify"), table(tmp_path)
    for text in ("One?", "Other?"):
        assert calibrate(artifact.path, data, "--predicate", text, "bad").exit_code == 0

    decisions = open_artifact(artifact.path).manifest.decisions
    assert decisions is not None
    assert decisions.predicates == {"One?": "bad", "Other?": "bad"}


@pytest.mark.parametrize(
    ("task", "options", "rows", "message"),
    [
        ("entities", [], COUNT, "does not take the task entities. It takes classify, zero-shot, qa, fill-mask."),
        (
            "classify",
            ["--predicate", "Is it?", "no label"],
            COUNT,
            "The labels of the model are bad, good, neither.",
        ),
        ("classify", [], 39, "Calibration needs at least 40."),
        ("classify", ["--limit", "10"], COUNT, "has 10 examples"),
    ],
)
def test_calibrate_reports_mistakes_and_writes_nothing(task, options, rows, message, tmp_path):
    artifact = make_artifact(tmp_path, task)
    result = calibrate(artifact.path, table(tmp_path, rows), *options)

    assert result.exit_code != 0
    assert message in result.output
    assert open_artifact(artifact.path).manifest == artifact.manifest


def questions(path: Path) -> Path:
    """Writes one question many times about a text of three words. The words are the right answers in turn."""
    asked = [
        {"id": str(i), "question": "what", "answers": [{"text": "abc"[i % 3], "answer_start": 2 * (i % 3)}]}
        for i in range(COUNT)
    ]
    document = {"data": [{"paragraphs": [{"context": "a b c", "qas": asked}]}]}
    (path / "questions.json").write_text(json.dumps(document), "utf-8")
    return path / "questions.json"


def documents(path: Path) -> Path:
    """Writes paragraphs of 17 words, one token each. Blanks make them long enough for an evaluation."""
    (path / "text.txt").write_text(
        "".join(f"{('a' + ' ' * 14 + 'b' + ' ' * 14) * 8}c\n" for _ in range(COUNT)), "utf-8"
    )
    return path / "text.txt"


@pytest.mark.parametrize(("task", "write"), [("qa", questions), ("fill-mask", documents)])
def test_calibrate_records_how_far_the_scores_of_answers_are_from_their_frequency(task, write, tmp_path):
    made = make_artifact(tmp_path, task)
    data = write(tmp_path)
    result = calibrate(made.path, data)

    assert result.exit_code == 0, result.output
    found = open_artifact(made.path)
    card = found.card()["calibration"]
    assert found.manifest.decisions is None  # the scores of the server stay as they are
    assert card["fitted_on"] == card["measured_on"]
    assert card["calibrated_error"] <= card["raw_error"] + 0.01
    evaluated = evaluate(load_model(made.path, "onnx_cpu"), data)
    assert card["fitted_on"] + card["measured_on"] == len(evaluated.answers)
    if task == "qa":  # one answer, with one score, to all questions: the error is its distance from a third
        (answer,) = respond(load_model(made.path, "onnx_cpu"), [{"inputs": {"question": "what", "context": "a b c"}}])
        right = answer["answer"] in ("a", "b", "c")
        assert card["raw_error"] == pytest.approx(abs(answer["score"] - right / 3), abs=1e-4)
    skipped = calibrate(made.path, data, "--skip", COUNT - 40, "--limit", 40)
    assert ("fitted on 20 examples" in skipped.output) == (task == "qa")  # a document has several masks
    refused = calibrate(made.path, data, "--predicate", "Is it good?", "good")
    assert "Only classifiers answer predicates and scores." in refused.output


def test_calibrate_fits_an_embedding_model_for_labels_that_a_request_names(tmp_path):
    made = make_artifact(tmp_path, "embed")
    data = tmp_path / "named.jsonl"
    rows = ({"text": chr(97 + i % 26), "label": "xyz"[i % 3]} for i in range(COUNT))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert "Name --task zero-shot." in calibrate(made.path, data).output
    result = calibrate(made.path, data, "--task", "zero-shot", "--picture", tmp_path / "reliability.svg")

    assert result.exit_code == 0, result.output
    texts = re.findall(r">(.*)</text>", (tmp_path / "reliability.svg").read_text("utf-8"))
    assert {"choice", "predicate", "confidence", "before", "after"} <= set(texts)
    found = open_artifact(made.path)
    card = found.card()["calibration"]
    predicate = card["types"]["predicate"]
    assert found.manifest.decisions == Decisions(
        card["temperature"],
        fits={"choice": Fit(card["temperature"]), "predicate": Fit(predicate["temperature"], predicate["offset"])},
    )
    assert predicate["calibrated_error"] < predicate["raw_error"]
    assert "predicates: temperature" in result.output
    assert found.card()["calibration"]["fitted_on"] == COUNT // 2


def test_answers_below_a_precision_are_refused(tmp_path):
    made, data = make_artifact(tmp_path, "classify"), table(tmp_path, 300)
    result = calibrate(made.path, data, "--precision", 1)
    assert result.exit_code == 0, result.output
    found = open_artifact(made.path)
    for kind, one in found.card()["calibration"]["types"].items():
        assert found.manifest.decisions.fit(kind) == Fit(one["temperature"], 0.0, one["threshold"])
        assert f"{kind}: refused below {one['threshold']:.4f}; {100 * one['coverage']:.1f} % of" in result.output
    assert found.manifest.decisions.fit("score") == Fit(found.manifest.decisions.temperature)

    refused = calibrate(made.path, data, "--precision", 100)
    assert refused.exit_code != 0
    assert "No 20 answers to questions of the type choice are right in 100 % of cases. Ask for less." in refused.output
    assert open_artifact(made.path).manifest == found.manifest


def test_precision_is_for_decisions_only(tmp_path):
    made = make_artifact(tmp_path, "qa")

    assert "the task qa answers none" in calibrate(made.path, questions(tmp_path), "--precision", 90).output


def test_activations_are_calibrated_and_served(tmp_path):
    path = tmp_path / "model"
    shutil.copytree(BUNDLED / "mobilebert-sst2", path)
    (path / ACTIVATIONS).unlink()
    before = seal(path, open_artifact(BUNDLED / "mobilebert-sst2").manifest)
    data = tmp_path / "data.tsv"
    data.write_text("sentence\tlabel\n" + "a good film\t1\nnothing works in it\t0\n" * 10, "utf-8")
    result = calibrate(path, data, "--activations")

    assert result.exit_code == 0, result.output
    artifact = open_artifact(path)
    found = artifact.card()["activations"]
    assert replace(artifact.manifest, files=before.manifest.files) == before.manifest
    assert (found["data"], found["products"]) == ("data.tsv", 44)
    assert f"fixed ranges for {found['fixed']} of 44 products" in result.output
    assert artifact.manifest.files[WEIGHTS] == before.manifest.files[WEIGHTS]
    if adds_in_32_bits():  # the answers differ a little, so the ranges are used
        old = replace(artifact, manifest=before.manifest)
        rows = [onnx_cpu.create(one, 1).run(Batch.of(golden_inputs(one))) for one in (artifact, old)]
        assert 0 < np.abs(np.concatenate(rows[0]) - np.concatenate(rows[1])).max() < artifact.manifest.tolerance


def test_activations_that_change_golden_answers_are_taken_back(tmp_path, monkeypatch):
    path = tmp_path / "model"
    shutil.copytree(BUNDLED / "mobilebert-sst2", path)
    content = (path / ACTIVATIONS).read_bytes()
    monkeypatch.setattr(activations, "load_model", lambda *_: load_model(tmp_path, "onnx_cpu"))  # fails
    data = tmp_path / "data.tsv"
    data.write_text("sentence\tlabel\na good film\t1\n", "utf-8")
    result = calibrate(path, data, "--activations")

    assert result.exit_code == 1
    assert "The artifact keeps the scales that it had" in result.output
    assert (path / ACTIVATIONS).read_bytes() == content
    open_artifact(path)


def test_activations_are_for_int8_only(tmp_path):
    result = calibrate(make_artifact(tmp_path, "classify").path, table(tmp_path), "--activations")

    assert result.exit_code == 1
    assert "Only an int8 artifact has ranges of activations." in result.output
