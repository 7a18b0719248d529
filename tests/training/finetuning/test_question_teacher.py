"""A teacher of question answering with tokens of its own."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.datasets import Question
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import NO_LABEL
from swiftlet_train.examples.questions import make_windows
from swiftlet_train.finetuning.logits import EXCLUDED
from swiftlet_train.finetuning.question_teacher import find_kept_windows, make_asked_windows
from swiftlet_train.vocabulary.pruning import SPECIALS
from tests.support.artifacts import make_tokenizer
from tests.support.training import wordpiece

CHARACTERS = make_tokenizer()  # the student's
WORDS = Tokenizer(json.loads(wordpiece([*SPECIALS, "ab", "cab", "abc", "b", "?", "##c"]).to_str()))

contexts = st.lists(st.sampled_from(["ab", "cab", "abc", "b", "bc"]), min_size=1, max_size=30).map(" ".join)


@given(contexts, st.integers(0, 5), st.integers(8, 40))
def test_align_takes_the_logits_of_tokens_that_start_or_end_at_the_same_character(context, start, max_tokens):
    answer = context[start : start + 1].strip()
    question = Question("1", "b?", context, (answer,), (start,))
    windows = make_asked_windows([question], CHARACTERS, WORDS, max_tokens, labelled=True)

    assert [one.student.target for one in windows] == [
        one.target for one in make_windows(question, CHARACTERS, max_tokens)
    ]
    for window in windows:
        own, other = window.student.encoding, window.teacher.encoding
        logits = np.random.default_rng(0).normal(size=(len(other.input_ids), 2)).astype(np.float32)
        aligned = window.align(logits)
        first = own.token_spans[0, 0]
        assert aligned.shape == (len(own.input_ids), 2)
        assert np.array_equal(aligned[0], logits[0])
        for column in range(2):
            at = {int(span[column]): other.context_start + i for i, span in enumerate(other.token_spans)}
            for i, span in enumerate(own.token_spans):
                place = at.get(int(span[column] - first))
                expected = EXCLUDED if place is None else logits[place, column]
                assert aligned[own.context_start + i, column] == np.float32(expected)
        outside = [i for i in range(1, len(own.input_ids)) if i not in window.student.context]
        assert (aligned[outside] == np.float32(EXCLUDED)).all()


def test_align_finds_a_place_for_each_word_of_the_teacher():
    (window,) = make_asked_windows([Question("1", "b?", "ab cab abc", (), ())], CHARACTERS, WORDS, 40, labelled=True)
    logits = np.arange(2.0 * len(window.teacher.encoding.input_ids), dtype=np.float32).reshape(-1, 2)
    aligned = window.align(logits)

    taken = {value for value in aligned.flatten().tolist() if value > 0}
    assert taken >= set(logits[list(window.teacher.context)].flatten().tolist())


def test_make_asked_windows_leaves_out_answers_that_only_the_teacher_gives():
    asked = [Question("1", "b?", "ab cab", ("ab",), (0,)), Question("2", "b?", "", (), ())]
    (window,) = make_asked_windows(asked, CHARACTERS, WORDS, 40, labelled=False)

    assert window.student.target == (NO_LABEL, NO_LABEL)


def test_make_asked_windows_leaves_out_a_window_that_is_too_long_for_the_teacher():
    """A word is one unknown token of the student, and a token for each letter of the teacher."""
    short, long = (Question("1", "b?", " ".join(["uuuuuuuuuuuuuuuuuuuu"] * count), (), ()) for count in (1, 30))
    student = Tokenizer(json.loads(wordpiece([*SPECIALS, "ab", "b", "?"]).to_str()))
    teacher = Tokenizer(json.loads(wordpiece([*SPECIALS, "ab", "b", "?", "u", "##u"]).to_str()))

    (window,) = make_asked_windows([short, long], student, teacher, 40, labelled=False)
    assert len(window.student.encoding.input_ids) < 10
    assert 20 < len(window.teacher.encoding.input_ids) < 40


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40), st.sampled_from([0.0, 0.5, 1.0]))
def test_only_unlabelled_windows_without_an_answer_are_dropped(windows, share):
    """`windows` says of each whether it has a label and whether the teacher finds an answer."""
    question = Question("1", "b?", "ab cab", ("ab",), (0,))
    asked = {
        has_label: make_asked_windows([question], CHARACTERS, WORDS, 40, labelled=has_label)[0]
        for has_label in (True, False)
    }
    logits = np.zeros((len(asked[True].student.encoding.input_ids), 2), np.float32)
    found, nothing = logits.copy(), logits.copy()
    found[asked[True].student.context.start] = 1
    nothing[0] = 1
    kept = find_kept_windows(
        [asked[has_label] for has_label, _ in windows], [found if finds else nothing for _, finds in windows], share, 1
    )
    certain = {i for i, one in enumerate(windows) if any(one)}
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert set(kept.tolist()) >= certain
    if share != 0.5:
        assert set(kept.tolist()) == (set(range(len(windows))) if share else certain)


def test_about_the_share_of_windows_without_an_answer_is_kept():
    question = Question("1", "b?", "ab cab", (), ())
    (window,) = make_asked_windows([question], CHARACTERS, WORDS, 40, labelled=False)
    logits = np.zeros((len(window.student.encoding.input_ids), 2), np.float32)  # as likely as an answer
    kept = find_kept_windows([window] * 1000, [logits] * 1000, 0.3, 1)

    assert 250 < len(kept) < 350
    assert np.array_equal(kept, find_kept_windows([window] * 1000, [logits] * 1000, 0.3, 1))
