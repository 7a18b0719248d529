"""Compares entities and zero-shot classification with the pipelines of transformers 4.57.1.

`goldens/write.py` ran them. Each golden call is a hash of the labels, spans and words, and a weighted sum of the
scores. The logits come from the hash network of `goldens/cases.py`, so one wrong token anywhere changes the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftlet_models.encodings import Encoding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks import entities, zero_shot
from swiftlet_serve.types import Row
from tests.goldens import cases, label_cases
from tests.goldens.cases import Case
from tests.support.tiers import first
from tests.tasks.test_pipeline_parity import TOLERANCE, ask, copy_vocabulary, golden, manifest

NOTHING = label_cases.record([])
"""The record of a call without answers, as of a text without tokens."""


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    made = {}
    for name in label_cases.EVERY_TOKENIZER:
        directory: Path = tmp_path_factory.mktemp(name)
        copy_vocabulary(name, directory)
        made[name] = Tokenizer.from_directory(directory)
    return made


every = pytest.mark.parametrize("nth", first([5, 1], 5))


def compare(name: str, found: Iterator[Case], answer: Callable[[Case], list[list[Any]]], nth: int) -> Counter[str]:
    """Asserts that every nth call has the pipeline's answers. Returns the number of calls by what they answered."""
    outcomes: Counter[str] = Counter()
    for case, [expected] in golden(name, found)[::nth]:
        try:
            recorded = label_cases.record(answer(case))
        except Unprocessable:  # the text has no tokens, and the pipeline answers nothing
            recorded = NOTHING
        outcomes["nothing" if recorded == NOTHING else "something"] += 1
        assert recorded[0] == expected[0], case
        np.testing.assert_allclose(recorded[1], expected[1], atol=TOLERANCE)
    return outcomes


@every
def test_entities_equal_pipeline(tokenizers: dict[str, Tokenizer], nth: int) -> None:
    def network(encoding: Encoding) -> Row:
        logits = label_cases.entity_logits(encoding.input_ids, encoding.token_type_ids, width)
        return logits[encoding.focus]

    def answer(case: Case) -> list[list[Any]]:
        nonlocal width
        width = len(case.names)
        task = entities.create(tokenizers[case.tokenizer], manifest("entities", width, case.names))
        answers = ask(task, case, network)
        flat = [one for each in answers for one in each] if isinstance(case.inputs, list) else answers
        key = "entity" if case.parameters["aggregation_strategy"] == "none" else "entity_group"
        return [[one[key], one["start"], one["end"], one["word"], one["score"]] for one in flat]

    width = 0
    outcomes = compare("entities", label_cases.entities(), answer, nth)
    assert outcomes["something"] > 1400 // nth


@every
def test_zero_shot_equals_pipeline(tokenizers: dict[str, Tokenizer], nth: int) -> None:
    def network(encoding: Encoding) -> Row:
        return cases.classify_logits(encoding.input_ids, encoding.token_type_ids, width)[None]

    def answer(case: Case) -> list[list[Any]]:
        nonlocal width
        width = len(case.names)
        about = manifest("zero-shot", width, case.names, problem="single_label")
        answers = ask(zero_shot.create(tokenizers[case.tokenizer], about), case, network)
        rankings = [
            [(one["label"], one["score"]) for one in each]
            for each in (answers if isinstance(case.inputs, list) else [answers])
        ]
        assert all(
            scores == sorted(scores, reverse=True) for scores in ([pair[1] for pair in each] for each in rankings)
        )
        return [list(pair) for each in rankings for pair in label_cases.settled(each)]

    width = 0
    outcomes = compare("zero_shot", label_cases.zero_shot(), answer, nth)
    assert outcomes["something"] > 1300 // nth
