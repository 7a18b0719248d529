"""Scores worked by hand, for networks whose every answer is known, and data files that cannot be measured on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from swiftlet_serve.models.datasets import DatasetError
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.loading import load_model
from swiftlet_serve.service.offline.evaluate import Evaluation, agreement, difference, evaluate
from swiftlet_serve.service.tasks.qa import QaWithMargin
from tests.support import artifacts
from tests.support.artifacts import LABELS, VOCABULARY, make_artifact

CLS, MASK = VOCABULARY.index("[CLS]"), VOCABULARY.index("[MASK]")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes an artifact whose rows are those of a table: zeros, but for what `numbers` sets."""

    def made(task: str, numbers: dict[tuple[int, int], float], name: str | None = None) -> Path:
        def table(width: int) -> np.ndarray:
            rows = np.zeros((len(VOCABULARY), width), np.float32)
            for place, number in numbers.items():
                rows[place] = number
            return rows

        monkeypatch.setattr(artifacts, "table", table)
        return make_artifact(tmp_path, task, name).path

    return made


@pytest.fixture
def good(make) -> Path:
    """A classifier to which every text is good."""
    return make("classify", {(CLS, LABELS["classify"].index("good")): 3.0})


@pytest.fixture
def reader(make) -> Path:
    """Answers with what starts at a word's first letter x and ends at a letter y inside a word, or with nothing."""
    start, end = VOCABULARY.index("x"), VOCABULARY.index("##y")
    return make("qa", {(start, 0): 10.0, (end, 1): 10.0, (CLS, 0): 5.0, (CLS, 1): 5.0})


@pytest.fixture
def stubborn(make) -> Path:
    """Fills every mask with an a."""
    return make("fill-mask", {(MASK, VOCABULARY.index("a")): 4.0})


def write(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / name).write_text(text, "utf-8")
    return tmp_path / name


def tsv(tmp_path: Path, labels: list[int]) -> Path:
    return write(tmp_path, "texts.tsv", "label\tsentence\n" + "".join(f"{label}\ttext\n" for label in labels))


def squad(tmp_path: Path, *asked: tuple[str, list[str]]) -> Path:
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": str(number),
                    "question": "what",
                    "answers": [{"text": answer, "answer_start": context.find(answer)} for answer in answers],
                }
            ],
        }
        for number, (context, answers) in enumerate(asked)
    ]
    return write(tmp_path, "questions.json", json.dumps({"data": [{"paragraphs": paragraphs}]}))


def paragraph(letter: str) -> str:
    """20 words of one letter, of which three (15 %) are masked; long enough to be a paragraph."""
    return (" " * 12).join(letter * 20)


def measure(path: Path, data: Path, **options):
    return evaluate(load_model(path, "onnx_cpu"), data, **options)


def trivial(found: Evaluation) -> dict[str, float]:
    return {name: score.value for name, score in found.baselines.items()}


def test_accuracy_is_the_share_of_right_labels(tmp_path, good):
    found = measure(good, tsv(tmp_path, [1, 1, 0, 1, 2]))

    assert list(found.scores) == ["accuracy"]
    assert found.main.value == pytest.approx(60)
    assert found.main.n == 5
    assert found.answers == ("good",) * 5
    assert trivial(found) == {"always the commonest label": pytest.approx(60)}


def test_texts_of_nothing_are_passed_over(tmp_path, good):
    data = write(tmp_path, "texts.tsv", "label\tsentence\n1\tfine\n0\t  \n0\t\n1\tgood\n")

    assert measure(good, data).main.n == 2


def test_long_texts_are_cut_as_they_are_served(tmp_path, good):
    data = write(tmp_path, "texts.tsv", f"label\tsentence\n1\t{'very ' * 5000}\n")

    assert measure(good, data).main.value == 100


@pytest.mark.parametrize(
    ("part", "value", "n"),
    [({"skip": 3}, 50, 2), ({"limit": 2}, 100, 2), ({"skip": 1, "limit": 3}, 2 / 3 * 100, 3), ({"limit": 99}, 60, 5)],
)
def test_a_part_of_the_file_can_be_measured(tmp_path, good, part, value, n):
    score = measure(good, tsv(tmp_path, [1, 1, 0, 1, 2]), **part).main

    assert score.value == pytest.approx(value)
    assert score.n == n


def test_answers_are_marked_as_squad_marks_them(tmp_path, reader):
    data = squad(tmp_path, ("the xay is here", ["xay"]), ("one xay two", ["three", "one xay"]), ("no xy", ["no"]))
    found = measure(reader, data)

    assert found.answers == ((4, 7), (4, 7), (3, 5))
    assert found.scores["exact_match"].value == pytest.approx(100 / 3)
    assert found.scores["f1"].value == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert found.main is found.scores["f1"]
    # The whole contexts.
    assert trivial(found) == {"always the first sentence": pytest.approx(100 * (2 / 4 + 2 * 2 / 5 + 2 / 3) / 3)}


