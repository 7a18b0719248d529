"""The golden cases of every kind of classifier: texts and pairs, one label and several, every problem and function.

The networks are small ones with weights, because a checkpoint's configuration decides the kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, product
from typing import Any

from tests.goldens import families
from tests.goldens.cases import NETWORKS, SENTENCES, Case

NAMES = ("bert", "albert", "roberta", "electra", "distilbert")
PROBLEMS = ("single_label", "single_label_classification", "multi_label", "regression")  # the first: none is given
FUNCTIONS = (None, "none", "sigmoid", "softmax")
KOREAN = "서울의 봄은 짧지만 아름답다 👍🏽, e\u0301"


def inputs() -> Iterator[Any]:
    """Yields texts, pairs, and lists of them, without an end."""
    long = " ".join(SENTENCES * 4)
    for first, second in cycle(zip(SENTENCES, reversed(SENTENCES), strict=True)):
        yield first
        yield {"text": first, "text_pair": second}
        yield {"text": KOREAN, "text_pair": first}
        yield [{"text": first, "text_pair": KOREAN}, {"text": second, "text_pair": long}]
        yield {"text": second}
        yield [first, KOREAN]


def classify() -> Iterator[Case]:
    every = inputs()
    for network, problem, labels, function in product(NAMES, PROBLEMS, (1, 3), FUNCTIONS):
        tokenizer, _ = (NETWORKS | families.NETWORKS)[network]
        function_to_apply = {} if function is None else {"function_to_apply": function}
        for top_k in (None, 1, 2):
            yield Case(tokenizer, next(every), {"top_k": top_k, **function_to_apply}, problem, network, labels)
