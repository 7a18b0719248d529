"""The budget of bad rows: a number, or a share of all rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from swiftlet_serve.errors import SetupError


@dataclass(frozen=True)
class Budget:
    """The number of bad rows that a job may have."""

    text: str  # as in the option
    number: float  # rows, or a share of all rows
    is_share: bool

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads a number of rows, or a share in percent, such as "1%".

        Raises:
            ValueError: it is neither.
        """
        is_share = text.endswith("%")
        number = float(text.removesuffix("%")) / 100 if is_share else float(int(text))
        if not 0 <= number < math.inf or (is_share and number > 1):
            raise ValueError(text)
        return cls(text, number, is_share)

    def rows(self, total: int) -> int:
        """Returns the number of bad rows allowed for a job of this size."""
        return math.floor(self.number * total) if self.is_share else int(self.number)

    def check(self, bad: int, total: int, codes: Mapping[str, int]) -> None:
        """Raises SetupError if a job of `total` rows has too many bad ones. `codes` counts this worker's errors."""
        if bad > self.rows(total):
            seen = ", ".join(f"{code} ({count})" for code, count in Counter(codes).most_common(3))
            raise SetupError(
                f"{bad} of {total} rows are bad, more than --max-bad {self.text} allows"
                f"{f': {seen}' if seen else ''}. Correct the input, or start the command again with a larger budget."
            )
