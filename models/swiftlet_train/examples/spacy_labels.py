"""Labels running text with spaCy's models, and writes it as a training file for entities.

    pip install spacy
    python -m swiftlet_train.examples.spacy_labels OUT.iob2.gz DATA MODEL... -- FILE=COUNT...

MODEL is an installed pipeline or its directory. Where two models disagree, the words get the kind `unsure`, which a
recipe maps to no label. COUNT is the number of sentences to read from FILE, a file under DATA. Two thirds of the
sentences without an entity are left out, because they teach little. Most words of the file stand as they did in the
text, without spaces before punctuation; every second sentence has its words apart, as other training files have. Every
tenth sentence is written in lower case.
"""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from swiftlet_models import datasets
from swiftlet_train.examples.example import take_evenly
from swiftlet_train.examples.sentences import split_sentences

KINDS: Final = {"PERSON": "PER", "ORG": "ORG", "GPE": "LOC", "LOC": "LOC", "FAC": "LOC"}
"""The kinds of OntoNotes that are kept. GPE are places with a government, and FAC are buildings and roads."""
UNSURE: Final = "unsure"
LONGEST: Final = 35  # words of a sentence: longer ones cost more than they teach
EMPTY_KEPT: Final = 3  # of so many sentences without an entity, one stays
LOWERED: Final = 10  # of so many sentences, one is written in lower case
PLACEHOLDER: Final = "["  # GoEmotions has [NAME] where a name was

Spans = set[tuple[int, int, str]]
"""Entities: the first word, the word after the last one, and the kind."""


def find_entities(doc: Any) -> Spans:
    """Returns the entities of a document of spaCy, without the article before and the 's after them.

    OntoNotes counts both to the name, and the other training files count neither.
    """
    spans: Spans = set()
    for entity in doc.ents:
        start, end = entity.start, entity.end
        if entity.label_ in KINDS:
            start += doc[start].lower_ == "the"
            end -= end > start and doc[end - 1].lower_ in ("'s", "’s")
            if start < end:
                spans.add((start, end, KINDS[entity.label_]))
    return spans


def merge(answers: Sequence[Spans]) -> Spans:
    """Returns the entities that all models found. The words of the others form entities of the kind `unsure`."""
    agreed = set.intersection(*answers)
    taken = {word for start, end, _ in agreed for word in range(start, end)}
    doubtful = {word for start, end, _ in set().union(*answers) for word in range(start, end)} - taken
    return agreed | {(word, word + 1, UNSURE) for word in doubtful}


def read_texts(data: Path, counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yields sentences of the files, evenly spaced within each file.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    for file, count in counts:
        sentences = [
            text for document in datasets.documents(data / file) for text in split_sentences(document, LONGEST)
        ]
        yield from take_evenly([" ".join(text.split()) for text in sentences if PLACEHOLDER not in text], count)


def write(docs: Iterable[Sequence[Any]], file: TextIO) -> None:
    """Writes sentences in the columns of Universal NER. `docs` has the documents of all models for each sentence."""
    empty = written = 0
    for answers in docs:
        spans = merge([find_entities(doc) for doc in answers])
        if all(kind == UNSURE for _, _, kind in spans):
            empty += 1
            if empty % EMPTY_KEPT:
                continue
        written += 1
        tags = {
            word: f"{'B' if word == start else 'I'}-{kind}" for start, end, kind in spans for word in range(start, end)
        }
        for word in answers[0]:
            text = word.lower_ if written % LOWERED == 0 else word.text
            joined = written % 2 == 1 and not word.whitespace_
            file.write(f"{word.i + 1}\t{text}\t{tags.get(word.i, 'O')}\t{'SpaceAfter=No' if joined else '-'}\n")
        file.write("\n")


def main(arguments: Sequence[str]) -> None:
    """Labels the texts that the arguments name."""
    import spacy

    split = arguments.index("--")
    out, data, *names = arguments[:split]
    counts = [(name, int(count)) for name, _, count in (item.partition("=") for item in arguments[split + 1 :])]
    texts = list(read_texts(Path(data), counts))
    unused = ["tok2vec", "tagger", "parser", "senter", "attribute_ruler", "lemmatizer"]
    models = [spacy.load(name, exclude=unused) for name in names]
    with gzip.GzipFile(out, "wb", mtime=0) as packed, io.TextIOWrapper(packed, "utf-8", newline="\n") as file:
        write(zip(*(model.pipe(texts, batch_size=256) for model in models), strict=True), file)


if __name__ == "__main__":
    if "--" not in sys.argv or len(sys.argv) < 6:
        sys.exit(__doc__)
    main(sys.argv[1:])
