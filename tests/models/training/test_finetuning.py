"""What a task is learnt from, and a student that learns it from a teacher too."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from swiftlet_serve.models import datasets
from swiftlet_serve.models.datasets import Question
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training import examples, loop
from swiftlet_serve.models.training import finetune as finetuning
from swiftlet_serve.models.training.corpus import vocabulary
from swiftlet_serve.models.training.examples import Example, digest, windows
from swiftlet_serve.models.training.finetune import answers, finetune, label_loss, soft_loss, stack, task_logits
from swiftlet_serve.models.training.recipe import (
    Distillation,
    Finetuning,
    Pretraining,
    Recipe,
    RecipeError,
    read_recipe,
    settings,
)
from tests.models.training.test_training import PIECES, teacher_package, wordpiece
from tests.support.artifacts import make_tokenizer
from tests.support.networks import network

TOKENIZER = make_tokenizer()
SILENT = partial(lambda text: None)
CPU = torch.device("cpu")

# --- Examples


def squad(path: Path, *asked: tuple[str, str, str, list[str]]) -> str:
    """Writes questions, each an id, the question, its context and answers."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": name,
                    "question": question,
                    "is_impossible": not texts,
                    "plausible_answers": [],
                    "answers": [{"text": text, "answer_start": context.find(text)} for text in texts],
                }
            ],
        }
        for name, question, context, texts in asked
    ]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")
    return path.name


@pytest.mark.parametrize("max_tokens", [10, 20, 40])
def test_a_question_without_an_answer_points_at_the_first_token_in_every_window(max_tokens):
    found = windows(Question("1", "a?", "a b c d e f g h i j k l", (), ()), TOKENIZER, max_tokens)

    assert (len(found) > 1) == (max_tokens < 20)
    assert {example.target for example in found} == {(0, 0)}


def test_files_of_both_kinds_are_learnt_together_and_no_question_twice(tmp_path):
    """As SQuAD 1.1 and 2.0, which share questions, and QAMR; ids of other data sets may be the same by chance."""
    old = squad(tmp_path / "1.json", ("a", "q?", "a b c", ["b"]), ("b", "q?", "d e f", ["f"]))
    new = squad(tmp_path / "2.json", ("b", "q?", "d e f", ["f"]), ("c", "q?", "a b c", []))
    other = squad(tmp_path / "3.json", ("a", "q?", "g h i", ["g"]))
    work = Finetuning("qa", "", (), {old: 9, new: 1, other: 9}, max_tokens=30)
    found = examples.read(work, tmp_path, TOKENIZER)

    first = 4  # [CLS] q ? [SEP]
    assert [example.target for example in found] == [(5, 5), (6, 6), (0, 0), (4, 4)]
    assert all(example.context == range(first, first + 3) for example in found)


def test_questions_are_also_asked_of_a_text_near_theirs_that_shares_their_words_and_does_not_answer_them(tmp_path):
    asked = squad(
        tmp_path / "1.json",
        ("a", "which river is longest?", "the river seine is long", ["Seine"]),
        ("b", "who sang?", "a bird sang at noon", ["a bird"]),
        ("c", "what did not happen?", "nothing but the longest river", []),
        ("d", "what is it?", "the longest river here is the SEINE", ["longest river"]),
        *((f"e{i}", "who?", f"nobody {i}", ["nobody"]) for i in range(12)),
        ("f", "which?", "which river of all is the longest", ["which"]),
    )
    found = {question.id: question for question in examples.elsewhere(datasets.questions(tmp_path / asked), 99)}

    assert found["a"].context == "nothing but the longest river"  # d has an answer, and f stands too far off
    assert found["a"].question == "which river is longest?"
    assert found["b"].context != "a bird sang at noon"
    assert "c" not in found  # it has no answer where it was asked
    assert all(not question.answers and not question.starts for question in found.values())


def test_of_all_questions_as_many_are_asked_elsewhere_as_the_recipe_says(tmp_path):
    asked = squad(tmp_path / "1.json", *((f"{i}", "q?", f"a b c{i}", [f"c{i}"]) for i in range(10)))
    work = Finetuning("qa", "", (), {asked: 10}, max_tokens=30)
    plain, more = (examples.read(replace(work, elsewhere=count), tmp_path, TOKENIZER) for count in (0, 4))

    assert digest(more[:10]) == digest(plain)
    assert [example.target for example in more[10:]] == [(0, 0)] * 4


