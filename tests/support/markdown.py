"""Reads Markdown documents: tables, code and links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from swiftlet_serve.settings import Settings

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASE_URL = f"http://127.0.0.1:{Settings.model_fields['port'].default}"


class Example(NamedTuple):
    """A curl command in a document, and the response shown after it."""

    route: str
    body: str
    response: str


def blocks(document: str, language: str) -> list[str]:
    """Returns the code blocks of a language."""
    return [text for found, text in FENCE.findall(document) if found == language]


def code(document: str) -> Iterator[str]:
    """Yields every line of a code block, and the text of every code span elsewhere."""
    for language, block in FENCE.findall(document):
        if not language.startswith("{"):  # a directive of the site's generator
            yield from block.replace("\\\n", "").splitlines()
    yield from re.findall(r"`([^`\n]+)`", FENCE.sub("", document))


def table(document: str, *header: str) -> list[list[str]]:
    """Returns the rows of the table with this header, cell by cell."""
    tables = re.findall(r"^\|(.*)\|\n\|[-: |]+\|\n((?:\|.*\|\n?)*)", document, re.MULTILINE)
    (rows,) = [rows for first, rows in tables if _cells(first) == list(header)]
    return [_cells(row[1:-1]) for row in rows.splitlines()]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]


def first_column(document: str, *header: str) -> list[str]:
    """Returns the first cells of a table, without code marks."""
    return [row[0].strip("`") for row in table(document, *header)]


def examples(document: str) -> list[Example]:
    """Returns every curl command that is followed by a JSON response."""
    found = []
    pattern = r"^```sh\ncurl ((?:(?!^```).)*)^```\n+```json\n(.*?)^```$"
    for arguments, response in re.findall(pattern, document, re.M | re.S):
        url, *options = shlex.split(arguments.replace("\\\n", ""))
        found.append(Example(url.removeprefix(f"{BASE_URL}/"), options[-1], response))
    return found


def links(document: str) -> list[str]:
    """Returns the targets of all links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", document))


def anchors(document: str) -> set[str]:
    """Returns the anchors that a code host gives to the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def text_of(path: Path) -> str:
    return path.read_text("utf-8")
