"""Readers of the data files that models are trained and measured on."""

from __future__ import annotations

import json
import lzma
import math
import operator
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from swiftlet_models.data_records import DatasetError as DatasetError
from swiftlet_models.data_records import Record, is_number, json_lines, read_records, read_text
from swiftlet_models.regular_file import check_regular

TEXT_COLUMNS: Final = ("sentence", "content", "document", "text")
# Of pairs of texts, also as GLUE's files name them (RTE, WNLI, MNLI; QQP; QNLI; MRPC). Names have no capitals.
FIRST_COLUMNS: Final = ("sentence1", "premise", "question1", "question", "#1 string")
SECOND_COLUMNS: Final = ("sentence2", "hypothesis", "question2", "sentence", "#2 string")
LABEL_COLUMNS: Final = ("label", "gold_label", "is_duplicate", "quality")
TEXT_FIELDS: Final = ("text", "premise", "hypothesis", "query")  # of lines of JSON
SHOWN: Final = 10  # labels in an error
LABEL: Final = re.compile("[0-9]{1,9}")
TAG: Final = re.compile("O|[BILUES]-.+")

Span = tuple[int, int, str]
"""The start, the end and the kind of an entity. Positions count code points."""


@dataclass(frozen=True)
class Labelled:
    """A text, or a pair of texts, with the index of its label."""

    text: str
    label: int
    pair: str | None = None  # the second text of a pair

    @property
    def texts(self) -> str | tuple[str, str]:
        """What a tokenizer encodes."""
        return self.text if self.pair is None else (self.text, self.pair)


@dataclass(frozen=True)
class Unlabelled:
    """A text, and a question that it answers; empty if there is none."""

    text: str
    question: str = ""
    language: str = ""  # a BCP 47 tag; empty: none, as of code, or not known


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
    """A question with its context and all reference answers. Without answers, the context does not answer it."""

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
    """A query, and texts that are relevant to it or not."""

    query: str
    texts: tuple[str, ...]
    relevant: tuple[bool, ...]


@dataclass(frozen=True)
class Tagged:
    """A text with the spans of its entities, in order."""

    text: str
    spans: tuple[Span, ...]


def labelled(path: Path, labels: Sequence[str] = ()) -> list[Labelled]:
    """Reads texts with labels: records with one of `LABEL_COLUMNS` and a text, or CoLA's four columns of a table.

    A record has a pair of texts if it has one of `FIRST_COLUMNS` and of `SECOND_COLUMNS`, or a `text_pair` beside its
    text. Other records have one of `TEXT_COLUMNS`.

    A label that is one of the names in `labels` is that name; capitals matter only if names differ in nothing else.
    Another number is an index. If the names are numbers themselves, only a number of JSON is an index.

    Raises:
        DatasetError: the file is damaged, or a line has no text, or no label of these.
    """
    required = {"label": LABEL_COLUMNS, "text": (*TEXT_COLUMNS, *FIRST_COLUMNS)}
    optional = {"first": FIRST_COLUMNS, "second": SECOND_COLUMNS, "pair": ("text_pair",)}
    rows = read_records(path, required, ("", "label", "", "text"), optional)
    return [Labelled(text, _index(row, labels), pair) for row in rows for text, pair in [_pair(row)]]


def _pair(row: Record) -> tuple[str, str | None]:
    """Returns the text of a record, and the second one if it has a pair. Raises DatasetError."""
    if row.values["first"] is not None and row.values["second"] is not None:
        return row.text("first"), row.text("second")
    return row.text("text"), None if row.values["pair"] is None else row.text("pair")


