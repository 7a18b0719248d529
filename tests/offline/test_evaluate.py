"""Evaluations of networks with known answers, compared with scores computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from swiftlet_models.artifact import open_artifact
from swiftlet_models.datasets import DatasetError
from swiftlet_serve import evaluation, plugins
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.evaluation.qa import QaWithMargin
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import Evaluation, agreement, difference, evaluate
from tests.support import artifacts
from tests.support.artifacts import LABELS, VOCABULARY, make_artifact

CLS, MASK = VOCABULARY.index("[CLS]"), VOCABULARY.index("[MASK]")


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes an artifact. Its rows are zero, except for the entries in `numbers`."""

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
    """A classifier that labels every text as good."""
    return make("classify", {(CLS, LABELS["classify"].index("good")): 3.0})


@pytest.fixture
def span_finder(make) -> Path:
    """Answers with the span from a word-initial x to a y inside a word, or with the empty answer."""
    start, end = VOCABULARY.index("x"), VOCABULARY.index("##y")
    return make("qa", {(start, 0): 10.0, (end, 1): 10.0, (CLS, 0): 5.0, (CLS, 1): 5.0})


@pytest.fixture
def letter_a(make) -> Path:
    """Fills every mask with the letter a."""
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
    """Returns 20 words of one letter, of which three (15 %) are masked. The blanks make it a long paragraph."""
    return (" " * 12).join(letter * 20)


def measure(path: Path, data: Path, **options):
    return evaluate(load_model(path, "onnx_cpu"), data, **options)


def baselines(found: Evaluation) -> dict[str, float]:
    return {name: score.value for name, score in found.baselines.items()}


def test_classify_accuracy_is_share_of_right_labels(tmp_path, good):
    found = measure(good, tsv(tmp_path, [1, 1, 0, 1, 2]))

    assert list(found.scores) == ["accuracy"]
    assert found.main.value == pytest.approx(60)
    assert found.main.n == 5
    assert found.answers == ("good",) * 5
    assert baselines(found) == {"always the commonest label": pytest.approx(60)}


def test_classify_skips_blank_texts(tmp_path, good):
    data = write(tmp_path, "texts.tsv", "label\tsentence\n1\tfine\n0\t  \n0\t\n1\tgood\n")

    assert measure(good, data).main.n == 2


def test_classify_reads_pairs(tmp_path, good):
    data = write(tmp_path, "pairs.tsv", "sentence1\tsentence2\tlabel\nfine\tso so\t1\n \tx\t1\nbad\ty\t0\n")
    evaluator = plugins.load(evaluation, "classify").Evaluator(load_model(good, "onnx_cpu").task)

    found = [case.body["inputs"] for case in evaluator.cases(data, 0, None)]
    assert found == [{"text": "fine", "text_pair": "so so"}, {"text": "bad", "text_pair": "y"}]
    assert (measure(good, data).main.value, measure(good, data).main.n) == (50, 2)


def test_classify_truncates_long_texts(tmp_path, good):
    data = write(tmp_path, "texts.tsv", f"label\tsentence\n1\t{'very ' * 5000}\n")

    assert measure(good, data).main.value == 100


@pytest.mark.parametrize(
    ("part", "value", "n"),
    [({"skip": 3}, 50, 2), ({"limit": 2}, 100, 2), ({"skip": 1, "limit": 3}, 2 / 3 * 100, 3), ({"limit": 99}, 60, 5)],
)
def test_evaluate_measures_part_of_file(tmp_path, good, part, value, n):
    score = measure(good, tsv(tmp_path, [1, 1, 0, 1, 2]), **part).main

    assert score.value == pytest.approx(value)
    assert score.n == n


