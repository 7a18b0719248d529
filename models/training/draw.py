"""What a pre-training is shown: rows of the corpus in random order, as pairs of texts where asked for, with holes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from swiftlet_serve.models.training.corpus import token_id
from swiftlet_serve.models.training.objectives.masked_lm import SHARE, mask, ngrams, words
from swiftlet_serve.models.training.objectives.next_sentence import next_sentence
from swiftlet_serve.models.training.objectives.pairs import FRAME, Chunk, Pairs, segments, stack
from swiftlet_serve.models.training.objectives.sentence_order import sentence_order
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, Spans
from swiftlet_serve.models.training.tokenizer import continuing
from swiftlet_serve.models.training.vocabulary import SPECIALS

SENTENCE_ENDS: Final = (".", "?", "!")


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows with holes, as drawn, and what is to be learnt from them. Nothing here depends on a network."""

    whole: Tensor  # (B, S)
    input_ids: Tensor  # (B, S), with holes
    token_type_ids: Tensor  # (B, S)
    focus: Tensor  # (N,): the holes
    targets: Tensor  # (N,)
    labels: Tensor | None  # (B,): how the two texts of a row belong together

    @property
    def real(self) -> Tensor:
        """(B, S): false for padding."""
        return self.whole > 0

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        moved: dict[str, Any] = {name: None if x is None else x.to(device) for name, x in vars(self).items()}
        return Batch(**moved)


class Draw:
    """Makes the batch of a number, the same each time. Rows that are held out are in none."""

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, rows: NDArray[np.uint16]) -> None:
        self.work, self.seed, self.rows = recipe.pretraining, recipe.seed, rows
        order = np.random.default_rng(recipe.seed).permutation(len(rows))
        learnt = len(rows) - recipe.pretraining.held_out
        if learnt < recipe.pretraining.batch_rows:
            raise RecipeError(f"of {len(rows)} rows {recipe.pretraining.held_out} are held out: too few are left.")
        self.order, self.aside = order[:learnt], order[learnt:]
        self.continues = continuing(tokenizer)
        self.vocab_size = len(self.continues)
        self.cls, self.sep, self.mask = (token_id(tokenizer, name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        self.ends = torch.zeros(self.vocab_size, dtype=torch.bool)
        self.ends[[number for number in map(tokenizer.token_to_id, SENTENCE_ENDS) if number is not None]] = True

    def __call__(self, number: int) -> Batch:
        rows = self._take(self.order, number)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        if self.work.sentences == "none":
            return self._hide(rows, generator, self.work.spans, self.work.masked)
        return self._hide_in(self._pair(rows, generator), generator, self.work.spans, self.work.masked)

    def held_out(self, number: int) -> Batch:
        """A batch of what is held out: the same rows and holes for whatever is learnt beside words, and however."""
        return self._hide(self._take(self.aside, number), torch.Generator().manual_seed(number), "tokens", SHARE)

    def held_out_pairs(self, number: int) -> Batch:
        """The same rows as pairs of texts."""
        generator = torch.Generator().manual_seed(number)
        return self._hide_in(self._pair(self._take(self.aside, number), generator), generator, "tokens", SHARE)

    def _take(self, order: NDArray[np.int64], number: int) -> Tensor:
        """The rows (B, S) of a batch."""
        taken = order[np.arange(number * self.work.batch_rows, (number + 1) * self.work.batch_rows) % len(order)]
        return torch.from_numpy(self.rows[taken].astype(np.int64))

    def _pair(self, rows: Tensor, generator: torch.Generator) -> Pairs:
        """Each row cut in two; of another document is what the next row holds, as rows come in random order."""
        room = rows.shape[1] - FRAME
        chunks = [self._sentences(row[1 : 1 + room]) for row in rows]
        if self.work.sentences == "order":
            made = [sentence_order(chunk, generator) for chunk in chunks]
        else:
            others = [*chunks[1:], chunks[0]]
            made = [next_sentence(*both, room, generator) for both in zip(chunks, others, strict=True)]
        return stack(made, cls=self.cls, sep=self.sep)

    def _sentences(self, text: Tensor) -> Chunk:
        """Whole ones: a row begins and ends in the midst of one, and where they stand would tell which text is which.

        Where there are not two, it is cut in pieces, each of which begins and ends in the midst of one.
        """
        parts = segments(text, self.ends, len(text) // 2)
        whole = parts[1:] if self.ends[parts[-1][-1]] else parts[1:-1]
        piece = len(text) // 4 + 1
        return whole if len(whole) > 1 else [text[at : at + piece] for at in range(0, len(text), piece)]

    def _hide_in(self, pairs: Pairs, generator: torch.Generator, kind: Spans, share: float) -> Batch:
        batch = self._hide(pairs.input_ids, generator, kind, share)
        return Batch(**vars(batch) | {"token_type_ids": pairs.token_type_ids, "labels": pairs.labels})

    def _hide(self, rows: Tensor, generator: torch.Generator, kind: Spans, share: float) -> Batch:
        special, spans = len(SPECIALS), None
        if kind == "words":
            spans = words(rows, special=special, continues=self.continues)
        elif kind == "ngrams":
            spans = ngrams(rows, special=special, continues=self.continues, generator=generator)
        holed = mask(
            rows,
            special=special,
            mask_id=self.mask,
            vocab_size=self.vocab_size,
            generator=generator,
            spans=spans,
            share=share,
        )
        return Batch(rows, holed.input_ids, torch.zeros_like(rows), holed.focus, holed.targets, None)
