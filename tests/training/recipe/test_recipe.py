"""Recipes: their settings, and the errors of invalid ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftlet_models.weakness import Weakness
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_train.recipe import (
    Distillation,
    Finetuning,
    Pretraining,
    Recipe,
    RecipeError,
    identifying_settings,
    read_recipe,
)
from swiftlet_train.run_recipe import load_recipe, run_recipe
from tests.support.training import SILENT

WORK = Pretraining({"a.txt": 1}, sequence_length=8, batch_size=2, steps=3, learning_rate=0.1)


def test_identifying_settings_omit_optional_defaults():
    assert identifying_settings(WORK).keys() == {
        *("corpora", "sequence_length", "batch_size", "steps", "learning_rate")
    }
    assert identifying_settings(Finetuning("qa", evaluate="a", licences=(), method="span")).keys() == {
        *(
            "task",
            "evaluate",
            "licences",
            "train",
            "evaluate_skip",
            "evaluate_limit",
            "epochs",
            "batch_size",
            "learning_rate",
        ),
        *("max_tokens", "labels", "method"),
    }


@pytest.mark.parametrize("change", [{"optimiser": "lamb"}, {"gradient_accumulation_steps": 2}, {"precision": "bf16"}])
def test_identifying_settings_include_changed_fields(change):
    assert identifying_settings(replace(WORK, **change)) == identifying_settings(WORK) | change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": "sgd"}, "optimiser must be one of adamw, lamb, not 'sgd'"),
        ({"precision": "fp16"}, "precision must be one of fp32, bf16, not 'fp16'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1, not 0"),
    ],
    ids=str,
)
def test_optimisation_rejects_invalid_values(change, message):
    with pytest.raises(RecipeError, match=message):
        replace(WORK, **change)


TOML = """
name = "r"
version = "1"
summary = "A test."
seed = 1
teacher = "someone"
vocab_size = 9
architecture = "bert"
[config]
[pretraining]
corpora = {}
sequence_length = 8
batch_size = 8
steps = 1
learning_rate = 1.0
[finetuning.r]
task = "qa"
evaluate = "a/one.json"
also_evaluate = ["b/two.json", "a/three.json"]
licences = []
[finetuning.r.distillation]
hard_label_weight = 0.25
"""


def read_changed(tmp_path: Path, *change: str) -> Recipe:
    text = TOML.replace(*change) if change else TOML
    assert not change or text != TOML
    (tmp_path / "r.toml").write_text(text, "utf-8")
    return load_recipe(str(tmp_path / "r.toml"))


def test_read_recipe_reads_the_languages(tmp_path):
    assert read_changed(tmp_path).languages == ()
    assert read_changed(tmp_path, "seed = 1", 'seed = 1\nlanguages = ["ko", "en"]').languages == ("ko", "en")
    assert load_recipe("korean").languages == ("ko",)


@pytest.mark.parametrize("change", [{"right": "c"}, {"inputs": {"question": "a"}}])
def test_weakness_of_an_embedding_model_has_one_text_and_the_nearest_one(change):
    known = Weakness("a subject", "a", "b", texts=("b", "d"))
    work = load_recipe("mobilebert-meaning").finetuning["mobilebert-embed"]

    assert replace(work, weaknesses=(known,)).weaknesses == (known,)
    with pytest.raises(RecipeError, match="a text as its inputs, and the right one among the texts"):
        replace(work, weaknesses=(replace(known, **change),))


def test_read_recipe_rejects_a_character_count_below_one(tmp_path):
    with pytest.raises(SetupError, match="min_character_count must be at least 1, not 0"):
        read_changed(tmp_path, "seed = 1", "seed = 1\nmin_character_count = 0")


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ('"en"', "languages must be a list, not 'en'"),
        ('["English"]', "languages must be a list of BCP 47 tags"),
        ("[1]", "languages must be a text, not 1"),
    ],
)
def test_read_recipe_rejects_invalid_languages(tmp_path, languages, message):
    with pytest.raises(SetupError, match=message):
        read_changed(tmp_path, "seed = 1", f"seed = 1\nlanguages = {languages}")


def test_read_recipe_reads_the_distillation_table(tmp_path):
    work = read_changed(tmp_path).finetuning["r"]

    assert work.distillation == Distillation(
        hard_label_weight=0.25, temperature=2.0, teacher_epochs=1, teacher_learning_rate=5e-5
    )
    assert work.also_evaluate == ("b/two.json", "a/three.json")
    assert identifying_settings(work)["distillation"]["hard_label_weight"] == 0.25
    assert json.loads(json.dumps(identifying_settings(work)))["also_evaluate"] == ["b/two.json", "a/three.json"]
    assert (
        not {"distillation", "also_evaluate"}
        & identifying_settings(replace(work, distillation=None, also_evaluate=())).keys()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("hard_label_weight = 0.25", "hard_label_weight = 1.5"), "hard_label_weight must be between 0 and 1"),
        (("hard_label_weight = 0.25", "hard_label_weight = -0.1"), "hard_label_weight must be between 0 and 1"),
        (("hard_label_weight = 0.25", "hard_label_weight = nan"), "hard_label_weight must be between 0 and 1"),
        (("hard_label_weight = 0.25", 'hard_label_weight = "half"'), "hard_label_weight must be a number, not 'half'"),
        (("hard_label_weight = 0.25", "temperature = 0.5"), "temperature at least 1"),
        (("hard_label_weight = 0.25", "temperature = inf"), "temperature at least 1"),
        (("hard_label_weight = 0.25", "teacher_epochs = 0"), "teacher_epochs must be at least 1"),
        (("licences = []", "licences = []\nunlabelled = { texts = 9 }"), "unlabelled needs a task like classify"),
        (("hard_label_weight = 0.25", "init_from_teacher = 1"), "init_from_teacher must be true or false, not 1"),
        (("hard_label_weight = 0.25", "teacher_epochs = 1.5"), "teacher_epochs must be an integer, not 1.5"),
        (("hard_label_weight = 0.25", "teacher_learning_rate = 0"), "teacher_learning_rate must be above 0"),
        (("hard_label_weight = 0.25", 'task_teacher_run = "../other"'), "task_teacher_run must be a name"),
        (("hard_label_weight = 0.25", 'task_teacher_run = ".."'), "task_teacher_run must be a name"),
        (("hard_label_weight = 0.25", "task_teacher_epochs = 0"), "task_teacher_epochs must be at least 1"),
        (("hard_label_weight = 0.25", "task_teacher_learning_rate = nan"), "task_teacher_learning_rate must be above"),
        (("hard_label_weight = 0.25", "task_teacher_batch_size = -1"), "task_teacher_batch_size must be at least 0"),
        (("hard_label_weight = 0.25", 'teacher_engine = "native"'), "teacher_engine needs a task like classify"),
        (
            ("licences = []", "licences = []\nasked_again = 2"),
            "asked_again must be at least 0, and needs",
        ),
        (("licences = []", "licences = []\nasked_again = -1"), "asked_again must be at least 0"),
        (
            ("licences = []", "licences = []\nasked_of_parts = 2"),
            "asked_of_parts must be at least 0, and needs",
        ),
        (("licences = []", "licences = []\nasked_of_parts = 0.5"), "asked_of_parts must be an integer, not 0.5"),
        (("licences = []", "licences = []\ntransferred_questions = -1"), "transferred_questions must be at least 0"),
        (
            ("= 0.25", "= 0.25\nrecipe_teacher_share = 1.0\ntask_teacher = 'x'"),
            "recipe_teacher_share must be at least 0 and below",
        ),
        (("= 0.25", "= 0.25\nrecipe_teacher_share = 0.5"), "recipe_teacher_share .* needs a task_teacher"),
        (
            ("= 0.25", "= 0.25\nrecipe_teacher_share = 0.5\ntask_teacher = 'x'"),
            "recipe_teacher_share needs a task like entities",
        ),
        (("licences = []", "licences = []\nkept_unanswered = 1.5"), "kept_unanswered must be between 0 and 1"),
        (("licences = []", "licences = []\nkept_unanswered = 0.5"), "and below 1 needs a task like qa"),
        (("hard_label_weight = 0.25", "character_ngrams = 4"), "character_ngrams need a task like classify"),
        (
            ("hard_label_weight = 0.25", 'init_from_teacher = true\ninit_from_model = "albert-qa"'),
            "set init_from_teacher or init_from_model, but not both",
        ),
        (("hard_label_weight = 0.25", "character_ngrams = -1"), "character_ngrams must be at least 0"),
        (("hard_label_weight = 0.25", "character_ngrams = 4.5"), "character_ngrams must be an integer, not 4.5"),
        (
            ("licences = []", "licences = []\ncorrupted = 0.5"),
            "corrupted must be between 0 and 1, and needs",
        ),
        (("licences = []", "licences = []\nlabelled_repeats = 2"), "labelled_repeats must be at least 1"),
        (
            ("licences = []", "licences = []\nlongest_unlabelled = 3"),
            "longest_unlabelled must be at least",
        ),
        (
            ("licences = []", 'licences = []\nmethod = "contrastive"'),
            "method must be one of span for this task",
        ),
        (("licences = []", "licences = []\nmethod = 3"), "method must be one of span for this task, not 3"),
        (
            ("licences = []", "licences = []\nweaknesses = [{about = 'a', inputs = 'b', right = 'c', texts = ['c']}]"),
            "a weakness has texts if the task is embed, and only then",
        ),
        (("licences = []", "licences = []\nseed = -1"), "seed must be at least 0"),
        (('task = "qa"', 'task = "fill-mask"\nseed = 2'), "seed and averaged_with need a task like classify"),
        (("licences = []", "licences = []\naveraged_with = 3"), "averaged_with must be a list, not 3"),
        (("licences = []", "licences = []\naveraged_with = [3]"), "averaged_with must be a table, not 3"),
        (
            ("licences = []", "licences = []\naveraged_with = [{ labels = 'x' }]"),
            "unknown field 'labels' in averaged_with",
        ),
        (
            ("licences = []", "licences = []\naveraged_with = [{ seed = 'x' }]"),
            "seed must be an integer, not 'x'",
        ),
        (
            ("licences = []", "licences = []\naveraged_with = [{ unlabelled = { x = 1.5 } }]"),
            r"unlabelled\.x must be an integer, not 1\.5",
        ),
        (("licences = []", "licences = []\naveraged_with = [{ epochs = 0 }]"), "epochs and the number"),
        (
            ("licences = []", "licences = []\naveraged_with = [{ seed = 2 }, { seed = 2 }]"),
            "a training that equals another one",
        ),
        (
            ("licences = []", "licences = []\nsteps_after_averaging = 9"),
            "steps_after_averaging must be at least 0, and needs averaged_with",
        ),
        (
            ('task = "qa"', 'task = "fill-mask"\naveraged_with = [{ seed = 2 }]'),
            "averaged_with need a task like classify, qa or entities, not fill-mask",
        ),
        (("licences = []", "licences = []\naveraged_with_init = true"), "averaged_with_init needs init_from"),
        (("licences = []", 'licences = []\ninit_from = "r"'), "r cannot continue 'r'"),
        (("hard_label_weight = 0.25", "soft = 1"), "unknown field 'soft' in distillation"),
        (
            ("[finetuning.r.distillation]\nhard_label_weight = 0.25", "distillation = 3"),
            "distillation must be a table, not 3",
        ),
        (
            ('teacher = "someone"', 'tokenizer = { kind = "wordpiece" }'),
            "distillation needs a teacher, and this recipe names none",
        ),
        (('task = "qa"', 'task = "fill-mask"'), "fill-mask is not fine-tuned"),
        (('task = "qa"', 'task = "rerank"\nunanswerable_questions = 5'), "and needs a task like qa"),
        (('task = "qa"', 'task = "qa"\nunanswerable_questions = -1'), "must be at least 0"),
        (
            ('task = "qa"', 'task = "sing"'),
            "task must be one of classify, embed, entities, fill-mask, qa, rerank, zero-shot, not 'sing'",
        ),
        (("a/three", "c/two"), "also_evaluate must be a list of files with different names"),
        (('["b/two.json", "a/three.json"]', '"b/two.json"'), "also_evaluate must be a list, not 'b/two.json'"),
        (("licences = []", "licences = []\ntrain = { x = 1.5 }"), r"train\.x must be an integer, not 1\.5"),
        (("licences = []", 'licences = []\ntrain = "x.tsv"'), "train must be a table, not 'x.tsv'"),
        (("licences = []", 'licences = []\nlearning_rate = "1e-4"'), "learning_rate must be a number, not '1e-4'"),
        (("licences = []", "licences = []\nlearning_rate = -1"), "learning_rate must be above 0"),
        (("licences = []", "licences = []\nmax_tokens = 0"), "max_tokens at least 8"),
        (("licences = []", "licences = []\nevaluate_limit = 0"), "evaluate_limit at least 1"),
        (("licences = []", "licences = []\nepochs = true"), "epochs must be an integer, not True"),
        (("licences = []", 'licences = []\nlabels = "NEGATIVE"'), "labels must be a list, not 'NEGATIVE'"),
        (("licences = []", 'licences = []\nlabels = ["a", "a"]'), "two labels are equal"),
        (('task = "qa"', 'task = "classify"'), "the task classify needs labels"),
        (('task = "qa"', 'task = "classify"\nlabels = ["a"]'), "distillation needs at least two labels"),
        (('task = "qa"', 'task = ["qa"]'), r"task must be one of .*, not \['qa'\]"),
        (("seed = 1", "seed = -1"), "seed must be at least 0, not -1"),
        (('name = "r"', 'name = "../r"'), r"'\.\./r' is no name"),
        (("[finetuning.r]", "[[finetuning]]"), "finetuning must hold a table for each artifact"),
        (("corpora = {}", 'corpora = "x"'), "corpora must be a table, not 'x'"),
        (("learning_rate = 1.0", "learning_rate = 0"), "learning_rate must be above 0"),
    ],
)
def test_read_recipe_rejects_invalid_finetuning(tmp_path, change, message):
    with pytest.raises(SetupError, match=message):
        read_changed(tmp_path, *change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 1", "seed = 1\nspeed = 9"), "tiny.toml: unknown field 'speed' in recipe"),
        (("sequence_length = 16", "rows = 16"), "tiny.toml: unknown field 'rows' in pretraining"),
        (('version = "3"\n', ""), "tiny.toml: recipe: "),
        (("seed = 1", "seed = = 1"), "tiny.toml: not valid TOML"),
        (("tiny_teacher_of_the_tests", "no_such_teacher"), "no_such_teacher is not installed"),
        (("tiny_teacher_of_the_tests", "no_such.teacher"), "no_such.teacher is not installed"),
        (("tiny_teacher_of_the_tests", ".teacher"), ".teacher is not installed"),
        (("feature_weight = 1.0", "init_from_teacher = true"), "needs a teacher_recipe or a teacher_model"),
        (("feature_weight = 1.0", 'teacher_recipe = "one"\nteacher_model = "two"'), "but not both"),
        (("feature_weight = 1.0", 'teacher_model = "unknown"'), "There is no model 'unknown'"),
        (("feature_weight = 1.0", 'teacher_model = "albert-fill-mask"'), "the teacher_model has another vocabulary"),
        (("batch_size = 8\nsteps", "batch_size = 0\nsteps"), "batch_size and sequence_length must be at least 1"),
        (("steps = 12", "steps = -1"), "and steps at least 0"),
        (
            ("batch_size = 8\nsteps", 'batch_size = 1\nsentence_objective = "next_sentence"\nsteps'),
            "batch_size must be at least 2",
        ),
        (("vocab_size = 50", "vocab_size = 70000"), "below 65536, not 70000"),
        (("vocab_size = 50", "vocab_size = 9"), "do not fit into a vocabulary of 9"),
        (('"mood.tsv" = 1000', '"mood.tsv" = 0'), "the number of examples of each file must be at least 1"),
        (("epochs = 8", "epochs = 0"), "batch_size, epochs and the number of examples"),
        (('"albert"\n[config]\nembedding_size = 16', '"bert"\n[config]'), "bert cannot be initialised from a teacher"),
        (("embedding_size", "embeding_size"), "config: albert: "),
        (("more.txt", "nowhere.txt"), "This recipe needs the file nowhere.txt, which is not in "),
        (("epochs = 8", 'distillation = {}\nunlabelled = { "nowhere.tsv" = 9 }'), "needs the file nowhere.tsv"),
        (("feature_weight = 1.0", 'strategy = "joint"'), "the strategy joint needs a weight above 0"),
        (
            ("feature_weight = 1.0", "feature_weight = 1.0\nlower_layers_lr_scale = 0.1"),
            "needs the strategy progressive",
        ),
        (('"mood.tsv"\nlicences', '"nowhere.tsv"\nlicences'), "This recipe needs the file nowhere.tsv"),
        (("epochs = 8", 'also_evaluate = ["nowhere.tsv"]'), "This recipe needs the file nowhere.tsv"),
    ],
    ids=lambda change: str(change)[:30],
)
def test_train_command_rejects_an_invalid_recipe(project, tmp_path, change, message):
    text = (project / "tiny.toml").read_text("utf-8")
    assert change[0] in text
    (tmp_path / "tiny.toml").write_text(text.replace(*change), "utf-8")
    arguments = ["--data", project / "data", "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    result = CliRunner().invoke(main, ["train", str(tmp_path / "tiny.toml"), *map(str, arguments)])

    assert result.exit_code == 1
    assert message in result.output
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "There is no recipe 'nonsense'. Name a file, or one of the shipped ones: "),
        (["albert", "--only", "bread"], "but no 'bread'"),
        ([], "Missing argument 'RECIPE'"),
    ],
)
def test_train_command_rejects_invalid_arguments(arguments, message):
    result = CliRunner().invoke(main, ["train", *arguments])

    assert result.exit_code != 0
    assert message in result.output
    assert isinstance(result.exception, SystemExit)


def test_train_command_has_help():
    result = CliRunner().invoke(main, ["train", "--help"])

    assert result.exit_code == 0
    assert all(text in result.output for text in ("RECIPE", "--only", "--runs", "[default: data]", "resumes where it"))


def test_read_recipe_rejects_bytes(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(RecipeError, match="not valid TOML"):
        read_recipe(tmp_path / "r.toml")
    with pytest.raises(SetupError, match=r"r\.toml: not valid TOML"):
        run_recipe(str(tmp_path / "r.toml"), (), tmp_path, tmp_path, tmp_path, SILENT)
