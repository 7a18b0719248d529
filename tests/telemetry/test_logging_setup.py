"""Formats of log lines, and the handler that writes them on its own thread."""

from __future__ import annotations

import io
import json
import logging
import queue
import re
import threading

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.telemetry.logging_setup import (
    MAX_MESSAGE_CHARACTERS,
    MAX_QUEUED_RECORDS,
    QueuedLogHandler,
    make_formatter,
)
from tests.support.fakes import PATIENCE_S


def format_as_json(message: str) -> str:
    return make_formatter("json").format(logging.LogRecord("service.x", logging.ERROR, "", 0, message, (), None))


@given(st.text(max_size=200))
def test_json_formatter_writes_one_line_for_any_message(message):
    line = format_as_json(message.replace("%", ""))

    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == message.replace("%", "")
    assert "\x1b" not in line


def test_json_formatter_cuts_long_messages():
    assert len(format_as_json("x" * 1_000_000)) < MAX_MESSAGE_CHARACTERS + 200


class BlockedHandler(logging.Handler):
    """Writes nothing until `unblocked` is set."""

    def __init__(self):
        super().__init__()
        self.unblocked = threading.Event()
        self.written = queue.SimpleQueue()

    def emit(self, record):
        assert self.unblocked.wait(PATIENCE_S)
        self.written.put(record.getMessage())


def test_handler_drops_records_without_blocking_and_reports_their_number():
    writer = BlockedHandler()
    handler = QueuedLogHandler("INFO", writer)
    for number in range(MAX_QUEUED_RECORDS + 101):
        handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "message %d", (number,), None))
    writer.unblocked.set()

    assert handler.flush_and_stop()
    written = [writer.written.get() for _ in range(writer.written.qsize())]
    reports = [line for line in written if "dropped" in line]
    dropped = int(re.match(r"\d+", reports[0])[0])
    assert dropped in (100, 101)  # the writer may hold one record
    assert len(written) == MAX_QUEUED_RECORDS + 101 - dropped + len(reports)


def test_text_line_has_level_and_logger_name_once():
    written = io.StringIO()
    handler = QueuedLogHandler("INFO", logging.StreamHandler(written))
    logging.getLogger("somewhere").warning("what %s", "happened")

    assert handler.flush_and_stop()
    assert re.fullmatch(r"[-0-9]+ [:,0-9]+ WARNING somewhere: what happened\n", written.getvalue())


def test_stop_does_not_wait_for_a_blocked_writer():
    writer = BlockedHandler()
    handler = QueuedLogHandler("INFO", writer)
    for _ in range(2):
        handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "message", (), None))

    assert not handler.flush_and_stop()
    writer.unblocked.set()