def test_qa_grades_answers_as_squad(tmp_path, span_finder):
    data = squad(tmp_path, ("the xay is here", ["xay"]), ("one xay two", ["three", "one xay"]), ("no xy", ["no"]))
    found = measure(span_finder, data)

    assert found.answers == ((4, 7), (4, 7), (3, 5))
    assert found.scores["exact_match"].value == pytest.approx(100 / 3)
    assert found.scores["f1"].value == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert found.main is found.scores["f1"]
    # Each context is a single sentence.
    assert baselines(found) == {"always the first sentence": pytest.approx(100 * (2 / 4 + 2 * 2 / 5 + 2 / 3) / 3)}


def test_qa_grades_unanswerable_questions(tmp_path, span_finder):
    data = squad(tmp_path, ("the xay is here", ["xay"]), ("nothing at all", []), ("a xby cat", []))
    found = measure(span_finder, data)

    assert found.answers == ((4, 7), (0, 0), (2, 5))
    assert found.scores["exact_match"].value == pytest.approx(200 / 3)
    assert found.scores["f1"].value == pytest.approx(200 / 3)
    assert baselines(found) == {
        "always no answer": pytest.approx(200 / 3),
        "always an answer, and the right one if there is one": pytest.approx(100 / 3),
    }


def test_qa_scores_answerable_and_unanswerable_separately(tmp_path, span_finder):
    """The model finds "xay" of "one xay" (2 / 3), misses "all" (0), and wrongly answers one of three questions."""
    asked = [
        ("nothing", []),
        ("one xay two", ["one xay"]),
        ("nothing at all", ["all"]),
        ("a cat", []),
        ("a xby cat", []),
    ]
    found = measure(span_finder, squad(tmp_path, *asked))

    assert {name: (pytest.approx(score.value), score.n) for name, score in found.scores.items()} == {
        "f1": (100 * (1 + 2 / 3 + 0 + 1 + 0) / 5, 5),
        "exact_match": (40, 5),
        "has_answer_f1": (100 / 3, 2),
        "has_answer_exact_match": (0, 2),
        "no_answer_f1": (200 / 3, 3),
        "no_answer_exact_match": (200 / 3, 3),
    }
    assert found.main is found.scores["f1"]


def test_qa_scores_answerable_file_as_a_whole(tmp_path, span_finder):
    found = measure(span_finder, squad(tmp_path, ("the xay is here", ["xay"])))

    assert list(found.scores) == ["f1", "exact_match"]
    assert found.upper_bounds == {}


@pytest.fixture
def margin_model(make) -> Path:
    """Finds no answer less likely than k, slightly more likely than i, and much more likely than j."""
    numbers = {("[CLS]", 0): 0.5, ("[CLS]", 1): 0.25, ("k", 0): 2.0, ("k", 1): 1.0, ("j", 0): -1.0, ("j", 1): -1.0}
    return make("qa", {(VOCABULARY.index(token), column): number for (token, column), number in numbers.items()})


def test_qa_upper_bounds_are_scores_at_best_threshold(tmp_path, margin_model):
    """The margins are 0.75 - 3 (k), 0.75 - 0 (i) and 0.75 + 2 (j). Only j has no answer."""
    found = measure(margin_model, squad(tmp_path, ("k", ["k"]), ("i", ["i"]), ("j", [])))

    assert found.answers == ((0, 1), (0, 0), (0, 0))
    assert found.scores["f1"].value == pytest.approx(200 / 3)  # at threshold 0
    for bound in found.upper_bounds.values():
        assert (bound.score, bound.value) == (pytest.approx(100), pytest.approx(0.75, abs=1e-4))
    assert list(found.upper_bounds) == ["best_f1", "best_exact_match"]


def test_qa_upper_bound_may_be_never_to_answer(tmp_path, margin_model):
    data = squad(tmp_path, ("k", []), ("i", []))
    bound = measure(margin_model, data).upper_bounds["best_f1"]

    assert (bound.score, bound.value) == (100, -math.inf)
    result = CliRunner().invoke(main, ["evaluate", str(margin_model), str(data)])
    assert "best_f1 100.00 %  (upper bound: never answering, chosen on these questions)" in result.stdout


