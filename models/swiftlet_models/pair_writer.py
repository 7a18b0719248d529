"""Writes a query and texts into the prompt of a reranker that reads both as one text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swiftlet_models.artifact import PairPrompt
from swiftlet_models.encodings import Ids
from swiftlet_models.tokenizer import Tokenizer


class PairWriter:
    """Writes a query and texts into a prompt."""

    def __init__(self, tokenizer: Tokenizer, prompt: PairPrompt) -> None:
        """Raises ValueError if the words behind the document do not begin with a special token."""
        self.tokenizer, self.prompt = tokenizer, prompt
        pieces = tokenizer.split_specials(prompt.after)
        if isinstance(pieces[0], str) and prompt.after:
            raise ValueError("the words behind the document do not begin with a special token.")
        self._after = self._ids(pieces)

    @property
    def has_instruction(self) -> bool:
        return "instruction" in self.prompt.before[1::2]

    def write(self, query: str, instruction: str | None) -> tuple[Tokenizer, str]:
        """Returns a tokenizer that puts the prompt around a text, and the words that a text begins with.

        What the query holds is never a special token.
        """
        fields = {"query": query, "instruction": self.prompt.instruction if instruction is None else instruction}
        pieces: list[str | int] = []
        for place, part in enumerate(self.prompt.before):
            new: list[str | int] = [fields[part]] if place % 2 else self.tokenizer.split_specials(part)
            if pieces and isinstance(last := pieces[-1], str) and isinstance(first := new[0], str):
                pieces[-1] = last + first  # tokens may cross from one part to the next
                del new[0]
            pieces += new
        beginning = str(pieces.pop()) if isinstance(pieces[-1], str) else ""
        return self.tokenizer.framed(self._ids(pieces), self._after), beginning

    def _ids(self, pieces: Sequence[str | int]) -> Ids:
        texts = iter(self.tokenizer.ids([piece for piece in pieces if isinstance(piece, str)]))
        ids = [next(texts) if isinstance(piece, str) else np.array([piece], np.int64) for piece in pieces]
        return np.concatenate([np.array([], np.int64), *ids])
