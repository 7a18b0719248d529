"""Writes tokens as text, each by itself.

Most decoders write a token without regard to the others, except that the first token of a text has no space in front.
The text of each token is then known once the library has decoded it. A text of 38 tokens takes 2 µs, and 26 µs with the
library, which decodes every token again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tokenizers.decoders import Decoder

from swiftlet_models import tokenizer_json
from swiftlet_models.checkpoint_tokenizer import library_calls

BEHIND: Final = "a"  # a token that every decoder writes as it is
BY_TOKEN: Final = ("WordPiece", "Metaspace", "ByteLevel")
LOST: Final = "\ufffd"  # stands for bytes that are no character, as tokens of a byte-level tokenizer may be


class PieceTexts:
    """The texts of the tokens of one vocabulary."""

    def __init__(
        self, decoder: Decoder, token: Callable[[int], str | None], replacements: Sequence[tuple[str, str]]
    ) -> None:
        """Starts without a known text.

        Args:
            decoder: writes tokens.
            token: returns the token of an id, or None.
            replacements: made in the text of all tokens, one after the other.
        """
        self._first = _Texts(decoder, token, behind="")
        self._later = _Texts(decoder, token, behind=BEHIND)
        self._replacements = replacements

    @classmethod
    def of(cls, document: Mapping[str, Any], token: Callable[[int], str | None]) -> PieceTexts | None:
        """Returns the texts for a `tokenizer.json`, or None if its decoder does not write tokens by themselves."""
        whole = document["decoder"] or {"type": None}
        steps = whole["decoders"] if whole["type"] == "Sequence" else [whole]
        replaced = [step for step in steps if step["type"] == "Replace" and step["pattern"].get("String")]
        if not steps or steps[0]["type"] not in BY_TOKEN or steps[1:] not in ([], [{"type": "Fuse"}, *replaced]):
            return None
        decoder = tokenizer_json.decoder({**document, "decoder": steps[0]})
        if decoder is None or decoder.decode([BEHIND]) != BEHIND:
            return None
        return cls(decoder, token, [(step["pattern"]["String"], step["content"]) for step in replaced])

    def write(self, ids: Sequence[int]) -> str | None:
        """Returns the text of tokens. None if one of them is unknown, or is not a whole number of characters."""
        text = self.join(ids)
        if text is not None:
            for old, new in self._replacements:
                text = text.replace(old, new)
        return text

    def join(self, ids: Sequence[int]) -> str | None:
        """Returns the same without the replacements."""
        if not ids:
            return ""
        try:
            return "".join([self._first[ids[0]], *map(self._later.__getitem__, ids[1:])])
        except LookupError:
            return None


class _Texts(dict[int, str]):
    """The texts of tokens behind another one, by their ids. LookupError for a token that cannot be written alone."""

    def __init__(self, decoder: Decoder, token: Callable[[int], str | None], behind: str) -> None:
        super().__init__()
        self._decoder, self._token, self._behind = decoder, token, behind

    def __missing__(self, number: int) -> str:
        token = self._token(number)
        if token is None:
            raise LookupError
        with library_calls():
            text: str = self._decoder.decode([self._behind, token] if self._behind else [token])
        if LOST in text:
            raise LookupError
        self[number] = text = text[len(self._behind) :]
        return text
