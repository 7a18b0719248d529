"""Readers of the data files that models are trained and measured on."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import math
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from swiftlet_serve.models.errors import ModelError

TEXT_COLUMNS: Final = ("sentence", "content", "document", "text")
TEXT_FIELDS: Final = ("text", "premise", "hypothesis", "query")  # of lines of JSON
LABEL: Final = re.compile("[0-9]{1,9}")
WORD_BORDER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_/]+")  # in names of labels
TAG: Final = re.compile("O|[BILUES]-.+")

Span = tuple[int, int, str]
"""The start, the end and the kind of an entity. Positions count code points."""


class DatasetError(ModelError):
    """Raised when a data file is not in the expected format. The message is one sentence."""


@dataclass(frozen=True)
class Labelled:
    """A text with the index of its label."""

    text: str
    label: int


@dataclass(frozen=True)
class Named:
    """A text with the name of its label."""

    text: str
    label: str


@dataclass(frozen=True)
class Inference:
    """A premise, a hypothesis, and the name of their relation, such as `entailment`."""

    premise: str
    hypothesis: str
    label: str


@dataclass(frozen=True)
class Question:
    """A question with its context and all reference answers. It has none if the context does not answer it."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    starts: tuple[int, ...]  # position of each answer in the context, in code points


@dataclass(frozen=True)
class Similar:
    """Two texts and how similar people found them, on any scale."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Candidates:
    """A query and texts, of which some are relevant."""

    query: str
    texts: tuple[str, ...]
    relevant: tuple[bool, ...]


@dataclass(frozen=True)
class Tagged:
    """A text with the spans of its entities, in order."""

    text: str
    spans: tuple[Span, ...]


def labelled(path: Path) -> list[Labelled]:
    """Reads tab-separated texts with labels.

    A header line names the columns (SST-2, NSMC). A file without a header has CoLA's four columns.

    Raises:
        DatasetError: a line lacks a label or a text.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t") for line in lines]  # the formats have no quoting
    except UnicodeDecodeError:
        raise DatasetError(f"{path.name} is not UTF-8 text.") from None
    header = rows[0] if rows else []
    if "label" in header:
        label = header.index("label")
        text = next((i for i, name in enumerate(header) if name in TEXT_COLUMNS), None)
        if text is None:
            raise DatasetError(
                f"{path.name}: no text column. Name one {', '.join(TEXT_COLUMNS[:-1])} or {TEXT_COLUMNS[-1]}."
            )
        rows = rows[1:]
    else:
        label, text = 1, 3
    examples = []
    for number, row in enumerate(rows, start=2 if "label" in header else 1):
        if len(row) <= max(label, text) or not LABEL.fullmatch(row[label]):
            raise DatasetError(f"{path.name}: line {number} has no label and text.")
        examples.append(Labelled(row[text], int(row[label])))
    return examples


def similar(path: Path) -> list[Similar]:
    """Reads comma-separated pairs of texts, each with a score (STS-B). A first line without a number is a header.

    Raises:
        DatasetError: a line does not have two texts and a score.
    """
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path.name} cannot be read as comma-separated text: {type(error).__name__}.") from None
    header = bool(rows) and _number(rows[0][-1]) is None
    pairs = []
    for number, row in enumerate(rows[header:], start=1 + header):
        score = _number(row[-1])
        if len(row) != 3 or score is None:
            raise DatasetError(f"{path.name}: line {number} does not have two texts and a score.")
        pairs.append(Similar(row[0], row[1], score))
    return pairs


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def named(path: Path) -> list[Named]:
    """Reads texts with the names of their labels: lines of JSON with `text` and `label`, `.gz` or plain.

    A label may be a list. Texts with another number of labels than one are left out.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form.
    """
    with _lines_of(path, "does not hold texts with labels"):
        rows = [(str(row["text"]), row["label"]) for row in _json_lines(path)]
    labels = [label if isinstance(label, list) else [label] for _, label in rows]
    return [Named(text, str(names[0])) for (text, _), names in zip(rows, labels, strict=True) if len(names) == 1]


def label_words(label: str) -> str:
    """Returns the words of a label such as `PlayMusic` or `alarm_query`, as people write them."""
    return " ".join(WORD_BORDER.sub(" ", label).split())


def inferences(path: Path) -> list[Inference]:
    """Reads pairs of texts: lines of JSON with `premise`, `hypothesis` and `label`, `.gz` or plain.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form.
    """
    with _lines_of(path, "does not hold premises and hypotheses"):
        rows = list(_json_lines(path))
        return [Inference(str(row["premise"]), str(row["hypothesis"]), str(row["label"])) for row in rows]


def ranked(path: Path) -> list[Candidates]:
    """Reads queries with their texts: lines of JSON with `query`, `text` and `label` (1: relevant), `.gz` or plain.

    The lines of a query follow one another.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form.
    """
    with _lines_of(path, "does not hold queries with texts"):
        grouped = [
            (str(query), list(group)) for query, group in groupby(_json_lines(path), key=lambda row: row["query"])
        ]
        return [
            Candidates(query, tuple(str(row["text"]) for row in group), tuple(int(row["label"]) > 0 for row in group))
            for query, group in grouped
        ]


@contextmanager
def _lines_of(path: Path, fault: str) -> Iterator[None]:
    """Turns the errors of damaged or other lines of JSON into a DatasetError. `fault` says what the file lacks."""
    try:
        yield
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib.error) as error:
        raise DatasetError(f"{path.name} {fault}: {type(error).__name__}.") from None


