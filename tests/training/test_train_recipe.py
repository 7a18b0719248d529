"""A recipe from its corpus to served answers."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from swiftlet_models.artifact import TOKENIZER
from swiftlet_models.heads import Model
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.weights import read_weights
from swiftlet_serve.engines.torch import load_network
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import evaluate
from swiftlet_serve.offline.release import release
from swiftlet_train import run_recipe as recipe_module
from swiftlet_train.pretraining.pretrain import hash_parameters, pretrain
from swiftlet_train.recipe import RecipeError
from swiftlet_train.run_recipe import run_recipe
from tests.support.tiers import first
from tests.support.training import BODIES, SILENT, answer_requests


def test_run_recipe_makes_an_artifact_of_each_task(trained, project):
    artifacts, reports = trained

    assert [artifact.manifest.name for artifact in artifacts] == ["tiny-mood", "tiny-qa", "tiny-mask"]
    assert [artifact.manifest.task for artifact in artifacts] == ["classify", "qa", "fill-mask"]
    for artifact in artifacts:
        manifest, card = artifact.manifest, artifact.card()
        assert (manifest.version, manifest.precision, manifest.max_tokens) == ("3", "int8", 128)
        assert manifest.languages == ("en",)
        assert manifest.source == {"recipe": "tiny", "seed": 1, "teacher": "tiny_teacher_of_the_tests"}
        assert card["licences"] == ["our own"]
        assert {"more.txt", "text.txt.xz"} <= set(card["trained_on"])
        spent = card["compute"]["stages"]
        assert card["compute"]["machine"]
        assert spent.keys() == {"tiny"} | ({manifest.name} if manifest.task != "fill-mask" else set())
        assert spent["tiny"]["steps"] == 12
        assert all(stage["hours"] >= 0 and stage["tflop"] >= 0 for stage in spent.values())
        for precision in ("fp32", "int8"):
            assert all(score["n"] > 0 for score in card["scores"][precision].values())
    assert any(line.startswith("step 12/12 mlm ") for line in reports)
    assert any(line.startswith("tiny-qa: step ") for line in reports)
    assert sorted(path.name for path in (project / "out").iterdir()) == ["tiny-mask", "tiny-mood", "tiny-qa"]


def test_run_recipe_lists_only_actual_weaknesses_in_the_card(trained):
    artifacts, reports = trained
    (shown,) = artifacts[0].card()["weaknesses"]

    assert shown == {
        "about": "shouting in the snow",
        "inputs": "SNOW! SNOW! SNOW!",
        "right": "VERY LOUD",
        "answer": shown["answer"],
    }
    assert shown["answer"] in {"QUIET", "LOUD"}
    assert "tiny-mood: answers correctly, so this weakness is not recorded: none" in reports
    assert "weaknesses" not in artifacts[0].card()["finetuning"]
    assert "weaknesses" not in artifacts[1].card()


def test_run_recipe_makes_artifacts_that_can_be_served(trained):
    artifacts, _ = trained
    answers = answer_requests(artifacts, BODIES | {"classify": {"inputs": "the rain falls on the old rain"}})

    assert answers["tiny-mood"][0][0]["label"] == "LOUD"  # texts with "rain" are loud
    answer = answers["tiny-qa"]
    assert "snow lies over the quiet town"[answer["start"] : answer["end"]] == answer["answer"] != ""
    assert len(answers["tiny-mask"]) == 5
    assert all(0 < one["score"] < 1 for one in answers["tiny-mask"])


def test_run_recipe_trains_an_accurate_classifier(trained):
    assert trained[0][0].card()["scores"]["int8"]["accuracy"]["value"] >= 90


def test_run_recipe_distils_a_task_and_does_not_repeat_completed_runs(trained, project, tmp_path, monkeypatch):
    text = (project / "tiny.toml").read_text("utf-8")
    table = "\n[finetuning.tiny-mood.distillation]\nhard_label_weight = 0.25\nteacher_epochs = 2\n"
    table += "teacher_learning_rate = 1e-3\n"
    text = text.replace("epochs = 8", 'epochs = 8\nalso_evaluate = ["moods.tsv"]')
    (project / "data/moods.tsv").write_text("label\ttext\n1\tthe rain\n0\tthe snow\n1\train\n", "utf-8")
    (tmp_path / "tiny.toml").write_text(text + table, "utf-8")
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    arguments = (("tiny-mood",), project / "data", tmp_path / "runs", tmp_path / "out")
    reports: list[str] = []
    (artifact,) = run_recipe(str(tmp_path / "tiny.toml"), *arguments, reports.append)
    moods = artifact.card()

    assert moods["taught_by"] == "tiny_teacher_of_the_tests, fine-tuned on the same labelled examples"
    plan = {"hard_label_weight": 0.25, "temperature": 2.0, "teacher_epochs": 2, "teacher_learning_rate": 1e-3}
    assert moods["finetuning"]["distillation"].items() >= plan.items()
    assert not any(moods["finetuning"]["distillation"][name] for name in ("init_from_teacher", "task_teacher"))
    assert moods["scores"]["int8"]["accuracy"]["value"] >= 80
    assert moods["also"]["moods.tsv"]["scores"]["accuracy"]["n"] == 3
    assert "moods.tsv" not in moods["trained_on"]
    assert not {"taught_by", "also"} & trained[0][0].card().keys()
    assert any(line.startswith("tiny-mood: teacher: step ") for line in reports)
    again: list[str] = []
    monkeypatch.setattr(recipe_module, "release", lambda *_, **named: None)  # only training can be repeated
    run_recipe(str(tmp_path / "tiny.toml"), *arguments, again.append)
    assert not any("step" in line or "logits" in line for line in again)


@pytest.mark.exhaustive
def test_run_recipe_shares_a_task_teacher_whose_engine_labels_the_texts(trained, project, tmp_path, monkeypatch):
    """Two students learn from one teacher, which is trained once and can be evaluated."""
    text = (project / "tiny.toml").read_text("utf-8")
    table = """
