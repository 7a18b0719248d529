"""Training from texts alone, without a teacher: what a recipe may say, and two of them from corpus to served answer."""

from __future__ import annotations

import asyncio
import json
import lzma
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from swiftlet_serve.models.datasets import documents
from swiftlet_serve.models.heads import build
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training import corpus as corpora
from swiftlet_serve.models.training.corpus import corpus, vocabulary
from swiftlet_serve.models.training.curve import read_curve
from swiftlet_serve.models.training.finetune import finetune
from swiftlet_serve.models.training.loop import train
from swiftlet_serve.models.training.objectives.replaced_token import Discriminator, make_generator, thin
from swiftlet_serve.models.training.pretrain import facts, pretrain
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, Tokenisation, Transfer, read_recipe
from swiftlet_serve.models.training.vocabulary import SPECIALS
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.offline import train as trains
from swiftlet_serve.service.offline.release import release
from swiftlet_serve.service.offline.train import RECIPES, follow
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from tests.support.networks import CONFIGS, network

SILENT = partial(lambda text: None)
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
vocabulary = 160
[pretraining]
corpora = { "text.txt.xz" = 40, "mood.tsv" = 30 }
row_tokens = 16
batch_rows = 8
steps = 12
learning_rate = 3e-3
[finetuning.tiny-mood]
task = "classify"
labels = ["SAD", "GLAD"]
train = { "mood.tsv" = 1000 }
evaluate = "mood.tsv"
licences = ["our own"]
epochs = 12
batch_rows = 8
learning_rate = 3e-3
max_tokens = 32
[finetuning.tiny-mask]
task = "fill-mask"
evaluate = "text.txt.xz"
licences = ["our own"]
limit = 3
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
    """Korean articles and short Korean texts with a mood, of our own."""
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


def write(path: Path, kind: str, *changes: tuple[str, str]) -> Path:
    text = RECIPE.replace("[pretraining]", NETWORKS[kind] + "[pretraining]")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(scope="module", params=sorted(NETWORKS))
