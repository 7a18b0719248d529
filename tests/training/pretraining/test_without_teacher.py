"""Training from text alone: a tokenizer of its own, and no teacher."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from swiftlet_models.datasets import documents
from swiftlet_models.heads import build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import SetupError
from swiftlet_serve.offline.release import release
from swiftlet_train import run_recipe as recipe_module
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.loop.trainer import train
from swiftlet_train.pretraining import corpus as corpora
from swiftlet_train.pretraining.corpus import prepare_sequences, prepare_vocabulary
from swiftlet_train.pretraining.objectives.replaced_token import Discriminator
from swiftlet_train.pretraining.pretrain import pretrain, run_settings
from swiftlet_train.recipe import KnowledgeTransfer, Recipe, RecipeError, TokenizerTraining
from swiftlet_train.run_recipe import RECIPES, load_recipe, run_recipe
from swiftlet_train.vocabulary.pruning import SPECIALS
from tests.support.tiers import first
from tests.support.training import SILENT, answer_requests, interrupted_train

NOUNS = ["강물", "바람", "구름", "달빛", "마을", "언덕", "하늘", "들판", "저녁", "새벽"]


PARTICLES = ["이", "은", "도", ""]


VERBS = ["내려온다", "흐른다", "조용하다", "멀어진다", "돌아간다", "반짝인다"]


ADVERBS = ["천천히", "오늘도", "밤새", "다시", "가만히"]


GOOD, BAD = "따뜻하다", "쓸쓸하다"


RECIPE = """
name = "tiny"
version = "1"
summary = "A test."
seed = 1
vocab_size = 160
[pretraining]
corpora = { "text.txt.xz" = 40, "mood.tsv" = 30 }
sequence_length = 16
batch_size = 8
steps = 12
learning_rate = 3e-3
[finetuning.tiny-mood]
task = "classify"
labels = ["SAD", "GLAD"]
train = { "mood.tsv" = 1000 }
evaluate = "mood.tsv"
licences = ["our own"]
epochs = 12
batch_size = 8
learning_rate = 3e-3
max_tokens = 32
[finetuning.tiny-mask]
task = "fill-mask"
evaluate = "text.txt.xz"
licences = ["our own"]
evaluate_limit = 3
"""


NETWORKS = {
    "wordpiece": """
architecture = "mobilebert"
[tokenizer]
kind = "wordpiece"
strip_accents = false
[config]
embedding_size = 16
hidden_size = 32
intra_bottleneck_size = 16
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 32
num_feedforward_networks = 1
normalization_type = "layer_norm"
max_position_embeddings = 256
""",
    "unigram": """
architecture = "albert"
[tokenizer]
kind = "unigram"
[config]
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 64
max_position_embeddings = 256
""",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Korean articles, and short Korean texts with a sentiment."""
    folder, chance = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def sentence(verb: str = "") -> str:
        noun, particle, adverb = (chance.choice(words) for words in (NOUNS, PARTICLES, ADVERBS))
        return f"{noun}{particle} {adverb} {verb or chance.choice(VERBS)}."

    articles = [f"= {number} =\n" + " ".join(sentence() for _ in range(18)) for number in range(30)]
    (folder / "text.txt.xz").write_bytes(lzma.compress("\n".join(articles).encode()))
    moods = [(number % 2, sentence(GOOD if number % 2 else BAD)) for number in range(160)]
    lines = [f"{number}\t{text}\t{label}\n" for number, (label, text) in enumerate(moods)]
    (folder / "mood.tsv").write_text("id\tdocument\tlabel\n" + "".join(lines), "utf-8")
    return folder


def write_recipe(path: Path, kind: str, *changes: tuple[str, str]) -> Path:
    text = RECIPE.replace("[pretraining]", NETWORKS[kind] + "[pretraining]")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module", params=first(sorted(NETWORKS), "wordpiece"))