[finetuning.tiny-mood.distillation]
hard_label_weight = 0.25
task_teacher = "tiny_teacher_of_the_tests"
task_teacher_run = "moods"
task_teacher_epochs = 8
task_teacher_learning_rate = 3e-3
teacher_engine = "native"
"""
    (tmp_path / "tiny.toml").write_text(text + table, "utf-8")
    second = text.replace('name = "tiny"', 'name = "second"').replace("learning_rate = 1e-3", "learning_rate = 2e-3")
    (tmp_path / "second.toml").write_text(second + table, "utf-8")
    reports: list[str] = []
    arguments = (("tiny-mood",), project / "data", tmp_path / "runs", tmp_path / "out", reports.append)
    (first,) = run_recipe(str(tmp_path / "tiny.toml"), *arguments)
    stages = first.card()["compute"]["stages"]
    assert any("task teacher: step" in line for line in reports)
    reports.clear()
    (other,) = run_recipe(str(tmp_path / "second.toml"), *arguments)

    assert not any("task teacher" in line for line in reports)
    assert stages["tiny-mood's task teacher"] == other.card()["compute"]["stages"]["tiny-mood's task teacher"]
    teacher = load_model(tmp_path / "runs/task-teachers/moods/artifact", "onnx_cpu")
    assert teacher.manifest.labels == first.manifest.labels
    assert evaluate(teacher, project / "data/mood.tsv").main.value >= 90
    logits = np.load(tmp_path / "runs/task-teachers/moods/native-logits.npy")
    assert logits.shape[1] == len(first.manifest.labels)


@pytest.mark.exhaustive
def test_card_tells_both_stages_of_a_model_that_continues_another(project, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    text = (project / "tiny.toml").read_text("utf-8")
    more = """