def made(request, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    file = write(folder / "tiny.toml", request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trains, "release", partial(release, max_loss=100))
        artifacts = follow(str(file), (), data, folder / "runs", folder / "out", SILENT)
    return request.param, read_recipe(file), artifacts, folder


def test_a_recipe_without_a_teacher_ends_in_served_answers(made):
    """In a script that no teacher here can read."""
    _, _, artifacts, _ = made

    async def ask() -> dict[str, object]:
        runtime = Runtime.load(Settings(models=tuple(str(artifact.path) for artifact in artifacts)))
        bodies = {
            "classify": {"inputs": ["달빛이 다시 따뜻하다.", "바람이 밤새 쓸쓸하다."]},
            "fill-mask": {"inputs": "강물이 [MASK] 흐른다."},
        }
        try:
            return {
                task: await pipeline.answer(
                    pipeline.model.task.Request.model_validate(bodies[task]), time.monotonic() + 60
                )
                for task, pipeline in runtime.tasks.items()
            }
        finally:
            await runtime.close()

    answers = asyncio.run(ask())

    assert [labels[0]["label"] for labels in answers["classify"]] == ["GLAD", "SAD"]
    assert len(answers["fill-mask"]) == 5


def test_nobody_is_named_as_a_teacher_where_there_was_none(made):
    kind, recipe, artifacts, _ = made

    for artifact in artifacts:
        assert artifact.manifest.source == {"recipe": "tiny", "seed": 1, "tokenizer": kind}
        assert artifact.manifest.precision == "int8"
        assert "teacher" not in json.dumps(artifact.card())
    assert facts(recipe)["tokenizer"]["kind"] == kind


def test_a_run_without_a_teacher_is_taken_up_as_it_is(made, data, tmp_path):
    _, recipe, _, folder = made
    said: list[str] = []
    again, file = pretrain(recipe, data, folder / "runs" / "tiny", said.append)
    anew, other = pretrain(recipe, data, tmp_path, SILENT)

    assert said == []
    assert file.read_bytes() == other.read_bytes()
    assert all(torch.equal(one, anew.state_dict()[name]) for name, one in again.state_dict().items())


def test_a_run_of_another_tokenizer_is_not_mixed_with_this_one(made, data):
    _, recipe, _, folder = made

    other = replace(recipe, tokenizer=replace(recipe.tokenizer, lowercase=False))
    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        pretrain(other, data, folder / "runs" / "tiny", SILENT)


def test_the_pieces_are_counted_and_the_head_starts_with_their_shares(made, data, tmp_path):
    _, recipe, _, _ = made
    tokenizer, kept, counts = vocabulary(recipe, data, tmp_path)

    assert kept == list(range(tokenizer.get_vocab_size()))
    assert len(kept) <= recipe.vocabulary
    seen = [number for text in documents(data / "text.txt.xz") for number in tokenizer.encode(text).ids]
    seen += [number for text in documents(data / "mood.tsv") for number in tokenizer.encode(text).ids]
    expected = np.bincount([number for number in seen if number >= len(SPECIALS)], minlength=len(kept))
    assert counts.tolist() == expected.tolist()


def test_a_large_corpus_is_read_no_further_than_a_small_one_counts(made, data, tmp_path, monkeypatch):
    _, recipe, _, _ = made
    monkeypatch.setattr(corpora, "LEARNT", 300)
    read = []
    monkeypatch.setattr(corpora, "documents", lambda path: (read.append(path.name) or "비가 내린다" for _ in range(99)))
    vocabulary(recipe, data, tmp_path)

    assert len(read) == 2 * -(-300 // len("비가 내린다"))
    assert set(read) == {"text.txt.xz", "mood.tsv"}


def test_short_texts_of_a_table_are_strung_together_in_rows(made, data, tmp_path):
    _, recipe, _, _ = made
    tokenizer, _, _ = vocabulary(recipe, data, tmp_path)
    work = replace(recipe.pretraining, corpora={"mood.tsv": 1000})
    rows = corpus(replace(recipe, pretraining=work), tokenizer, data, tmp_path)
    cls, sep = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    texts = [tokenizer.encode(text, add_special_tokens=False).ids for text in documents(data / "mood.tsv")]
    inner = rows[:, 1:-1].flatten().tolist()

    assert rows.shape[0] > 20
    assert (rows[:, 0] == cls).all()
    assert (rows[:, -1] == sep).all()
    assert [n for n in inner if n != sep] == [n for ids in texts for n in ids][: len(inner) - inner.count(sep)]
    assert inner.count(sep) >= len(texts) - len(rows) - 1  # where a text ends with its row, the row's own stands for it
    assert len(rows) == len(inner) // 14


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("vocabulary = 160", 'vocabulary = 160\nteacher = "some_package"'), "either those of a teacher or made as"),
        (('[tokenizer]\nkind = "wordpiece"\nstrip_accents = false\n', ""), "either those of a teacher or made as"),
        (('kind = "wordpiece"', 'kind = "bytes"'), "kind is one of wordpiece, unigram, and not 'bytes'"),
        (('kind = "wordpiece"', 'kind = "wordpiece"\ncoverage = 0'), "coverage is above 0"),
        (('kind = "wordpiece"', 'kind = "wordpiece"\nsize = 9'), "the field 'size' of tokenisation is unknown"),
        (("[config]", "[pretraining.transfer]\nfeature_weight = 1.0\n[config]"), "without a teacher there is nothing"),
        (("row_tokens = 16", 'row_tokens = 16\nsentences = "order"'), "the texts of a table stand alone"),
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_recipe_that_makes_no_sense_is_refused_in_a_sentence(tmp_path, change, said):
    with pytest.raises(RecipeError, match=said.replace("[", r"\[")):
        read_recipe(write(tmp_path / "tiny.toml", "wordpiece", change))


@pytest.mark.parametrize("kind", sorted(NETWORKS))
def test_a_vocabulary_too_small_for_the_characters_is_refused_in_a_sentence(data, tmp_path, kind):
    file = write(tmp_path / "tiny.toml", kind, ("vocabulary = 160", "vocabulary = 20"))

    with pytest.raises(RecipeError, match="vocabulary of 20"):
        pretrain(read_recipe(file), data, tmp_path / "run", SILENT)


def guided(recipe: Recipe, **plan: object) -> Recipe:
    return replace(recipe, pretraining=replace(recipe.pretraining, transfer=Transfer(recipe="guide", **plan)))


def test_a_body_guides_where_there_is_no_teacher(made, data, tmp_path):
    _, recipe, _, folder = made
    body, _ = pretrain(recipe, data, folder / "runs" / "tiny", SILENT)
    said: list[str] = []
    pretrain(guided(recipe, feature_weight=1.0, hard=0.5), data, tmp_path, said.append, body=body)

    assert " mlm " in said[-1]
    assert " features " in said[-1]


def test_without_a_teacher_a_guide_has_to_be_there(made, data, tmp_path):
    _, recipe, _, _ = made

    with pytest.raises(RecipeError, match="the body of another recipe has to guide"):
        pretrain(guided(recipe, feature_weight=1.0), data, tmp_path, SILENT)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"seed": 9, "name": "other"}, True),
        ({"vocabulary": 150}, False),
        ({"tokenizer": Tokenisation("wordpiece", lowercase=False)}, False),
        ({"tokenizer": None, "teacher": "some_package"}, False),
    ],
    ids=str,
)
def test_recipes_share_pieces_where_the_same_decides_them(tmp_path, change, same):
    recipe = read_recipe(write(tmp_path / "tiny.toml", "wordpiece"))

    assert recipe.same_pieces(replace(recipe, **change)) == same
    fewer = replace(recipe.pretraining, corpora={"mood.tsv": 30})
    assert not recipe.same_pieces(replace(recipe, pretraining=fewer))


