"""The tasks answer as transformers 4.57.1's pipelines did; `goldens/write.py` recorded those.

Both sides read their logits from the same made-up network (`goldens/cases.py`), which hashes every token id, position
and type it is given: one wrong token anywhere and the answers differ.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import cases
from goldens.cases import LABELS, MAX_TOKENS, Case

from models.artifact import Manifest
from models.tokenizer import Encoding, Tokenizer
from service.errors import Unprocessable
from service.tasks import classify, fill_mask, qa
from service.types import Row

TOLERANCE = 1e-4

Golden = list[tuple[Case, list[list[float]]]]


def manifest(task: Any, width: int, labels: tuple[str, ...] = (), problem: Any = None) -> Manifest:
    return Manifest(
        name="fake",
        version="1",
        architecture="bert",
        task=task,
        precision="fp32",
        max_tokens=MAX_TOKENS,
        vocab_size=width,
        width=width,
        labels=labels,
        problem=problem,
        tolerance=1e-3,
        config={},
        source={},
    )


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    made: dict[str, Tokenizer] = {}
    sources = {
        "vocab": (cases.HERE / "vocab.txt", "vocab.txt"),
        "bert": (cases.DATA / "bert-base-uncased-vocab.txt", "vocab.txt"),
        "spiece": (cases.HERE / "spiece.model", "spiece.model"),
    }

    def get(name: str) -> Tokenizer:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            source, called = sources[name]
            shutil.copy(source, directory / called)
            made[name] = Tokenizer.from_directory(directory)
        return made[name]

    return get


def golden(name: str, found: Iterator[Case]) -> Golden:
    """Each case with the rows recorded for it."""
    if name.endswith("-data") and not cases.DATA.is_dir():
        pytest.skip("the data sets are not here")
    recorded = np.load(cases.HERE / f"{name}.npz")
    every = list(found)
    counts = recorded["counts"]
    assert len(every) == len(counts), "the cases changed: run tests/goldens/write.py"
    columns = np.stack([recorded[f"column{i}"] for i in range(len(recorded.files) - 1)], axis=1).tolist()
    stops = np.cumsum(counts)
    return [(case, columns[stop - count : stop]) for case, count, stop in zip(every, counts, stops, strict=True)]


def ask(task: Any, case: Case, network: Callable[[Encoding], Row]) -> Any:
    request = task.Request(inputs=case.inputs, parameters=case.parameters)
    encodings = task.encode(request)
    return task.decode(request, encodings, [network(encoding) for encoding in encodings])


def flatten(nested: Any) -> list[Any]:
    return [leaf for each in nested for leaf in flatten(each)] if isinstance(nested, list) else [nested]


@pytest.mark.parametrize(
    ("name", "found"), [("classify-own", cases.classify_own), ("classify-data", cases.classify_data)]
)
def test_classify_answers_as_the_pipeline(
    name: str, found: Callable[[], Iterator[Case]], tokenizers: Callable[[str], Tokenizer]
) -> None:
    for case, expected in golden(name, found()):
        labels = LABELS[:1] if case.problem == "regression" else LABELS
        task = classify.create(
            tokenizers(case.tokenizer), manifest("classify", len(labels), labels, problem=case.problem)
        )

        def network(encoding: Encoding, labels: tuple[str, ...] = labels) -> Row:
            return cases.classify_logits(encoding.input_ids, encoding.token_type_ids, len(labels))[None]

        answers = flatten(ask(task, case, network))
        assert [LABELS.index(answer["label"]) for answer in answers] == [label for label, _ in expected]
        scores = [answer["score"] for answer in answers]
        np.testing.assert_allclose(scores, [score for _, score in expected], atol=TOLERANCE)


@pytest.mark.parametrize(("name", "found"), [("fill_mask-own", cases.fill_own), ("fill_mask-data", cases.fill_data)])
def test_fill_mask_answers_as_the_pipeline(
    name: str, found: Callable[[], Iterator[Case]], tokenizers: Callable[[str], Tokenizer]
) -> None:
    for case, expected in golden(name, found()):
        tokenizer = tokenizers(case.tokenizer)
        task = fill_mask.create(tokenizer, manifest("fill-mask", tokenizer.vocab_size))

        def network(encoding: Encoding, width: int = tokenizer.vocab_size) -> Row:
            return cases.fill_mask_logits(encoding.input_ids, encoding.token_type_ids, encoding.focus, width)

        answers = flatten(ask(task, case, network))
        assert [answer["token"] for answer in answers] == [token for token, _, _ in expected]
        texts = [zlib.crc32(f"{answer['token_str']}\n{answer['sequence']}".encode()) for answer in answers]
        assert texts == [text for _, _, text in expected]
        scores = [answer["score"] for answer in answers]
        np.testing.assert_allclose(scores, [score for _, score, _ in expected], atol=TOLERANCE)


@pytest.mark.parametrize(("name", "found"), [("qa-own", cases.qa_own), ("qa-data", cases.qa_data)])
def test_qa_answers_as_the_pipeline(
    name: str, found: Callable[[], Iterator[Case]], tokenizers: Callable[[str], Tokenizer]
) -> None:
    compared = 0
    for case, expected in golden(name, found()):
        task = qa.create(tokenizers(case.tokenizer), manifest("qa", 2))
        if expected == [[-1, -1, -1]]:
            # The pipeline fails where the stride does not fit beside the question; for us that is a bad request.
            if "doc_stride" in case.parameters:
                with pytest.raises(Unprocessable):
                    ask(task, case, qa_row)
            continue
        answers = [answer for answer in flatten(ask(task, case, qa_row)) if answer["score"] > 0]
        spans = [[answer["start"], answer["end"]] for answer in answers][: len(expected)]
        assert spans == [[start, end] for start, end, _ in expected], case
        scores = [answer["score"] for answer in answers][: len(expected)]
        np.testing.assert_allclose(scores, [score for _, _, score in expected], atol=TOLERANCE)
        compared += 1
    assert compared > (6000 if name == "qa-data" else 250)


def qa_row(encoding: Encoding) -> Row:
    return cases.qa_logits(encoding.input_ids, encoding.token_type_ids)


def test_the_goldens_stay_small() -> None:
    files = [file for file in Path(cases.HERE).iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 500_000
