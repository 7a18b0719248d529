"""The progress of a long command: a bar with rate and time left on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tqdm import tqdm


class ProgressReport:
    """Writes to stderr, which keeps stdout free for results.

    The bar needs the package tqdm, of the extras `models` and `loadtest`. Without it, only lines are shown.
    """

    def __init__(self) -> None:
        self._bar: tqdm[None] | None = None

    def note(self, text: str) -> None:
        """Writes a line, above the bar if one is shown."""
        if self._bar is None:
            click.echo(text, err=True)
        else:
            self._bar.write(text, file=sys.stderr)

    def advance(self, done: int, total: int, unit: str = "it") -> None:
        """Shows how many of `total` steps are done. Fewer than before, or another total, begin a new bar.

        The rate is in `unit` per second.
        """
        if not sys.stderr.isatty():
            return
        if self._bar is not None and (done < self._bar.n or total != self._bar.total):
            self._close()
        if self._bar is None:
            try:
                from tqdm import tqdm
            except ModuleNotFoundError:
                return
            # The rate counts from here: a resumed run did its first steps earlier.
            self._bar = tqdm(total=total, initial=max(done - 1, 0), file=sys.stderr, dynamic_ncols=True, unit=unit)
        self._bar.update(done - self._bar.n)
        if done >= total:
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


_shown = ProgressReport()  # of the process: two bars would overwrite each other
note, advance = _shown.note, _shown.advance