[finetuning.tiny-mood.distillation]
task_teacher = "tiny_teacher_of_the_tests"
task_teacher_run = "moods"
[finetuning.more]
task = "classify"
init_from = "tiny-mood"
labels = ["QUIET", "LOUD"]
train = { "mood.tsv" = 8 }
evaluate = "mood.tsv"
licences = ["another"]
max_tokens = 32
"""
    (tmp_path / "tiny.toml").write_text(text + more, "utf-8")
    reports: list[str] = []
    arguments = (project / "data", tmp_path / "runs", tmp_path / "out", reports.append)
    (more_model,) = run_recipe(str(tmp_path / "tiny.toml"), ("more",), *arguments)
    card = more_model.card()

    assert list(card["compute"]["stages"]) == ["tiny", "tiny-mood's task teacher", "tiny-mood", "more"]
    assert card["taught_by"] == "tiny_teacher_of_the_tests, fine-tuned on the same labelled examples"
    assert card["licences"] == ["our own", "another"]
    assert {line.partition(":")[0] for line in reports if ": step" in line} >= {"tiny-mood", "more"}


@pytest.mark.exhaustive
def test_card_tells_all_trainings_of_an_averaged_model(project, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    text = (project / "tiny.toml").read_text("utf-8")
    text = text.replace("[finetuning.tiny-mood]\n", "[finetuning.tiny-mood]\nsteps_after_averaging = 1\n")
    more = """
[finetuning.tiny-mood.distillation]
teacher_epochs = 1
[[finetuning.tiny-mood.averaged_with]]
seed = 2
[[finetuning.tiny-mood.averaged_with]]
epochs = 1
unlabelled = { "text.txt.xz" = 1 }
"""
    (tmp_path / "tiny.toml").write_text(text + more, "utf-8")
    (model,) = run_recipe(
        *(str(tmp_path / "tiny.toml"), ("tiny-mood",), project / "data", tmp_path / "runs", tmp_path / "out", SILENT)
    )
    card = model.card()

    assert list(card["compute"]["stages"]) == [
        *("tiny", "tiny-mood's teacher", "tiny-mood", "tiny-mood, training 2", "tiny-mood, training 3"),
        "tiny-mood, after averaging",
    ]
    assert "text.txt.xz" in card["trained_on"]
    assert [one["seed"] for one in card["finetuning"]["averaged_with"]] == [2, None]


def test_run_recipe_looks_for_the_files_of_all_trainings_before_it_trains(project, tmp_path):
    text = (project / "tiny.toml").read_text("utf-8")
    more = """
[finetuning.tiny-mood.distillation]
[[finetuning.tiny-mood.averaged_with]]
unlabelled = { "missing.txt" = 1 }
"""
    (tmp_path / "tiny.toml").write_text(text + more, "utf-8")
    with pytest.raises(SetupError, match=r"needs the file missing\.txt"):
        run_recipe(
            str(tmp_path / "tiny.toml"), ("tiny-mood",), project / "data", tmp_path / "runs", tmp_path / "out", SILENT
        )
    assert not (tmp_path / "runs").exists()


def test_run_recipe_looks_for_the_teachers_of_the_first_stage_before_it_trains(project, tmp_path):
    text = (project / "tiny.toml").read_text("utf-8")
    more = """
[finetuning.tiny-mood.distillation]
task_teacher = "no_such_package"
[finetuning.more]
task = "classify"
init_from = "tiny-mood"
labels = ["QUIET", "LOUD"]
evaluate = "mood.tsv"
licences = []
"""
    (tmp_path / "tiny.toml").write_text(text + more, "utf-8")
    with pytest.raises(SetupError, match=r"tiny-mood: .*no_such_package"):
        run_recipe(
            str(tmp_path / "tiny.toml"), ("more",), project / "data", tmp_path / "runs", tmp_path / "out", SILENT
        )
    assert not (tmp_path / "runs").exists()


def test_run_recipe_answers_questions_by_a_teacher_on_an_engine(trained, project, tmp_path, monkeypatch):
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    text = (project / "tiny.toml").read_text("utf-8")
    table = """