def _index(row: Record, names: Sequence[str]) -> int:
    """Returns the index of a record's label. Raises DatasetError."""
    value = row.value("label")
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, str):
        value = value.strip()
        if value in names:
            return names.index(value)
        folded = [index for index, name in enumerate(names) if name.casefold() == value.casefold()]
        if len(folded) == 1:
            return folded[0]
        names_are_numbers = any(LABEL.fullmatch(name) for name in names)
        if LABEL.fullmatch(value) and not names_are_numbers:
            value = int(value)
    if type(value) is int and 0 <= value < (len(names) or math.inf):
        return value
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    among = f"none of {shown}, and no number from 0 to {len(names) - 1}" if names else "no number from 0"
    raise row.error(f"its label is {among}")


def unlabelled(path: Path) -> list[Unlabelled]:
    """Reads texts without labels: records with one of `TEXT_COLUMNS` or `context`, and perhaps a `question` or `query`.

    Raises:
        DatasetError: the file is damaged, a line has no text, or the file has labels.
    """
    optional = {"question": ("question", "query"), "language": ("language",), "label": ("label", "score")}
    rows = read_records(path, {"text": (*TEXT_COLUMNS, "context")}, optional=optional)
    for row in rows:
        if row.values["label"] not in (None, ""):
            raise row.error("it has a label")

    def text(row: Record, name: str) -> str:
        return row.text(name) if row.values[name] else ""

    texts = (Unlabelled(row.text("text"), text(row, "question"), text(row, "language")) for row in rows)
    return [text for text in texts if text.text.strip()]


def similar(path: Path) -> list[Similar]:
    """Reads pairs of texts, each with a score: records with `sentence1`, `sentence2` and `score` or `label`.

    A table without these names has three columns in this order (STS-B). A first line without a number is a header.

    Raises:
        DatasetError: the file is damaged, or a line does not have two texts and a score.
    """
    fields = {"sentence1": ("sentence1",), "sentence2": ("sentence2",), "score": ("score", "label")}
    rows = read_records(path, fields, tuple(fields))
    if rows and rows[0].number == 1 and not is_number(rows[0].values["score"]):
        del rows[0]
    return [Similar(row.text("sentence1"), row.text("sentence2"), row.numeral("score")) for row in rows]


def named(path: Path) -> list[Named]:
    """Reads texts with the names of their labels: records with one of `TEXT_COLUMNS` and `label`.

    A label may be a list. Texts with another number of labels than one are left out.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form.
    """
    rows = read_records(path, {"label": ("label",), "text": TEXT_COLUMNS})
    texts = []
    for row in rows:
        labels = row.value("label")
        for label in labels if isinstance(labels, list) and len(labels) == 1 else [labels]:
            if not isinstance(label, str | list) or LABEL.fullmatch(str(label).strip()):
                raise row.error("its label is a number and not a name")
            if isinstance(label, str):
                texts.append(Named(row.text("text"), label))
    return texts


def inferences(path: Path) -> list[Inference]:
    """Reads pairs of texts: records with `premise`, `hypothesis` and `label`, the name of their relation.

    GLUE's names are `sentence1`, `sentence2` and, of MNLI, `gold_label`.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form. A number is no name: its meaning differs
            between data sets.
    """
    names = {"premise": ("premise", "sentence1"), "hypothesis": ("hypothesis", "sentence2")}
    rows = read_records(path, {**names, "label": ("label", "gold_label")})
    for row in rows:
        if LABEL.fullmatch(str(row.value("label")).removeprefix("-")):
            raise row.error("its label is a number and not a name such as entailment")
    return [Inference(row.text("premise"), row.text("hypothesis"), row.text("label")) for row in rows]


def ranked(path: Path) -> list[Candidates]:
    """Reads queries with their texts: records with `query`, `text` and `label` (1: relevant).

    The lines of a query follow one another.

    Raises:
        DatasetError: the file is damaged, or a line is not of this form.
    """
    rows = read_records(path, {name: (name,) for name in ("query", "text", "label")})
    triples = [(row.text("query"), row.text("text"), row.numeral("label") > 0) for row in rows]
    grouped = [(query, list(group)) for query, group in groupby(triples, key=operator.itemgetter(0))]
    return [
        Candidates(query, tuple(text for _, text, _ in group), tuple(relevant for *_, relevant in group))
        for query, group in grouped
    ]