def test_evaluate_command_marks_upper_bounds(tmp_path, margin_model):
    data = squad(tmp_path, ("k", ["k"]), ("i", ["i"]), ("j", []))
    lines = CliRunner().invoke(main, ["evaluate", str(margin_model), str(data)]).stdout.splitlines()

    assert lines[0].startswith("tiny-qa  f1 66.67 %  (95 % CI: ")
    assert lines[-2:] == [
        f"tiny-qa  best_{name} 100.00 %  (upper bound: threshold +0.75, chosen on these questions)"
        for name in ("f1", "exact_match")
    ]


@pytest.mark.parametrize("max_seq_len", [12, 40])
def test_qa_threshold_0_equals_served_answer(tmp_path, make, max_seq_len):
    """Checks random logits, with one window and with several."""
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
def binary_classifier(make, monkeypatch) -> Path:
    """A classifier with two labels that always gives the second."""
    monkeypatch.setitem(LABELS, "classify", ("wrong", "right"))
    monkeypatch.setitem(artifacts.WIDTHS, "classify", 2)
    return make("classify", {(CLS, 1): 3.0})


def test_classify_with_two_labels_reports_matthews_and_f1(tmp_path, binary_classifier):
    """The model always gives label 1, which is right for three of four: no correlation, precision 3 / 4, recall 1."""
    data = write(
        tmp_path, "cola.tsv", "".join(f"me01\t{label}\t{'' if label else '*'}\ttext\n" for label in (1, 0, 1, 1))
    )
    found = measure(binary_classifier, data)

    assert list(found.scores) == ["accuracy", "matthews", "label_1_f1"]
    assert found.main is found.scores["accuracy"]
    assert found.main.value == 75
    assert found.scores["matthews"].value == 0
    assert found.scores["label_1_f1"].value == pytest.approx(100 * 6 / 7)
    assert {score.n for score in found.scores.values()} == {4}


def test_qa_allows_no_empty_answer_if_all_questions_are_answerable(tmp_path, span_finder):
    ((start, end),) = measure(span_finder, squad(tmp_path, ("nothing at all", ["all"]))).answers

    assert end > start


def test_qa_grades_answer_in_long_context(tmp_path, span_finder):
    context = "a b c d e f g h. " * 60 + "the xay is here " + "a b c. " * 60

    assert measure(span_finder, squad(tmp_path, (context, ["xay"]))).main.value == 100


def test_fill_mask_masks_single_token_words(tmp_path, letter_a):
    data = write(tmp_path, "text.txt", "\n".join(paragraph(letter) for letter in "abab"))
    found = measure(letter_a, data)

    assert list(found.scores) == ["top_1"]
    assert found.main.n == 4 * 3
    assert found.main.value == 50
    assert set(found.answers) == {VOCABULARY.index("a")}
    assert baselines(found) == {"always the commonest token": 50}


def test_fill_mask_grades_paragraph_with_one_mask(tmp_path, letter_a):
    data = write(tmp_path, "text.txt", (" " * 40).join("a" * 7))  # 15 % of 7 tokens

    assert (measure(letter_a, data).main.value, measure(letter_a, data).main.n) == (100, 1)


def test_fill_mask_skip_and_limit_count_documents(tmp_path, letter_a):
    data = write(tmp_path, "text.txt", "\n".join(paragraph(letter) for letter in "abbb"))

    assert measure(letter_a, data, limit=1).main.value == 100
    assert measure(letter_a, data, skip=1).main.value == 0
    assert measure(letter_a, data, skip=1, limit=2).main.n == 6


def test_fill_mask_masks_are_deterministic(tmp_path, make):
    text = (" " * 12).join("abcdefghijklmnopqrst")
    data = write(tmp_path, "text.txt", "\n".join([text] * 3))
    path = make("fill-mask", {(MASK, VOCABULARY.index("k")): 4.0})

    assert measure(path, data).scores == measure(path, data).scores