def test_a_guide_of_other_pieces_is_refused_before_it_is_trained(data, tmp_path):
    write(tmp_path / "guide.toml", "wordpiece", ('name = "tiny"', 'name = "guide"'), ("= 160", "= 150"))
    plan = f'[pretraining.transfer]\nrecipe = "{tmp_path / "guide.toml"}"\n[config]'
    file = write(tmp_path / "tiny.toml", "wordpiece", ("[config]", plan))

    with pytest.raises(SetupError, match="'guide' cannot guide: its vocabulary is made of something else"):
        follow(str(file), (), data, tmp_path / "runs", tmp_path / "out", SILENT)
    assert not (tmp_path / "runs").exists()


def test_what_decides_a_run_with_a_teacher_is_what_it_was(tmp_path):
    """A run that is older than tokenizers of one's own is still the run of its recipe."""
    recipe = read_recipe(RECIPES / "albert.toml")

    assert list(facts(recipe)) == ["seed", "teacher", "vocabulary", "architecture", "config", "pretraining"]


def test_weights_without_a_teacher_are_random(made, data, tmp_path):
    _, recipe, _, _ = made
    work = replace(recipe.pretraining, learning_rate=1e-12, steps=1)
    body, _ = pretrain(replace(recipe, pretraining=work), data, tmp_path, SILENT)
    table = body.encoder.embeddings.word.weight.detach()
    torch.manual_seed(recipe.seed)
    untrained = build(recipe.architecture, {**recipe.config, "vocab_size": len(table)}, "masked_lm")

    assert table.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.allclose(table, untrained.encoder.embeddings.word.weight, atol=1e-6)


# --- Replaced words


def detecting(recipe: Recipe, **changes: object) -> Recipe:
    changes = {"objective": "replaced", "steps": 40} | changes
    tasks = {name: work for name, work in recipe.finetuning.items() if work.task != "fill-mask"}
    return replace(recipe, pretraining=replace(recipe.pretraining, **changes), finetuning=tasks)


def test_two_networks_learn_to_put_words_in_and_to_tell_them(made, data, tmp_path):
    _, recipe, _, _ = made
    body, _ = pretrain(detecting(recipe), data, tmp_path, SILENT)
    first, last = read_curve(tmp_path / "losses.csv")

    assert first.losses.keys() == last.losses.keys() == {"generator", "detection"}
    assert all(last.losses[name] < first.losses[name] for name in first.losses)
    assert isinstance(body.head, Discriminator)


