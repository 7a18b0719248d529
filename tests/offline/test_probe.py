"""The requests that rounded networks are compared on: built-in texts for every task, and texts of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftlet_models import datasets
from swiftlet_models.artifact import Manifest
from swiftlet_models.datasets import DatasetError, Unlabelled
from swiftlet_models.operations import Operations
from swiftlet_serve import engines, evaluation, plugins, tasks
from swiftlet_serve.inference.loading import open_model
from swiftlet_serve.offline import probe as module
from swiftlet_serve.offline.fidelity import Outputs
from swiftlet_serve.offline.probe import Probe, run
from swiftlet_serve.types import Batch
from tests.support.artifacts import make_artifact, make_tokenizer

FREE = Operations(embedding=0, layers=1, key_value=0, after_key_value=0, attention=0, head=0)
LARGE = replace(FREE, embedding=20_000_000)  # multiply-adds per token: a quarter of BERT-base
WORK = 60e9


@pytest.fixture(autouse=True)
def all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests beside these read few built-in texts."""
    monkeypatch.setattr(module, "MAX_WORK", WORK)


def opened(tmp_path: Path, task: str) -> Manifest:
    """Returns the manifest of a small artifact, whose network reads long texts."""
    return replace(open_model(make_artifact(tmp_path, task).path, "onnx_cpu").manifest, max_tokens=4096)


def asked(manifest: Manifest, operations: Operations = FREE) -> list[Unlabelled]:
    """Returns the built-in texts that requests would be made of."""
    probe, texts = Probe.golden(make_tokenizer(), manifest), list[Unlabelled]()

    def bodies(chosen: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        texts.extend(chosen)
        return []

    probe.evaluator.bodies = bodies  # type: ignore[method-assign]
    probe.with_built_in_texts(make_tokenizer(), manifest, operations)
    return texts


def test_the_built_in_texts_are_many_short_and_long_and_of_many_languages() -> None:
    texts = datasets.unlabelled(evaluation.BUILT_IN)
    languages = Counter(text.language for text in texts)
    lengths = [len(text.text) for text in texts]

    assert len({text.text for text in texts}) == len(texts) > 250
    assert all(languages[tag] >= 10 for tag in ("en", "ko", "zh", "de", "fr", "es", "ar", "ru", "hi", ""))
    assert min(lengths) == 1
    assert max(lengths) > 600
    assert sum(bool(text.question) for text in texts) > 25
    assert evaluation.BUILT_IN.stat().st_size < 60_000


@pytest.mark.parametrize("task", tasks.names())
def test_every_task_asks_questions_of_the_built_in_texts(tmp_path: Path, task: str) -> None:
    manifest = opened(tmp_path, task)
    golden = Probe.golden(make_tokenizer(), manifest)
    probe = golden.with_built_in_texts(make_tokenizer(), manifest, LARGE)
    chance = np.random.default_rng(0)

    def answers() -> Outputs:
        return [chance.normal(size=(len(e.focus), manifest.width)).astype(np.float32) for e in probe.encodings]

    assert len(probe.requests) - len(golden.requests) >= 5
    assert [e.input_ids.tolist() for e in probe.encodings[: len(golden.encodings)]] == [
        e.input_ids.tolist() for e in golden.encodings
    ]
    rows, others = answers(), answers()
    same, different = probe.agreement(rows, rows), probe.agreement(rows, others)
    if task == "score":  # whose answer is a number
        assert same is different is None
    else:
        assert same
        assert different
        assert same.n == different.n == len(probe.requests)
        assert same.low < 100 == same.value
        assert different.value < 75


@pytest.mark.parametrize("changes", [{"problem": "regression"}, {"labels": ("a",), "width": 1}])
def test_classifiers_without_a_best_label_do_not_agree_on_it(tmp_path: Path, changes: dict[str, Any]) -> None:
    manifest = replace(opened(tmp_path, "classify"), **changes)
    probe = Probe.golden(make_tokenizer(), manifest)
    rows = [np.zeros((1, manifest.width), np.float32) for _ in probe.encodings]

    assert probe.agreement(rows, rows) is None


@pytest.mark.parametrize(
    ("languages", "read"), [(("ko",), {"ko", ""}), (("en-GB", "de"), {"en", "de", ""}), (("tlh",), None), ((), None)]
)
def test_the_sample_is_of_the_languages_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, languages: tuple[str, ...], read: set[str] | None
) -> None:
    monkeypatch.setattr(module, "lost", lambda *_: 0.0)
    texts = asked(replace(opened(tmp_path, "classify"), languages=languages))

    assert {text.language for text in texts} == (
        read or {text.language for text in datasets.unlabelled(evaluation.BUILT_IN)}
    )