[finetuning.tiny-qa.distillation]
task_teacher = "tiny_teacher_of_the_tests"
task_teacher_run = "questions"
teacher_engine = "native"
"""
    text = text.replace('train = { "asked.json" = 20 }', 'train = { "asked.json" = 20 }\nasked_again = 1')
    (tmp_path / "tiny.toml").write_text(text + table, "utf-8")
    run_recipe(
        *(str(tmp_path / "tiny.toml"), ("tiny-qa",), project / "data", tmp_path / "runs", tmp_path / "out"),
        lambda _: None,
    )

    teacher = load_model(tmp_path / "runs/task-teachers/questions/artifact", "onnx_cpu")
    assert teacher.manifest.task == "qa"
    assert evaluate(teacher, project / "data/asked.json").main.n == 20


def train_with_teacher(project, tmp_path, task: str, file: str, content: str):
    """Trains a student with a task teacher that predicts on an engine. Returns the student and the teacher."""
    text, _, _ = (project / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text += f"""
[finetuning.tiny-student]
{task}
evaluate = "{file}"
licences = []
train = {{ "{file}" = 40 }}
epochs = 8
batch_size = 8
learning_rate = 3e-3
max_tokens = 32

[finetuning.tiny-student.distillation]
task_teacher = "tiny_teacher_of_the_tests"
task_teacher_run = "shared"
task_teacher_epochs = 8
task_teacher_learning_rate = 3e-3
teacher_engine = "native"
"""
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    data = tmp_path / "data"
    shutil.copytree(project / "data", data)
    (data / file).write_text(content, "utf-8")
    arguments = (data, tmp_path / "runs", tmp_path / "out", SILENT)
    (student,) = run_recipe(str(tmp_path / "tiny.toml"), ("tiny-student",), *arguments)
    return student, load_model(tmp_path / "runs/task-teachers/shared/artifact", "onnx_cpu")


@pytest.mark.exhaustive
def test_run_recipe_judges_pairs_by_a_teacher_on_an_engine(project, tmp_path):
    relations = {"snow": "entailment", "rain": "contradiction"}
    pairs = [{"premise": "the", "hypothesis": word, "label": name} for word, name in relations.items()]
    task = 'task = "zero-shot"\nlabels = ["contradiction", "entailment"]'
    content = "\n".join(map(json.dumps, pairs * 20))
    student, teacher = train_with_teacher(project, tmp_path, task, "pairs.jsonl", content)

    assert (teacher.manifest.task, teacher.manifest.labels) == ("zero-shot", student.manifest.labels)
    assert evaluate(teacher, tmp_path / "data/pairs.jsonl").main.value == 100
    assert student.card()["scores"]["int8"]["accuracy"]["value"] == 100


@pytest.mark.exhaustive
def test_run_recipe_finds_entities_by_a_teacher_on_an_engine(project, tmp_path):
    task = """task = "entities"