def questions(path: Path) -> list[Question]:
    """Reads a file in SQuAD's format, 1.1 or 2.0.

    Raises:
        DatasetError: the file is not in SQuAD's format.
    """
    try:
        document = json.loads(read_text(path))
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
    spaces, or directly if each line of the file has one character, and directly after a word of an `.iob2` file whose
    last column is `SpaceAfter=No`. Comments begin with `#` and a space.

    Raises:
        DatasetError: the file is damaged, or a line has no word and tag.
    """
    place = (1, 2) if ".iob2" in path.suffixes else (0, -1)
    texts: list[list[tuple[str, str, bool]]] = [[]]
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        row = line.rstrip("\r").split("\t") if "\t" in line else line.split()
        if not line.strip():
            texts.append([])
        elif not line.startswith("-DOCSTART-") and not (line.startswith(("# ", "## ")) and not texts[-1]):
            if len(row) <= max(*place, 1) or not TAG.fullmatch(row[place[1]]):
                raise DatasetError(f"{path.name}: line {number} has no word and tag.")
            if row[place[0]]:  # some files have words of removed characters
                texts[-1].append((row[place[0]], row[place[1]], row[-1] != "SpaceAfter=No"))
    texts = [words for words in texts if words]
    separator = "" if all(len(word) == 1 for words in texts for word, _, _ in words) else " "
    return [_tagged(words, separator) for words in texts]


def _tagged(words: Sequence[tuple[str, str, bool]], separator: str) -> Tagged:
    spans: list[Span] = []
    text, is_open = "", False
    for word, label, is_apart in words:
        prefix, _, kind = label.partition("-")
        position, end = len(text), len(text) + len(word)
        if prefix in "BUS" or (kind and not (is_open and spans[-1][2] == kind)):
            spans.append((position, end, kind))
        elif kind:
            spans[-1] = (spans[-1][0], end, kind)
        is_open = prefix in "BI"
        text += word + separator * is_apart
    return Tagged(text.removesuffix(separator), tuple(spans))


def documents(path: Path) -> Iterator[str]:
    """Reads running text, one document at a time.

    A `.tsv` or `.csv` file is a table with one of `TEXT_COLUMNS`, or CoLA's. Of SQuAD's format (`.json`), the questions
    and the different contexts are documents; of lines of JSON (`.jsonl`, plain or `.gz`), the texts of the fields in
    `TEXT_FIELDS`. In a `.tar.xz` archive, a document is the last column of a line of a `.tsv` file. Other files are
    read by `articles`.

    Raises:
        DatasetError: the file is damaged, or no text.
    """
    if path.suffix in (".tsv", ".csv"):
        rows = read_records(path, {"text": TEXT_COLUMNS}, ("", "", "", "text"))
        yield from (text for row in rows if (text := row.text("text")).strip())
    elif path.suffix == ".json":
        asked = questions(path)
        yield from dict.fromkeys(text for item in asked for text in (item.question, item.context) if text.strip())
    elif ".jsonl" in path.suffixes:
        yield from _texts(path)
    elif path.name.endswith(".tar.xz"):
        with _readable(path):
            yield from _archived(path)
    else:
        yield from (text for _, text in articles(path))


def _texts(path: Path) -> Iterator[str]:
    rows = json_lines(path.name, read_text(path))
    texts = dict.fromkeys(str(row[name]) for _, row in rows for name in TEXT_FIELDS if row.get(name))
    yield from (text for text in texts if text.strip())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        check_regular(path)
        yield
    except OSError as error:
        raise DatasetError(f"{path.name} cannot be read: {error.strerror or type(error).__name__}.") from None
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
        lzma.open(path, "rt", encoding="utf-8-sig")
        if path.suffix == ".xz"
        else path.open(encoding="utf-8-sig") as lines,
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
