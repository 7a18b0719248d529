"""The batches of a pre-training: sequences in random order, optionally as pairs of texts, and masked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from swiftlet_train.pretraining import input_formats
from swiftlet_train.pretraining.batch_plan import BatchPlan, fill_batches
from swiftlet_train.pretraining.corpus import find_sentence_ends, special_id
from swiftlet_train.pretraining.objectives import static_masking
from swiftlet_train.pretraining.objectives.causal_lm import predict_next
from swiftlet_train.pretraining.objectives.masked_lm import (
    MASK_PROBABILITY,
    mask,
    ngram_spans,
    word_spans,
)
from swiftlet_train.pretraining.objectives.next_sentence import find_nearest, make_next_sentence_pair
from swiftlet_train.pretraining.objectives.sentence_order import make_sentence_order_pair
from swiftlet_train.pretraining.objectives.sentence_pairs import (
    PAD_ID,
    PAIR_SPECIALS,
    Chunk,
    Pairs,
    split_segments,
    stack,
)
from swiftlet_train.recipe import Masking, Recipe, RecipeError
from swiftlet_train.vocabulary.pruning import SPECIALS
from swiftlet_train.vocabulary.tokenizer_training import find_continuations


@dataclass(frozen=True, eq=False)
class Batch:
    """Masked sequences with their targets. Independent of the network."""

    original_ids: Tensor
    """(B, S)"""
    input_ids: Tensor
    """Masked, or the original ids of a causal objective, (B, S)."""
    token_type_ids: Tensor
    """(B, S)"""
    focus: Tensor
    """The positions b * S + s that predict, (N,): the masked ones, or those before each target."""
    targets: Tensor
    """The ids to predict there, (N,)."""
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


def join(batches: Sequence[Batch]) -> Batch:
    """Returns one batch of several, padded to the longest sequence."""
    length = max(batch.original_ids.shape[1] for batch in batches)

    def pad(rows: Iterable[Tensor]) -> Tensor:
        return torch.cat([F.pad(row, (0, length - row.shape[1]), value=PAD_ID) for row in rows])

    focus, first = list[Tensor](), 0
    for batch in batches:
        count, own = batch.original_ids.shape
        focus.append((first + batch.focus // own) * length + batch.focus % own)
        first += count
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return Batch(
        pad(batch.original_ids for batch in batches),
        pad(batch.input_ids for batch in batches),
        pad(batch.token_type_ids for batch in batches),
        torch.cat(focus),
        torch.cat([batch.targets for batch in batches]),
        torch.cat(labels) if labels else None,
    )


class BatchSampler:
    """Makes the batch of a number, the same each time. Excludes held-out sequences.

    `documents` (R,) holds the number of each sequence's document, for the input formats that need it.

    Raises:
        RecipeError: fewer sequences than a batch remain for training, or only one document for next-sentence
            prediction.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: Tokenizer,
        sequences: NDArray[np.uint16],
        documents: NDArray[np.int64] | None = None,
    ) -> None:
        self.work, self.seed, self.sequences, self.documents = recipe.pretraining, recipe.seed, sequences, documents
        order = np.random.default_rng(recipe.seed).permutation(len(sequences))
        held_out, size = recipe.pretraining.held_out_sequences, recipe.pretraining.batch_size
        count = len(sequences) - held_out
        self.training, self.held_out_plan = BatchPlan(order[:count], size), BatchPlan(order[count:], size)
        fills = self.work.input_format != "blocks" and input_formats.load(self.work.input_format).FILLS_BATCHES
        if fills:
            lengths = np.asarray(np.count_nonzero(sequences, axis=1))
            self.training = fill_batches(order[:count], lengths, size, size * self.work.sequence_length)
        if count < size or not len(self.training):
            raise RecipeError(
                f"the corpora have {len(sequences)} sequences, and {held_out} of them are held out: too few remain."
            )
        if self.work.sentence_objective == "next_sentence" and self._has_one_document():
            raise RecipeError("next_sentence needs sequences of two documents at least, held out and for training.")
        self.continues = find_continuations(tokenizer)
        self.vocab_size = len(self.continues)
        self.cls, self.sep, self.mask = (special_id(tokenizer, name) for name in ("[CLS]", "[SEP]", "[MASK]"))
        self.sentence_ends = find_sentence_ends(tokenizer)

    def __call__(self, number: int) -> Batch:
        rows, epochs = self.training.take(number)
        masking, probability = self.work.masking, self.work.mask_probability
        if not self.work.static_masking:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            return self._make(self.training, rows, generator, masking, probability)
        batches = []
        for row, epoch in zip(rows, epochs, strict=True):
            generator = static_masking.make_generator(self.seed, int(row), int(epoch))
            batches.append(self._make(self.training, np.array([row]), generator, masking, probability))
        return join(batches)

    def held_out(self, number: int) -> Batch:
        """Makes a held-out batch: the same sequences and masks for all objectives of recipes."""
        generator = torch.Generator().manual_seed(number)
        rows, _ = self.held_out_plan.take(number)
        return self._mask(self._read(rows), generator, "tokens", MASK_PROBABILITY)

    def held_out_pairs(self, number: int) -> Batch:
        """Makes a held-out batch of pairs of texts."""
        generator = torch.Generator().manual_seed(number)
        rows, _ = self.held_out_plan.take(number)
        return self._mask_pairs(
            self._make_pairs(self.held_out_plan, rows, generator), generator, "tokens", MASK_PROBABILITY
        )

    def _has_one_document(self) -> bool:
        """Returns whether all training sequences, or all held-out ones, come from one document."""
        if self.documents is None:
            return False
        orders = (self.training.order, self.held_out_plan.order)
        return any(len(np.unique(self.documents[order])) == 1 for order in orders)

    def _make(
        self,
        plan: BatchPlan,
        rows: NDArray[np.int64],
        generator: torch.Generator,
        masking: Masking,
        probability: float,
    ) -> Batch:
        """Makes a batch of sequences, or of pairs if there is a sentence objective."""
        if self.work.sentence_objective == "none":
            return self._mask(self._read(rows), generator, masking, probability)
        return self._mask_pairs(self._make_pairs(plan, rows, generator), generator, masking, probability)

    def _read(self, rows: NDArray[np.int64]) -> Tensor:
        """Returns sequences (B, S), without the padding that all of them have."""
        sequences = torch.from_numpy(self.sequences[rows].astype(np.int64))
        return sequences[:, : int((sequences != PAD_ID).sum(1).max())]

    def _make_pairs(self, plan: BatchPlan, rows: NDArray[np.int64], generator: torch.Generator) -> Pairs:
        """Splits each sequence into a pair. Next-sentence prediction may replace its second text."""
        max_tokens = self.work.sequence_length - PAIR_SPECIALS
        chunks = [self._split(row, max_tokens) for row in self._read(rows)]
        if self.work.sentence_objective == "sentence_order":
            pairs = [make_sentence_order_pair(chunk, generator) for chunk in chunks]
            return stack(pairs, cls=self.cls, sep=self.sep)
        # In random order, the next sequence of blocks is from another document.
        others = [*chunks[1:], chunks[0]] if self.documents is None else self._draw_others(plan, rows, generator)
        if self.work.input_format == "sentence_pairs":  # the other text is one sentence, too
            others = [[find_nearest(second, len(chunk[1]))] for chunk, second in zip(chunks, others, strict=True)]
        pairs = [
            make_next_sentence_pair(chunk, second, max_tokens, generator)
            for chunk, second in zip(chunks, others, strict=True)
        ]
        return stack(pairs, cls=self.cls, sep=self.sep)

    def _draw_others(self, plan: BatchPlan, rows: NDArray[np.int64], generator: torch.Generator) -> list[Chunk]:
        """Draws a chunk of another document for each sequence."""
        assert self.documents is not None  # noqa: S101  # for the type checker
        others = []
        for row in rows:
            other_row = row
            while self.documents[other_row] == self.documents[row]:
                other_row = plan.order[int(torch.randint(len(plan.order), (), generator=generator))]
            others.append(other_row)
        max_tokens = self.work.sequence_length - PAIR_SPECIALS
        return [self._split(row, max_tokens) for row in self._read(np.array(others))]

    def _split(self, sequence: Tensor, max_tokens: int) -> Chunk:
        """Splits a sequence (S,) into the segments of a chunk."""
        if self.work.input_format == "blocks":
            return self._split_sentences(sequence[1 : 1 + max_tokens])
        text = sequence[1 : int((sequence != PAD_ID).sum()) - 1]
        return split_segments(text, self.sentence_ends, max_tokens // 2)

    def _split_sentences(self, text: Tensor) -> Chunk:
        """Splits a block into whole sentences, and drops the incomplete ones at both ends.

        A block starts and ends within a sentence, and these sentences' positions would reveal the order. A block with
        fewer than two whole sentences is cut into pieces that all start and end within a sentence.
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
        first_word_id, spans, types = len(SPECIALS), None, torch.zeros_like(sequences)
        if self.work.objective == "causal_lm":
            following = predict_next(sequences)
            return Batch(sequences, sequences, types, following.focus, following.targets, None)
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
        return Batch(sequences, masked.input_ids, types, masked.focus, masked.targets, None)
