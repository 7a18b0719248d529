"""Checks the tokenizer of an imported checkpoint on built-in texts.

A tokenizer that is read wrongly gives valid ids, and only the answers are wrong. Two signs tell it: its texts become
unknown tokens, and its ids differ from transformers', where transformers is installed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from swiftlet_models import transformers_tokens
from swiftlet_models.encodings import Text
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.transformers_tokens import CUT, TEXTS

MAX_LOST: Final = 0.3  # share of the letters of a text that may become unknown tokens


def lost_share(tokenizer: Tokenizer, languages: Sequence[str] = ()) -> float:
    """Returns the share of letters that no known token covers, from 0 to 1, in the language that suffers least.

    Args:
        tokenizer: the tokenizer.
        languages: BCP 47 tags of the model's languages. Without a known one, all built-in texts count.
    """
    own = [TEXTS[tag] for language in languages if (tag := language.partition("-")[0]) in TEXTS]
    return min(lost(tokenizer, text) for text in own or TEXTS.values())


def lost(tokenizer: Tokenizer, text: str) -> float:
    """Returns the share of a text's letters that no known token covers, from 0 to 1."""
    (tokens,) = tokenizer.tokenize([text])
    known: set[int] = set()
    for number, (start, end) in zip(tokens.ids.tolist(), tokens.offsets.tolist(), strict=True):
        if number != tokenizer.unknown_id:
            known.update(range(start, end))
    letters = {index for index, character in enumerate(text) if unicodedata.category(character).startswith("L")}
    return len(letters - known) / max(1, len(letters))


def difference(tokenizer: Tokenizer, directory: Path) -> str | None:
    """Compares ids with `AutoTokenizer`'s, offline and without code of the checkpoint.

    Returns what differs, or None. The texts hold no special tokens, which are text for `Tokenizer`.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        Exception: transformers cannot read the tokenizer.
    """
    theirs = transformers_tokens.read(directory)
    for token, number in theirs.added.items():
        if tokenizer.token_to_id(token) not in (number, None):
            return f"the token {token!r} has the id {number} there and {tokenizer.token_to_id(token)} here"
    texts: list[Text] = [parts[0] if len(parts) == 1 else (parts[0], parts[1]) for parts, *_ in theirs.ids]
    whole, cut = tokenizer.encode(texts, 1 << 20), tokenizer.encode(texts, CUT)
    for (parts, *expected), *ours in zip(theirs.ids, whole, cut, strict=True):
        for own, other in zip(ours, expected, strict=True):
            if own.input_ids.tolist() != other:
                text = f"{'pair' if len(parts) == 2 else 'text'} {' '.join(parts)!r:.60}"
                return f"the {text} gives {len(own.input_ids)} ids here and {len(other)} others there"
    return None
