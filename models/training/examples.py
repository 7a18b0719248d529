"""What a task is learnt from: data files as rows of tokens, what is right for each row, and rows in batches."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from swiftlet_serve.models import datasets
from swiftlet_serve.models.datasets import Question
from swiftlet_serve.models.tokenizer import Encoding, Tokenizer
from swiftlet_serve.models.training.recipe import Finetuning

STRIDE: Final = 128  # tokens that neighbouring windows of a context share
NEAR: Final = 10  # contexts before and after a question's own that it may be asked of elsewhere
SENTENCE: Final = range(4, 61)  # words
ENDS: Final = re.compile(r"(?<=[.!?])\s+")
UNKNOWN: Final = -100  # the label of a text that has none; a cross entropy leaves it out
LONG: Final = 4  # letters of a word that says what a text is about
SORTED: Final = 50  # batches among which rows of a length are brought together

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Example:
    """A row and what the head should say of it: a label, or the positions where the answer starts and ends."""

    encoding: Encoding
    target: tuple[int, ...]  # (UNKNOWN,) where a teacher has to say it
    context: range = range(0)  # for qa, the positions an answer may take


def read(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """The examples of all files of a task, from each at most as many as wanted, evenly spread over it.

    A question that two files ask of one context, as SQuAD 1.1 and 2.0 do, is taken from the first of them.

    Raises:
        DatasetError: a file is not in the format of its task.
    """
    if work.task == "classify":
        texts = [text for file, most in work.train.items() for text in spread(datasets.labelled(data / file), most)]
        encodings = tokenizer.encode([text.text for text in texts], work.max_tokens)
        return [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]
    taken: list[Question] = []
    for file, most in work.train.items():
        known = {(question.id, question.context) for question in taken}
        new = [question for question in datasets.questions(data / file) if (question.id, question.context) not in known]
        taken += spread(new, most)
    taken += elsewhere(taken, work.elsewhere)
    return [example for question in taken for example in windows(question, tokenizer, work.max_tokens)]


def unlabelled(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Sentences of running text, whose label nobody told: of each file at most as many as wanted, evenly spread.

    Raises:
        DatasetError: a file is damaged, or no text.
    """
    texts = [text for file, most in work.unlabelled.items() for text in spread(_sentences(data / file), most)]
    return [Example(encoding, (UNKNOWN,)) for encoding in tokenizer.encode(texts, work.max_tokens)]


def _sentences(path: Path) -> list[str]:
    found = (sentence for text in datasets.documents(path) for sentence in ENDS.split(text))
    return [sentence for sentence in found if len(sentence.split()) in SENTENCE]


def elsewhere(questions: Sequence[Question], most: int) -> list[Question]:
    """At most so many of the questions, evenly spread, each asked of another context, which does not answer it.

    Of the contexts that stand near its own, as those of an article do, it is one that has most of the question's words
    and none of its answers: what a question shares with a text is no sign that the text answers it (Clark and Gardner
    2018, arXiv:1710.10723, section 3, train on such paragraphs of a document).
    """
    contexts = list(dict.fromkeys(question.context for question in questions))
    place, words = {context: i for i, context in enumerate(contexts)}, [_words(context) for context in contexts]
    found = []
    for question in spread([question for question in questions if question.answers], most):
        own, asked = place[question.context], _words(question.question)
        near = [i for i in range(max(0, own - NEAR), min(len(contexts), own + NEAR + 1)) if i != own]
        silent = [i for i in near if not any(answer.lower() in contexts[i].lower() for answer in question.answers)]
        if silent:
            other = max(silent, key=lambda i: len(asked & words[i]))
            found.append(replace(question, context=contexts[other], answers=(), starts=()))
    return found


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= LONG}


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, evenly spread."""
    return [items[i] for i in np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)]


def windows(question: Question, tokenizer: Tokenizer, max_tokens: int) -> list[Example]:
    """One example for each window of the context; [CLS] is the answer where a window does not hold it."""
    asked, context = tokenizer.tokenize([question.question, question.context])
    room = tokenizer.max_context_tokens(asked, max_tokens)
    if room <= 1:
        return []
    span = _span(question)
    examples = []
    for window in tokenizer.windows(asked, context, 0, room, min(STRIDE, room // 2)):
        places = range(window.context_start, window.context_start + len(window.token_spans))
        target = (0, 0)
        if span is not None:
            start = int(np.searchsorted(window.token_spans[:, 1], span[0], side="right"))
            end = int(np.searchsorted(window.token_spans[:, 0], span[1], side="left")) - 1
            inside = (
                len(window.token_spans) and window.token_spans[0, 0] <= span[0] and span[1] <= window.token_spans[-1, 1]
            )
            if inside and start <= end:
                target = (window.context_start + start, window.context_start + end)
        examples.append(Example(window, target, places))
    return examples


def _span(question: Question) -> tuple[int, int] | None:
    """Where the first answer stands in the context, in code points; None where it does not."""
    if not question.answers:
        return None
    text, start = question.answers[0], question.starts[0]
    if not question.context.startswith(text, start):
        start = question.context.find(text)
    return (start, start + len(text)) if text and start >= 0 else None


def batches(examples: Sequence[Example], rows: int, seed: int) -> list[list[int]]:
    """Every example once, in random batches of rows of like length."""
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(examples))
    found = []
    for at in range(0, len(order), rows * SORTED):
        near = sorted(order[at : at + rows * SORTED].tolist(), key=lambda i: len(examples[i].encoding.input_ids))
        found += [near[start : start + rows] for start in range(0, len(near), rows)]
    return [found[i] for i in chance.permutation(len(found))]


def pad(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """input_ids and token_type_ids (B, S), lengths (B,)."""

    def stack(rows: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)

    encodings = [example.encoding for example in examples]
    return (
        stack([torch.from_numpy(encoding.input_ids) for encoding in encodings]),
        stack([torch.from_numpy(encoding.token_type_ids) for encoding in encodings]),
        torch.tensor([len(encoding.input_ids) for encoding in encodings], device=device),
    )


def digest(examples: Sequence[Example]) -> str:
    """Tells these examples, in this order, from any others."""
    found = hashlib.sha256()
    for example in examples:
        found.update(np.array([*example.target, len(example.encoding.input_ids)], np.int64).tobytes())
        found.update(example.encoding.input_ids.tobytes())
    return found.hexdigest()