def test_sentences_of_running_text_are_examples_that_nobody_labelled(tmp_path):
    reviews = ["Too short. This one is long enough. Is this one a question? No.", "And here is the last", "long " * 61]
    (tmp_path / "reviews.tsv").write_text("label\ttext\n" + "".join(f"0\t{text}\n" for text in reviews), "utf-8")
    work = Finetuning("classify", "", (), distillation=PLAN, unlabelled={"reviews.tsv": 9}, max_tokens=40)
    sentences = ["This one is long enough.", "Is this one a question?", "And here is the last"]
    found = examples.unlabelled(work, tmp_path, TOKENIZER)
    few = examples.unlabelled(replace(work, unlabelled={"reviews.tsv": 2}), tmp_path, TOKENIZER)

    expected = [encoding.input_ids.tolist() for encoding in TOKENIZER.encode(sentences, 40)]
    assert [example.encoding.input_ids.tolist() for example in found] == expected
    assert [example.encoding.input_ids.tolist() for example in few] == [expected[0], expected[2]]
    assert {example.target for example in found} == {(examples.UNKNOWN,)}


def test_a_digest_tells_examples_and_their_order_apart():
    found = windows(Question("1", "a?", "a b c d", ("b",), (2,)), TOKENIZER, 8)
    other = replace(found[0], target=(4, 4))
    digests = {digest(made) for made in (found, found[::-1], found[1:], [other, *found[1:]])}

    assert len(digests) == 4
    assert digest(found) == digest(list(found))


# --- Losses


def asked() -> list[Example]:
    question = Question("1", "ab?", "abc cab " * 3, ("cab",), (4,))
    return [*windows(question, TOKENIZER, 20), *windows(replace(question, answers=()), TOKENIZER, 40)]


def labelled() -> list[Example]:
    return [Example(encoding, (i,)) for i, encoding in enumerate(TOKENIZER.encode(["a", "abc abc", ""], 20))]


def alone(model: Model, example: Example) -> torch.Tensor:
    """(C, K): the logits of what can be chosen, of a row by itself; K is 2 for start and end, else 1."""
    ids, types = (torch.from_numpy(a)[None] for a in (example.encoding.input_ids, example.encoding.token_type_ids))
    rows = model(ids, types, torch.tensor([ids.shape[1]]), torch.from_numpy(example.encoding.focus))
    return rows[[0, *example.context]] if example.context else rows.T


def divergence(theirs: list[float], ours: list[float], temperature: float) -> float:
    """KL(teacher || student) of softened choices, number by number."""
    p, q = ([math.exp(x / temperature) for x in logits] for logits in (theirs, ours))
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(("task", "made"), [("qa", asked), ("classify", labelled)])
@torch.no_grad()
def test_the_loss_to_a_teacher_is_the_divergence_worked_out_number_by_number(task, made, temperature):
    student, teacher = network("bert", task), network("mobilebert" if task == "qa" else "albert", task)
    rows = made()
    said = answers(teacher, rows, rows=2, device=CPU)
    expected = [
        temperature**2 * divergence(t.tolist(), s.tolist(), temperature)
        for row in rows
        for t, s in zip(alone(teacher, row).T, alone(student, row).T, strict=True)
    ]

    found = soft_loss(task_logits(student, rows), stack(said), temperature).item()
    assert found == pytest.approx(sum(expected) / len(expected), rel=1e-3)
    assert found > 1e-3
    assert [one.shape[0] for one in said] == [len(row.encoding.focus) for row in rows]
    own = answers(student, rows, rows=3, device=CPU)
    assert soft_loss(task_logits(student, rows), stack(own), temperature).item() == pytest.approx(0, abs=1e-6)


def test_an_example_without_a_label_has_no_share_in_the_loss_to_labels():
    rows = labelled()
    logits = task_logits(network("albert", "classify"), rows)
    one, two, _ = (label_loss(logits[[i]], [row]) for i, row in enumerate(rows))
    unknown = replace(rows[2], target=(examples.UNKNOWN,))

    assert label_loss(logits, [*rows[:2], unknown]).item() == pytest.approx((one + two).item() / 3, rel=1e-5)
    assert label_loss(logits[[2]], [unknown]).item() == 0


def test_what_cannot_be_chosen_teaches_nothing_and_breaks_nothing():
    model = build("bert", {**vars(network("bert", "qa").encoder.config)}, "token", 2)
    rows = asked()
    said = answers(network("bert", "qa"), rows, rows=8, device=CPU)
    soft_loss(task_logits(model, rows), stack(said), 2.0).backward()

    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


