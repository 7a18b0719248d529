"""Entities: valid and invalid requests, their grouping, and the evaluation. Goldens compare the pipeline's answers."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models import datasets
from swiftlet_models.datasets import DatasetError, Tagged
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import evaluation
from swiftlet_serve.inference import partial_results
from swiftlet_serve.tasks import _entities_requests as requests
from swiftlet_serve.tasks import entities
from swiftlet_serve.tasks._token_labels import merge_overlaps
from tests.support.task_requests import MAX_TOKENS, encode, manifest, rejection

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
STRATEGIES = ("none", "simple", "first", "average", "max")
SIZE = MAX_TOKENS - 2


@pytest.fixture(scope="module")
def finder(tokenizer: Tokenizer) -> entities.Entities:
    return entities.create(tokenizer, manifest("entities", len(LABELS), LABELS))


def answer(finder: Any, inputs: object, labels: Any = None, seed: int = 0, **parameters: object) -> Any:
    """Answers a request. `labels` maps a character of a token to its label; without it, logits are random."""
    request = finder.Request.model_validate({"inputs": inputs, "parameters": parameters})
    chunks = finder.encode(request)
    noise = np.random.default_rng(seed)
    rows = [noise.normal(size=(len(chunk.focus), len(finder.labels))).astype(np.float32) for chunk in chunks]
    texts = inputs if isinstance(inputs, list) else [inputs]
    for chunk, row in zip(chunks, rows, strict=True):
        for logits, (start, end) in zip(row, chunk.tokens.offsets, strict=True):
            if labels is not None:
                token = texts[chunk.text_index][start:end].strip()
                logits[:] = -9
                logits[finder.labels.index(labels.get(token[:1], "O"))] = 9
    return finder.decode(request, chunks, rows)


@given(text=st.text(alphabet=st.characters(codec="utf-8"), min_size=1), seed=st.integers(0, 9))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_entities_are_spans_in_order(finder: entities.Entities, strategy: str, text: str, seed: int) -> None:
    parameters = {"aggregation_strategy": strategy, "ignore_labels": []}
    if not text.strip() or not len(finder.tokenizer.tokenize([text])[0]):
        assert rejection(finder, text, **parameters) == ("empty_input", "/inputs", None)
        return
    found = answer(finder, text, seed=seed, **parameters)
    assert found
    key = "entity" if strategy == "none" else "entity_group"
    assert all({key, "score", "word", "start", "end"} <= one.keys() for one in found)
    assert all(0 <= one["start"] <= one["end"] <= len(text) and 0 < one["score"] <= 1 for one in found)


def test_response_has_a_list_for_each_text_of_a_list(finder: entities.Entities) -> None:
    names = {"c": "B-PER", "b": "B-LOC"}
    one = answer(finder, "c in b", names)
    assert [(each["entity_group"], each["end"]) for each in one] == [("PER", 1), ("LOC", 6)]
    assert answer(finder, ["c in b"], names) == [one]
    assert answer(finder, ["c in b", "x"], names) == [one, []]


def test_default_strategy_is_simple(finder: entities.Entities) -> None:
    text = "rain fell all night on the tin roof"
    assert answer(finder, text) == answer(finder, text, aggregation_strategy="simple")


@pytest.mark.parametrize("name", ["labels", "threshold", "flat", "multi_label"])
def test_parameters_of_models_that_read_labels_are_refused(finder: entities.Entities, name: str) -> None:
    values = {"labels": ["person"], "threshold": 0.3, "flat": False, "multi_label": True}
    assert rejection(finder, "x", **{name: values[name]}) == ("validation_failed", f"/parameters/{name}", None)


def test_ignored_labels_are_left_out(finder: entities.Entities) -> None:
    text = "rain fell all night on the tin roof"
    everything = answer(finder, text, ignore_labels=[])
    assert {"O", "PER", "LOC"} & {one["entity_group"] for one in everything}
    for ignored in ("O", "PER"):
        kept = [one for one in everything if one["entity_group"] != ignored]
        assert answer(finder, text, ignore_labels=[ignored]) == kept
    tokens = answer(finder, text, aggregation_strategy="none", ignore_labels=["B-PER"])
    assert "B-PER" not in {one["entity"] for one in tokens}


def test_bilou_labels_group_as_in_the_pipeline_unless_asked_otherwise(tokenizer: Tokenizer) -> None:
    labels = ("O", "B-PER", "I-PER", "L-PER", "U-PER")
    finder = entities.create(tokenizer, manifest("entities", len(labels), labels))
    kinds = {"a": "B-PER", "b": "I-PER", "c": "L-PER", "d": "U-PER"}

    as_pipeline = answer(finder, "a b c d", kinds)
    joined = answer(finder, "a b c d", kinds, label_scheme="bilou")

    spans = [(one["start"], one["end"]) for one in as_pipeline]
    assert [end for _, end in spans] == [3, 5, 7]
    assert [one["end"] for one in joined] == [5, 7]
    assert {one["entity_group"] for one in [*as_pipeline, *joined]} == {"PER"}


@pytest.mark.parametrize("stride", [0, 3, 20, SIZE - 1])
def test_stride_reads_the_whole_text(finder: entities.Entities, stride: int) -> None:
    text = "y " * 150 + "c"
    found = answer(finder, text, {"c": "B-PER"}, stride=stride)
    assert [one["end"] for one in found] == [len(text)]
    assert answer(finder, text, {"c": "B-PER"}) == []


def test_korean_text_in_windows(finder: entities.Entities) -> None:
    text = "서울의 봄은 짧지만 아름답다. 👩‍👩‍👧 e\u0301 " * 20
    found = answer(finder, text, stride=8, aggregation_strategy="first")
    assert found == sorted(found, key=lambda one: one["start"])
    assert found[-1]["end"] <= len(text)
    assert all(one["end"] <= other["start"] for one, other in pairwise(found))


def test_invalid_requests_are_rejected(finder: entities.Entities) -> None:
    failed = "validation_failed"
    assert rejection(finder, " ") == ("empty_input", "/inputs", None)
    assert rejection(finder, ["a", ""]) == ("empty_input", "/inputs/1", None)
    assert rejection(finder, "a", stride=SIZE) == (failed, "/parameters/stride", SIZE - 1)
    assert rejection(finder, "a", stride=3, aggregation_strategy="none") == (failed, "/parameters/stride", None)
    long = "a " * MAX_TOKENS
    assert rejection(finder, ["a", long], truncation=False) == ("input_too_long", "/inputs/1", MAX_TOKENS)
    assert rejection(finder, "x " * 100_000, truncation=False) == ("input_too_long", "/inputs", MAX_TOKENS)
    windows = "a " * (SIZE * requests.MAX_SEQUENCES + 1)
    assert rejection(finder, windows, stride=0) == ("input_too_long", "/inputs", requests.MAX_SEQUENCES)
    endless = "a" * (requests.MAX_CHARACTERS + 1)
    assert rejection(finder, ["b", endless], stride=0) == ("input_too_long", "/inputs/1", requests.MAX_CHARACTERS)


@pytest.mark.parametrize("text", ["x" * 100_000, "한" * 30_000, "a" + "\u0301" * 5000, "👩‍👩‍👧" * 3000])
def test_endless_word_is_answered(finder: entities.Entities, text: str) -> None:
    (chunk,) = encode(finder, text)
    assert len(chunk.input_ids) <= MAX_TOKENS
    assert all(len(one.input_ids) <= MAX_TOKENS for one in encode(finder, text[:9000], stride=5))


def test_partial_request_answers_each_text(finder: entities.Entities) -> None:
    request = finder.Request.model_validate({"inputs": ["c", " "], "partial": True})
    inputs = partial_results.encode(finder, request)
    rows = [np.zeros((len(one.focus), len(LABELS)), np.float32) for each in inputs for one in each.encodings]
    found: Any = partial_results.decode(finder, inputs, rows)
    assert isinstance(found[0], list)
    assert found[1]["code"] == "empty_input"


@given(data=st.data())
def test_merged_entities_do_not_overlap(data: st.DataObject) -> None:
    spans = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8), st.sampled_from([0.2, 0.5, 0.9]))))
    given_ones = [{"start": start, "end": start + length, "score": score} for start, length, score in spans]
    merged = merge_overlaps(given_ones)
    assert all(one["end"] <= other["start"] for one, other in pairwise(merged))
    assert all(one in given_ones for one in merged)
    assert bool(merged) == bool(given_ones)


# Evaluation

CONLL = "-DOCSTART- -X- O O\n\n# a comment\nClara\tB-PER\nSmith\tI-PER\nlives\tO\nin\tO\nBern\tI-LOC\n\n\nAnna B-PER\n"


def read(tmp_path: Path, content: str, name: str = "data.conll") -> list[Tagged]:
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    return datasets.tagged(tmp_path / name)


@pytest.mark.parametrize("name", ["data.conll", "data.conll.gz"])
def test_conll_columns_are_read(tmp_path: Path, name: str) -> None:
    first, second = read(tmp_path, CONLL, name)
    assert first == Tagged("Clara Smith lives in Bern", ((0, 11, "PER"), (21, 25, "LOC")))
    assert second == Tagged("Anna", ((0, 4, "PER"),))


def test_tags_of_all_schemes_are_read(tmp_path: Path) -> None:
    bilou = "aa B-X\nbb I-X\ncc L-X\ndd U-X\nee L-X\n"
    (text,) = read(tmp_path, bilou)
    assert text.spans == ((0, 8, "X"), (9, 11, "X"), (12, 14, "X"))
    (text,) = read(tmp_path, "aa B-X\nbb B-X\ncc I-Y\ndd E-Y\nee S-Y\n")
    assert text.spans == ((0, 2, "X"), (3, 5, "X"), (6, 11, "Y"), (12, 14, "Y"))


def test_characters_and_numbered_words_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "경\tB-OG\n찰\tI-OG\n \tO\n또\tO\n") == [Tagged("경찰 또", ((0, 2, "OG"),))]
    numbered = "# text = in Bern\n1\tin\tO\t-\t-\n2\tBern\tB-LOC\t-\t-\n"
    assert read(tmp_path, numbered, "data.iob2") == [Tagged("in Bern", ((3, 7, "LOC"),))]
    joined = "1\tin\tO\t-\n2\tBern\tB-LOC\tSpaceAfter=No\n3\t.\tO\tSpaceAfter=No\n\n1\tno\tO\t-\n"
    assert read(tmp_path, joined, "data.iob2") == [Tagged("in Bern.", ((3, 7, "LOC"),)), Tagged("no", ())]


@pytest.mark.parametrize("content", ["Clara\n", "Clara\tPER\n", "Clara\tX-PER\n", "a\tO\nb\n"])
def test_line_without_tag_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(DatasetError, match=r"line \d has no word and tag"):
        read(tmp_path, content)


@pytest.mark.parametrize("content", [b"\xff\xfd", gzip.compress(b"a O\n" * 99, mtime=0)[:-9]])
def test_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / ("data.gz" if content[:2] == b"\x1f\x8b" else "data.conll")
    file.write_bytes(content)
    with pytest.raises(DatasetError, match=r"is not UTF-8 text|cannot be read: EOFError"):
        datasets.tagged(file)


def test_evaluator_counts_exact_spans(finder: entities.Entities, tmp_path: Path) -> None:
    (tmp_path / "data.conll").write_text("Clara\tB-PER\nSmith\tI-PER\n\nin\tO\nBern\tB-LOC\n", "utf-8")
    evaluator = evaluation.create("entities", finder)
    cases = list(evaluator.cases(tmp_path / "data.conll", 0, None))
    responses = [
        [{"entity_group": "PER", "start": 0, "end": 5}],
        [{"entity_group": "LOC", "start": 2, "end": 7}, {"entity_group": "PER", "start": 0, "end": 2}],
    ]
    grades = [grade for case, response in zip(cases, responses, strict=True) for grade in case.grade(response)]

    assert [grade.scores["f1"] for grade in grades] == [0, pytest.approx(2 / 3)]  # " Bern" counts as "Bern"
    assert evaluator.scores(cases, [grade.answer for grade in grades])["f1"].value == pytest.approx(40)
    ((name, baseline),) = evaluator.baselines(cases).items()
    assert name.startswith("every run of capitalised words is ")
    assert baseline.value == pytest.approx(50)
    assert cases[0].body["parameters"] == {"aggregation_strategy": "first", "label_scheme": "bio"}
