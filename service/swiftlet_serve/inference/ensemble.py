"""Ensembles: several served models of one task that answer as one.

Each sequence of a request is read by one member. The members' queues admit and batch their sequences as those of any
other request, and the task of the ensemble makes one answer of all rows.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, get_args

from swiftlet_models.artifact import NAME, NAME_RULE, Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import OpenModel
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.tasks import Mean
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Priority, Row

MEANS: Final = get_args(Mean)


class Words(NamedTuple):
    """What `a+b` or `a+b:logits` names."""

    members: tuple[str, ...]
    mean: Mean = "probabilities"

    @classmethod
    def parse(cls, words: str) -> Words:
        """Returns the members and the mean. The name of a file or directory may have a + as well."""
        if "+" not in words or Path(words).exists():
            return cls((words,))
        head, _, last = words.rpartition(":")
        mean = next((mean for mean in MEANS if mean == last), None)
        return cls(tuple(words.split("+"))) if mean is None else cls(tuple(head.split("+")), mean)

    def __str__(self) -> str:
        return f"{'+'.join(self.members)}:{self.mean}"


@dataclass(frozen=True)
class EnsembleModel(OpenModel):
    """Models of one task that answer as one. The first one gives the order of the labels."""

    members: Sequence[OpenModel]
    mean: Mean

    @classmethod
    def of(cls, name: str, members: Sequence[OpenModel], mean: Mean) -> EnsembleModel:
        """Returns the ensemble of some models.

        Raises:
            SetupError: they cannot answer as one.
        """
        first, names = members[0], " and ".join(dict.fromkeys(member.task_name for member in members))
        make = getattr(tasks.load(first.task_name), "ENSEMBLE", None)
        if make is None or len({member.task_name for member in members}) > 1:
            known = " or ".join(task for task in tasks.names() if hasattr(tasks.load(task), "ENSEMBLE"))
            raise SetupError(f"The ensemble {name} has models for {names}. Name models for one task: {known}.")
        try:
            task = make([member.task for member in members], mean)
        except ValueError as error:
            raise SetupError(f"The models of the ensemble {name} cannot answer as one: {error}") from None
        manifests = [member.manifest for member in members]
        digest = hashlib.sha256(" ".join([mean, *(member.artifact.digest for member in members)]).encode()).hexdigest()
        manifest = replace(
            first.manifest,
            name=name,
            version=digest[:12],
            architecture="+".join(dict.fromkeys(manifest.architecture for manifest in manifests)),
            precision="+".join(dict.fromkeys(manifest.precision for manifest in manifests)),  # type: ignore[arg-type]  # of several members
            max_tokens=min(manifest.max_tokens for manifest in manifests),
            languages=tuple(dict.fromkeys(language for manifest in manifests for language in manifest.languages)),
            config={},
            source={},
            files={},
            decisions=None,
        )
        card = {"summary": f"The mean of the {mean} of {' and '.join(manifest.name for manifest in manifests)}."}
        artifact = Artifact(Path(name), manifest, digest)  # a description without files
        return cls(
            artifact,
            first.tokenizer,
            task,
            first.task_name,
            None,
            None,
            first.engine_name,
            card,
            None,
            members=members,
            mean=mean,
        )

    @property
    def task_names(self) -> Sequence[str]:
        return [self.task_name]

    @property
    def member_names(self) -> Sequence[str]:
        return [member.manifest.name for member in self.members]

    @property
    def words(self) -> str:
        """The words that name it, with the served names of its members."""
        return str(Words(tuple(self.member_names), self.mean))


class EnsembleScheduler:
    """The `pipeline.Scheduler` of an ensemble: each sequence is queued for its member."""

    def __init__(self, members: Sequence[Pipeline]) -> None:
        """`members` are the pipelines of the members, in the order of the ensemble's task."""
        self._members = members

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[Awaitable[Row]]:
        if record is not None:
            record.parts = len(self._members)
        rows: dict[int, Awaitable[Row]] = {}  # by the place of the sequence
        try:
            for number, member in enumerate(self._members):
                places = [place for place, encoding in enumerate(encodings) if encoding.member == number]
                own = [replace(encodings[place], head=member.head) for place in places]
                rows |= zip(places, member._scheduler.submit(own, deadline, priority, record), strict=True)
        except BaseException:
            for row in rows.values():
                asyncio.ensure_future(row).cancel()
            raise
        return [rows[place] for place in range(len(encodings))]

    def minimum_s(self, lengths: Sequence[int]) -> float:
        """Predicts the seconds that a request needs, as if each member read an equal share of its sequences."""
        return sum(member._scheduler.minimum_s(lengths) for member in self._members) / len(self._members)


def combine(name: str, words: str, served: Mapping[str, Pipeline]) -> tuple[EnsembleModel, EnsembleScheduler]:
    """Returns an ensemble of served models, and its scheduler.

    Raises:
        SetupError: the name or the words are invalid, or the models cannot answer as one.
    """
    members, mean = Words.parse(words)
    if not NAME.fullmatch(name):
        raise SetupError(f"ensembles: {name!r} is not a valid name, which has {NAME_RULE}.")
    if len(members) < 2 or len({*members}) < len(members) or not {*members} <= {*served}:
        raise SetupError(
            f"ensembles: {name}={words} does not name two or more of the models in the setting models, each once. "
            f"Use {', '.join(served) or 'that setting, and no repository'}."
        )
    pipelines = [served[member] for member in members]
    return EnsembleModel.of(name, [pipeline.model for pipeline in pipelines], mean), EnsembleScheduler(pipelines)
