"""The examples of fine-tuning: labelled and unlabelled texts, questions, and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models import datasets
from swiftlet_models.datasets import DatasetError, Question
from swiftlet_models.encodings import Encoding
from swiftlet_train.examples.batches import make_batches
from swiftlet_train.examples.example import NO_LABEL, Example, hash_examples, take_evenly
from swiftlet_train.examples.questions import STRIDE, ask_of_parts, make_unanswerable, make_windows
from swiftlet_train.examples.sentences import SENTENCE_END
from swiftlet_train.examples.texts import read_labelled_texts, read_texts, read_unlabelled_texts
from swiftlet_train.finetuning.finetune import read_examples
from swiftlet_train.recipe import Distillation, Finetuning
from tests.support.artifacts import make_tokenizer
from tests.support.training import write_squad

TOKENIZER = make_tokenizer()


@st.composite
def asked(draw: st.DrawFn) -> Question:
    """Draws a question with a context of words and spaces. Its answer starts and ends with a letter."""
    words = draw(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=60))
    gaps = draw(st.lists(st.sampled_from([" ", "  ", "\n "]), min_size=len(words), max_size=len(words)))
    context = "".join(gap + word for gap, word in zip(gaps, words, strict=True))
    letters = [i for i, character in enumerate(context) if not character.isspace()]
    start = draw(st.sampled_from(letters))
    end = draw(st.sampled_from([i for i in letters if start <= i < start + 10])) + 1
    return Question("1", "abc?", context, (context[start:end],), (start,))


@given(asked(), st.integers(12, 60))
def test_make_windows_targets_the_answer(question, max_tokens):
    examples = make_windows(question, TOKENIZER, max_tokens)
    (answer,), (start,) = question.answers, question.starts
    room = max_tokens - len(question.question) - 3

    holding = 0
    for example in examples:
        window = example.encoding
        assert len(window.input_ids) <= max_tokens
        assert example.context == range(window.context_start, window.context_start + len(window.token_spans))
        if example.target == (0, 0):
            assert not (window.token_spans[0, 0] <= start and start + len(answer) <= window.token_spans[-1, 1])
        else:
            first, last = (window.token_spans[place - window.context_start] for place in example.target)
            assert (first[0], question.context[first[0] : last[1]]) == (start, answer)
            assert all(place in example.context for place in example.target)
            holding += 1
    if len(answer.replace(" ", "").replace("\n", "")) <= min(STRIDE, room // 2):
        assert holding >= 1


@pytest.mark.parametrize(
    ("answers", "starts", "target"),
    [
        ((), (), (0, 0)),
        (("b c",), (2,), (5, 6)),  # [CLS] a ? [SEP] a b c d [SEP]
        (("b c", "d"), (2, 6), (5, 6)),
        (("c",), (0,), (6, 6)),  # not where it is reports to be: the first place where it is
        (("z",), (0,), (0, 0)),
        (("",), (0,), (0, 0)),
    ],
)
def test_make_windows_targets_the_first_answer_or_cls(answers, starts, target):
    (example,) = make_windows(Question("1", "a?", "a b c d", answers, starts), TOKENIZER, 40)

    assert example.target == target


def test_make_windows_drops_a_question_without_space_for_context():
    assert make_windows(Question("1", "a" * 40, "a b", ("a",), (0,)), TOKENIZER, 40) == []


def test_take_evenly_spaces_the_items():
    assert take_evenly(list(range(10)), 4) == [0, 3, 6, 9]
    assert take_evenly(list(range(3)), 10) == [0, 1, 2]
    assert take_evenly([], 10) == []


def lengths(*sizes: int) -> list[Example]:
    return [
        Example(Encoding(np.ones(size, np.int64), np.zeros(size, np.int64), np.zeros(1, np.int64)), (0,))
        for size in sizes
    ]


@given(st.lists(st.integers(1, 50), max_size=120), st.integers(1, 9), st.integers(0, 3))
def test_make_batches_holds_each_example_once(sizes, rows, seed):
    drawn = make_batches(lengths(*sizes), rows, seed)

    assert sorted(i for batch in drawn for i in batch) == list(range(len(sizes)))
    assert all(0 < len(batch) <= rows for batch in drawn)
    assert len(drawn) == -(-len(sizes) // rows)


def test_make_batches_depends_on_the_seed_and_groups_similar_lengths():
    examples = lengths(*np.random.default_rng(0).integers(1, 100, 400).tolist())
    drawn = make_batches(examples, 8, seed=1)

    assert drawn == make_batches(examples, 8, seed=1) != make_batches(examples, 8, seed=2)
    sizes = [[len(examples[i].encoding.input_ids) for i in batch] for batch in drawn]
    assert sum(max(batch) * len(batch) - sum(batch) for batch in sizes) < 0.1 * sum(map(sum, sizes))


@pytest.mark.parametrize("max_tokens", [10, 20, 40])
def test_make_windows_targets_cls_for_an_unanswerable_question(max_tokens):
    found = make_windows(Question("1", "a?", "a b c d e f g h i j k l", (), ()), TOKENIZER, max_tokens)

    assert (len(found) > 1) == (max_tokens < 20)
    assert {example.target for example in found} == {(0, 0)}


def test_read_examples_joins_files_without_duplicate_questions(tmp_path):
    """SQuAD 1.1 and 2.0 share questions. An unrelated data set may use the same id."""
    old = write_squad(tmp_path / "1.json", ("a", "q?", "a b c", ["b"]), ("b", "q?", "d e f", ["f"]))
    new = write_squad(tmp_path / "2.json", ("b", "q?", "d e f", ["f"]), ("c", "q?", "a b c", []))
    other = write_squad(tmp_path / "3.json", ("a", "q?", "g h i", ["g"]))
    work = Finetuning("qa", "", (), {old: 9, new: 1, other: 9}, method="span", max_tokens=30)
    found = read_examples(work, tmp_path, TOKENIZER)

    first = 4  # [CLS] q ? [SEP]
    assert [example.target for example in found] == [(5, 5), (6, 6), (0, 0), (4, 4)]
    assert all(example.context == range(first, first + 3) for example in found)


def test_make_unanswerable_takes_a_nearby_context_with_shared_keywords(tmp_path):
    asked = write_squad(
        tmp_path / "1.json",
        ("a", "which river is longest?", "the river seine is long", ["Seine"]),
        ("b", "who sang?", "a bird sang at noon", ["a bird"]),
        ("c", "what did not happen?", "nothing but the longest river", []),
        ("d", "what is it?", "the longest river here is the SEINE", ["longest river"]),
        *((f"e{i}", "who?", f"somebody {i}", ["somebody"]) for i in range(12)),
        ("f", "which?", "which river of all is the longest", ["which"]),
    )
    found = {question.id: question for question in make_unanswerable(datasets.questions(tmp_path / asked), 99)}

    assert found["a"].context == "nothing but the longest river"  # d contains an answer, and f is too far away
    assert found["a"].question == "which river is longest?"
    assert found["b"].context != "a bird sang at noon"
    assert "c" not in found  # it is unanswerable already
    assert all(not question.answers and not question.starts for question in found.values())


@given(st.lists(st.sampled_from(["a b.", "c?", "d e f!", "g"]), min_size=1, max_size=6), st.integers(0, 4))
def test_ask_of_parts_leaves_out_some_sentences_of_a_context(sentences, times):
    question = Question("1", "q?", " ".join(sentences), (sentences[0],), (0,))
    parts = [one.context for one in ask_of_parts([question], times)]

    whole = SENTENCE_END.split(question.context)
    assert len(parts) == (times if len(whole) > 1 else 0)
    for part in parts:
        kept = SENTENCE_END.split(part)
        assert 0 < len(kept) < len(whole)
        rest = iter(whole)
        assert all(sentence in rest for sentence in kept)  # in their order
    assert all(not one.answers and not one.starts for one in ask_of_parts([question], times))
    assert ask_of_parts([question], times) == ask_of_parts([question], times)


def test_ask_of_parts_keeps_about_half_of_the_sentences():
    context = " ".join(f"Sentence {i}." for i in range(20))
    parts = [one.context for one in ask_of_parts([Question("1", "q?", context, (), ())], 50)]

    assert 8.5 < np.mean([part.count(".") for part in parts]) < 11.5
    assert len({*parts}) == 50


def test_read_examples_adds_the_number_of_unanswerable_questions(tmp_path):
    asked = write_squad(tmp_path / "1.json", *((f"{i}", "q?", f"a b c{i}", [f"c{i}"]) for i in range(10)))
    work = Finetuning("qa", "", (), {asked: 10}, method="span", max_tokens=30)
    plain, more = (read_examples(replace(work, unanswerable_questions=count), tmp_path, TOKENIZER) for count in (0, 4))

    assert hash_examples(more[:10]) == hash_examples(plain)
    assert [example.target for example in more[10:]] == [(0, 0)] * 4


def test_read_unlabelled_texts_returns_sentences_without_labels(tmp_path):
    reviews = ["Too short. This one is long enough. Is this one a question? No.", "And here is the last", "long " * 61]
    (tmp_path / "reviews.tsv").write_text("label\ttext\n" + "".join(f"0\t{text}\n" for text in reviews), "utf-8")
    files = {"reviews.tsv": 9}
    work = Finetuning(
        *("classify", "", ()),
        labels=("no", "yes"),
        method="classification",
        distillation=Distillation(),
        unlabelled=files,
        max_tokens=40,
    )
    sentences = ["This one is long enough.", "Is this one a question?", "And here is the last"]
    found = read_unlabelled_texts(work, tmp_path, TOKENIZER)
    few = read_unlabelled_texts(replace(work, unlabelled={"reviews.tsv": 2}), tmp_path, TOKENIZER)

    expected = [encoding.input_ids.tolist() for encoding in TOKENIZER.encode(sentences, 40)]
    assert [example.encoding.input_ids.tolist() for example in found] == expected
    assert [example.encoding.input_ids.tolist() for example in few] == [expected[0], expected[2]]
    assert {example.target for example in found} == {(NO_LABEL,)}


def test_hash_examples_depends_on_examples_and_order():
    found = make_windows(Question("1", "a?", "a b c d", ("b",), (2,)), TOKENIZER, 8)
    other = replace(found[0], target=(4, 4))
    digests = {hash_examples(examples) for examples in (found, found[::-1], found[1:], [other, *found[1:]])}

    assert len(digests) == 4
    assert hash_examples(found) == hash_examples(list(found))


@pytest.mark.parametrize(("labels", "largest", "is_valid"), [(2, 1, True), (2, 2, False), (1, 1, True), (1, 2, False)])
def test_read_texts_rejects_a_label_that_the_recipe_does_not_name(tmp_path, labels, largest, is_valid):
    (tmp_path / "a.tsv").write_text(f"label\ttext\n0\tone\n{largest}\ttwo\n", "utf-8")
    work = Finetuning(*("classify", "", ()), {"a.tsv": 9}, method="classification", labels=("no", "yes")[:labels])

    if is_valid:
        assert [text.label for text in read_texts(work, tmp_path)] == [0, largest]
    else:
        with pytest.raises(DatasetError, match=r"a\.tsv(: line 3: its label is none of no, yes| has a label above 1)"):
            read_texts(work, tmp_path)


def test_read_labelled_texts_reads_pairs(tmp_path):
    (tmp_path / "a.tsv").write_text("question1\tquestion2\tis_duplicate\na b\tc\t1\n", "utf-8")
    work = Finetuning(*("classify", "", ()), {"a.tsv": 9}, method="classification", labels=("no", "yes"))

    (example,) = read_labelled_texts(work, tmp_path, TOKENIZER)
    (expected,) = TOKENIZER.encode([("a b", "c")], work.max_tokens)
    assert example.encoding.input_ids.tolist() == expected.input_ids.tolist()
    assert example.encoding.token_type_ids.tolist() == expected.token_type_ids.tolist()
    assert example.target == (1,)


def test_read_examples_needs_an_example(tmp_path):
    work = Finetuning(*("classify", "", ()), method="classification", labels=("no", "yes"))

    with pytest.raises(DatasetError, match="The training files hold no example"):
        read_examples(work, tmp_path, TOKENIZER)