def test_fill_mask_skips_multi_token_words_and_punctuation(tmp_path, letter_a):
    data = write(tmp_path, "text.txt", (" " * 20).join(["ab", "cd", "!", "?", "ef"] * 3))

    with pytest.raises(DatasetError, match="no example"):
        measure(letter_a, data)


def test_agreement_is_share_of_equal_answers(tmp_path, make, good):
    bad = make("classify", {(CLS, 0): 3.0}, "bad")
    data = tsv(tmp_path, [1, 0, 1, 0])

    assert agreement(measure(good, data), measure(good, data)).value == 100
    assert agreement(measure(good, data), measure(bad, data)).value == 0


def test_comparison_rejects_different_questions(tmp_path, good):
    data = tsv(tmp_path, [1, 0, 1, 0])

    with pytest.raises(SetupError, match="were asked different questions"):
        agreement(measure(good, data), measure(good, data, limit=2))
    with pytest.raises(SetupError, match="were asked different questions"):
        difference(measure(good, data), measure(good, data, limit=2))


def test_evaluate_reports_progress(tmp_path, good):
    reports = []
    measure(good, tsv(tmp_path, [1] * 40), progress=lambda done, total: reports.append((done, total)))

    assert reports == [(number, 40) for number in range(1, 41)]


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (
            "good",
            "label\tsentence\n3\tfine\n",
            "texts: line 2: its label is none of bad, good, neither, and no number",
        ),
        ("good", "label\tsentence\n", "texts holds no example"),
        ("good", "", "texts holds no example"),
        ("good", "label\tsentence\n1\t \n", "texts holds no example"),
        ("good", '{"data": []}', "texts: line 1: it has no text"),
        ("span_finder", "label\tsentence\n1\tfine\n", "texts is not in SQuAD's format"),
        ("span_finder", '{"data": []}', "texts holds no example"),
        ("span_finder", "EMPTY", "texts holds an example that cannot be answered: The text is empty."),
        ("span_finder", "SURROGATE", "texts holds an example that cannot be answered: It is not a valid request."),
        ("letter_a", "too short to be a paragraph\n", "texts holds no example"),
        ("letter_a", "", "texts holds no example"),
    ],
)
def test_evaluate_rejects_unusable_file(tmp_path, request, task, content, message):
    if content in {"EMPTY", "SURROGATE"}:
        context = " " if content == "EMPTY" else "\ud800"
        content = squad(tmp_path, (context, ["x"])).read_text("utf-8")
    data = write(tmp_path, "texts", content)
    path = request.getfixturevalue(task)

    with pytest.raises(DatasetError) as refused:
        measure(path, data)
    assert str(refused.value).startswith(message)
    result = CliRunner().invoke(main, ["evaluate", str(path), str(data)])
    assert result.exit_code == 1
    assert f"Error: {message}" in result.output
    assert isinstance(result.exception, SystemExit)


def test_evaluate_command_prints_scores_and_comparison(tmp_path, make, good):
    bad = make("classify", {(CLS, 0): 3.0}, "bad")
    data = tsv(tmp_path, [1, 1, 1, 0])
    result = CliRunner().invoke(main, ["evaluate", str(good), str(data), "--against", str(bad)])

    assert result.exit_code == 0, result.output
    first, second, last = result.stdout.splitlines()
    assert first.startswith("tiny-classify  accuracy 75.00 %  (95 % CI: ")
    assert first.endswith("n = 4)")
    assert second.startswith("bad  accuracy 25.00 %")
    assert last == "difference +50.00 points (95 % CI: -49.31 to +100.00), same answer 0.00 %"
    assert "baseline, always the commonest label: 75.00 %" in result.stderr


