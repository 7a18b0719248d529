"""The training file that spaCy's models label: here models of rules on a blank pipeline's words."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from swiftlet_models import datasets
from swiftlet_models.datasets import Tagged
from swiftlet_train.examples.spacy_labels import EMPTY_KEPT, LOWERED, Spans, find_entities, merge, read_texts, write


@dataclass
class Word:
    """A word of spaCy's documents, with the attributes that the module reads."""

    i: int
    text: str
    whitespace_: str

    @property
    def lower_(self) -> str:
        return self.text.lower()


@dataclass
class Entity:
    start: int
    end: int
    label_: str


@dataclass
class Doc:
    """A document. `text` has a space between words, or a | where none stood."""

    text: str
    ents: list[Entity] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = self.text.replace("|", " |").split()
        joined = [part.startswith("|") for part in [*parts[1:], ""]]
        self.words = [
            Word(i, part.lstrip("|"), "" if is_joined else " ")
            for i, (part, is_joined) in enumerate(zip(parts, joined, strict=True))
        ]

    def __getitem__(self, i: int) -> Word:
        return self.words[i]

    def __iter__(self) -> Iterator[Word]:
        return iter(self.words)


def read_back(tmp_path: Path, *docs: list[Doc]) -> list[Tagged]:
    file = io.StringIO()
    write(docs, file)
    (tmp_path / "labels.iob2").write_text(file.getvalue(), "utf-8")
    return datasets.tagged(tmp_path / "labels.iob2")


@pytest.mark.parametrize(
    ("text", "entity", "found"),
    [
        ("Ann sings", Entity(0, 1, "PERSON"), {(0, 1, "PER")}),
        ("in The Hague|'s port", Entity(1, 4, "GPE"), {(2, 3, "LOC")}),
        ("the Mall opens", Entity(0, 2, "FAC"), {(1, 2, "LOC")}),
        ("in May", Entity(1, 2, "DATE"), set()),
        ("in the", Entity(1, 2, "LOC"), set()),
        ("it|'s", Entity(1, 2, "ORG"), set()),
    ],
    ids=["person", "article and genitive", "building", "other kind", "article alone", "genitive alone"],
)
def test_entities_have_the_kinds_of_the_labels_and_names_only(text: str, entity: Entity, found: Spans) -> None:
    assert find_entities(Doc(text, [entity])) == found


def test_merge_leaves_words_open_where_the_models_disagree() -> None:
    one: Spans = {(0, 1, "PER"), (3, 5, "LOC"), (7, 8, "ORG")}
    other: Spans = {(0, 1, "PER"), (4, 5, "LOC")}

    assert merge([one]) == one
    assert merge([one, other]) == {(0, 1, "PER"), (3, 4, "unsure"), (4, 5, "unsure"), (7, 8, "unsure")}


def test_file_has_the_texts_as_they_stood_and_with_their_words_apart(tmp_path: Path) -> None:
    docs = [[Doc("Ann lives in New York|.", [Entity(0, 1, "PERSON"), Entity(3, 5, "GPE")])]] * LOWERED
    texts = read_back(tmp_path, *docs)

    spans = ((0, 3, "PER"), (13, 21, "LOC"))
    assert texts[:2] == [Tagged("Ann lives in New York.", spans), Tagged("Ann lives in New York .", spans)]
    assert texts[LOWERED - 1] == Tagged("ann lives in new york .", spans)


def test_file_has_few_sentences_without_a_sure_entity(tmp_path: Path) -> None:
    doubtful = [Doc("Ann sings", [Entity(0, 1, "PERSON")]), Doc("Ann sings")]
    texts = read_back(tmp_path, *[doubtful] * (2 * EMPTY_KEPT), [Doc("Ann sings", [Entity(0, 1, "PERSON")])] * 2)

    assert [text.spans[0][2] for text in texts] == ["unsure", "unsure", "PER"]


def test_texts_are_evenly_taken_sentences_without_placeholders(tmp_path: Path) -> None:
    lines = [f"Sentence number {i} is here.  [NAME] is not a name. Too short." for i in range(5)]
    (tmp_path / "some.txt").write_text("\n".join(lines), "utf-8")

    assert list(read_texts(tmp_path, [("some.txt", 3)])) == [f"Sentence number {i} is here." for i in (0, 2, 4)]