def test_a_question_may_have_no_answer(tmp_path, reader):
    data = squad(tmp_path, ("the xay is here", ["xay"]), ("nothing at all", []), ("a xby cat", []))
    found = measure(reader, data)

    assert found.answers == ((4, 7), (0, 0), (2, 5))
    assert found.scores["exact_match"].value == pytest.approx(200 / 3)
    assert found.scores["f1"].value == pytest.approx(200 / 3)
    assert trivial(found) == {
        "always no answer": pytest.approx(200 / 3),
        "always an answer, and the right one if there is one": pytest.approx(100 / 3),
    }


def test_questions_with_an_answer_and_those_without_are_scored_by_themselves(tmp_path, reader):
    """Found "xay" of "one xay" (2 / 3) and nothing of "all" (0); of three without an answer, one is given one."""
    asked = [
        ("nothing", []),
        ("one xay two", ["one xay"]),
        ("nothing at all", ["all"]),
        ("a cat", []),
        ("a xby cat", []),
    ]
    found = measure(reader, squad(tmp_path, *asked))

    assert {name: (pytest.approx(score.value), score.n) for name, score in found.scores.items()} == {
        "f1": (100 * (1 + 2 / 3 + 0 + 1 + 0) / 5, 5),
        "exact_match": (40, 5),
        "has_answer_f1": (100 / 3, 2),
        "has_answer_exact_match": (0, 2),
        "no_answer_f1": (200 / 3, 3),
        "no_answer_exact_match": (200 / 3, 3),
    }
    assert found.main is found.scores["f1"]


def test_a_file_whose_questions_all_have_answers_is_scored_as_a_whole(tmp_path, reader):
    found = measure(reader, squad(tmp_path, ("the xay is here", ["xay"])))

    assert list(found.scores) == ["f1", "exact_match"]
    assert found.upper_bounds == {}


@pytest.fixture
def doubtful(make) -> Path:
    """By its logits no answer is less likely than the answer k, a little likelier than i, and much likelier than j."""
    numbers = {("[CLS]", 0): 0.5, ("[CLS]", 1): 0.25, ("k", 0): 2.0, ("k", 1): 1.0, ("j", 0): -1.0, ("j", 1): -1.0}
    return make("qa", {(VOCABULARY.index(token), column): number for (token, column), number in numbers.items()})


def test_the_best_threshold_is_found_and_what_it_would_reach(tmp_path, doubtful):
    """No answer is likelier by 0.75 - 3 (k), 0.75 - 0 (i) and 0.75 + 2 (j), of which only j has none."""
    found = measure(doubtful, squad(tmp_path, ("k", ["k"]), ("i", ["i"]), ("j", [])))

    assert found.answers == ((0, 1), (0, 0), (0, 0))
    assert found.scores["f1"].value == pytest.approx(200 / 3)  # as it is served
    for bound in found.upper_bounds.values():
        assert (bound.score, bound.value) == (pytest.approx(100), pytest.approx(0.75, abs=1e-4))
    assert list(found.upper_bounds) == ["best_f1", "best_exact_match"]


def test_where_no_answer_is_right_the_best_is_never_to_answer(tmp_path, doubtful):
    data = squad(tmp_path, ("k", []), ("i", []))
    bound = measure(doubtful, data).upper_bounds["best_f1"]

    assert (bound.score, bound.value) == (100, -math.inf)
    result = CliRunner().invoke(main, ["evaluate", str(doubtful), str(data)])
    assert "best_f1 100.00 %  (upper bound: never answering, chosen on these questions)" in result.stdout


def test_the_command_tells_the_upper_bound_from_what_is_served(tmp_path, doubtful):
    data = squad(tmp_path, ("k", ["k"]), ("i", ["i"]), ("j", []))
    lines = CliRunner().invoke(main, ["evaluate", str(doubtful), str(data)]).stdout.splitlines()

    assert lines[0].startswith("tiny-qa  f1 66.67 %  (95 % CI: ")
    assert lines[-2:] == [
        f"tiny-qa  best_{name} 100.00 %  (upper bound: threshold +0.75, chosen on these questions)"
        for name in ("f1", "exact_match")
    ]