def test_both_networks_of_a_run_that_was_killed_end_as_if_it_had_not_been(made, data, tmp_path, monkeypatch):
    _, recipe, _, _ = made
    recipe, trained = detecting(recipe, steps=6), []

    def stopping(model, loss, *arguments, **named):
        def fatal(number):
            if number == 4:
                raise KeyboardInterrupt
            return loss(number)

        train(model, fatal, *arguments, **named, save_every=2)

    def watching(model, *arguments, **named):
        train(model, *arguments, **named, save_every=2)
        trained.append(model.state_dict())

    monkeypatch.setattr("swiftlet_serve.models.training.pretrain.train", stopping)
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, data, tmp_path / "killed", SILENT)
    monkeypatch.setattr("swiftlet_serve.models.training.pretrain.train", watching)
    pretrain(recipe, data, tmp_path / "killed", SILENT)
    pretrain(recipe, data, tmp_path / "whole", SILENT)
    killed, whole = trained

    assert any(name.startswith("generator.") for name in whole)
    assert all(torch.equal(killed[name], value) for name, value in whole.items())


def test_an_encoder_that_tells_replaced_words_is_fine_tuned_like_any_other(made, data, tmp_path):
    _, recipe, _, _ = made
    recipe = detecting(recipe, steps=2)
    body, file = pretrain(recipe, data, tmp_path / "body", SILENT)
    model = finetune(recipe, "tiny-mood", body, Tokenizer.load(file), data, tmp_path / "mood", SILENT)

    assert model.head.output.weight.shape == (2, 32)


def test_pairs_of_texts_are_learnt_beside_replaced_words(made, data, tmp_path):
    _, recipe, _, _ = made
    said: list[str] = []
    work = {"sentences": "order", "corpora": {"text.txt.xz": 40}, "steps": 1}
    pretrain(detecting(recipe, **work), data, tmp_path, said.append)

    assert re.fullmatch(r"step 1/1 generator [\d.]+ detection [\d.]+ sentences [\d.]+ \(.*", said[-1])


def test_a_body_that_fills_no_masks_guides_by_its_features_only(made, data, tmp_path):
    _, recipe, _, _ = made
    body, _ = pretrain(detecting(recipe, steps=1), data, tmp_path / "guide", SILENT)
    said: list[str] = []
    pretrain(guided(recipe, feature_weight=1.0), data, tmp_path / "features", said.append, body=body)

    assert " features " in said[-1]
    with pytest.raises(RecipeError, match="the guide predicts no words"):
        pretrain(guided(recipe, hard=0.5), data, tmp_path / "words", SILENT, body=body)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_generator_is_thinner_and_shares_the_words_where_it_can(name):
    encoder = network(name, "qa").encoder
    made_ = make_generator(name, encoder)
    theirs, ours = (vars(one.config) for one in (made_.encoder, encoder))

    assert theirs["num_hidden_layers"] == ours["num_hidden_layers"]
    assert theirs["intermediate_size"] == ours["intermediate_size"] // 2
    assert (made_.encoder.embeddings.word is encoder.embeddings.word) == (name != "bert")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 256, "embedding_size": 128, "num_attention_heads": 4}, (128, 2)),
        ({"hidden_size": 256, "embedding_size": 192, "num_attention_heads": 4}, (192, 2)),
        ({"hidden_size": 36, "embedding_size": 8, "num_attention_heads": 12}, (18, 6)),
        ({"hidden_size": 30, "embedding_size": 8, "num_attention_heads": 5}, (15, 1)),
        ({"hidden_size": 64, "num_attention_heads": 1}, (32, 1)),
    ],
)
def test_a_generators_heads_divide_its_width(config, expected):
    made_ = thin({**config, "intermediate_size": 64})

    assert (made_["hidden_size"], made_["num_attention_heads"]) == expected
    assert made_["hidden_size"] % made_["num_attention_heads"] == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ((), "fills no masks, as tiny-mask would"),
        ((("[config]", "[pretraining.transfer]\nrecipe = 'guide'\n[config]"),), "there can be no transfer"),
        ((('objective = "replaced"', 'objective = "guessed"'),), "objective is one of masked, replaced"),
    ],
)
def test_what_telling_replaced_words_cannot_do_is_refused_in_a_sentence(tmp_path, changes, said):
    objective = ("row_tokens = 16", 'row_tokens = 16\nobjective = "replaced"')

    with pytest.raises(RecipeError, match=said):
        read_recipe(write(tmp_path / "tiny.toml", "wordpiece", objective, *changes))
