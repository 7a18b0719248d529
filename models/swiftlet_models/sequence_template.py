"""How special tokens and one text or two make a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swiftlet_models.encodings import Ids


@dataclass(frozen=True)
class Slot:
    """One slot of a template: a special token, or a whole text if `special` is None."""

    special: int | None
    text_index: int  # 0 for the first text, 1 for the second
    token_type: int


class SequenceTemplate:
    """The special tokens around a text, or around each of two."""

    def __init__(self, slots: Iterable[Slot]) -> None:
        """Creates a template of its slots. Equal slots of a text that follow each other are one."""
        self.slots: list[Slot] = []
        for slot in slots:
            if slot.special is not None or slot not in self.slots:
                self.slots.append(slot)
        self.specials = [slot.special for slot in self.slots]
        self.special_count = len(self.specials) - self.specials.count(None)
        self.types = [slot.token_type for slot in self.slots]
        self._has_types = any(self.types)
        # Arrays are faster to join than lists of one number.
        self._arrays = [None if special is None else np.array([special], np.int64) for special in self.specials]

    @classmethod
    def of_example(cls, example: Any) -> SequenceTemplate:
        """Derives the template from an encoding of the library, which works for every post-processor."""
        columns = example.ids, example.special_tokens_mask, example.sequence_ids, example.type_ids
        return cls(
            Slot(number if special else None, text or 0, kind)
            for number, special, text, kind in zip(*columns, strict=True)
        )

    def assemble(self, parts: Sequence[Sequence[int] | Ids]) -> tuple[Ids, Ids]:
        """Returns the input ids and the token type ids of a sequence, given the ids of its texts."""
        pieces: list[Any] = [
            parts[slot.text_index] if own is None else own for slot, own in zip(self.slots, self._arrays, strict=True)
        ]
        input_ids = np.concatenate(pieces, dtype=np.int64)
        if self._has_types:
            return input_ids, np.repeat(self.types, [*map(len, pieces)])
        return input_ids, np.zeros(len(input_ids), np.int64)

    def start(self, parts: Sequence[Sequence[int] | Ids]) -> int:
        """Returns the position of the last text in the sequence."""
        position = 0
        for slot in self.slots:
            if slot.special is None and slot.text_index == len(parts) - 1:
                break
            position += 1 if slot.special is not None else len(parts[slot.text_index])
        return position