@pytest.mark.parametrize("max_seq_len", [12, 40])
def test_a_threshold_of_0_is_what_is_served(tmp_path, make, max_seq_len):
    """Of random logits, in one window and in several; and the best answer is that of a caller who will have one."""
    model = load_model(make("qa", {}), "onnx_cpu")
    with_margin, chance = QaWithMargin(model.task.tokenizer, model.task.max_tokens), np.random.default_rng(1)
    seen = set()
    for _ in range(300):
        context = " ".join(chance.choice(list("abc"), 12))
        inputs = {"question": "q?", "context": context}
        asked = [
            model.task.Request.model_validate(
                {"inputs": inputs, "parameters": {"handle_impossible_answer": impossible, "max_seq_len": max_seq_len}}
            )
            for impossible in (True, False)
        ]
        encodings = model.task.encode(asked[0])
        rows = [chance.normal(0, 2, (len(one.input_ids), 2)).astype(np.float32) for one in encodings]
        rows = [row + np.float32(chance.uniform(0, 6)) * (np.arange(len(row)) == 0)[:, None] for row in rows]
        reported = with_margin.decode(asked[0], encodings, rows)
        served, wanted = (model.task.decode(request, encodings, rows) for request in asked)

        assert served.items() <= reported.items()
        assert reported["best"] == wanted["answer"] != ""
        assert (reported["margin"] > 0) == (served["answer"] == "")
        if served["answer"] == "":
            assert reported["margin"] == pytest.approx(math.log(served["score"] / wanted["score"]))
        seen.add((len(encodings) > 1, served["answer"] == ""))
    model.engine.close()
    assert seen == {(max_seq_len == 12, True), (max_seq_len == 12, False)}


@pytest.fixture
def judge(make, monkeypatch) -> Path:
    """Two labels: what starts with an x is right."""
    monkeypatch.setitem(LABELS, "classify", ("wrong", "right"))
    monkeypatch.setitem(artifacts.WIDTHS, "classify", 2)
    return make("classify", {(CLS, 1): 3.0})


def test_two_labels_have_a_correlation_and_f1_too(tmp_path, judge):
    """CoLA's four columns; always label 1, of which three of four are: no correlation, precision 3 / 4, recall 1."""
    data = write(
        tmp_path, "cola.tsv", "".join(f"me01\t{label}\t{'' if label else '*'}\ttext\n" for label in (1, 0, 1, 1))
    )
    found = measure(judge, data)

    assert list(found.scores) == ["accuracy", "matthews", "label_1_f1"]
    assert found.main is found.scores["accuracy"]
    assert found.main.value == 75
    assert found.scores["matthews"].value == 0
    assert found.scores["label_1_f1"].value == pytest.approx(100 * 6 / 7)
    assert {score.n for score in found.scores.values()} == {4}


def test_where_every_question_has_an_answer_nothing_is_none(tmp_path, reader):
    ((start, end),) = measure(reader, squad(tmp_path, ("nothing at all", ["all"]))).answers

    assert end > start


def test_an_answer_may_lie_far_into_a_context(tmp_path, reader):
    context = "a b c d e f g h. " * 60 + "the xay is here " + "a b c. " * 60

    assert measure(reader, squad(tmp_path, (context, ["xay"]))).main.value == 100


def test_masks_are_chosen_among_single_tokens_and_marked_by_token(tmp_path, stubborn):
    data = write(tmp_path, "text.txt", "\n".join(paragraph(letter) for letter in "abab"))
    found = measure(stubborn, data)

    assert list(found.scores) == ["top_1"]
    assert found.main.n == 4 * 3
    assert found.main.value == 50
    assert set(found.answers) == {VOCABULARY.index("a")}
    assert trivial(found) == {"always the commonest token": 50}


def test_a_paragraph_with_one_mask_is_marked_too(tmp_path, stubborn):
    data = write(tmp_path, "text.txt", (" " * 40).join("a" * 7))  # 15 % of 7 tokens

    assert (measure(stubborn, data).main.value, measure(stubborn, data).main.n) == (100, 1)


def test_documents_are_passed_over_and_counted(tmp_path, stubborn):
    data = write(tmp_path, "text.txt", "\n".join(paragraph(letter) for letter in "abbb"))

    assert measure(stubborn, data, limit=1).main.value == 100
    assert measure(stubborn, data, skip=1).main.value == 0
    assert measure(stubborn, data, skip=1, limit=2).main.n == 6


def test_the_same_masks_are_chosen_each_time(tmp_path, make):
    text = (" " * 12).join("abcdefghijklmnopqrst")
    data = write(tmp_path, "text.txt", "\n".join([text] * 3))
    path = make("fill-mask", {(MASK, VOCABULARY.index("k")): 4.0})

    assert measure(path, data).scores == measure(path, data).scores


def test_words_of_several_tokens_and_signs_are_not_masked(tmp_path, stubborn):
    data = write(tmp_path, "text.txt", (" " * 20).join(["ab", "cd", "!", "?", "ef"] * 3))

    with pytest.raises(DatasetError, match="no example"):
        measure(stubborn, data)