def _json_lines(path: Path) -> Iterator[Any]:
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return (json.loads(line) for line in text.split("\n") if line.strip())


def questions(path: Path) -> list[Question]:
    """Reads a file in SQuAD's format, 1.1 or 2.0.

    Raises:
        DatasetError: the file is not in SQuAD's format.
    """
    try:
        document = json.loads(path.read_text("utf-8"))
        return [
            _question(entry, paragraph["context"])
            for article in document["data"]
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(f"{path.name} is not in SQuAD's format: {type(error).__name__}.") from None


def _question(entry: Mapping[str, Any], context: str) -> Question:
    answers = tuple(answer["text"] for answer in entry["answers"])
    starts = tuple(answer["answer_start"] for answer in entry["answers"])
    if not all(isinstance(text, str) for text in (entry["question"], context, *answers)):
        raise TypeError
    if not all(isinstance(start, int) for start in starts):
        raise TypeError
    return Question(str(entry["id"]), entry["question"], context, answers, starts)


def tagged(path: Path) -> list[Tagged]:
    """Reads texts with entities in CoNLL's columns, plain or `.gz`.

    A line has a word and its tag, and a blank line ends a text. Columns are separated by tabs or spaces; the first one
    is the word and the last one the tag. In an `.iob2` file (Universal NER), the second is the word and the third the
    tag. Tags are BIO or BILOU (also with E for the last word and S for the only one). The words of a text are joined by
    spaces, or directly if each line of the file has one character. Comments begin with `#` and a space.

    Raises:
        DatasetError: the file is damaged, or a line has no word and tag.
    """
    place = (1, 2) if ".iob2" in path.suffixes else (0, -1)
    texts: list[list[tuple[str, str]]] = [[]]
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
                if not line.strip():
                    texts.append([])
                elif not line.startswith("-DOCSTART-") and not (line.startswith(("# ", "## ")) and not texts[-1]):
                    if len(row) <= max(*place, 1) or not TAG.fullmatch(row[place[1]]):
                        raise DatasetError(f"{path.name}: line {number} has no word and tag.")
                    if row[place[0]]:  # some files have words of removed characters
                        texts[-1].append((row[place[0]], row[place[1]]))
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        raise DatasetError(f"{path.name} cannot be read as text.") from None
    texts = [words for words in texts if words]
    separator = "" if all(len(word) == 1 for words in texts for word, _ in words) else " "
    return [_tagged(words, separator) for words in texts]


def _tagged(words: Sequence[tuple[str, str]], separator: str) -> Tagged:
    spans: list[Span] = []
    position, is_open = 0, False
    for word, label in words:
        prefix, _, kind = label.partition("-")
        end = position + len(word)
        if prefix in "BUS" or (kind and not (is_open and spans[-1][2] == kind)):
            spans.append((position, end, kind))
        elif kind:
            spans[-1] = (spans[-1][0], end, kind)
        is_open = prefix in "BI"
        position = end + len(separator)
    return Tagged(separator.join(word for word, _ in words), tuple(spans))


def documents(path: Path) -> Iterator[str]:
    """Reads running text, one document at a time.

    A `.tsv` file is read by `labelled`. Of SQuAD's format (`.json`), the questions and the different contexts are
    documents; of lines of JSON (`.jsonl`, plain or `.gz`), the texts of the fields in `TEXT_FIELDS`. In a `.tar.xz`
    archive, a document is the last column of a line of a `.tsv` file. Other files are read by `articles`.

    Raises:
        DatasetError: the file is damaged, or no text.
    """
    if path.suffix == ".tsv":
        yield from (one.text for one in labelled(path) if one.text.strip())
    elif path.suffix == ".json":
        asked = questions(path)
        yield from dict.fromkeys(text for one in asked for text in (one.question, one.context) if text.strip())
    elif ".jsonl" in path.suffixes:
        yield from _texts(path)
    elif path.name.endswith(".tar.xz"):
        with _readable(path):
            yield from _archived(path)
    else:
        yield from (text for _, text in articles(path))


def _texts(path: Path) -> Iterator[str]:
    with _lines_of(path, "cannot be read as lines of JSON"):
        rows = list(_json_lines(path))
        texts = dict.fromkeys(str(row[name]) for row in rows for name in TEXT_FIELDS if row.get(name))
    yield from (text for text in texts if text.strip())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (lzma.LZMAError, tarfile.TarError, EOFError, UnicodeDecodeError) as error:
        raise DatasetError(f"{path.name} cannot be read as text: {type(error).__name__}.") from None


def articles(path: Path) -> Iterator[tuple[str, str]]:
    """Reads titles and texts of articles, plain or `.xz`.

    A line `= Title =` begins an article, whose paragraphs are joined by line feeds. In a file without titles, each line
    is an article whose title is empty.

    Raises:
        DatasetError: the file is damaged, or no text.
    """
    title, article = None, list[str]()
    with (
        _readable(path),
        lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines,
    ):
        for raw in lines:
            line = raw.strip()
            if line.startswith("= ") and line.endswith(" ="):
                if article:
                    yield title or "", "\n".join(article)
                title, article = line[2:-2], []
            elif line and title is None:
                yield "", line
            elif line:
                article.append(line)
    if article:
        yield title or "", "\n".join(article)


def _archived(path: Path) -> Iterator[str]:
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.name.endswith(".tsv") else None
            for line in stream or ():
                yield line.decode("utf-8", "replace").rstrip("\n").rsplit("\t", 1)[-1].replace("<br />", " ")
