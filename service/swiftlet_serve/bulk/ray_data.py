"""Scores the batches of a Ray Dataset: a callable class for `Dataset.map_batches` with a pool of actors.

    dataset.map_batches(BatchScorer, fn_constructor_kwargs={"model": "mobilebert-sst2"}, batch_format="pyarrow",
                        batch_size=2048, concurrency=4, num_cpus=1)

This module does not import Ray. A batch needs only pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from swiftlet_serve.bulk.formats.parquet import chunk_of, with_answers
from swiftlet_serve.bulk.records import Layout
from swiftlet_serve.bulk.requests import RequestMaker
from swiftlet_serve.bulk.scorer import Scorer
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model, locate_one


class BatchScorer:
    """Adds an answer and an error code to each row, as `swiftlet score` does. An actor holds the model."""

    def __init__(
        self,
        model: str,
        *,
        engine: str = "native",
        task: str | None = None,
        columns: Mapping[str, str] | None = None,
        parameters: Mapping[str, Any] | None = None,
        answer_column: str = "answer",
        error_column: str = "error",
        cores: int = 1,
    ) -> None:
        """Loads the model.

        Args:
            model: artifact directory, which all nodes can read, or name of a bundled model.
            engine: name of the engine.
            task: name of the task. Default: the task in the model's manifest.
            columns: columns by the fields of the task's inputs, as --column of `swiftlet score`.
            parameters: the parameters of all requests.
            answer_column: name of the column of the answers, which are JSON.
            error_column: name of the column of the error codes.
            cores: threads that run batches. Give `map_batches` as many as `num_cpus`.

        Raises:
            ArtifactError: the model is not a valid artifact.
            SetupError: there is no such model, it does not answer the task, or the columns or parameters do not fit it.
        """
        path = locate_one(model)
        loaded = load_model(path, engine, task=task)
        self._maker = RequestMaker(loaded.task, columns or {}, parameters or {})
        self._scorer = Scorer(loaded, self._maker, cores)
        self._layout = Layout(None, answer_column, error_column, ",")

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Returns the rows of a batch in their order, with the two columns after the others.

        Raises:
            SetupError: the batch lacks a column of the inputs, or has one of the two columns.
        """
        inputs, added = list(self._maker.columns.values()), {self._layout.answer, self._layout.error}
        for name in inputs:
            if name not in batch.column_names:
                raise SetupError(f"The dataset has no column {name!r}.")
        if len(added) < 2 or added & set(batch.column_names):
            raise SetupError("The dataset has a column of the name of the answer or the error. Rename those.")
        chunk = chunk_of(batch, inputs, batch.column_names)
        answers = [answer for part in list(self._scorer.start(chunk)) for answer in self._scorer.finish(part)]
        return with_answers(batch, self._layout, answers)