labels = ["O", "B-WEATHER", "I-WEATHER"]
entity_kinds = { WEATHER = "WEATHER" }
unlabelled = { "more.txt" = 20 }"""
    texts = [f"the O\n{word} B-WEATHER\nfalls O\n" for word in ("rain", "snow") for _ in range(20)]
    student, teacher = train_with_teacher(project, tmp_path, task, "tagged.conll", "\n".join(texts))

    assert (teacher.manifest.task, teacher.manifest.labels) == ("entities", student.manifest.labels)
    assert evaluate(teacher, tmp_path / "data/tagged.conll").main.value == 100
    assert student.card()["scores"]["int8"]["f1"]["value"] == 100
    assert student.card()["taught_by"] == "tiny_teacher_of_the_tests, fine-tuned on the same labelled examples"
    assert {"more.txt", "tagged.conll"} <= {*student.card()["trained_on"]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ('task_teacher = "./nowhere"', r"tiny-mood: there is no directory \./nowhere, which should hold a teacher"),
        ('task_teacher = "no_such_package"', "tiny-mood: the teacher's package no_such_package is not installed"),
        ('teacher_engine = "abacus"', "abacus"),
    ],
)
def test_run_recipe_looks_for_teachers_and_engines_before_it_trains(project, tmp_path, setting, message):
    text = (project / "tiny.toml").read_text("utf-8") + f"\n[finetuning.tiny-mood.distillation]\n{setting}\n"
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    reports: list[str] = []
    with pytest.raises(SetupError, match=message):
        run_recipe(
            str(tmp_path / "tiny.toml"),
            *(("tiny-mood",), project / "data", tmp_path / "runs", tmp_path / "out", reports.append),
        )
    assert not reports


@pytest.mark.exhaustive
def test_run_recipe_continues_the_model_of_another_artifact(project, tmp_path):
    """The model for rerank continues the model for zero-shot. Both make vectors."""
    text, _, _ = (project / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text += """
[finetuning.near]
task = "zero-shot"
method = "contrastive"
evaluate = "moods.jsonl"
licences = []
train = { "moods.jsonl" = 40 }
epochs = 4
batch_size = 8
learning_rate = 1e-3
max_tokens = 32