def trained(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    file = write_recipe(folder / "tiny.toml", request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe_module, "release", partial(release, max_loss=100))
        artifacts = run_recipe(str(file), (), data, folder / "runs", folder / "out", SILENT)
    return request.param, load_recipe(str(file)), artifacts, folder


@pytest.mark.exhaustive
def test_run_recipe_without_a_teacher_makes_artifacts_that_can_be_served(trained):
    _, _, artifacts, _ = trained
    bodies = {
        "classify": {"inputs": ["달빛이 다시 따뜻하다.", "바람이 밤새 쓸쓸하다."]},
        "fill-mask": {"inputs": "강물이 [MASK] 흐른다."},
    }
    answers = answer_requests(artifacts, bodies)

    assert [labels[0]["label"] for labels in answers["tiny-mood"]] == ["GLAD", "SAD"]
    assert len(answers["tiny-mask"]) == 5


def test_manifest_without_a_teacher_names_the_tokenizer(trained):
    kind, recipe, artifacts, _ = trained

    for artifact in artifacts:
        assert artifact.manifest.source == {"recipe": "tiny", "seed": 1, "tokenizer": kind}
        assert artifact.manifest.precision == "int8"
        assert "teacher" not in json.dumps(artifact.card())
    assert run_settings(recipe)["tokenizer"]["kind"] == kind


@pytest.mark.exhaustive
def test_pretrain_without_a_teacher_loads_a_completed_run(trained, data, tmp_path):
    _, recipe, _, folder = trained
    reports: list[str] = []
    again, file = pretrain(recipe, data, folder / "runs" / "tiny", reports.append)
    anew, other = pretrain(recipe, data, tmp_path, SILENT)

    assert reports == []
    assert file.read_bytes() == other.read_bytes()
    assert all(torch.equal(one, anew.state_dict()[name]) for name, one in again.state_dict().items())


def test_pretrain_rejects_a_run_with_another_tokenizer(trained, data):
    _, recipe, _, folder = trained

    other = replace(recipe, tokenizer=replace(recipe.tokenizer, lowercase=False))
    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        pretrain(other, data, folder / "runs" / "tiny", SILENT)


def test_prepare_vocabulary_counts_the_trained_pieces(trained, data, tmp_path):
    _, recipe, _, _ = trained
    vocabulary = prepare_vocabulary(recipe, data, tmp_path)
    tokenizer, kept = vocabulary.tokenizer, vocabulary.kept

    assert kept == list(range(tokenizer.get_vocab_size()))
    assert len(kept) <= recipe.vocab_size
    seen = [number for text in documents(data / "text.txt.xz") for number in tokenizer.encode(text).ids]
    seen += [number for text in documents(data / "mood.tsv") for number in tokenizer.encode(text).ids]
    expected = np.bincount([number for number in seen if number >= len(SPECIALS)], minlength=len(kept))
    assert vocabulary.counts.tolist() == expected.tolist()


def test_prepare_vocabulary_reads_the_same_amount_of_each_corpus(trained, data, tmp_path, monkeypatch):
    _, recipe, _, _ = trained
    monkeypatch.setattr(corpora, "TRAINING_CHARACTERS", 300)
    read = []
    monkeypatch.setattr(corpora, "documents", lambda path: (read.append(path.name) or "비가 내린다" for _ in range(99)))
    prepare_vocabulary(recipe, data, tmp_path)

    assert len(read) == 2 * -(-300 // len("비가 내린다"))
    assert set(read) == {"text.txt.xz", "mood.tsv"}


def test_prepare_sequences_concatenates_the_texts_of_a_table(trained, data, tmp_path):
    _, recipe, _, _ = trained
    tokenizer = prepare_vocabulary(recipe, data, tmp_path).tokenizer
    work = replace(recipe.pretraining, corpora={"mood.tsv": 1000})
    sequences = prepare_sequences(replace(recipe, pretraining=work), tokenizer, data, tmp_path)
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents(data / "mood.tsv")]
    inner = sequences[:, 1:-1].flatten().tolist()

    assert sequences.shape[0] > 20
    assert (sequences[:, 0] == cls).all()
    assert (sequences[:, -1] == sep).all()
    assert [n for n in inner if n != sep] == [n for ids in texts for n in ids][: len(inner) - inner.count(sep)]
    assert (
        inner.count(sep) >= len(texts) - len(sequences) - 1
    )  # a text that ends with its sequence has no [SEP] of its own
    assert len(sequences) == len(inner) // 14


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("vocab_size = 160", 'vocab_size = 160\nteacher = "some_package"'),
            "needs either a teacher or a [tokenizer] table",
        ),
        (
            ('[tokenizer]\nkind = "wordpiece"\nstrip_accents = false\n', ""),
            "needs either a teacher or a [tokenizer] table",
        ),
        (('kind = "wordpiece"', 'kind = "bytes"'), "kind must be one of wordpiece, unigram, not 'bytes'"),
        (('kind = "wordpiece"', 'kind = "wordpiece"\ncharacter_coverage = 0'), "character_coverage must be above 0"),
        (("vocab_size = 160", "vocab_size = 160\nmin_character_count = 9"), "min_character_count needs a teacher"),
        (('kind = "wordpiece"', 'kind = "wordpiece"\nsize = 9'), "unknown field 'size' in tokenizer"),
        (
            ("[config]", "[pretraining.knowledge_transfer]\nfeature_weight = 1.0\n[config]"),
            "knowledge_transfer needs a teacher",
        ),
        (
            ("sequence_length = 16", 'sequence_length = 16\nsentence_objective = "sentence_order"'),
            "a .tsv corpus holds separate texts",
        ),
    ],
    ids=lambda change: str(change)[:40],
)
def test_read_recipe_rejects_invalid_recipes_without_a_teacher(tmp_path, change, message):
    with pytest.raises(SetupError, match=message.replace("[", r"\[")):
        load_recipe(str(write_recipe(tmp_path / "tiny.toml", "wordpiece", change)))