def test_evaluate_command_measures_an_ensemble_beside_its_members(tmp_path, make, good):
    """The one is sure and right, the other is not sure and wrong: the mean of the probabilities is right."""
    bad = make("classify", {(CLS, 0): 1.0}, "bad")
    words, data = f"{good}+{bad}", tsv(tmp_path, [1, 1, 1, 0])
    result = CliRunner().invoke(main, ["evaluate", words, str(data), "--against", str(bad)])

    assert result.exit_code == 0, result.output
    *lines, last = result.stdout.splitlines()
    assert [line.partition("  (")[0] for line in lines] == [
        "tiny-classify  accuracy 75.00 %", "bad  accuracy 25.00 %", "ensemble  accuracy 75.00 %"
    ]  # fmt: skip
    assert last.startswith("difference +50.00 points")
    assert "An ensemble has no card" in CliRunner().invoke(main, ["evaluate", words, str(data), "--record"]).output


def test_evaluate_command_uses_options(tmp_path, good):
    data = tsv(tmp_path, [1, 1, 0, 0])
    arguments = ["evaluate", str(good), str(data), "--skip", "1", "--limit", "2"]

    assert "accuracy 50.00 %" in CliRunner().invoke(main, arguments).stdout
    assert "n = 2" in CliRunner().invoke(main, [*arguments, "--engine", "echo"]).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["GOOD", "nowhere.tsv"], "'nowhere.tsv' does not exist"),
        (["nowhere", "DATA"], "There is no model 'nowhere'"),
        (["GOOD", "DATA", "--engine", "steam"], "steam"),
        (["GOOD", "DATA", "--limit", "0"], "0 is not in the range"),
        (["GOOD", "DATA", "--against", "READER"], "texts.tsv is not in SQuAD's format"),
        (["GOOD"], "Missing argument 'DATA'"),
    ],
)
def test_evaluate_command_reports_mistakes(tmp_path, good, span_finder, arguments, message):
    names = {"GOOD": str(good), "READER": str(span_finder), "DATA": str(tsv(tmp_path, [1, 0]))}
    result = CliRunner().invoke(main, ["evaluate", *(names.get(word, word) for word in arguments)])

    assert result.exit_code != 0
    assert message in result.output
    assert isinstance(result.exception, SystemExit)


def test_evaluate_command_has_help():
    result = CliRunner().invoke(main, ["evaluate", "--help"])

    assert result.exit_code == 0
    assert all(message in result.output for message in ("ARTIFACT DATA", "--against", "--limit", "The format of DATA"))


def test_evaluate_command_measures_another_task_and_records_it(tmp_path):
    made = make_artifact(tmp_path, "embed")
    data = tmp_path / "named.jsonl"
    data.write_text("".join(json.dumps({"text": one, "label": one}) + "\n" for one in "abcd"), "utf-8")
    arguments = ["evaluate", str(made.path), str(data), "--task", "zero-shot"]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tiny-embed  accuracy 25.00 %")  # its vectors are all alike
    assert open_artifact(made.path) == made
    assert CliRunner().invoke(main, [*arguments, "--record"]).exit_code == 0
    found = open_artifact(made.path)
    assert found.manifest.name == "tiny-embed"
    also = found.card()["also"]
    assert also.keys() == {"named.jsonl, zero-shot"}
    (told,) = also.values()
    assert told["scores"]["accuracy"]["value"] == 25.0
    assert {name: told[name] for name in ("task", "engine", "skip", "limit")} == {
        "task": "zero-shot",
        "engine": "native",
        "skip": 0,
        "limit": None,
    }
    load_model(made.path, "onnx_cpu")


def test_evaluate_command_names_the_tasks_that_a_model_answers(tmp_path):
    made = make_artifact(tmp_path, "embed")
    result = CliRunner().invoke(main, ["evaluate", str(made.path), __file__, "--task", "qa"])

    assert result.exit_code == 1
    assert "Error: The model tiny-embed is for the task embed or rerank or zero-shot, not qa." in result.output
