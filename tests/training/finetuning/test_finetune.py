"""Fine-tuning with a teacher that is fine-tuned first."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from swiftlet_models import datasets
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.datasets import DatasetError, Question
from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import NO_LABEL, Example, hash_examples
from swiftlet_train.examples.questions import read_unlabelled_questions
from swiftlet_train.examples.sentences import read_sentences
from swiftlet_train.examples.texts import read_unlabelled_texts
from swiftlet_train.finetuning import distillation, question_teacher, task_training
from swiftlet_train.finetuning import finetune as finetune_module
from swiftlet_train.finetuning.distillation import find_kept_pieces, make_task_teacher
from swiftlet_train.finetuning.finetune import finetune, read_examples
from swiftlet_train.finetuning.logits import stack_logits, task_logits
from swiftlet_train.finetuning.losses import distillation_loss
from swiftlet_train.finetuning.question_teacher import make_asked_windows, read_asked_windows
from swiftlet_train.loop import trainer
from swiftlet_train.pretraining.corpus import Vocabulary, prepare_vocabulary
from swiftlet_train.recipe import (
    Distillation,
    Finetuning,
    OtherTraining,
    Pretraining,
    Recipe,
    RecipeError,
)
from swiftlet_train.teachers.encoders import load_own_tokenizer
from tests.support.tiers import first
from tests.support.training import (
    BODY,
    PIECES,
    SILENT,
    interrupted_train,
    logits_alone,
    same_state,
    teacher_package,
    wordpiece,
    write_squad,
)

PLAN = Distillation(hard_label_weight=0.5, temperature=2.0, teacher_epochs=3, teacher_learning_rate=3e-3)


TEACHER = "teacher_of_the_finetuning_tests"
OTHER = "other_teacher_of_the_finetuning_tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Labelled texts, questions, and a teacher that can be imported."""
    data = tmp_path_factory.mktemp("finetuning")
    texts = [
        (number % 2, f"the {['snow', 'rain'][number % 2]} on the {'old ' * (number % 5)}mill") for number in range(40)
    ]
    (data / "mood.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in texts), "utf-8")
    contexts = ["the quiet town", "rain falls on the old mill", "the river and the snow"]
    write_squad(
        data / "asked.json", *((str(i), "the mill", text, [text.split()[1]]) for i, text in enumerate(contexts * 3))
    )
    teacher_package(data / "packages", TEACHER)
    teacher_package(data / "packages", OTHER)
    sys.path.insert(0, str(data / "packages"))
    yield data
    sys.path.remove(str(data / "packages"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    """The smaller vocabulary, as pre-training leaves it."""
    return Tokenizer(json.loads(small_vocabulary(folder).tokenizer.to_str()))


def small_vocabulary(folder: Path) -> Vocabulary:
    (folder / "text.txt").write_text("the rain falls on the old mill\nthe quiet town and the river\nsnow lies", "utf-8")
    run = folder / "vocabulary"
    run.mkdir(exist_ok=True)
    return prepare_vocabulary(recipe(), folder, run)


def recipe(**changes) -> Recipe:
    """Returns the recipe of one task, with changes to its fine-tuning."""
    sentiment = Finetuning(
        *("classify", "mood.tsv", (), {"mood.tsv": 40}),
        method="classification",
        labels=("QUIET", "LOUD"),
        epochs=2,
        batch_size=8,
        max_tokens=32,
    )
    work = replace(sentiment, **{"distillation": PLAN} | changes)
    pretraining = Pretraining({"text.txt": 9}, 16, 8, 1, 1e-3)
    return Recipe("tiny", "1", "A test.", 1, 48, "albert", BODY, pretraining, {"work": work}, teacher=TEACHER)


def make_pretrained(tokenizer: Tokenizer, **config) -> Model:
    torch.manual_seed(9)
    return build("albert", {**BODY, "vocab_size": tokenizer.vocab_size} | config, "masked_lm")


def run_finetuning(plan: Recipe, tokenizer: Tokenizer, folder: Path, directory: Path, report=SILENT, **config) -> Model:
    return finetune(plan, "work", make_pretrained(tokenizer, **config), tokenizer, folder, directory, report)


def probabilities(model: Model, examples: list[Example]) -> torch.Tensor:
    with torch.no_grad():
        return task_logits(model, examples).softmax(1)


QA = {"task": "qa", "method": "span", "train": {"asked.json": 9}, "labels": ()}


@pytest.mark.parametrize("changes", [{}, QA], ids=["classify", "qa"])
def test_finetune_trains_the_teacher_first(folder, tokenizer, tmp_path, changes):
    reports: list[str] = []
    plan = recipe(**changes)
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    examples = read_examples(plan.finetuning["work"], folder, tokenizer)

    assert reports[0].startswith("teacher: step ")
    assert reports[-2] == f"teacher: computing the logits of {len(examples)} examples"
    assert " labels " in reports[-1]
    assert " teacher " in reports[-1]
    logits = np.load(tmp_path / "teacher/logits.npy")
    assert logits.shape == (sum(len(row.encoding.focus) for row in examples), 2)
    assert logits.dtype == np.float32


def test_finetune_without_distillation_uses_labels_only(folder, tokenizer, tmp_path):
    reports: list[str] = []
    plain = run_finetuning(recipe(distillation=None), tokenizer, folder, tmp_path / "plain", reports.append)
    distilled = run_finetuning(recipe(), tokenizer, folder, tmp_path / "distilled")

    assert " loss " in reports[-1]
    assert not (tmp_path / "plain/teacher").exists()
    assert not same_state(plain, distilled)


def test_find_kept_pieces_matches_the_pruned_vocabulary(folder, tokenizer):
    vocabulary = small_vocabulary(folder)
    pieces = [vocabulary.tokenizer.id_to_token(number) for number in range(len(vocabulary.kept))]

    assert find_kept_pieces(recipe(), tokenizer) == vocabulary.kept
    assert tokenizer.tokens == pieces
    assert len(pieces) < len(dict.fromkeys(PIECES))


def test_finetune_with_hard_label_weight_0_follows_the_teacher(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher's logits contradict the labels."""
    plan = recipe(epochs=15, learning_rate=6e-3, distillation=replace(PLAN, hard_label_weight=0.0, temperature=1.0))
    examples = read_examples(plan.finetuning["work"], folder, tokenizer)
    contradiction = np.array([[2.0, 0.5] if row.target[0] else [-1.0, 0.5] for row in examples], np.float32)
    monkeypatch.setattr(distillation, "compute_logits", lambda *_: list(contradiction[:, None]))
    found = probabilities(run_finetuning(plan, tokenizer, folder, tmp_path), examples)

    assert torch.allclose(found, torch.from_numpy(contradiction).softmax(1), atol=0.05)


def test_teacher_logits_are_those_of_the_trained_teacher(folder, tokenizer, tmp_path):
    plan = recipe(distillation=replace(PLAN, teacher_epochs=6))
    run_finetuning(plan, tokenizer, folder, tmp_path)
    examples = read_examples(plan.finetuning["work"], folder, tokenizer)
    teacher = make_task_teacher(plan, plan.finetuning["work"], find_kept_pieces(plan, tokenizer))
    teacher.load_state_dict(torch.load(tmp_path / "teacher/checkpoint.pt", weights_only=True)["model"])
    teacher.eval()
    logits = torch.from_numpy(np.load(tmp_path / "teacher/logits.npy"))

    assert torch.allclose(logits, torch.cat([logits_alone(teacher, row).T for row in examples]), atol=1e-5)
    correct = logits.argmax(1) == torch.tensor([row.target[0] for row in examples])
    assert correct.float().mean() > 0.9


def test_finetune_learns_unlabelled_texts_from_the_teacher(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher does not train on these texts, and computes their logits once."""
    (folder / "more.txt").write_text("the quiet rain on the old town. the snow lies on the river.\n" * 3, "utf-8")
    plan, reports = recipe(unlabelled={"more.txt": 4}), list[str]()
    plain = run_finetuning(recipe(), tokenizer, folder, tmp_path / "plain")
    shutil.copytree(tmp_path / "plain/teacher", tmp_path / "more/teacher")
    more = run_finetuning(plan, tokenizer, folder, tmp_path / "more", reports.append)
    examples = read_unlabelled_texts(plan.finetuning["work"], folder, tokenizer)
    teacher = make_task_teacher(plan, plan.finetuning["work"], find_kept_pieces(plan, tokenizer))
    teacher.load_state_dict(torch.load(tmp_path / "more/teacher/checkpoint.pt", weights_only=True)["model"])
    teacher.eval()

    (file,) = (tmp_path / "more/teacher").glob("unlabelled-*.npy")
    logits = torch.from_numpy(np.load(file))
    assert torch.allclose(logits, torch.cat([logits_alone(teacher, row).T for row in examples]), atol=1e-5)
    assert reports[0] == "teacher: computing the logits of 4 examples"
    assert "step 12/12 " in reports[-1]  # two epochs of six batches each
    assert not same_state(plain, more)
    with monkeypatch.context() as patch:
        patch.setattr(distillation, "compute_logits", None)  # not called again
        assert same_state(run_finetuning(plan, tokenizer, folder, tmp_path / "more"), more)
    (folder / "more.txt").write_text("the rain falls on the quiet town. the river lies on the old mill.\n" * 3, "utf-8")
    with pytest.raises(RecipeError, match="or of other data"):
        run_finetuning(plan, tokenizer, folder, tmp_path / "more")
    assert len([*(tmp_path / "more/teacher").glob("unlabelled-*.npy")]) == 2  # other texts need other logits


@pytest.mark.parametrize("is_directory", first([False, True], True))
def test_finetune_takes_the_predictions_of_a_task_teacher(folder, tokenizer, tmp_path, is_directory):
    """The task teacher reads the texts with its own tokenizer, which has more pieces than the student's."""
    (folder / "more.txt").write_text("the quiet rain on the old town. the snow lies on the river.\n" * 3, "utf-8")
    name = str(folder / "packages" / OTHER / "model") if is_directory else OTHER
    plan = recipe(distillation=replace(PLAN, task_teacher=name), unlabelled={"more.txt": 4})
    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    work, own = plan.finetuning["work"], load_own_tokenizer(name)
    teacher = make_task_teacher(plan, work, None, name)
    teacher.load_state_dict(torch.load(tmp_path / "task_teacher/checkpoint.pt", weights_only=True)["model"])
    teacher.eval()

    assert own.vocab_size > tokenizer.vocab_size
    assert reports[0].startswith("task teacher: step ")
    for examples, pattern in (
        (read_examples(work, folder, own), "logits.npy"),
        (read_unlabelled_texts(work, folder, own), "unlabelled-*.npy"),
    ):
        (file,) = (tmp_path / "task_teacher").glob(pattern)
        expected = torch.cat([logits_alone(teacher, row).T for row in examples])
        assert torch.allclose(torch.from_numpy(np.load(file)), expected, atol=1e-5)
    assert not (tmp_path / "teacher/checkpoint.pt").exists()  # the recipe's teacher is not needed


def test_finetune_asks_questions_again_of_other_contexts(folder, tokenizer, tmp_path):
    """Three contexts have three questions each, which only the teacher answers in the two others."""
    plan = recipe(**QA, distillation=replace(PLAN, task_teacher=OTHER), asked_again=2)
    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)

    own = load_own_tokenizer(OTHER)
    windows = read_asked_windows(plan.finetuning["work"], folder, tokenizer, own)
    assert len(windows) == 9 + 9 * 2
    assert sum(window.student.target == (NO_LABEL, NO_LABEL) for window in windows) == 18
    (file,) = (tmp_path / "task_teacher").glob("unlabelled-*.npy")
    assert np.load(file).shape == (sum(len(window.teacher.encoding.input_ids) for window in windows), 2)
    assert "task teacher: computing the logits of 27 examples" in reports
    assert "step 8/8 " in reports[-1]  # two epochs of four batches


def test_finetune_asks_questions_of_parts_of_their_contexts(folder, tokenizer, tmp_path):
    """A context of one sentence has no parts."""
    contexts = ["the quiet town. the river and the snow.", "rain falls on the old mill", "the snow? and the old river!"]
    write_squad(folder / "parts.json", *((str(i), "the mill", text, ["the"]) for i, text in enumerate(contexts)))
    plan = recipe(
        **{**QA, "train": {"parts.json": 3}}, distillation=replace(PLAN, task_teacher=OTHER), asked_of_parts=2
    )
    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    windows = read_asked_windows(plan.finetuning["work"], folder, tokenizer, load_own_tokenizer(OTHER))

    assert len(windows) == 3 + 2 * 2
    assert sum(window.student.target == (NO_LABEL, NO_LABEL) for window in windows) == 4
    assert "task teacher: computing the logits of 7 examples" in reports


def test_finetune_transfers_questions_to_paragraphs_of_running_text(folder, tokenizer, tmp_path):
    """The nine questions are the same text, which shares a word with the paragraph: it is asked once."""
    paragraph = ("The old mill stands on the river in the north, and it has 40 rooms for the guests. " * 3).rstrip()
    (folder / "mills.txt").write_text(f"{paragraph}\nToo short for a question.\n", "utf-8")
    changes = {"distillation": replace(PLAN, task_teacher=OTHER), "unlabelled": {"asked.json": 1, "mills.txt": 1}}
    plan = recipe(**QA, **changes, transferred_questions=5)
    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)

    own = load_own_tokenizer(OTHER)
    work, without = plan.finetuning["work"], recipe(**QA, **changes).finetuning["work"]
    windows, others = (read_asked_windows(one, folder, tokenizer, own) for one in (work, without))
    asked = [Question("0-0", "the mill", paragraph, (), ())]
    more = make_asked_windows(asked, tokenizer, own, work.max_tokens, labelled=False)
    assert hash_examples([one.student for one in windows]) == hash_examples([one.student for one in (*others, *more)])
    assert f"task teacher: computing the logits of {len(windows)} examples" in reports


def test_finetune_drops_questions_without_an_answer(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher finds no answer where the context is a part of the question's own."""
    contexts = ["the quiet town. the river and the snow.", "the snow? and the old river!"]
    write_squad(folder / "parts.json", *((str(i), "the mill", text, ["the"]) for i, text in enumerate(contexts)))
    changes = {**QA, "train": {"parts.json": 2}, "asked_of_parts": 2, "distillation": replace(PLAN, task_teacher=OTHER)}
    trained: list[tuple[list[Example], list[np.ndarray]]] = []

    def find_no_answers(_, examples):  # the logits tell the windows apart
        sizes = [len(one.encoding.input_ids) for one in examples]
        return [np.eye(size, 2, dtype=np.float32)[:, [0, 0]] * (1 + i) for i, size in enumerate(sizes)]

    monkeypatch.setattr(finetune_module, "train_on_examples", lambda _, *given: trained.append(given[:2]))
    monkeypatch.setattr(distillation.TaskTeacher, "predict_unlabelled", find_no_answers)
    for kept in (1.0, 0.5, 0.0):
        run_finetuning(recipe(**changes, kept_unanswered=kept), tokenizer, folder, tmp_path / str(kept))
    (all_windows, _), *some = trained
    numbers = [[round(float(one[0, 0])) - 1 for one in logits] for _, logits in trained]

    assert numbers[0] == list(range(2 + 2 * 2))
    assert numbers[2] == [0, 1]
    assert 2 <= len(numbers[1]) < 6
    for (windows, _), chosen in zip(some, numbers[1:], strict=True):
        assert hash_examples(windows) == hash_examples([all_windows[i] for i in chosen])


def test_finetune_needs_a_text_that_the_teacher_can_read(folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(question_teacher, "TEACHER_TOKENS", 4)
    with pytest.raises(DatasetError, match="can read none of the training texts"):
        run_finetuning(recipe(**QA, distillation=replace(PLAN, task_teacher=OTHER)), tokenizer, folder, tmp_path)


def test_a_fine_tuning_that_continues_another_starts_with_its_encoder_and_head(
    folder, tokenizer, tmp_path, monkeypatch
):
    plan = recipe(distillation=None)
    works = {"work": plan.finetuning["work"], "more": replace(plan.finetuning["work"], init_from="work")}
    plan = replace(plan, finetuning=works)
    finished = finetune(plan, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path / "work", SILENT)
    monkeypatch.setattr(finetune_module, "train_on_examples", lambda *_: None)
    untrained = finetune(plan, "more", finished, tokenizer, folder, tmp_path / "more", SILENT)

    assert untrained is not finished
    assert same_state(untrained, finished)


def test_a_fine_tuning_is_averaged_with_the_one_that_it_continues(folder, tokenizer, tmp_path):
    plan = recipe(distillation=None)
    more = replace(plan.finetuning["work"], init_from="work")
    works = {"work": plan.finetuning["work"], "more": more, "mean": replace(more, averaged_with_init=True)}
    plan = replace(plan, finetuning=works)
    started = finetune(plan, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path / "work", SILENT)
    ended = finetune(plan, "more", started, tokenizer, folder, tmp_path / "more", SILENT)
    mean = finetune(plan, "mean", started, tokenizer, folder, tmp_path / "more", SILENT)  # the same run

    assert not same_state(started, ended)
    for name, value in mean.state_dict().items():
        torch.testing.assert_close(value, (started.state_dict()[name] + ended.state_dict()[name]) / 2)


@pytest.mark.parametrize(
    "change",
    [
        {"init_from": "other", "labels": ("QUIET", "LOUD", "NEITHER")},
        {"init_from": "other", "task": "zero-shot", "method": "inference", "labels": ("entailment", "neutral")},
    ],
)
def test_a_fine_tuning_continues_only_one_of_the_same_task_and_labels(change):
    plan = recipe()
    works = {"other": plan.finetuning["work"], "work": replace(plan.finetuning["work"], **change)}
    with pytest.raises(RecipeError, match="work cannot continue 'other'"):
        replace(plan, finetuning=works)


@pytest.mark.parametrize("change", [{"init_from_teacher": True}, {"init_from_model": "albert-sst2"}])
def test_a_student_starts_from_one_model(change):
    with pytest.raises(RecipeError, match="set init_from, init_from_teacher or init_from_model, but only one"):
        recipe(init_from="other", distillation=replace(PLAN, **change))


def test_transferred_questions_need_a_running_text():
    with pytest.raises(RecipeError, match="needs a running text in unlabelled"):
        recipe(
            **QA,
            distillation=replace(PLAN, task_teacher=OTHER),
            unlabelled={"asked.json": 1},
            transferred_questions=5,
        )


def test_finetune_takes_further_questions_that_only_the_teacher_answers(folder, tokenizer, tmp_path):
    """They come from a file of questions, whose answers are not read, and from paragraphs of running text."""
    paragraph = "The old mill stands on the river in the north, and it has 40 rooms for the guests. " * 3
    (folder / "wiki.txt").write_text(f"{paragraph}\nToo short for a question.\n" * 3, "utf-8")
    (folder / "more.json").write_bytes((folder / "asked.json").read_bytes())
    plan = recipe(**QA, distillation=replace(PLAN, task_teacher=OTHER), unlabelled={"more.json": 5, "wiki.txt": 3})
    work = plan.finetuning["work"]
    questions = read_unlabelled_questions(work, folder, [])
    assert len(questions) == 8
    assert {question.answers for question in questions} == {()}
    assert {question.context for question in questions[5:]} == {paragraph.rstrip()}
    assert questions == read_unlabelled_questions(work, folder, [])

    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    windows = read_asked_windows(work, folder, tokenizer, load_own_tokenizer(OTHER))
    assert sum(window.student.target != (NO_LABEL, NO_LABEL) for window in windows) == 9
    assert f"task teacher: computing the logits of {len(windows)} examples" in reports


def test_finetune_initialises_from_one_teacher_and_learns_from_another(folder, tokenizer, tmp_path):
    plan = recipe(distillation=replace(PLAN, task_teacher=OTHER, init_from_teacher=True))
    run_finetuning(plan, tokenizer, folder, tmp_path)

    assert (tmp_path / "teacher/checkpoint.pt").is_file()
    assert not (tmp_path / "teacher/logits.npy").exists()
    assert (tmp_path / "task_teacher/logits.npy").is_file()


def test_finetune_rejects_an_engine_that_it_was_not_given(folder, tokenizer, tmp_path):
    with pytest.raises(RecipeError, match="teacher_engine cannot be used here"):
        run_finetuning(recipe(distillation=replace(PLAN, teacher_engine="native")), tokenizer, folder, tmp_path)


def test_finetune_resumes_after_a_failure_of_the_engine(folder, tokenizer, tmp_path):
    plan = recipe(distillation=replace(PLAN, teacher_engine="native"))
    given = []

    def predict(engine, directory, teacher, examples, progress):
        given.append((engine, directory, teacher.architecture, teacher.tokenizer, tuple(teacher.labels)))
        if len(given) == 1:
            raise Interrupted
        return [np.zeros((1, 2), np.float32) for _ in examples]

    def run():
        return finetune(
            plan, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path, reports.append, predict=predict
        )

    reports: list[str] = []
    with pytest.raises(Interrupted):
        run()
    assert not (tmp_path / "teacher/native-logits.npy").exists()
    reports.clear()
    assert run()
    assert given == [("native", tmp_path / "teacher/artifact", "bert", tokenizer, ("QUIET", "LOUD"))] * 2
    assert not any("teacher: step" in line for line in reports)
    assert not np.load(tmp_path / "teacher/native-logits.npy").any()


def test_finetune_keeps_the_logits_that_were_computed_before_an_interruption(folder, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(distillation, "PART", 15)
    plan = recipe(distillation=replace(PLAN, teacher_engine="native"))
    sizes = []

    def predict(engine, directory, teacher, examples, progress):
        sizes.append(len(examples))
        if len(sizes) == 3:
            raise Interrupted
        return [np.full((1, 2), len(sizes) + number / 100, np.float32) for number, _ in enumerate(examples)]

    def run():
        finetune(plan, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path, SILENT, predict=predict)

    with pytest.raises(Interrupted):
        run()
    run()
    assert sizes == [15, 15, 10, 10]  # the third of three parts, again
    (file,) = (tmp_path / "teacher").glob("native-*.npy")
    assert np.array_equal(np.load(file)[::15, 0], np.array([1, 2, 4], np.float32))


def test_finetune_shares_the_run_of_a_task_teacher(folder, tokenizer, tmp_path):
    plan = recipe(distillation=replace(PLAN, task_teacher=OTHER, task_teacher_run="moods"))
    for name in ("one", "other"):
        reports: list[str] = []
        finetune(
            *(plan, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path / name, reports.append),
            teachers=tmp_path / "teachers",
        )
        assert any("task teacher: step" in line for line in reports) == (name == "one")
    assert (tmp_path / "teachers/moods/checkpoint.pt").is_file()
    assert not (tmp_path / "one/task_teacher").exists()
    changed = recipe(distillation=replace(PLAN, task_teacher=OTHER, task_teacher_run="moods", task_teacher_epochs=3))
    with pytest.raises(RecipeError, match="moods holds a run of a different recipe"):
        finetune(
            *(changed, "work", make_pretrained(tokenizer), tokenizer, folder, tmp_path / "third", SILENT),
            teachers=tmp_path / "teachers",
        )


def test_a_task_teacher_keeps_its_batches_when_those_of_the_student_change(folder, tokenizer, tmp_path):
    plan = replace(PLAN, task_teacher=OTHER, task_teacher_run="moods", task_teacher_batch_size=8)
    for size in (4, 16):
        reports: list[str] = []
        finetune(
            *(recipe(distillation=plan, batch_size=size), "work", make_pretrained(tokenizer), tokenizer, folder),
            *(tmp_path / f"batches-of-{size}", reports.append),
            teachers=tmp_path / "teachers",
        )
        assert any("task teacher: step" in line for line in reports) == (size == 4)


def test_corrupted_sentences_are_for_the_students_only(folder, tokenizer, tmp_path):
    """The teacher's run is that of the labelled examples, whatever a student reads beside them."""
    (folder / "long.txt").write_text("the rain falls on the old mill and the river. snow lies on it.\n" * 20, "utf-8")
    plan = recipe(unlabelled={"long.txt": 20}, corrupted=1.0, longest_unlabelled=6, labelled_repeats=3)
    work = plan.finetuning["work"]
    reports: list[str] = []
    run_finetuning(plan, tokenizer, folder, tmp_path / "one", reports.append)
    steps = 2 * -(-(3 * 40 + 20) // 8)  # two epochs of batches of eight
    assert f"/{steps} labels" in reports[-1]
    found, plain = (read_sentences(one, folder) for one in (work, replace(work, corrupted=0.0)))

    assert set(plain) == {"snow lies on it."}
    assert sum(sentence != "snow lies on it." for sentence in found) > 10
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")
    run_finetuning(recipe(), tokenizer, folder, tmp_path / "other")


def test_a_short_file_is_corrupted_again(folder):
    (folder / "short.txt").write_text("the rain falls on the old mill.\nsnow lies on the river.\n", "utf-8")
    work = recipe(unlabelled={"short.txt": 41}, corrupted=0.9).finetuning["work"]
    found = read_sentences(work, folder)

    assert len(found) == 41
    assert len(set(found)) > 20
    assert len(read_sentences(replace(work, corrupted=0.0), folder)) == 2


def test_finetune_rejects_a_missing_task_teacher(folder, tokenizer, tmp_path):
    plan = recipe(distillation=replace(PLAN, task_teacher="./nowhere"))
    with pytest.raises(ConversionError, match=r"there is no directory \./nowhere, which should hold a teacher"):
        run_finetuning(plan, tokenizer, folder, tmp_path)


@pytest.mark.parametrize("changes", [{"corrupted": 0.5}, {"labelled_repeats": 2}])
def test_recipe_rejects_settings_of_sentences_for_questions(changes):
    with pytest.raises(RecipeError, match="needs unlabelled sentences"):
        recipe(**QA, distillation=replace(PLAN, task_teacher=OTHER), unlabelled={"wiki.txt": 3}, **changes)


class Interrupted(Exception):
    pass


STAGES = ["teacher", "compute_logits", "write_array_atomically", "student"]


@pytest.mark.parametrize("stage", first(STAGES, "write_array_atomically", "student"))
def test_finetune_resumes_to_the_result_of_an_uninterrupted_run(folder, tokenizer, tmp_path, monkeypatch, stage):
    whole = run_finetuning(recipe(), tokenizer, folder, tmp_path / "whole")

    def train(model, compute_losses, schedule, directory, **named):
        def interrupt(number):
            if number == 7:
                raise Interrupted
            return compute_losses(number)

        is_interrupted = (directory.name == "teacher") == (stage == "teacher")
        losses = interrupt if is_interrupted else compute_losses
        trainer.train(model, losses, schedule, directory, save_every=5, **named)

    def write_partially(path, write):
        path.with_name(path.name + ".new").write_bytes(b"a part of the logits")
        raise Interrupted

    def fail(*_):
        raise Interrupted

    with monkeypatch.context() as patch:
        if stage in {"teacher", "student"}:
            patch.setattr(task_training, "train", train)
        else:
            patch.setattr(distillation, stage, fail if stage == "compute_logits" else write_partially)
        with pytest.raises(Interrupted):
            run_finetuning(recipe(), tokenizer, folder, tmp_path / "interrupted")

    assert same_state(run_finetuning(recipe(), tokenizer, folder, tmp_path / "interrupted"), whole)
    logits = [np.load(tmp_path / run / "teacher/logits.npy") for run in ("whole", "interrupted")]
    assert np.array_equal(*logits)


OTHERS = (OtherTraining(seed=2), OtherTraining(epochs=3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("init_from_teacher", [False, True])
def test_finetune_averages_the_trainings_of_a_task(folder, tokenizer, tmp_path, init_from_teacher):
    plan = replace(PLAN, init_from_teacher=init_from_teacher)
    alone = [
        run_finetuning(recipe(distillation=plan, **changes), tokenizer, folder, tmp_path / str(changes))
        for changes in ({}, {"seed": 2}, {"epochs": 3})
    ]
    reports: list[str] = []
    model = run_finetuning(
        recipe(distillation=plan, averaged_with=OTHERS), tokenizer, folder, tmp_path / "all", reports.append
    )

    assert not same_state(alone[0], alone[1])
    for name, value in model.state_dict().items():
        mean = sum(one.state_dict()[name] for one in alone) / 3
        torch.testing.assert_close(value, mean)
    assert len({line.split(":")[0] for line in reports}) == 4  # the teacher, the first training, the others
    assert sum("teacher: step" in line for line in reports) == 1  # it learns once, in 15 steps
    assert (tmp_path / "all/training-3/checkpoint.pt").is_file()
    assert not list(tmp_path.glob("all/training-*/teacher"))


@pytest.mark.exhaustive
def test_finetune_resumes_a_further_training(folder, tokenizer, tmp_path):
    plan = recipe(averaged_with=OTHERS)
    whole = run_finetuning(plan, tokenizer, folder, tmp_path / "whole")

    def interrupt(text):
        if text.startswith("training 3: step"):
            raise Interrupted

    with pytest.raises(Interrupted):
        run_finetuning(plan, tokenizer, folder, tmp_path / "again", interrupt)
    reports: list[str] = []
    again = run_finetuning(plan, tokenizer, folder, tmp_path / "again", reports.append)

    assert same_state(again, whole)
    assert reports
    assert all(line.startswith("training 3: step") for line in reports)


def test_finetune_resumes_the_steps_after_averaging(folder, tokenizer, tmp_path, monkeypatch):
    plan = recipe(averaged_with=(OtherTraining(seed=2),), steps_after_averaging=8)
    whole = run_finetuning(plan, tokenizer, folder, tmp_path / "whole")

    def train(model, compute_losses, schedule, directory, **named):
        chosen = interrupted_train if directory.name.startswith("mean-of-") else trainer.train
        chosen(model, compute_losses, schedule, directory, **named)

    with monkeypatch.context() as patch:
        patch.setattr(task_training, "train", train)
        with pytest.raises(KeyboardInterrupt):
            run_finetuning(plan, tokenizer, folder, tmp_path / "interrupted")
    reports: list[str] = []
    again = run_finetuning(plan, tokenizer, folder, tmp_path / "interrupted", reports.append)

    assert same_state(again, whole)
    assert {line.split(":")[0] for line in reports} == {"after averaging"}


@pytest.mark.exhaustive
def test_finetune_trains_the_average_for_a_few_steps(folder, tokenizer, tmp_path):
    plan = recipe(averaged_with=OTHERS, steps_after_averaging=2)
    mean = run_finetuning(recipe(averaged_with=OTHERS), tokenizer, folder, tmp_path)
    reports: list[str] = []
    model = run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    (report,) = reports

    assert report.startswith("after averaging: step 2/2 ")
    assert not same_state(model, mean)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, mean.state_dict()[name], rtol=0, atol=1e-4)  # two steps at 1e-5
    assert same_state(model, run_finetuning(plan, tokenizer, folder, tmp_path))

    more = replace(plan.finetuning["work"], averaged_with=(*OTHERS, OtherTraining(seed=3)))
    run_finetuning(replace(plan, finetuning={"work": more}), tokenizer, folder, tmp_path)
    assert {path.name for path in tmp_path.glob("mean-of-*")} == {"mean-of-3", "mean-of-4"}
    other = replace(plan.finetuning["work"], averaged_with=(OtherTraining(seed=2), OtherTraining(seed=3)))
    shutil.rmtree(tmp_path / "training-3")
    with pytest.raises(RecipeError, match="mean-of-3 holds a run of a different recipe"):
        run_finetuning(replace(plan, finetuning={"work": other}), tokenizer, folder, tmp_path)


@pytest.mark.exhaustive
def test_finetune_keeps_a_finished_run_when_trainings_are_added(folder, tokenizer, tmp_path):
    run_finetuning(recipe(), tokenizer, folder, tmp_path)
    reports: list[str] = []
    run_finetuning(recipe(averaged_with=OTHERS), tokenizer, folder, tmp_path, reports.append)
    assert {line.split(":")[0] for line in reports} == {"training 2", "training 3"}


def test_task_teacher_is_shared_by_students_with_one_vocabulary(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher does not depend on the student's shape or on how it is trained."""
    run_finetuning(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")
    (tmp_path / "other/teacher/checkpoint.pt").unlink()
    monkeypatch.setattr(distillation, "make_task_teacher", None)  # not called again
    wider = BODY | {"intermediate_size": 128}
    other = replace(
        recipe(
            epochs=3,
            learning_rate=1e-3,
            also_evaluate=("mood.tsv",),
            distillation=replace(PLAN, hard_label_weight=0.1, temperature=4.0),
        ),
        config=wider,
    )

    assert run_finetuning(other, tokenizer, folder, tmp_path / "other", intermediate_size=128)


@pytest.mark.parametrize(
    "change",
    first(
        [
            {"distillation": replace(PLAN, teacher_epochs=2)},
            {"distillation": replace(PLAN, teacher_learning_rate=1e-3)},
            {"train": {"mood.tsv": 39}},
            {"batch_size": 4},
            {"max_tokens": 31},
        ],
        {"distillation": replace(PLAN, teacher_epochs=2)},
    ),
    ids=str,
)
def test_task_teacher_rejects_a_run_with_other_settings(folder, tokenizer, tmp_path, change):
    run_finetuning(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")

    with pytest.raises(RecipeError, match="teacher holds a run of a different recipe"):
        run_finetuning(recipe(**change), tokenizer, folder, tmp_path / "other")


def test_task_teacher_rejects_a_run_with_other_examples(folder, tokenizer, tmp_path):
    """The file has the same name, but other labels."""
    run_finetuning(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")
    text = (folder / "mood.tsv").read_text("utf-8")
    (tmp_path / "mood.tsv").write_text(text.replace("1\tthe", "0\tthe"), "utf-8")

    with pytest.raises(RecipeError, match="teacher holds a run of a different recipe"):
        run_finetuning(recipe(), tokenizer, tmp_path, tmp_path / "other")


@pytest.mark.parametrize("changes", first([{}, QA], QA), ids=["classify", "qa"])
def test_finetune_reads_training_files_only(folder, tokenizer, tmp_path, monkeypatch, changes):
    opened: list[str] = []
    for reader in ("labelled", "questions"):
        real = getattr(datasets, reader)
        monkeypatch.setattr(
            datasets, reader, lambda path, *rest, real=real: (opened.append(path.name), real(path, *rest))[1]
        )
    plan = recipe(evaluate="secret", also_evaluate=("secret.too",), **changes)
    run_finetuning(plan, tokenizer, folder, tmp_path)

    assert opened == list(plan.finetuning["work"].train)


def test_finetune_rejects_a_teacher_that_cannot_read_the_input(folder, tokenizer, tmp_path):
    with pytest.raises(RecipeError, match="the teacher reads at most 128 tokens"):
        run_finetuning(recipe(max_tokens=129), tokenizer, folder, tmp_path / "long")
    small = wordpiece()
    small.add_tokens(["unknown"])
    strange = Tokenizer(json.loads(small.to_str()))
    with pytest.raises(RecipeError, match="lacks some of the student's pieces"):
        run_finetuning(recipe(), strange, folder, tmp_path / "strange")


BOTTLENECK = BODY | {"intra_bottleneck_size": 32, "num_hidden_layers": 2, "num_feedforward_networks": 2}
NARROW, GROUPS = ("mobilebert", BOTTLENECK), ("albert", BODY | {"num_hidden_layers": 2, "num_hidden_groups": 2})


@pytest.mark.parametrize(
    ("architecture", "shape", "changes"),
    first([(*network, changes) for network in (NARROW, GROUPS) for changes in ({}, QA)], (*NARROW, QA), (*GROUPS, {})),
    ids=["mobilebert", "mobilebert-qa", "albert", "albert-qa"],
)
def test_finetune_initialises_the_student_from_the_teacher(folder, tokenizer, tmp_path, architecture, shape, changes):
    """Training is too slow to change the result, and the pre-trained model is not used."""
    distances = []
    for init in (False, True):
        untrained = {"learning_rate": 1e-9, "epochs": 1, "distillation": replace(PLAN, init_from_teacher=init)}
        plan = replace(recipe(**untrained, **changes), architecture=architecture, config=shape)
        other = build(architecture, {**shape, "vocab_size": tokenizer.vocab_size}, "masked_lm")
        model = finetune(plan, "work", other, tokenizer, folder, tmp_path / str(init), SILENT)
        examples = read_examples(plan.finetuning["work"], folder, tokenizer)
        logits = np.load(tmp_path / str(init) / "teacher/logits.npy")
        ends = np.cumsum([len(row.encoding.focus) for row in examples])
        with torch.no_grad():
            theirs = stack_logits(np.split(logits, ends[:-1]), examples)
            distances.append(float(distillation_loss(task_logits(model, examples), theirs, 1.0)))

    assert distances[1] < 0.5 * distances[0]


@pytest.mark.exhaustive
def test_finetune_learns_the_mean_prediction_of_two_teachers(folder, tokenizer, tmp_path, monkeypatch):
    taught: list[np.ndarray] = []
    train = finetune_module.train_on_examples

    def keep(model, examples, logits, *others):
        taught.extend(logits)
        train(model, examples, logits, *others)

    monkeypatch.setattr(finetune_module, "train_on_examples", keep)
    run_finetuning(recipe(distillation=replace(PLAN, character_ngrams=3)), tokenizer, folder, tmp_path)

    network, ngrams = (torch.from_numpy(np.load(tmp_path / name)) for name in ("teacher/logits.npy", "ngrams.npy"))
    expected = (network.softmax(1) + ngrams.softmax(1)) / 2
    torch.testing.assert_close(torch.from_numpy(np.concatenate(taught)).softmax(1), expected)
    assert not torch.allclose(network.softmax(1), expected, atol=1e-3)


FROM_MODEL = {"learning_rate": 1e-9, "epochs": 1, "distillation": replace(PLAN, init_from_model="artifact")}


@pytest.mark.parametrize("changes", first([{}, QA], {}), ids=["classify", "qa"])
def test_finetune_initialises_the_student_from_another_model(folder, tokenizer, tmp_path, changes):
    """A MobileBERT starts from an ALBERT of the task. Training is too slow to change the result."""
    source = run_finetuning(recipe(learning_rate=3e-3, epochs=6, **changes), tokenizer, folder, tmp_path / "source")
    plan = replace(recipe(**FROM_MODEL, **changes), architecture="mobilebert", config=BOTTLENECK)
    examples = read_examples(plan.finetuning["work"], folder, tokenizer)
    distances = []
    for initial in (None, source):
        other = build("mobilebert", {**BOTTLENECK, "vocab_size": tokenizer.vocab_size}, "masked_lm")
        run = tmp_path / str(initial is None)
        model = finetune(plan, "work", other, tokenizer, folder, run, SILENT, initial_model=initial)
        with torch.no_grad():
            outputs = task_logits(model, examples), task_logits(source, examples)
            distances.append(float(distillation_loss(*outputs, 1.0)))

    assert distances[1] < 0.3 * distances[0]
    settings = json.loads((tmp_path / "False/run.json").read_text("utf-8"))
    assert settings["models"].keys() == {"init_from_model"}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (("albert", BODY), ("albert", BODY)),
        (("mobilebert", BOTTLENECK), ("mobilebert", BOTTLENECK)),
        (("mobilebert", BOTTLENECK), ("albert", BODY | {"hidden_size": 64})),
    ],
    ids=["factorised", "bottlenecks", "width"],
)
def test_finetune_rejects_a_model_that_it_cannot_start_from(folder, tokenizer, tmp_path, own, other):
    architecture, shape = own
    plan = replace(recipe(**FROM_MODEL), architecture=architecture, config=shape)
    pretrained = build(architecture, {**shape, "vocab_size": tokenizer.vocab_size}, "masked_lm")
    source = build(other[0], {**other[1], "vocab_size": tokenizer.vocab_size}, "classification", 2)

    with pytest.raises(RecipeError, match="the student starts from a BERT of the same hidden size only"):
        finetune(plan, "work", pretrained, tokenizer, folder, tmp_path, SILENT, initial_model=source)


def test_finetune_run_settings_omit_defaults(folder, tokenizer, tmp_path):
    """A run from before an optional field existed can therefore resume."""
    run_finetuning(recipe(), tokenizer, folder, tmp_path)
    settings = json.loads((tmp_path / "run.json").read_text("utf-8"))

    assert "init_from_teacher" not in settings["finetuning"]["distillation"]
    assert "unlabelled" not in settings["finetuning"]
    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        run_finetuning(recipe(distillation=replace(PLAN, init_from_teacher=True)), tokenizer, folder, tmp_path)