def test_agreement_is_the_share_of_equal_answers(tmp_path, make, good):
    bad = make("classify", {(CLS, 0): 3.0}, "bad")
    data = tsv(tmp_path, [1, 0, 1, 0])

    assert agreement(measure(good, data), measure(good, data)).value == 100
    assert agreement(measure(good, data), measure(bad, data)).value == 0


def test_models_that_were_asked_different_things_are_not_compared(tmp_path, good):
    data = tsv(tmp_path, [1, 0, 1, 0])

    with pytest.raises(SetupError, match="were asked different questions"):
        agreement(measure(good, data), measure(good, data, limit=2))
    with pytest.raises(SetupError, match="were asked different questions"):
        difference(measure(good, data), measure(good, data, limit=2))


def test_progress_is_told(tmp_path, good):
    told = []
    measure(good, tsv(tmp_path, [1] * 40), progress=lambda done, total: told.append((done, total)))

    assert told == [(number, 40) for number in range(1, 41)]


@pytest.mark.parametrize(
    ("task", "content", "said"),
    [
        ("good", "label\tsentence\n3\tfine\n", "texts has the label 3, but the model has 3 labels"),
        ("good", "label\tsentence\n", "texts holds no example"),
        ("good", "", "texts holds no example"),
        ("good", "label\tsentence\n1\t \n", "texts holds no example"),
        ("good", '{"data": []}', "texts: line 1 has no label and text"),
        ("reader", "label\tsentence\n1\tfine\n", "texts is not in SQuAD's format"),
        ("reader", '{"data": []}', "texts holds no example"),
        ("reader", "EMPTY", "texts holds an example that cannot be answered: The text is empty."),
        ("reader", "SURROGATE", "texts holds an example that cannot be answered: It is not a valid request."),
        ("stubborn", "too short to be a paragraph\n", "texts holds no example"),
        ("stubborn", "", "texts holds no example"),
    ],
)
def test_a_file_that_cannot_be_measured_on_is_refused_in_a_sentence(tmp_path, request, task, content, said):
    if content in {"EMPTY", "SURROGATE"}:
        context = " " if content == "EMPTY" else "\ud800"
        content = squad(tmp_path, (context, ["x"])).read_text("utf-8")
    data = write(tmp_path, "texts", content)
    path = request.getfixturevalue(task)

    with pytest.raises(DatasetError) as refused:
        measure(path, data)
    assert str(refused.value).startswith(said)
    result = CliRunner().invoke(main, ["evaluate", str(path), str(data)])
    assert result.exit_code == 1
    assert f"Error: {said}" in result.output
    assert isinstance(result.exception, SystemExit)


def test_the_command_prints_scores_and_a_comparison(tmp_path, make, good):
    bad = make("classify", {(CLS, 0): 3.0}, "bad")
    data = tsv(tmp_path, [1, 1, 1, 0])
    result = CliRunner().invoke(main, ["evaluate", str(good), str(data), "--against", str(bad)])

    assert result.exit_code == 0, result.output
    first, second, last = result.stdout.splitlines()
    assert first.startswith("tiny-classify  accuracy 75.00 %  (95 % CI: ")
    assert first.endswith("n = 4)")
    assert second.startswith("bad  accuracy 25.00 %")
    assert last == "difference +50.00 points (95 % CI: -48.00 to +148.00), same answer 0.00 %"
    assert "baseline, always the commonest label: 75.00 %" in result.stderr


def test_the_command_measures_a_part_on_the_engine_asked_for(tmp_path, good):
    data = tsv(tmp_path, [1, 1, 0, 0])
    arguments = ["evaluate", str(good), str(data), "--skip", "1", "--limit", "2"]

    assert "accuracy 50.00 %" in CliRunner().invoke(main, arguments).stdout
    assert "n = 2" in CliRunner().invoke(main, [*arguments, "--engine", "echo"]).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["GOOD", "nowhere.tsv"], "'nowhere.tsv' does not exist"),
        (["nowhere", "DATA"], "There is no model 'nowhere'"),
        (["GOOD", "DATA", "--engine", "steam"], "steam"),
        (["GOOD", "DATA", "--limit", "0"], "0 is not in the range"),
        (["GOOD", "DATA", "--against", "READER"], "texts.tsv is not in SQuAD's format"),
        (["GOOD"], "Missing argument 'DATA'"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(tmp_path, good, reader, arguments, said):
    names = {"GOOD": str(good), "READER": str(reader), "DATA": str(tsv(tmp_path, [1, 0]))}
    result = CliRunner().invoke(main, ["evaluate", *(names.get(word, word) for word in arguments)])

    assert result.exit_code != 0
    assert said in result.output
    assert isinstance(result.exception, SystemExit)


def test_evaluate_explains_itself():
    result = CliRunner().invoke(main, ["evaluate", "--help"])

    assert result.exit_code == 0
    assert all(said in result.output for said in ("ARTIFACT DATA", "--against", "--limit", "SQuAD's format"))
