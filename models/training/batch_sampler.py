"""The batches of a pre-training: sequences in random order, optionally as pairs of texts, and masked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from swiftlet_serve.models.training.corpus import special_id
from swiftlet_serve.models.training.objectives.masked_lm import MASK_PROBABILITY, mask, ngram_spans, word_spans
from swiftlet_serve.models.training.objectives.next_sentence import make_next_sentence_pair
from swiftlet_serve.models.training.objectives.sentence_order import make_sentence_order_pair
from swiftlet_serve.models.training.objectives.sentence_pairs import (
    PAIR_SPECIALS,
    Chunk,
    Pairs,
    split_segments,
    stack,
)
from swiftlet_serve.models.training.recipe import Masking, Recipe, RecipeError
from swiftlet_serve.models.training.tokenizer_training import find_continuations
from swiftlet_serve.models.training.vocabulary_pruning import SPECIALS

SENTENCE_ENDS: Final = (".", "?", "!")


@dataclass(frozen=True, eq=False)
class Batch:
    """Masked sequences with their targets. Independent of the network."""

    original_ids: Tensor
    """(B, S)"""
    input_ids: Tensor
    """Masked, (B, S)."""
    token_type_ids: Tensor
    """(B, S)"""
    focus: Tensor
    """The masked positions b * S + s, (N,)."""
    targets: Tensor
    """The original ids there, (N,)."""
    labels: Tensor | None
    """The labels of the sentence objective, (B,)."""

    @property
    def is_token(self) -> Tensor:
        """(B, S), false for padding."""
        return self.original_ids > 0

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on a device."""
        moved: dict[str, Any] = {name: None if x is None else x.to(device) for name, x in vars(self).items()}
        return Batch(**moved)


class BatchSampler:
    """Makes the batch of a number, the same each time. Excludes held-out sequences.

    Raises:
        RecipeError: fewer sequences than a batch remain for training.
    """

    def __init__(self, recipe: Recipe, tokenizer: Tokenizer, sequences: NDArray[np.uint16]) -> None:
        self.work, self.seed, self.sequences = recipe.pretraining, recipe.seed, sequences
        order = np.random.default_rng(recipe.seed).permutation(len(sequences))
        held_out = recipe.pretraining.held_out_sequences
        count = len(sequences) - held_out
        if count < recipe.pretraining.batch_size:
            raise RecipeError(
                f"the corpora have {len(sequences)} sequences, and {held_out} of them are held out: too few remain."
            )
        self.training_order, self.held_out_order = order[:count], order[count:]
        self.continues = find_continuations(tokenizer)
        self.vocab_size = len(self.continues)
        self.cls, self.sep, self.mask = (special_id(tokenizer, name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        self.sentence_ends = torch.zeros(self.vocab_size, dtype=torch.bool)
        ends = map(tokenizer.token_to_id, SENTENCE_ENDS)
        self.sentence_ends[[number for number in ends if number is not None]] = True

    def __call__(self, number: int) -> Batch:
        sequences = self._take(self.training_order, number)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        masking, probability = self.work.masking, self.work.mask_probability
        if self.work.sentence_objective == "none":
            return self._mask(sequences, generator, masking, probability)
        return self._mask_pairs(self._make_pairs(sequences, generator), generator, masking, probability)

    def held_out(self, number: int) -> Batch:
        """Makes a held-out batch: the same sequences and masks, whatever the recipe's objectives are."""
        generator = torch.Generator().manual_seed(number)
        return self._mask(self._take(self.held_out_order, number), generator, "tokens", MASK_PROBABILITY)

    def held_out_pairs(self, number: int) -> Batch:
        """Makes a held-out batch of pairs of texts."""
        generator = torch.Generator().manual_seed(number)
        pairs = self._make_pairs(self._take(self.held_out_order, number), generator)
        return self._mask_pairs(pairs, generator, "tokens", MASK_PROBABILITY)

    def _take(self, order: NDArray[np.int64], number: int) -> Tensor:
        """Returns the sequences (B, S) of a batch."""
        size = self.work.batch_size
        taken = order[np.arange(number * size, (number + 1) * size) % len(order)]
        return torch.from_numpy(self.sequences[taken].astype(np.int64))

    def _make_pairs(self, sequences: Tensor, generator: torch.Generator) -> Pairs:
        """Splits each sequence into a pair. In random order, the next sequence is from another document."""
        max_tokens = sequences.shape[1] - PAIR_SPECIALS
        chunks = [self._split_sentences(row[1 : 1 + max_tokens]) for row in sequences]
        if self.work.sentence_objective == "sentence_order":
            pairs = [make_sentence_order_pair(chunk, generator) for chunk in chunks]
        else:
            others = [*chunks[1:], chunks[0]]
            pairs = [
                make_next_sentence_pair(chunk, other, max_tokens, generator)
                for chunk, other in zip(chunks, others, strict=True)
            ]
        return stack(pairs, cls=self.cls, sep=self.sep)

    def _split_sentences(self, text: Tensor) -> Chunk:
        """Splits a sequence into whole sentences, and drops the incomplete ones at both ends.

        A sequence starts and ends within a sentence, and these sentences' positions would reveal the order. A sequence
        with fewer than two whole sentences is cut into pieces that all start and end within a sentence.
        """
        parts = split_segments(text, self.sentence_ends, len(text) // 2)
        sentences = parts[1:] if self.sentence_ends[parts[-1][-1]] else parts[1:-1]
        length = len(text) // 4 + 1
        if len(sentences) > 1:
            return sentences
        return [text[start : start + length] for start in range(0, len(text), length)]

    def _mask_pairs(self, pairs: Pairs, generator: torch.Generator, masking: Masking, probability: float) -> Batch:
        batch = self._mask(pairs.input_ids, generator, masking, probability)
        return Batch(**vars(batch) | {"token_type_ids": pairs.token_type_ids, "labels": pairs.labels})

    def _mask(self, sequences: Tensor, generator: torch.Generator, masking: Masking, probability: float) -> Batch:
        first_word_id, spans = len(SPECIALS), None
        if masking == "whole_words":
            spans = word_spans(sequences, first_word_id=first_word_id, continues=self.continues)
        elif masking == "ngrams":
            spans = ngram_spans(sequences, first_word_id=first_word_id, continues=self.continues, generator=generator)
        masked = mask(
            sequences,
            first_word_id=first_word_id,
            mask_id=self.mask,
            vocab_size=self.vocab_size,
            generator=generator,
            spans=spans,
            probability=probability,
        )
        types = torch.zeros_like(sequences)
        return Batch(sequences, masked.input_ids, types, masked.focus, masked.targets, None)