def test_the_sample_is_what_the_tokenizer_reads_and_always_the_same(tmp_path: Path) -> None:
    """This tokenizer knows the letters of English alone."""
    texts = asked(opened(tmp_path, "classify"))

    assert {"en", ""} <= {text.language for text in texts}
    assert not {"ko", "ru", "ar", "hi"} & {text.language for text in texts}
    assert asked(opened(tmp_path / "again", "classify")) == texts


def test_a_large_network_reads_fewer_texts(tmp_path: Path) -> None:
    manifest = opened(tmp_path, "classify")
    golden = Probe.golden(make_tokenizer(), manifest)
    probe = golden.with_built_in_texts(make_tokenizer(), manifest, LARGE)
    tokens = sum(len(e.input_ids) for e in probe.encodings[len(golden.encodings) :])

    assert 0 < tokens * LARGE.embedding <= WORK
    assert len(golden.requests) + 5 < len(probe.requests) < 120
    huge = golden.with_built_in_texts(make_tokenizer(), replace(manifest, width=1 << 23), FREE)
    assert len(huge.requests) == len(golden.requests) + 2


def test_texts_of_a_file(tmp_path: Path) -> None:
    golden = Probe.golden(make_tokenizer(), opened(tmp_path, "classify"))
    (tmp_path / "texts.csv").write_text("text\na\nb\nc\nd\n", "utf-8")
    probe = golden.of_file(tmp_path / "texts.csv", skip=1, limit=2)

    assert [request.inputs for request in probe.requests] == ["b", "c"]
    with pytest.raises(DatasetError, match=r"^texts\.csv holds no text to compare answers to\.$"):
        golden.of_file(tmp_path / "texts.csv", skip=4)
    score = Probe.golden(make_tokenizer(), replace(opened(tmp_path, "score"), max_tokens=40))
    (tmp_path / "texts.csv").write_text(f"text\n{'a' * 99}\n", "utf-8")
    with pytest.raises(DatasetError, match=r"^texts\.csv holds a text that cannot be answered: The text has more"):
        score.of_file(tmp_path / "texts.csv")


def test_batches_hold_what_an_engine_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = make_artifact(tmp_path, "classify")
    engine = plugins.load(engines, "onnx_cpu").create(artifact, threads=1)
    probe = Probe.golden(make_tokenizer(), artifact.manifest)
    whole = [engine.run(Batch.of([encoding]))[0] for encoding in probe.encodings]
    sizes, run_batch = list[int](), engine.run

    def observed(batch: Batch) -> Any:
        sizes.append(len(batch))
        return run_batch(batch)

    monkeypatch.setattr(engine, "cost", replace(engine.cost, max_tokens=60, max_rows=2), raising=False)
    monkeypatch.setattr(engine, "run", observed)
    rows = run(engine, probe.encodings)

    assert sum(sizes) == len(rows) == len(whole)
    assert set(sizes) == {1, 2}
    for row, alone in zip(rows, whole, strict=True):
        np.testing.assert_allclose(row, alone, atol=1e-6)
