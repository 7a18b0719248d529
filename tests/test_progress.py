"""The progress of long commands on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys

import pytest

from swiftlet_serve.cli.progress import ProgressReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return Terminal()


def test_bar_shows_rate_and_time_left(terminal):
    with contextlib.redirect_stderr(terminal):
        progress = ProgressReport()
        for done in range(1, 5):
            progress.advance(done, 4)

    last = terminal.getvalue().split("\r")[-1]
    assert "4/4 [" in last
    assert "<" in last, "time taken < time left"
    assert "it/s" in last
    assert last.endswith("\n")


def test_note_stands_above_the_bar(terminal):
    with contextlib.redirect_stderr(terminal):
        progress = ProgressReport()
        progress.advance(1, 2)
        progress.note("half")
        progress.advance(2, 2)

    lines = [line.split("\r")[-1] for line in terminal.getvalue().splitlines()]
    assert "half" in lines


def test_another_total_begins_another_bar(terminal):
    with contextlib.redirect_stderr(terminal):
        progress = ProgressReport()
        progress.advance(1, 2)
        progress.advance(3, 3)

    assert "1/2" in terminal.getvalue()
    assert "3/3" in terminal.getvalue()


def test_elsewhere_are_plain_lines_only(capsys):
    progress = ProgressReport()
    progress.advance(1, 2)
    progress.note("half")

    assert capsys.readouterr().err == "half\n"


def test_terminal_without_tqdm_gets_lines(terminal, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with contextlib.redirect_stderr(terminal):
        progress = ProgressReport()
        progress.advance(1, 2)
        progress.note("half")

    assert terminal.getvalue() == "half\n"