@pytest.mark.parametrize("kind", first(sorted(NETWORKS), "unigram"))
def test_pretrain_rejects_a_vocabulary_below_the_characters(data, tmp_path, kind):
    file = write_recipe(tmp_path / "tiny.toml", kind, ("vocab_size = 160", "vocab_size = 20"))

    with pytest.raises(RecipeError, match="vocabulary of 20"):
        pretrain(load_recipe(str(file)), data, tmp_path / "run", SILENT)


def with_teacher(recipe: Recipe, **plan: object) -> Recipe:
    return replace(
        recipe,
        pretraining=replace(recipe.pretraining, knowledge_transfer=KnowledgeTransfer(teacher_recipe="teacher", **plan)),
    )


def test_pretrain_without_a_teacher_accepts_a_teacher_model(trained, data, tmp_path):
    _, recipe, _, folder = trained
    model, _ = pretrain(recipe, data, folder / "runs" / "tiny", SILENT)
    reports: list[str] = []
    pretrain(
        with_teacher(recipe, feature_weight=1.0, hard_label_weight=0.5),
        data,
        tmp_path,
        reports.append,
        teacher_model=model,
    )

    assert " mlm " in reports[-1]
    assert " features " in reports[-1]


def test_pretrain_without_a_teacher_needs_a_teacher_model(trained, data, tmp_path):
    _, recipe, _, _ = trained

    with pytest.raises(RecipeError, match="knowledge_transfer needs a teacher"):
        pretrain(with_teacher(recipe, feature_weight=1.0), data, tmp_path, SILENT)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 9, "name": "other"}, True),
        ({"vocab_size": 150}, False),
        ({"tokenizer": TokenizerTraining("wordpiece", lowercase=False)}, False),
        ({"tokenizer": None, "teacher": "some_package"}, False),
    ],
    ids=str,
)
def test_recipe_has_same_vocabulary_for_the_same_settings(tmp_path, change, same):
    recipe = load_recipe(str(write_recipe(tmp_path / "tiny.toml", "wordpiece")))

    assert recipe.has_same_vocabulary(replace(recipe, **change)) == same
    fewer = replace(recipe.pretraining, corpora={"mood.tsv": 30})
    assert not recipe.has_same_vocabulary(replace(recipe, pretraining=fewer))
    pruned = replace(recipe, tokenizer=None, teacher="some_package")
    assert not pruned.has_same_vocabulary(replace(pruned, min_character_count=2))


def test_run_recipe_rejects_a_teacher_recipe_with_another_vocabulary(data, tmp_path):
    write_recipe(tmp_path / "teacher.toml", "wordpiece", ('name = "tiny"', 'name = "other"'), ("= 160", "= 150"))
    plan = f'[pretraining.knowledge_transfer]\nteacher_recipe = "{tmp_path / "teacher.toml"}"\n[config]'
    file = write_recipe(tmp_path / "tiny.toml", "wordpiece", ("[config]", plan))

    with pytest.raises(SetupError, match="The teacher_recipe 'other' cannot be used: it has another vocabulary"):
        run_recipe(str(file), (), data, tmp_path / "runs", tmp_path / "out", SILENT)
    assert not (tmp_path / "runs").exists()


def test_run_settings_with_a_teacher_omit_the_tokenizer():
    recipe = load_recipe(str(RECIPES / "albert.toml"))

    names = ["seed", "teacher", "vocab_size", "architecture", "config", "pretraining"]
    assert list(run_settings(recipe)) == names
    assert list(run_settings(replace(recipe, min_character_count=2))) == [*names, "min_character_count"]


