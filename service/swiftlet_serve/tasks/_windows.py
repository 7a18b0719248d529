"""Long texts: cut, refused, or read in overlapping windows whose answers become one.

A window is a row of the batch like any other. A text that fits the model is its only window, and has the same answer as
without windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from swiftlet_models.encodings import Encoding, Text, TextTooLong, TooManyWindows
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import INVALID_VALUES, Unprocessable, invalid_value
from swiftlet_serve.tasks._requests import Cut, input_too_long, too_many_tokens

WINDOW: Final = "window"

Truncation = Annotated[
    bool | Literal["window"],
    Field(
        description="Truncates a text that exceeds the model's token limit. If false, rejects it. If window, reads all "
        "of it in overlapping windows."
    ),
]
Combination = Literal["mean", "max"]
Scores = NDArray[np.float64]


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[Text],
    max_tokens: int,
    truncation: bool | Literal["window"],
    places: Sequence[str],
    most: int,
    *,
    prefix: str = "",
) -> list[Encoding]:
    """Encodes texts as their request says. `places` are their JSON Pointers, and `most` is the limit of sequences.

    Raises:
        Unprocessable: a text is too long, or there are too many windows.
    """
    try:
        if truncation == WINDOW:
            return tokenizer.encode_windows(texts, max_tokens, most, prefix=prefix)
        return tokenizer.encode(texts, max_tokens, truncate=truncation)
    except TextTooLong as error:
        raise too_many_tokens(places[error.index], max_tokens, error.tokens) from None
    except TooManyWindows:
        raise too_many_windows(most) from None


def check_cut(tokenizer: Tokenizer, cut: Cut, limit: int, most: int, *, prompt: str = "", pair: bool = False) -> None:
    """Checks that a limit of tokens leaves something of each text beside its prompt and the special tokens.

    A model whose own limit leaves nothing is not the request's fault.

    Args:
        tokenizer: the tokenizer of the texts.
        cut: has the limit that the request names.
        limit: the limit that the tokenizer is given: the request's, or less.
        most: the limit that the tokenizer would be given without the request's.
        prompt: begins each text.
        pair: whether the texts are pairs.

    Raises:
        Unprocessable: it leaves nothing.
    """
    if cut.tokens is None:
        return
    least = tokenizer.special_count(pair=pair) + sum(map(len, tokenizer.ids([prompt] if prompt else []))) + 1 + pair
    least = min(least, most)
    if limit < least:
        raise invalid_value("/parameters/tokens", "no_token_left", INVALID_VALUES, cut.tokens + least - limit)


def too_many_windows(most: int) -> Unprocessable:
    """Returns the error for texts that make more sequences than a request may have."""
    detail = f"The inputs make more than {most} windows in total. Send fewer or shorter inputs."
    return input_too_long("/inputs", detail, most)


def joined(
    encodings: Sequence[Encoding], values: Sequence[Any], join: Callable[[Sequence[Any], Sequence[int]], Any]
) -> list[Any]:
    """Returns one value for each text. `join` makes it of the values of several windows and their numbers of tokens."""
    pairs = zip(encodings, values, strict=True)
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: pair[0].text_index)]
    return [
        group[0][1] if len(group) == 1 else join([value for _, value in group], [len(e.input_ids) for e, _ in group])
        for group in groups
    ]


def mean(values: Sequence[Any], tokens: Sequence[int]) -> Scores:
    """Returns the mean of the values of windows, each weighted by its tokens."""
    average: Scores = np.average(np.array(values, np.float64), axis=0, weights=tokens)
    return average


def largest(values: Sequence[Any], _: Sequence[int]) -> Scores:
    """Returns the largest of the values of windows, element by element."""
    most: Scores = np.max(np.array(values, np.float64), axis=0)
    return most


JOINS: Final[Mapping[Combination, Callable[[Sequence[Any], Sequence[int]], Scores]]] = {"mean": mean, "max": largest}
