"""The golden cases of entities and of zero-shot classification: labels of tokens, and labels that a request names.

Each call is recorded as a hash of its labels, spans and words in order, and a weighted sum of its scores. This module
needs only numpy, like `cases.py`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.goldens import families
from tests.goldens.cases import SENTENCES, TOKENIZERS, Case, Floats, Ids, hashed, strings

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC")
BILOU = ("O", "B-PER", "I-PER", "L-PER", "U-PER", "B-LOC", "L-LOC")
NLI = (
    ("CONTRADICTION", "NEUTRAL", "ENTAILMENT"),
    ("entailment", "neutral", "contradiction"),
    ("not_entailment", "Entailed"),
)
EVERY_TOKENIZER = (*TOKENIZERS, *families.TOKENIZERS)

ENTITY_GRID: list[dict[str, Any]] = [
    {"aggregation_strategy": "none"},
    {"aggregation_strategy": "simple"},
    {"aggregation_strategy": "first"},
    {"aggregation_strategy": "average"},
    {"aggregation_strategy": "max"},
    {"aggregation_strategy": "simple", "ignore_labels": []},
    {"aggregation_strategy": "none", "ignore_labels": ["O", "B-PER"]},
    {"aggregation_strategy": "max", "ignore_labels": ["PER"]},
]
STRIDES = (0, 16, 100)

ZERO_SHOT_GRID: list[dict[str, Any]] = [
    {"candidate_labels": ["bread", "weather", "railways"]},
    {"candidate_labels": "bread, weather ,, railways"},
    {"candidate_labels": ["날씨"], "hypothesis_template": "이 글은 {}에 관한 것이다."},
    {"candidate_labels": ["👍🏽", "e\u0301 – ﬁ", "[MASK]", "a b c"], "multi_label": True},
    {"candidate_labels": ["yes", "no"], "hypothesis_template": "{0}, {0}! {{braces}}", "multi_label": True},
    {"candidate_labels": [f"label {i}" for i in range(12)], "hypothesis_template": "About {}."},
]


def entity_logits(input_ids: Ids, token_type_ids: Ids, labels: int) -> Floats:
    """Returns (L, labels). Tokens near each other tend to the same label, so that entities have several tokens."""
    place, label = np.arange(len(input_ids))[:, None], np.arange(labels)
    own = hashed(input_ids[:, None], token_type_ids[:, None], place, label)
    return 3 * own + 4 * hashed(place // 3, label)


def texts() -> list[str]:
    """Returns sentences, long texts, and unusual strings.

    None is blank, and none has a special token, which Swiftlet treats as text, and a unigram model of transformers not.
    """
    long = [" ".join(SENTENCES), "\n".join(SENTENCES * 3), "x" * 3000]
    return [*SENTENCES, *long, *(text for text in strings(120) if text.strip() and "<pad>" not in text)]


def entities() -> Iterator[Case]:
    for number, text in enumerate(texts()):
        for step, tokenizer in enumerate(EVERY_TOKENIZER):
            for offset in (0, 3):
                parameters = ENTITY_GRID[(number + step + offset) % len(ENTITY_GRID)]
                yield Case(tokenizer, text, parameters, labels=BILOU if (number + step) % 7 == 0 else BIO)
    long = [" ".join(SENTENCES), " ".join(SENTENCES * 3), "서울의 봄은 짧지만 아름답다 🎬. " * 60]
    for tokenizer in EVERY_TOKENIZER:
        for strategy in ("simple", "first", "average", "max"):
            for stride in STRIDES:
                for text in long:
                    yield Case(tokenizer, text, {"aggregation_strategy": strategy, "stride": stride}, labels=BIO)
        yield Case(tokenizer, SENTENCES[:5], {"aggregation_strategy": "simple"}, labels=BIO)


def zero_shot() -> Iterator[Case]:
    for number, text in enumerate(texts()):
        for step, tokenizer in enumerate(EVERY_TOKENIZER):
            for offset in (0, 1):
                parameters = ZERO_SHOT_GRID[(number + 2 * step + offset) % len(ZERO_SHOT_GRID)]
                yield Case(tokenizer, text, parameters, labels=NLI[(number + step) % len(NLI)])
    for tokenizer in EVERY_TOKENIZER:
        yield Case(tokenizer, SENTENCES[:4], ZERO_SHOT_GRID[0], labels=NLI[-1])


def record(found: Sequence[Sequence[Any]]) -> list[float]:
    """Returns the hash and the weighted sum of the answers of one call. The score is the last part of an answer."""
    text = json.dumps([list(each[:-1]) for each in found], ensure_ascii=False)
    weighted = sum((1 + i % 7) * float(each[-1]) for i, each in enumerate(found))
    return [zlib.crc32(text.encode()), weighted / max(1, len(found))]


def settled(ranking: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Returns labels with scores in an order that rounding does not change."""
    return sorted(ranking, key=lambda pair: (-round(pair[1], 5), pair[0]))
