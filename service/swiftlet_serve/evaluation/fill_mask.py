"""The share of masked tokens of running text whose best prediction is the original token."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models.datasets import Unlabelled
from swiftlet_models.encodings import TokenizedText
from swiftlet_models.metrics import Score
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade, commonest
from swiftlet_serve.evaluation._paragraphs import paragraphs
from swiftlet_serve.tasks.fill_mask import FillMask

MASKED_SHARE: Final = 0.15
MAX_MASKS: Final = 24  # in one paragraph


class Evaluator(evaluation.Evaluator):
    """Masks 15 % of the tokens of a paragraph, chosen among words that are one token.

    The number of the document seeds the choice, and every evaluation masks the same words.
    """

    golden_inputs = (
        "The {mask} rises in the east and sets in the {mask}.",
        "She poured the {mask} into a cup and drank it.",
        "Two and two make {mask}.",
    )
    _task: FillMask

    def golden_bodies(self) -> list[dict[str, Any]]:
        return [{"inputs": text.format(mask=self._task.mask)} for text in self.golden_inputs]

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        """Returns each text with a mask in place of the word in the middle. Leaves out texts without words."""
        words = [(text.text, [*re.finditer(r"\w+", text.text)]) for text in texts]
        middles = [(text, found[len(found) // 2]) for text, found in words if found]
        return [{"inputs": text[: word.start()] + self._task.mask + text[word.end() :]} for text, word in middles]

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        for number, text, tokens in paragraphs(data, skip, stop, self._task.tokenizer, self._task.max_tokens):
            words = _whole_words(text, tokens)
            count = min(MAX_MASKS, round(MASKED_SHARE * len(tokens)), len(words))
            if count and self._task.mask not in text:
                chosen = sorted(random.Random(number).sample(words, count))  # noqa: S311  # no secret
                yield _case(self._masked(text, tokens, chosen), tuple(tokens.ids[chosen].tolist()))

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        return {"always the commonest token": commonest([token for case in cases for token in case.expected])}

    def best(self, response: Any) -> str:
        masks = response if isinstance(response[0], list) else [response]
        return " ".join(tokens[0]["token_str"] for tokens in masks)

    def _masked(self, text: str, tokens: TokenizedText, chosen: Sequence[int]) -> str:
        """Returns a text with masks in place of these tokens."""
        parts, position = [], 0
        for start, end in tokens.offsets[chosen].tolist():
            parts += [text[position:start], self._task.mask]
            position = end
        return "".join([*parts, text[position:]])


def _whole_words(text: str, tokens: TokenizedText) -> list[int]:
    """Returns the indices of the tokens that are whole alphanumeric words."""
    counts = np.bincount(tokens.word_ids)
    return [
        index
        for index, (word, (start, end)) in enumerate(zip(tokens.word_ids, tokens.offsets, strict=True))
        if counts[word] == 1 and text[start:end].strip().isalnum()  # unigram tokens include the blank before the word
    ]


def _case(text: str, expected: tuple[int, ...]) -> Case:
    def grade(response: Any) -> list[Grade]:
        masks = [response] if len(expected) == 1 else response
        tokens = [ranked[0]["token"] for ranked in masks]
        return [Grade({"top_1": float(token == right)}, token) for token, right in zip(tokens, expected, strict=True)]

    return Case({"inputs": text, "parameters": {"top_k": 1}}, expected, grade)
