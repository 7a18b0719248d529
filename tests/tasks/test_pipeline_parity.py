"""Compares the tasks with the pipelines of transformers 4.57.1, whose answers `goldens/write.py` recorded.

Both sides read their logits from the same made-up network (`goldens/cases.py`), which hashes every token id, position
and type it is given: one wrong token anywhere and the answers differ.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, groupby, product
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Encoding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks import classify, fill_mask, qa
from swiftlet_serve.types import Batch, Row
from tests.goldens import cases, families, kinds
from tests.goldens.cases import LABELS, MAX_TOKENS, Case, flatten
from tests.support import task_requests
from tests.support.checkpoints import HEADS, convert
from tests.support.sentence_checkpoints import edit
from tests.support.tiers import first, first_of_each

TOLERANCE = 1e-4

Golden = list[tuple[Case, list[list[float]]]]


def manifest(task: Any, width: int, labels: tuple[str, ...] = (), problem: Any = None) -> Manifest:
    made = task_requests.manifest(task, width, labels, problem)
    return replace(made, max_tokens=MAX_TOKENS, vocab_size=width)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    made: dict[str, Tokenizer] = {}

    def get(name: str) -> Tokenizer:
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            copy_vocabulary(name, directory)
            made[name] = Tokenizer.from_directory(directory)
        return made[name]

    return get


def copy_vocabulary(name: str, directory: Path) -> None:
    """Copies the files of one of the tokenizers, and writes its options."""
    if name == "bert":
        shutil.copy(cases.DATA / "bert-base-uncased-vocab.txt", directory / "vocab.txt")
        return
    for file in families.FILES[name.partition("-")[0]]:
        shutil.copy(cases.HERE / file, directory)
    (directory / "tokenizer_config.json").write_text(json.dumps(families.OPTIONS.get(name, {})))


def golden(name: str, found: Iterator[Case]) -> Golden:
    """Returns each case with the rows recorded for it."""
    if name.endswith("-data") and not cases.DATA.is_dir():
        pytest.skip("the data sets are not here")
    recorded = np.load(cases.HERE / f"{name}.npz")
    every = list(found)
    counts = recorded["counts"]
    assert len(every) == len(counts), "the cases changed: run tests/goldens/write.py"
    columns = np.stack([recorded[f"column{i}"] for i in range(len(recorded.files) - 1)], axis=1).tolist()
    stops = np.cumsum(counts)
    return [(case, columns[stop - count : stop]) for case, count, stop in zip(every, counts, stops, strict=True)]


def without_network(name: str, found: Iterator[Case]) -> Golden:
    """Returns the cases of the hash network."""
    return [(case, rows) for case, rows in golden(name, found) if not case.network]


def ask(task: Any, case: Case, network: Callable[[Encoding], Row]) -> Any:
    request = task.Request(inputs=case.inputs, parameters=case.parameters)
    encodings = task.encode(request)
    rows = np.concatenate([network(encoding) for encoding in encodings])
    return task.decode(request, encodings, Batch.of(encodings).split_rows(rows))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("classify-own", cases.classify_own),
        ("classify-data", cases.classify_data),
        ("classify-families", families.classify),
    ],
)
def test_classify_equals_pipeline(
    name: str, found: Callable[[], Iterator[Case]], tokenizers: Callable[[str], Tokenizer]
) -> None:
    for case, expected in without_network(name, found()):
        labels = case.names
        task = classify.create(
            tokenizers(case.tokenizer), manifest("classify", len(labels), labels, problem=case.problem)
        )

        def network(encoding: Encoding, labels: tuple[str, ...] = labels) -> Row:
            return cases.classify_logits(encoding.input_ids, encoding.token_type_ids, len(labels))[None]

        answers = flatten(ask(task, case, network))
        assert [LABELS.index(answer["label"]) for answer in answers] == [label for label, _ in expected]
        scores = [answer["score"] for answer in answers]
        np.testing.assert_allclose(scores, [score for _, score in expected], atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fill_mask-own", cases.fill_own),
        ("fill_mask-data", cases.fill_data),
        ("fill_mask-families", families.fill_mask),
    ],
)
def test_fill_mask_equals_pipeline(
    name: str, found: Callable[[], Iterator[Case]], tokenizers: Callable[[str], Tokenizer]
) -> None:
    for case, expected in without_network(name, found()):
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


@pytest.mark.parametrize(
    ("name", "found", "step"),
    first_of_each(
        [
            ("qa-own", cases.qa_own, 1),
            ("qa-data", cases.qa_data, 5),  # one case of five
            ("qa-data", cases.qa_data, 1),
            ("qa-families", families.qa, 1),
        ],
        itemgetter(0),
    ),
)
def test_qa_equals_pipeline(
    name: str, found: Callable[[], Iterator[Case]], step: int, tokenizers: Callable[[str], Tokenizer]
) -> None:
    compared = 0
    for case, expected in without_network(name, found())[::step]:
        task = qa.create(tokenizers(case.tokenizer), manifest("qa", 2))
        if expected == [[-1, -1, -1]]:
            # The pipeline fails if the stride does not fit beside the question. The task rejects the request.
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
    assert compared > (6000 // step if name == "qa-data" else 250)


def qa_row(encoding: Encoding) -> Row:
    return cases.qa_logits(encoding.input_ids, encoding.token_type_ids)


AUTO: dict[str, Any] = {
    "classify": transformers.AutoModelForSequenceClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "fill-mask": transformers.AutoModelForMaskedLM,
}
NETWORKS = cases.NETWORKS | families.NETWORKS


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Runs torch on one thread: for networks of this size, more threads only cost time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def save_checkpoint(directory: Path, network: str, task: Any, about: dict[str, Any]) -> Tokenizer:
    """Writes a small network with the weights of the golden cases. `about` describes its labels."""
    vocabulary, settings = NETWORKS[network]
    copy_vocabulary(vocabulary, directory)
    tokenizer = Tokenizer.from_directory(directory)
    labels = about if task == "classify" else {}
    config = transformers.AutoConfig.for_model(network, vocab_size=tokenizer.vocab_size, **settings, **labels)
    reference = AUTO[task].from_config(config)
    words = reference.get_input_embeddings().weight
    for name, parameter in reference.named_parameters():
        if parameter is words:  # tied weights have two names, whose order differs between versions
            name = f"{reference.base_model_prefix}.embeddings.word_embeddings.weight"
        parameter.data = torch.from_numpy(cases.weights(name, tuple(parameter.shape)))
    reference.save_pretrained(directory)
    return tokenizer


def row_of(model: Any) -> Callable[[Encoding], Row]:
    def row(encoding: Encoding) -> Row:
        ids, types = torch.tensor(encoding.input_ids)[None], torch.tensor(encoding.token_type_ids)[None]
        with torch.inference_mode():
            found: Row = model(ids, types, torch.tensor([ids.shape[1]]), torch.tensor(encoding.focus)).numpy()
        return found

    return row


@pytest.mark.parametrize(("network", "task"), first(product(NETWORKS, AUTO), *zip(NETWORKS, cycle(AUTO), strict=False)))
def test_converted_checkpoint_equals_pipeline(network: str, task: Any, tmp_path: Path) -> None:
    """The tokenizer, the network and the task are all ours. The checkpoint is written by transformers."""
    tokenizer = save_checkpoint(tmp_path, network, task, {"id2label": dict(enumerate(LABELS))})
    row = row_of(convert(tmp_path, *HEADS[task]).model)
    module = {"classify": classify, "qa": qa, "fill-mask": fill_mask}[task]
    about = manifest(task, 2, LABELS, problem="single_label") if task == "classify" else manifest(task, 2)
    served = module.create(tokenizer, about)
    name = task.replace("-", "_")
    if network in cases.NETWORKS:
        every = golden(f"{name}-network", cases.network_cases(name))
    else:
        every = golden(f"{name}-families", getattr(families, name)())
    for case, expected in [(case, rows) for case, rows in every if case.network == network]:
        answers = flatten(ask(served, case, row))
        keys = {"classify": ("label",), "qa": ("start", "end"), "fill-mask": ("token",)}[task]
        found = [[answer[key] for key in keys] for answer in answers]
        wanted = [[LABELS[int(r[0])]] if task == "classify" else r[: len(keys)] for r in expected]
        assert found[: len(wanted)] == wanted, case
        scores = [r[len(keys)] for r in expected]
        np.testing.assert_allclose([a["score"] for a in answers][: len(scores)], scores, atol=TOLERANCE)


@pytest.mark.parametrize("network", first(kinds.NAMES, "distilbert"))
def test_every_kind_of_classifier_equals_pipeline(network: str, tmp_path: Path) -> None:
    """The configuration of the checkpoint decides: one label or several, and the problem, which may be missing."""
    every = [one for one in golden("classify-kinds", kinds.classify()) if one[0].network == network]
    for (problem, labels), group in groupby(every, key=lambda one: (one[0].problem, one[0].labels)):
        directory = tmp_path / f"{problem}-{labels}"
        directory.mkdir()
        problem_type = {"single_label": None, "multi_label": "multi_label_classification"}.get(problem, problem)
        names = dict(enumerate(LABELS[:labels]))
        tokenizer = save_checkpoint(directory, network, "classify", {"id2label": names})
        edit(directory / "config.json", problem_type=problem_type)  # transformers 5 refuses some that 4.57.1 wrote
        converted = convert(directory, *HEADS["classify"])
        task = classify.create(tokenizer, manifest("classify", labels, converted.labels, problem=converted.problem))
        for case, expected in group:
            answers = flatten(ask(task, case, row_of(converted.model)))
            assert [LABELS.index(answer["label"]) for answer in answers] == [label for label, _ in expected], case
            scores = [answer["score"] for answer in answers]
            np.testing.assert_allclose(scores, [score for _, score in expected], atol=TOLERANCE)


def test_golden_files_are_small() -> None:
    files = [file for file in Path(cases.HERE).iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 500_000
