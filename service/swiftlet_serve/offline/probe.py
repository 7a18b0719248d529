"""The requests that a rounded network is compared with fp32 on: golden inputs, built-in texts, or texts of a file."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from pydantic import ValidationError

from swiftlet_models import datasets
from swiftlet_models.artifact import Manifest
from swiftlet_models.datasets import DatasetError
from swiftlet_models.encodings import Encoding
from swiftlet_models.errors import ModelError
from swiftlet_models.metrics import Score
from swiftlet_models.operations import Operations
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.tokenizer_check import MAX_LOST, lost
from swiftlet_serve import evaluation, tasks
from swiftlet_serve.errors import SetupError, SwiftletError
from swiftlet_serve.evaluation import Evaluator
from swiftlet_serve.offline.fidelity import Fidelity, Outputs, fidelity, of_labels
from swiftlet_serve.types import Batch, Engine, Task

MAX_WORK: Final = 60e9  # multiply-adds for the built-in texts: one and a half seconds in fp32 on two cores
MAX_OUTPUTS: Final = 1 << 24  # numbers of the answers, 4 bytes each


@dataclass(frozen=True)
class Probe:
    """Requests of a task, and the sequences of each."""

    task: Task[Any, Any]
    evaluator: Evaluator
    requests: Sequence[Any] = ()
    parts: Sequence[Sequence[Encoding]] = ()

    @classmethod
    def golden(
        cls,
        tokenizer: Tokenizer,
        manifest: Manifest,
        head: HeadWeights | None = None,
        label_tokenizer: Tokenizer | None = None,
    ) -> Self:
        """Returns the requests whose answers an artifact records. The arguments are as in `tasks.create`.

        Raises:
            SetupError: the tokenizer or the manifest does not fit the task.
        """
        try:
            task = tasks.create(manifest.task, tokenizer, manifest, head, label_tokenizer)
            evaluator = evaluation.create(manifest.task, task)
            pairs = [_encode(task, body) for body in evaluator.golden_bodies()]
        except (SwiftletError, ModelError, ValueError) as error:
            raise SetupError(f"No golden answers can be made: {error}") from None
        return cls(task, evaluator)._with(pairs)

    @property
    def encodings(self) -> list[Encoding]:
        """All sequences, in the order of the requests."""
        return list(chain.from_iterable(self.parts))

    def with_built_in_texts(self, tokenizer: Tokenizer, manifest: Manifest, operations: Operations) -> Self:
        """Returns these requests, and those of as many built-in texts as the network runs in seconds.

        The sample is always the same. Its texts are in the languages of the model, or in all that the tokenizer reads.
        """
        languages = {"", *(tag.partition("-")[0] for tag in manifest.languages)}
        texts = datasets.unlabelled(evaluation.BUILT_IN)
        own = [text for text in texts if text.language in languages]
        readable = [
            text for text in (own if any(t.language for t in own) else texts) if lost(tokenizer, text.text) <= MAX_LOST
        ]
        random.Random(0).shuffle(readable)  # noqa: S311  # no secret
        return self._with(self._affordable(self.evaluator.bodies(readable), manifest.width, operations))

    def _affordable(
        self, bodies: Sequence[Mapping[str, Any]], width: int, operations: Operations
    ) -> Iterator[tuple[Any, Sequence[Encoding]]]:
        work = outputs = 0
        for body in bodies:
            try:
                request, encodings = _encode(self.task, body)
            except (SwiftletError, ValidationError):  # the text is too long, or not what the task reads
                continue
            read = [len(encoding.focus) for encoding in encodings]
            work += operations.count([len(encoding.input_ids) for encoding in encodings], read)
            outputs += width * sum(read)
            if work > MAX_WORK or outputs > MAX_OUTPUTS:
                return
            yield request, encodings

    def of_file(self, data: Path, skip: int = 0, limit: int | None = None) -> Self:
        """Returns requests that are made of the texts of a file, and no others.

        Raises:
            DatasetError: the file is damaged, has labels, or holds a text that cannot be answered, or too few.
        """
        texts = datasets.unlabelled(data)[skip:][:limit]
        try:
            pairs = [_encode(self.task, body) for body in self.evaluator.bodies(texts)]
        except (SwiftletError, ValidationError) as error:
            reason = getattr(error, "detail", "It is not a valid request.")
            raise DatasetError(f"{data.name} holds a text that cannot be answered: {reason}") from None
        if not pairs:
            raise DatasetError(f"{data.name} holds no text to compare answers to.")
        return replace(self, requests=(), parts=())._with(pairs)

    def _with(self, pairs: Iterator[tuple[Any, Sequence[Encoding]]] | list[tuple[Any, Sequence[Encoding]]]) -> Self:
        requests, parts = zip(*pairs, strict=True) if (pairs := list(pairs)) else ((), ())
        return replace(self, requests=[*self.requests, *requests], parts=[*self.parts, *parts])

    def agreement(self, exact: Outputs, rounded: Outputs) -> Score | None:
        """Returns how often the best answers of two networks are equal; None for a task whose answers are numbers.

        Args:
            exact: the outputs of fp32 for each of the sequences, (positions, width).
            rounded: the outputs of the other network.
        """
        return self.evaluator.agreement(self._decode(exact), self._decode(rounded))

    def fidelity(self, manifest: Manifest, exact: Outputs, rounded: Outputs) -> Fidelity:
        """Returns how much of the answers is kept, in the terms of the task. The outputs are as in `agreement`."""
        if manifest.labelling is None:
            return fidelity(manifest, exact, rounded)
        scores: Any = self.task.scores  # type: ignore[attr-defined]  # of tasks whose models read labels
        exact, rounded = (
            [own for part in zip(self.parts, self._rows(outputs), strict=True) for own in scores(*part)]
            for outputs in (exact, rounded)
        )
        return of_labels(exact, rounded)

    def _decode(self, outputs: Outputs) -> list[Any]:
        of_requests = zip(self.requests, self.parts, self._rows(outputs), strict=True)
        return [self.task.decode(request, part, rows) for request, part, rows in of_requests]

    def _rows(self, outputs: Outputs) -> list[list[Any]]:
        """Returns the rows of each request."""
        rows = iter(Batch.of(self.encodings).split_rows(np.concatenate(outputs)))
        return [[next(rows) for _ in part] for part in self.parts]


def run(engine: Engine, encodings: Sequence[Encoding]) -> Outputs:
    """Returns all outputs for each sequence, (positions, width), and not only the top k, and closes the engine."""
    whole = [Encoding(text.input_ids, text.token_type_ids, text.focus, head=text.head) for text in encodings]
    rows: list[Any] = []
    while len(rows) < len(whole):
        batch: list[Encoding] = []
        tokens = 0
        for text in whole[len(rows) :][: engine.cost.max_rows]:
            tokens += len(text.input_ids)
            if batch and tokens > engine.cost.max_tokens:
                break
            batch.append(text)
        rows += engine.run(Batch.of(batch))
    engine.close()
    return rows


def _encode(task: Task[Any, Any], body: Mapping[str, Any]) -> tuple[Any, Sequence[Encoding]]:
    request = task.Request.model_validate(body)
    return request, task.encode(request)