[finetuning.nearer]
task = "rerank"
method = "contrastive"
init_from = "near"
evaluate = "asked.jsonl"
licences = []
train = { "moods.jsonl" = 40 }
batch_size = 8
max_tokens = 32
"""
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    data = tmp_path / "data"
    shutil.copytree(project / "data", data)
    texts = [{"text": f"the {word} falls on the mill", "label": word} for word in ("rain", "snow") for _ in range(20)]
    (data / "moods.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts), "utf-8")
    asked = [{"query": "rain", "text": text, "label": int("rain" in text)} for text in ("the snow", "the rain")]
    (data / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked), "utf-8")
    arguments = (data, tmp_path / "runs", tmp_path / "out", SILENT)
    (nearer,) = run_recipe(str(tmp_path / "tiny.toml"), ("nearer",), *arguments)
    (near,) = run_recipe(str(tmp_path / "tiny.toml"), ("near",), *arguments)

    for artifact, task in ((near, "zero-shot"), (nearer, "rerank")):
        manifest = artifact.manifest
        assert (manifest.task, manifest.head, manifest.labels, manifest.problem) == (task, "embedding", (), None)
        assert manifest.embedding is not None
        assert "moods.jsonl" in artifact.card()["trained_on"]
    assert near.card()["scores"]["int8"]["accuracy"]["value"] == 100
    assert nearer.card()["scores"]["int8"]["mrr_10"]["n"] == 1
    assert list(nearer.card()["compute"]["stages"]) == ["tiny", "near", "nearer"]
    assert "taught_by" not in nearer.card()


@pytest.mark.parametrize(
    "change",
    first(
        [
            (("steps = 12", "steps = 11"),),
            (("epochs = 8", "epochs = 1"),),
            (("num_hidden_layers = 2", "num_hidden_layers = 1"),),
            (('"mood.tsv" = 1000', '"mood.tsv" = 9'),),
        ],
        (("steps = 12", "steps = 11"),),
        (("epochs = 8", "epochs = 1"),),
    ),
)
def test_run_recipe_rejects_the_runs_of_a_changed_recipe(trained, project, tmp_path, change):
    text = (project / "tiny.toml").read_text("utf-8")
    assert change[0] in text
    (tmp_path / "tiny.toml").write_text(text.replace(*change), "utf-8")

    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        run_recipe(
            str(tmp_path / "tiny.toml"),
            ("tiny-mood",),
            project / "data",
            project / "trained_runs",
            tmp_path / "out",
            SILENT,
        )


@pytest.mark.exhaustive
def test_run_recipe_initialises_from_other_recipes(pretrained, project, tmp_path):
    text, _, _ = (project / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text = text.replace("learning_rate = 1e-3", f'learning_rate = 1e-12\ninit_from_recipe = "{project / "tiny.toml"}"')
    text = text.replace('name = "tiny"', 'name = "second"').replace("seed = 1", "seed = 2")
    (tmp_path / "second.toml").write_text(text, "utf-8")
    third = text.replace(str(project / "tiny.toml"), str(tmp_path / "second.toml")).replace(
        'name = "second"', 'name = "third"'
    )
    (tmp_path / "third.toml").write_text(third, "utf-8")
    run_recipe(str(tmp_path / "third.toml"), (), project / "data", project / "runs", tmp_path / "out", SILENT)
    names = ("tiny", "second", "third")
    states = [torch.load(project / "runs" / name / "checkpoint.pt", weights_only=True)["model"] for name in names]

    assert all(torch.allclose(states[0][name], state[name], atol=1e-6) for state in states[1:] for name in state)


def write_successor(project, path, artifact: str, name: str = "tiny-qa", change: tuple[str, str] = ("", "")) -> str:
    """Writes a recipe of a MobileBERT that starts from an artifact. Returns its path."""
    text = (project / "tiny.toml").read_text("utf-8").replace('architecture = "albert"', 'architecture = "mobilebert"')
    text = text.replace("num_attention_heads", "intra_bottleneck_size = 32\nnum_attention_heads")
    text = text.replace("steps = 12", "steps = 0").replace(
        "[pretraining.knowledge_transfer]\nfeature_weight = 1.0\n", ""
    )
    text += f'\n[finetuning.{name}.distillation]\ninit_from_model = "{artifact}"\nteacher_learning_rate = 1e-3\n'
    (path / "next.toml").write_text(text.replace(*change) if change[0] else text, "utf-8")
    return str(path / "next.toml")


@pytest.mark.exhaustive
def test_run_recipe_starts_from_an_artifact(trained, project, tmp_path, monkeypatch):
    source = trained[0][1]
    recipe = write_successor(project, tmp_path, str(source.path))
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    arguments = (project / "data", tmp_path / "runs", tmp_path / "out", SILENT)
    (artifact,) = run_recipe(recipe, ("tiny-qa",), *arguments)

    assert artifact.manifest.architecture == "mobilebert"
    assert artifact.card()["finetuning"]["distillation"]["init_from_model"] == str(source.path)
    settings = json.loads((tmp_path / "runs/tiny/tiny-qa/run.json").read_text("utf-8"))
    assert settings["models"]["init_from_model"] == hash_parameters(load_network(source))


@pytest.mark.exhaustive
def test_run_recipe_starts_from_an_artifact_with_more_tokens(trained, project, tmp_path, monkeypatch):
    source = trained[0][1]
    recipe = write_successor(project, tmp_path, str(source.path), change=("vocab_size = 50", "vocab_size = 44"))
    monkeypatch.setattr(recipe_module, "release", partial(release, max_loss=100))
    arguments = (project / "data", tmp_path / "runs", tmp_path / "out", SILENT)
    (artifact,) = run_recipe(recipe, ("tiny-qa",), *arguments)

    ours, theirs = (Tokenizer.load(one.path / TOKENIZER).tokens for one in (artifact, source))
    assert artifact.manifest.config["vocab_size"] == len(ours) == 44 < len(theirs)
    model = load_network(source)
    words = model.encoder.embeddings.word
    words.weight.data = words.weight.data[[theirs.index(token) for token in ours]]
    settings = json.loads((tmp_path / "runs/tiny/tiny-qa/run.json").read_text("utf-8"))
    assert settings["models"]["init_from_model"] == hash_parameters(model)


@pytest.mark.parametrize(
    ("number", "change"),
    [(0, ("", "")), (1, ("vocab_size = 50", "vocab_size = 51")), (2, ("", ""))],
    ids=["task", "vocabulary", "head"],
)
def test_run_recipe_rejects_an_artifact_of_another_kind(trained, project, tmp_path, number, change):
    recipe = write_successor(project, tmp_path, str(trained[0][number].path), change=change)

    with pytest.raises(SetupError, match="cannot be used: its task or labels differ, or it lacks tokens"):
        run_recipe(recipe, ("tiny-qa",), project / "data", tmp_path / "runs", tmp_path / "out", SILENT)


def test_run_recipe_rejects_a_missing_artifact_before_it_trains(project, tmp_path):
    recipe = write_successor(project, tmp_path, "nowhere")

    with pytest.raises(SetupError, match="nowhere"):
        run_recipe(recipe, ("tiny-qa",), project / "data", tmp_path / "runs", tmp_path / "out", SILENT)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["init_from_recipe", "teacher_recipe"])
def test_run_recipe_rejects_a_recipe_that_needs_itself(project, tmp_path, key):
    for name, other in (("one", "two"), ("two", "one")):
        line = f'{key} = "{tmp_path / other}.toml"'
        text = (project / "tiny.toml").read_text("utf-8").replace('name = "tiny"', f'name = "{name}"')
        where = "feature_weight = 1.0" if key == "teacher_recipe" else "learning_rate = 1e-3"
        assert where in text
        (tmp_path / f"{name}.toml").write_text(text.replace(where, f"{where}\n{line}", 1), "utf-8")

    with pytest.raises(SetupError, match=f"The {key} 'one' cannot be used: it needs this recipe itself"):
        run_recipe(str(tmp_path / "one.toml"), (), project / "data", tmp_path / "runs", tmp_path / "out", SILENT)


def test_run_recipe_trains_the_teacher_recipe_first(project, tmp_path, monkeypatch):
    text = (project / "tiny.toml").read_text("utf-8")
    (tmp_path / "teacher.toml").write_text(text.replace('name = "tiny"', 'name = "teacher"'), "utf-8")
    student = text.replace(
        "feature_weight = 1.0", f'teacher_recipe = "{tmp_path / "teacher.toml"}"\nhard_label_weight = 0.5'
    )
    (tmp_path / "tiny.toml").write_text(student, "utf-8")
    released = []
    monkeypatch.setattr(recipe_module, "release", lambda draft, directory, *_, **named: released.append(directory))
    reports: list[str] = []
    run_recipe(
        *(str(tmp_path / "tiny.toml"), ("tiny-mask",), project / "data", tmp_path / "runs", tmp_path / "out"),
        reports.append,
    )

    first, second = (i for i, line in enumerate(reports) if "step 12/12" in line)
    assert reports[first].startswith("teacher: step 12/12 mlm ")
    assert reports[second].startswith("step 12/12 mlm ")
    assert released == [tmp_path / "out/tiny-mask"]


def test_run_recipe_uses_an_artifact_as_teacher(trained, project, tmp_path, monkeypatch):
    path = project / "out/tiny-mask"
    text, _, _ = (project / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text = text.replace("feature_weight = 1.0", f'teacher_model = "{path}"\nhard_label_weight = 0.5')
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    teachers: list[Model] = []

    def recording_pretrain(*arguments, teacher_model, **named):
        teachers.append(teacher_model)
        return pretrain(*arguments, teacher_model=teacher_model, **named)

    monkeypatch.setattr(recipe_module, "pretrain", recording_pretrain)
    reports: list[str] = []
    run_recipe(str(tmp_path / "tiny.toml"), (), project / "data", tmp_path / "runs", tmp_path / "out", reports.append)
    (teacher,) = teachers
    weights = read_weights(path / "weights.safetensors")

    assert [line for line in reports if line.startswith("step 12/12 mlm ")]
    assert {name: value.numpy() for name, value in teacher.state_dict().items()}.keys() == weights.keys()
    assert all(np.array_equal(value.numpy(), weights[name]) for name, value in teacher.state_dict().items())