# --- A teacher and its student

BODY = {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
BODY |= {"intermediate_size": 64, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
PLAN = Distillation(hard=0.5, temperature=2.0, epochs=6, learning_rate=3e-3)
TEACHER = "teacher_of_the_finetuning_tests"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts that are loud where it rains; questions on where something lies; and a teacher that can be imported."""
    made = tmp_path_factory.mktemp("finetuning")
    texts = [
        (number % 2, f"the {['snow', 'rain'][number % 2]} on the {'old ' * (number % 5)}mill") for number in range(40)
    ]
    (made / "mood.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in texts), "utf-8")
    contexts = ["the quiet town", "rain falls on the old mill", "the river and the snow"]
    squad(made / "asked.json", *((str(i), "the mill", text, [text.split()[1]]) for i, text in enumerate(contexts * 3)))
    teacher_package(made / "packages", TEACHER)
    sys.path.insert(0, str(made / "packages"))
    yield made
    sys.path.remove(str(made / "packages"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    """The smaller vocabulary, as pre-training would leave it."""
    small, _ = cut(folder)
    return Tokenizer(json.loads(small.to_str()))


def cut(folder: Path) -> tuple[tokenizers.Tokenizer, list[int]]:
    (folder / "text.txt").write_text("the rain falls on the old mill\nthe quiet town and the river\nsnow lies", "utf-8")
    run = folder / "vocabulary"
    run.mkdir(exist_ok=True)
    small, kept, _ = vocabulary(recipe(), folder, run)
    return small, kept


def recipe(**changes) -> Recipe:
    """The recipe of one task, changed in what is named."""
    moods = Finetuning(
        "classify", "mood.tsv", (), {"mood.tsv": 40}, labels=("QUIET", "LOUD"), epochs=2, batch_rows=8, max_tokens=32
    )
    work = replace(moods, **{"distillation": PLAN} | changes)
    pretraining = Pretraining({"text.txt": 9}, 16, 8, 1, 1e-3)
    return Recipe("tiny", "1", "A test.", 1, 48, "albert", BODY, pretraining, {"work": work}, teacher=TEACHER)


def body(tokenizer: Tokenizer, **config) -> Model:
    torch.manual_seed(9)
    return build("albert", {**BODY, "vocab_size": tokenizer.vocab_size} | config, "masked_lm")


def learn(plan: Recipe, tokenizer: Tokenizer, folder: Path, directory: Path, report=SILENT, **config) -> Model:
    return finetune(plan, "work", body(tokenizer, **config), tokenizer, folder, directory, report)


def chances(model: Model, rows: list[Example]) -> torch.Tensor:
    with torch.no_grad():
        return task_logits(model, rows).softmax(1)


def same(one: Model, other: Model) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


QA = {"task": "qa", "train": {"asked.json": 9}, "labels": ()}


@pytest.mark.parametrize("changes", [{}, QA], ids=["classify", "qa"])
def test_a_teacher_learns_first_and_its_student_from_it(folder, tokenizer, tmp_path, changes):
    said: list[str] = []
    plan = recipe(**changes)
    learn(plan, tokenizer, folder, tmp_path, said.append)
    rows = examples.read(plan.finetuning["work"], folder, tokenizer)

    assert said[0].startswith("teacher: step ")
    assert said[-2] == f"teacher: answers {len(rows)} examples"
    assert " labels " in said[-1]
    assert " teacher " in said[-1]
    kept = np.load(tmp_path / "teacher/logits.npy")
    assert kept.shape == (sum(len(row.encoding.focus) for row in rows), 2)
    assert kept.dtype == np.float32


def test_without_a_teacher_only_the_labels_are_learnt(folder, tokenizer, tmp_path):
    said: list[str] = []
    alone = learn(recipe(distillation=None), tokenizer, folder, tmp_path / "alone", said.append)
    taught = learn(recipe(), tokenizer, folder, tmp_path / "taught")

    assert " loss " in said[-1]
    assert not (tmp_path / "alone/teacher").exists()
    assert not same(alone, taught)


def test_the_teacher_reads_the_students_tokens_as_its_own(folder, tokenizer):
    """The same pieces of the same words, and the rows of its table that pre-training keeps."""
    small, kept = cut(folder)

    assert finetuning._kept(recipe(), tokenizer) == kept
    assert tokenizer.tokens == [small.id_to_token(number) for number in range(len(kept))]
    assert len(kept) < len(dict.fromkeys(PIECES))


def test_a_student_that_hears_no_labels_says_what_its_teacher_says(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher is made to say the contrary of the labels, and not to be sure of it."""
    plan = recipe(epochs=30, learning_rate=3e-3, distillation=replace(PLAN, hard=0.0, temperature=1.0))
    rows = examples.read(plan.finetuning["work"], folder, tokenizer)
    contrary = np.array([[2.0, 0.5] if row.target[0] else [-1.0, 0.5] for row in rows], np.float32)
    monkeypatch.setattr(finetuning, "answers", lambda *_: list(contrary[:, None]))
    found = chances(learn(plan, tokenizer, folder, tmp_path), rows)

    assert torch.allclose(found, torch.from_numpy(contrary).softmax(1), atol=0.05)


def test_a_teachers_answers_are_those_of_the_teacher_that_was_trained(folder, tokenizer, tmp_path):
    learn(recipe(), tokenizer, folder, tmp_path)
    rows = examples.read(recipe().finetuning["work"], folder, tokenizer)
    teacher = finetuning._teacher(recipe(), recipe().finetuning["work"], finetuning._kept(recipe(), tokenizer))
    teacher.load_state_dict(torch.load(tmp_path / "teacher/checkpoint.pt", weights_only=True)["model"])
    teacher.eval()
    kept = torch.from_numpy(np.load(tmp_path / "teacher/logits.npy"))

    assert torch.allclose(kept, torch.cat([alone(teacher, row).T for row in rows]), atol=1e-5)
    right = kept.argmax(1) == torch.tensor([row.target[0] for row in rows])
    assert right.float().mean() > 0.9  # it learnt, all of its layers


def test_a_student_hears_of_its_teacher_what_unlabelled_texts_are(folder, tokenizer, tmp_path, monkeypatch):
    """The teacher learns nothing of them, and is asked once."""
    (folder / "more.txt").write_text("the quiet rain on the old town. the snow lies on the river.\n" * 3, "utf-8")
    plan, said = recipe(unlabelled={"more.txt": 4}), list[str]()
    plain = learn(recipe(), tokenizer, folder, tmp_path / "plain")
    shutil.copytree(tmp_path / "plain/teacher", tmp_path / "more/teacher")
    more = learn(plan, tokenizer, folder, tmp_path / "more", said.append)
    rows = examples.unlabelled(plan.finetuning["work"], folder, tokenizer)
    teacher = finetuning._teacher(plan, plan.finetuning["work"], finetuning._kept(plan, tokenizer))
    teacher.load_state_dict(torch.load(tmp_path / "more/teacher/checkpoint.pt", weights_only=True)["model"])
    teacher.eval()

    (file,) = (tmp_path / "more/teacher").glob("unlabelled-*.npy")
    kept = torch.from_numpy(np.load(file))
    assert torch.allclose(kept, torch.cat([alone(teacher, row).T for row in rows]), atol=1e-5)
    assert said[0] == "teacher: answers 4 examples"
    assert "step 12/12 " in said[-1]  # two epochs of 44 examples, six batches each
    assert not same(plain, more)
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "answers", None)  # nobody asks it again
        assert same(learn(plan, tokenizer, folder, tmp_path / "more"), more)
    (folder / "more.txt").write_text("the rain falls on the quiet town. the river lies on the old mill.\n" * 3, "utf-8")
    learn(plan, tokenizer, folder, tmp_path / "more")
    assert len([*(tmp_path / "more/teacher").glob("unlabelled-*.npy")]) == 2  # of other texts it is asked


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", ["teacher", "answers", "write", "student"])
def test_a_killed_run_ends_as_if_it_had_not_been(folder, tokenizer, tmp_path, monkeypatch, at):
    whole = learn(recipe(), tokenizer, folder, tmp_path / "whole")

    def train(model, loss, schedule, directory, **named):
        def failing(number):
            if number == 7:
                raise Killed
            return loss(number)

        wanted = (directory.name == "teacher") == (at == "teacher")
        loop.train(model, failing if wanted else loss, schedule, directory, save_every=5, **named)

    def half(path, fill):
        path.with_name(path.name + ".new").write_bytes(b"half of the ans")
        raise Killed

    def fail(*_):
        raise Killed

    with monkeypatch.context() as patch:
        if at in {"teacher", "student"}:
            patch.setattr(finetuning, "train", train)
        else:
            patch.setattr(finetuning, at, fail if at == "answers" else half)
        with pytest.raises(Killed):
            learn(recipe(), tokenizer, folder, tmp_path / "killed")

    assert same(learn(recipe(), tokenizer, folder, tmp_path / "killed"), whole)
    logits = [np.load(tmp_path / run / "teacher/logits.npy") for run in ("whole", "killed")]
    assert np.array_equal(*logits)


def test_a_teacher_serves_another_student_of_the_vocabulary(folder, tokenizer, tmp_path, monkeypatch):
    """What the student is, and how it is taught, decides nothing of the teacher."""
    learn(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")
    (tmp_path / "other/teacher/checkpoint.pt").unlink()
    monkeypatch.setattr(finetuning, "_teacher", None)  # nobody asks for it again
    wider = BODY | {"intermediate_size": 128}
    other = replace(
        recipe(epochs=3, learning_rate=1e-3, also=("mood.tsv",), distillation=replace(PLAN, hard=0.1, temperature=4.0)),
        config=wider,
    )

    assert learn(other, tokenizer, folder, tmp_path / "other", intermediate_size=128)


@pytest.mark.parametrize(
    "change",
    [
        {"distillation": replace(PLAN, epochs=2)},
        {"distillation": replace(PLAN, learning_rate=1e-3)},
        {"train": {"mood.tsv": 39}},
        {"batch_rows": 4},
        {"max_tokens": 31},
    ],
    ids=str,
)
def test_a_teacher_of_another_kind_is_refused(folder, tokenizer, tmp_path, change):
    learn(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")

    with pytest.raises(RecipeError, match="teacher holds a run of a different recipe"):
        learn(recipe(**change), tokenizer, folder, tmp_path / "other")


def test_a_teacher_of_other_examples_is_refused(folder, tokenizer, tmp_path):
    """The file has the same name, and other labels."""
    learn(recipe(), tokenizer, folder, tmp_path / "one")
    shutil.copytree(tmp_path / "one/teacher", tmp_path / "other/teacher")
    text = (folder / "mood.tsv").read_text("utf-8")
    (tmp_path / "mood.tsv").write_text(text.replace("1\tthe", "0\tthe"), "utf-8")

    with pytest.raises(RecipeError, match="teacher holds a run of a different recipe"):
        learn(recipe(), tokenizer, tmp_path, tmp_path / "other")


@pytest.mark.parametrize("changes", [{}, QA], ids=["classify", "qa"])
def test_teacher_and_student_read_no_file_but_those_they_are_trained_on(
    folder, tokenizer, tmp_path, monkeypatch, changes
):
    opened: list[str] = []
    for reader in ("labelled", "questions"):
        real = getattr(datasets, reader)
        monkeypatch.setattr(datasets, reader, lambda path, real=real: (opened.append(path.name), real(path))[1])
    plan = recipe(evaluate="secret", also=("secret.too",), **changes)
    learn(plan, tokenizer, folder, tmp_path)

    assert opened == list(plan.finetuning["work"].train)


def test_a_teacher_that_cannot_read_what_its_student_reads_is_refused(folder, tokenizer, tmp_path):
    with pytest.raises(RecipeError, match="the teacher reads at most 128 tokens"):
        learn(recipe(max_tokens=129), tokenizer, folder, tmp_path / "long")
    small = wordpiece()
    small.add_tokens(["unheard"])
    strange = Tokenizer(json.loads(small.to_str()))
    with pytest.raises(RecipeError, match="does not know all pieces"):
        learn(recipe(), strange, folder, tmp_path / "strange")


THIN = BODY | {"intra_bottleneck_size": 32, "num_hidden_layers": 2, "num_feedforward_networks": 2}


@pytest.mark.parametrize("changes", [{}, QA], ids=["classify", "qa"])
@pytest.mark.parametrize(("architecture", "shape"), [("mobilebert", THIN), ("albert", BODY | {"num_hidden_layers": 2})])
def test_a_student_may_begin_as_near_to_its_teacher_as_its_shape_allows(
    folder, tokenizer, tmp_path, architecture, shape, changes
):
    """It has learnt nothing yet, and what its body learnt does not count."""
    shape = shape | ({"num_hidden_groups": 2} if architecture == "albert" else {})
    far, near = [], []
    for begin, found in ((False, far), (True, near)):
        still = {"learning_rate": 1e-9, "epochs": 1, "distillation": replace(PLAN, begin=begin)}
        plan = replace(recipe(**still, **changes), architecture=architecture, config=shape)
        other = build(architecture, {**shape, "vocab_size": tokenizer.vocab_size}, "masked_lm")
        model = finetune(plan, "work", other, tokenizer, folder, tmp_path / str(begin), SILENT)
        rows = examples.read(plan.finetuning["work"], folder, tokenizer)
        said = np.load(tmp_path / str(begin) / "teacher/logits.npy")
        ends = np.cumsum([len(row.encoding.focus) for row in rows])
        with torch.no_grad():
            found.append(float(soft_loss(task_logits(model, rows), stack(np.split(said, ends[:-1])), 1.0)))

    assert near[0] < 0.5 * far[0]


def test_to_begin_near_the_teacher_came_later_than_other_runs(folder, tokenizer, tmp_path):
    """A run that is older than the field is still the run of its recipe, and one that began so is another."""
    learn(recipe(), tokenizer, folder, tmp_path)
    facts = json.loads((tmp_path / "run.json").read_text("utf-8"))

    assert "begin" not in facts["finetuning"]["distillation"]
    assert "unlabelled" not in facts["finetuning"]
    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        learn(recipe(distillation=replace(PLAN, begin=True)), tokenizer, folder, tmp_path)


# --- What a recipe says of it

TOML = """
name = "r"
version = "1"
summary = "A test."
seed = 1
teacher = "someone"
vocabulary = 9
architecture = "bert"
[config]
[pretraining]
corpora = {}
row_tokens = 8
batch_rows = 8
steps = 1
learning_rate = 1.0
[finetuning.r]
task = "qa"
evaluate = "a/one.json"
also = ["b/two.json", "a/three.json"]
licences = []
[finetuning.r.distillation]
hard = 0.25
"""


def reading(tmp_path: Path, *change: str) -> Recipe:
    text = TOML.replace(*change) if change else TOML
    assert not change or text != TOML
    (tmp_path / "r.toml").write_text(text, "utf-8")
    return read_recipe(tmp_path / "r.toml")


def test_a_recipe_says_how_a_teacher_is_heard(tmp_path):
    work = reading(tmp_path).finetuning["r"]

    assert work.distillation == Distillation(hard=0.25, temperature=2.0, epochs=1, learning_rate=5e-5)
    assert work.also == ("b/two.json", "a/three.json")
    assert settings(work)["distillation"]["hard"] == 0.25
    assert json.loads(json.dumps(settings(work)))["also"] == ["b/two.json", "a/three.json"]
    assert not {"distillation", "also"} & settings(replace(work, distillation=None, also=())).keys()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("hard = 0.25", "hard = 1.5"), "hard is between 0 and 1"),
        (("hard = 0.25", "hard = -0.1"), "hard is between 0 and 1"),
        (("hard = 0.25", "hard = nan"), "hard is between 0 and 1"),
        (("hard = 0.25", 'hard = "half"'), "distillation: "),
        (("hard = 0.25", "temperature = 0.5"), "the temperature 1 or more"),
        (("hard = 0.25", "temperature = inf"), "the temperature 1 or more"),
        (("hard = 0.25", "epochs = 0"), "for an epoch or more"),
        (("licences = []", "licences = []\nunlabelled = { texts = 9 }"), "unlabelled are sentences to classify"),
        (("hard = 0.25", "epochs = 1.5"), "for an epoch or more"),
        (("hard = 0.25", "learning_rate = 0"), "at a rate above 0"),
        (("hard = 0.25", "soft = 1"), "the field 'soft' of distillation is unknown"),
        (("[finetuning.r.distillation]\nhard = 0.25", "distillation = 3"), "distillation is a table, and not 3"),
        (
            ('teacher = "someone"', 'tokenizer = { kind = "wordpiece" }'),
            "distillation needs a teacher, and this recipe names none",
        ),
        (('task = "qa"', 'task = "fill-mask"'), "fill-mask is not fine-tuned"),
        (('task = "qa"', 'task = "classify"\nelsewhere = 5'), "elsewhere is a number of questions, of qa"),
        (('task = "qa"', 'task = "qa"\nelsewhere = -1'), "elsewhere is a number of questions, of qa"),
        (("a/three", "c/two"), "also is a list of files, each of another name"),
        (('["b/two.json", "a/three.json"]', '"b/two.json"'), "also is a list of files"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, change, said):
    with pytest.raises(RecipeError, match=said):
        reading(tmp_path, *change)