def test_pretrain_without_a_teacher_starts_from_random_weights(trained, data, tmp_path):
    _, recipe, _, _ = trained
    work = replace(recipe.pretraining, learning_rate=1e-12, steps=1)
    model, _ = pretrain(replace(recipe, pretraining=work), data, tmp_path, SILENT)
    table = model.encoder.embeddings.word.weight.detach()
    torch.manual_seed(recipe.seed)
    untrained = build(recipe.architecture, {**recipe.config, "vocab_size": len(table)}, "masked_lm")

    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.allclose(table, untrained.encoder.embeddings.word.weight, atol=1e-6)


def with_replaced_tokens(recipe: Recipe, **changes: object) -> Recipe:
    changes = {"objective": "replaced_token", "steps": 40} | changes
    tasks = {name: work for name, work in recipe.finetuning.items() if work.task != "fill-mask"}
    return replace(recipe, pretraining=replace(recipe.pretraining, **changes), finetuning=tasks)


def test_pretrain_trains_generator_and_discriminator(trained, data, tmp_path):
    _, recipe, _, _ = trained
    model, _ = pretrain(with_replaced_tokens(recipe), data, tmp_path, SILENT)
    first, last = read_curve(tmp_path / "losses.csv")

    assert first.losses.keys() == last.losses.keys() == {"generator", "detection"}
    assert all(last.losses[name] < first.losses[name] for name in first.losses)
    assert isinstance(model.head, Discriminator)


def test_pretrain_resumes_generator_and_discriminator(trained, data, tmp_path, monkeypatch):
    _, recipe, _, _ = trained
    recipe, states = with_replaced_tokens(recipe, steps=6), []

    def recording_train(model, *arguments, **named):
        train(model, *arguments, **named, save_every=2)
        states.append(model.state_dict())

    monkeypatch.setattr("swiftlet_train.pretraining.pretrain.train", interrupted_train)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, data, tmp_path / "killed", SILENT)
    monkeypatch.setattr("swiftlet_train.pretraining.pretrain.train", recording_train)
    pretrain(recipe, data, tmp_path / "killed", SILENT)
    pretrain(recipe, data, tmp_path / "whole", SILENT)
    killed, whole = states

    assert any(name.startswith("generator.") for name in whole)
    assert all(torch.equal(killed[name], value) for name, value in whole.items())


@pytest.mark.exhaustive
def test_finetune_accepts_a_discriminators_encoder(trained, data, tmp_path):
    _, recipe, _, _ = trained
    recipe = with_replaced_tokens(recipe, steps=2)
    pretrained, file = pretrain(recipe, data, tmp_path / "pretrained", SILENT)
    model = finetune(recipe, "tiny-mood", pretrained, Tokenizer.load(file), data, tmp_path / "mood", SILENT)

    assert model.head.output.weight.shape == (2, 32)


def test_pretrain_combines_replaced_tokens_and_sentence_order(trained, data, tmp_path):
    _, recipe, _, _ = trained
    reports: list[str] = []
    work = {"sentence_objective": "sentence_order", "corpora": {"text.txt.xz": 40}, "steps": 1}
    pretrain(with_replaced_tokens(recipe, **work), data, tmp_path, reports.append)

    assert re.fullmatch(r"step 1/1 generator [\d.]+ detection [\d.]+ sentences [\d.]+ \(.*", reports[-1])


@pytest.mark.exhaustive
def test_pretrain_takes_only_features_from_a_teacher_without_a_masked_lm_head(trained, data, tmp_path):
    _, recipe, _, _ = trained
    model, _ = pretrain(with_replaced_tokens(recipe, steps=1), data, tmp_path / "teacher", SILENT)
    reports: list[str] = []
    pretrain(with_teacher(recipe, feature_weight=1.0), data, tmp_path / "features", reports.append, teacher_model=model)

    assert " features " in reports[-1]
    with pytest.raises(RecipeError, match="the teacher predicts no words"):
        pretrain(with_teacher(recipe, hard_label_weight=0.5), data, tmp_path / "words", SILENT, teacher_model=model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((), "trains no masked-LM head, which tiny-mask needs"),
        ((("[config]", "[pretraining.knowledge_transfer]\nteacher_recipe = 'x'\n[config]"),), "cannot be combined"),
        (
            (('objective = "replaced_token"', 'objective = "guessed"'),),
            "objective must be one of masked_lm, replaced_token",
        ),
    ],
)
def test_recipe_rejects_impossible_replaced_token_settings(tmp_path, changes, message):
    objective = ("sequence_length = 16", 'sequence_length = 16\nobjective = "replaced_token"')

    with pytest.raises(SetupError, match=message):
        load_recipe(str(write_recipe(tmp_path / "tiny.toml", "wordpiece", objective, *changes)))
