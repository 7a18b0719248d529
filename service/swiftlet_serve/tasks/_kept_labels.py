"""Labels that many requests name, as sequences that are made once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from swiftlet_models.encodings import Encoding

MAX_LABELS: Final = 1024
MAX_TOKENS: Final = 128  # of a label that is kept: all of them take about 3 MB at most
MAX_CHARACTERS: Final = 4 * MAX_TOKENS


class KeptLabels:
    """The sequences of the labels that came last. Threads may share them."""

    def __init__(self, encode: Callable[[str], Encoding]) -> None:
        self._encode = encode
        self._sequences: dict[str, Encoding] = {}  # the oldest first
        self._lock = threading.Lock()  # of changes

    def __contains__(self, label: object) -> bool:
        return label in self._sequences

    def __getitem__(self, label: str) -> Encoding:
        if (sequence := self._sequences.get(label)) is not None:
            return sequence
        sequence = self._encode(label)
        if len(label) <= MAX_CHARACTERS and len(sequence.input_ids) <= MAX_TOKENS:
            with self._lock:
                if len(self._sequences) >= MAX_LABELS:
                    del self._sequences[next(iter(self._sequences))]
                self._sequences[label] = sequence
        return sequence
