"""Combinations of pre-training settings that make no sense, each with a sentence that says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

PAIR_FORMATS = ("segment_pairs", "sentence_pairs")
FILE_OF_TEXTS = ".tsv"


class Pretraining(Protocol):
    """The settings of `recipe.Pretraining` that can conflict. Read only, as in a frozen dataclass."""

    @property
    def objective(self) -> str: ...
    @property
    def sentence_objective(self) -> str: ...
    @property
    def input_format(self) -> str: ...
    @property
    def masking(self) -> str: ...
    @property
    def static_masking(self) -> bool: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...
    @property
    def corpora(self) -> Iterable[str]: ...
    @property
    def knowledge_transfer(self) -> Any: ...


def find_conflict(work: Pretraining) -> str | None:
    """Returns a sentence about the first combination that makes no sense, or None."""
    return next(_conflicts(work), None)


def _conflicts(work: Pretraining) -> Iterator[str]:
    sentences, kind = work.sentence_objective, work.input_format
    if sentences == "next_sentence" and kind == "blocks" and work.batch_size < 2:
        yield "next_sentence takes sentences of other documents from the same batch: batch_size must be at least 2."
    if sentences == "next_sentence" and kind == "blocks" and work.static_masking:
        yield "static_masking with next_sentence needs the input_format segment_pairs or sentence_pairs."
    if sentences != "none" and any(name.endswith(FILE_OF_TEXTS) for name in work.corpora):
        yield "a sentence_objective needs running text, and a .tsv corpus holds separate texts."
    if kind in PAIR_FORMATS and sentences == "none":
        yield f"the input_format {kind} needs a sentence_objective, which reads its pairs."
    if kind not in (*PAIR_FORMATS, "blocks") and sentences != "none":
        yield f"the input_format {kind} has no pairs of texts, which the sentence_objective {sentences} needs."
    if work.sequence_length < 8 and kind != "blocks":
        yield f"the input_format {kind} needs a sequence_length of at least 8."
    if work.objective != "masked_lm" and work.knowledge_transfer is not None:
        yield f"the objective {work.objective} cannot be combined with knowledge_transfer."
    if work.objective == "causal_lm" and sentences != "none":
        yield "the objective causal_lm cannot be combined with a sentence_objective: the first token sees no other."
    if work.objective == "causal_lm" and (work.static_masking or work.masking != "tokens"):
        yield "the objective causal_lm masks nothing: leave out masking and static_masking."
