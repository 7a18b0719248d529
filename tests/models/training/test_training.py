"""From text to a trained model: each decision on the way, and one recipe from its corpus to answers."""

from __future__ import annotations

import asyncio
import copy
import json
import lzma
import re
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers, processors
from torch import nn

from swiftlet_serve.models.artifact import open_artifact
from swiftlet_serve.models.datasets import Question, documents
from swiftlet_serve.models.graphs.reader import read_weights
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.models.training import start, transfer
from swiftlet_serve.models.training.corpus import COUNTED, corpus, vocabulary
from swiftlet_serve.models.training.curve import read_curve
from swiftlet_serve.models.training.draw import Draw
from swiftlet_serve.models.training.examples import STRIDE, Example, batches, spread, windows
from swiftlet_serve.models.training.finetune import label_loss, task_logits
from swiftlet_serve.models.training.loop import Schedule, train
from swiftlet_serve.models.training.objectives.masked_lm import mask
from swiftlet_serve.models.training.pretrain import STARTS, pretrain
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, Transfer, read_recipe
from swiftlet_serve.models.training.run import claim
from swiftlet_serve.models.training.start import Sample
from swiftlet_serve.models.training.start_mobilebert import kept_share, narrow_pair, start_mobilebert, start_words
from swiftlet_serve.models.training.study import read_study
from swiftlet_serve.models.training.vocabulary import SPECIALS, count_pieces, prune
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.loading import BUNDLED
from swiftlet_serve.service.offline import train as trains
from swiftlet_serve.service.offline.release import release
from swiftlet_serve.service.offline.study import STUDIES
from swiftlet_serve.service.offline.train import RECIPES, follow
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from tests.support.artifacts import make_tokenizer
from tests.support.checkpoints import SMALL, conversion, reference
from tests.support.networks import CONFIGS, network
from tests.support.paths import DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder ../shared/data is not there")

SILENT = partial(lambda text: None)


# --- Masks


@pytest.fixture(scope="module")
def masked():
    """Rows as pre-training sees them: [CLS] 2, words from 5 on, [SEP] 3, and some padding 0."""
    rows = torch.randint(5, 1000, (400, 128), generator=torch.Generator().manual_seed(0))
    rows[:, 0], rows[:, -1] = 2, 3
    rows[::4, 100:] = 0
    return rows, mask(rows, special=5, mask_id=4, vocab_size=1000, generator=torch.Generator().manual_seed(1))


def test_15_in_100_tokens_are_to_be_predicted_and_no_special_one(masked):
    rows, made = masked

    assert len(made.focus) / (rows >= 5).sum() == pytest.approx(0.15, abs=0.005)
    assert (rows.flatten()[made.focus] >= 5).all()
    assert len(set(made.focus.tolist())) == len(made.focus)


def test_of_those_80_are_masked_10_are_any_word_and_10_stay(masked):
    rows, made = masked
    before, after = rows.flatten()[made.focus], made.input_ids.flatten()[made.focus]
    others = (after != 4) & (after != before)

    assert (after == 4).float().mean() == pytest.approx(0.8, abs=0.02)
    assert others.float().mean() == pytest.approx(0.1, abs=0.015)
    assert (after == before).float().mean() == pytest.approx(0.1, abs=0.015)
    assert after[others].min() >= 5
    assert len(after[others].unique()) > 300  # any word, not one of a few


def test_another_share_can_be_predicted(masked):
    rows, _ = masked
    generator = torch.Generator().manual_seed(1)
    made = mask(rows, special=5, mask_id=4, vocab_size=1000, generator=generator, share=0.4)

    assert len(made.focus) / (rows >= 5).sum() == pytest.approx(0.4, abs=0.01)


def test_what_is_not_predicted_stays_and_what_is_is_kept_as_the_target(masked):
    rows, made = masked
    elsewhere = torch.ones(rows.numel(), dtype=torch.bool)
    elsewhere[made.focus] = False

    assert torch.equal(made.input_ids.flatten()[elsewhere], rows.flatten()[elsewhere])
    assert torch.equal(made.targets, rows.flatten()[made.focus])


def test_holes_are_the_generators_choice_and_rows_stay_as_they_were(masked):
    rows, made = masked
    before = rows.clone()
    draw = partial(mask, rows, special=5, mask_id=4, vocab_size=1000)
    again = draw(generator=torch.Generator().manual_seed(1))
    other = draw(generator=torch.Generator().manual_seed(2))

    assert torch.equal(rows, before)
    assert torch.equal(again.input_ids, made.input_ids)
    assert not torch.equal(other.input_ids, made.input_ids)


@pytest.mark.parametrize("seed", range(20))
def test_there_is_always_something_to_predict(seed):
    made = mask(
        torch.tensor([[2, 9, 3]]),
        special=5,
        mask_id=4,
        vocab_size=10,
        generator=torch.Generator().manual_seed(seed),
    )

    assert made.focus.tolist() == [1]
    assert made.targets.tolist() == [9]


# --- Vocabulary

WORDS = ["rain", "falls", "on", "the", "old", "mill", "and", "river", "snow", "lies", "over", "quiet", "town"]
LETTERS = sorted(set("".join(WORDS)))
UNUSED = [f"[unused{number}]" for number in range(4)]
PIECES = [
    *["[PAD]", *UNUSED, "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", "q", "."],
    *LETTERS,
    *(f"##{letter}" for letter in [*LETTERS, "x"]),
    *[*WORDS, "riv", "##er", "##fall", "##s"],
]


def wordpiece(pieces: list[str] = PIECES, *, template: bool = True) -> tokenizers.Tokenizer:
    """A tokenizer as BERT's: the special tokens do not come first, and it cuts and pads."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = ("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])
    made.post_processor = (
        processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [cls, sep])
        if template
        else processors.BertProcessing(sep, cls)
    )
    made.add_special_tokens(list(SPECIALS))
    made.enable_truncation(8)
    made.enable_padding(length=8)
    return made


TEXTS = ["rain falls on the old mill", "the river and the rain", "the snow", "rainfalls", "the qx mill."]


def pruned(size: int, *, template: bool = True) -> tuple[tokenizers.Tokenizer, tokenizers.Tokenizer, list[int]]:
    whole = wordpiece(template=template)
    whole.no_truncation()
    whole.no_padding()
    small, kept = prune(whole, count_pieces(whole, TEXTS), size)
    return whole, small, kept


def tokens(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    return tokenizer.encode(text, add_special_tokens=False).tokens


def test_pieces_are_counted():
    counts = count_pieces(pruned(60)[0], iter(TEXTS * 500))  # more than one chunk

    assert counts["the"] == 5 * 500
    assert counts["##fall"] == 500
    assert "over" not in counts


@pytest.mark.parametrize("size", [40, 43, 60])
def test_a_smaller_vocabulary_has_the_size_asked_for_and_special_tokens_first(size):
    _, small, kept = pruned(size)

    assert small.get_vocab_size() == len(kept) <= size
    assert [small.id_to_token(number) for number in range(5)] == list(SPECIALS)
    assert size == 60 or len(kept) == size


def test_every_piece_knows_its_id_in_the_larger_vocabulary():
    whole, small, kept = pruned(43)

    for number, old in enumerate(kept):
        assert small.id_to_token(number) == whole.id_to_token(old)
    assert kept == sorted(kept)


@pytest.mark.parametrize("text", TEXTS)
def test_words_that_are_kept_whole_are_cut_the_same(text):
    whole, small, _ = pruned(60)

    assert tokens(small, text) == tokens(whole, text)


def test_the_most_frequent_pieces_are_kept_and_others_fall_into_smaller_ones():
    _, small, _ = pruned(41)

    assert tokens(small, "the") == ["the"]
    assert tokens(small, "snow") == ["s", "##n", "##o", "##w"]


def test_no_character_that_was_seen_is_lost_wherever_it_stands():
    """`q` began the only word that it was seen in, `x` only went on with it, and no letter of `snow` was seen alone."""
    _, small, _ = pruned(40)

    assert "[UNK]" not in tokens(small, "q qx won")
    assert tokens(small, "qxx") == ["q", "##x", "##x"]


@pytest.mark.parametrize("template", [True, False])
def test_rows_are_framed_with_the_new_ids(template):
    _, small, _ = pruned(60, template=template)

    assert small.encode("the rain", "mill").ids == [
        *[2, small.token_to_id("the"), small.token_to_id("rain"), 3],
        *[small.token_to_id("mill"), 3],
    ]
    assert small.encode("[MASK]", add_special_tokens=False).ids == [4]


def test_a_vocabulary_too_small_for_its_characters_is_refused():
    with pytest.raises(ValueError, match="do not fit into a vocabulary of 6"):
        pruned(6)


# --- Schedule and loop


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_falls_and_is_never_zero(steps, warmup):
    schedule = Schedule(steps, learning_rate=2.0, warmup=warmup)
    rates = [schedule.rate(step) for step in range(steps)]
    peak = max(1, round(steps * warmup)) - 1

    assert rates[peak] == max(rates) == pytest.approx(2.0)
    assert all(rate > 0 for rate in rates)
    assert rates[: peak + 1] == sorted(rates[: peak + 1])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)


def test_the_rate_is_linear_on_both_sides():
    schedule = Schedule(100, learning_rate=1.0, warmup=0.1)

    assert [schedule.rate(step) for step in (0, 4, 9, 10, 55, 99)] == pytest.approx([0.1, 0.5, 1, 1, 0.5, 1 / 90])


class Noisy(nn.Module):
    """A network with dropout, whose state is more than its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))

    def loss(self, step: int) -> dict[str, torch.Tensor]:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        out = self.inner(x)
        return {"one": (out[:, 0] - x.sum(1)).square().mean(), "other": out[:, 1:].square().mean()}


SCHEDULE = Schedule(steps=40, learning_rate=1e-2)


def learn(directory: Path, *, stop_at: int | None = None, said: list[str] | None = None) -> Noisy:
    model = Noisy()

    def loss(step: int) -> dict[str, torch.Tensor]:
        if step == stop_at:
            raise KeyboardInterrupt
        return model.loss(step)

    report = SILENT if said is None else said.append
    train(model, loss, SCHEDULE, directory, seed=3, save_every=10, report=report)
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("stops", [[7], [10], [13], [39], [5, 11, 35]], ids=str)
def test_a_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, stops):
    whole = learn(tmp_path / "whole")
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            learn(tmp_path / "killed", stop_at=stop)

    assert same(learn(tmp_path / "killed"), whole)
    assert not same(whole, Noisy())


def test_a_run_that_ended_is_not_run_again(tmp_path):
    whole = learn(tmp_path)

    assert same(learn(tmp_path, stop_at=0), whole)


def test_a_kill_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    whole = learn(tmp_path / "whole")
    real, calls = torch.save, []

    def save(content, path):
        calls.append(path)
        if len(calls) == 3:
            path.write(b"half of a checkpo")
            raise KeyboardInterrupt
        real(content, path)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "killed")

    assert same(learn(tmp_path / "killed"), whole)


def test_training_minimises_the_loss_and_tells_of_it(tmp_path):
    said: list[str] = []
    model = learn(tmp_path, said=said)
    earlier, later = read_curve(tmp_path / "losses.csv")

    assert (earlier.step, later.step) == (20, 40)
    assert later.losses.keys() == earlier.losses.keys() == {"one", "other"}
    assert sum(later.losses.values()) < sum(earlier.losses.values())
    assert len(said) == 2
    assert said[1].startswith("step 40/40 one ")
    assert not model.training


def test_the_curve_of_a_killed_run_tells_of_each_step_once(tmp_path):
    learn(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "killed", stop_at=15)
    path = tmp_path / "killed/losses.csv"
    path.write_text("step,learning_rate,one,other,seconds\n20,0.1,1.0,1.0,2.0\n")  # told of, but not saved
    learn(tmp_path / "killed")

    first, second = read_curve(path)
    assert (first.step, second.step) == (20, 40)
    assert first.losses["one"] != 1


def test_a_directory_belongs_to_what_decides_its_run(tmp_path):
    claim(tmp_path / "run", {"steps": 3, "rate": 0.1})
    claim(tmp_path / "run", {"rate": 0.1, "steps": 3})

    with pytest.raises(RecipeError, match="run holds a run of a different recipe"):
        claim(tmp_path / "run", {"rate": 0.1, "steps": 4})


def test_biases_and_norms_do_not_decay(tmp_path):
    class Still(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(2, 2))
            self.bias = nn.Parameter(torch.ones(2))

    model = Still()
    still = {"zero": lambda: (model.matrix.sum() + model.bias.sum()) * 0.0}
    train(
        model,
        lambda step: {name: value() for name, value in still.items()},
        Schedule(5, 0.1, weight_decay=0.5),
        tmp_path,
        seed=0,
        report=SILENT,
    )

    assert model.bias.tolist() == [1, 1]
    assert model.matrix.max() < 1


# --- What the teacher gives


def features(layers: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 5, 8, generator=generator) for _ in range(layers + 1)]


WHERE = torch.tensor([[True] * 5, [True, True, False, False, False]])


def feature_loss(student: list[torch.Tensor], teacher: list[torch.Tensor]) -> torch.Tensor:
    """Over all layers."""
    return transfer.feature_loss(student, teacher, WHERE, range(1, len(student)))


def test_features_that_are_the_teachers_lose_nothing():
    assert feature_loss(features(3), features(3)) == 0
    assert feature_loss(features(3), features(3, seed=1)) > 0.5


def test_features_are_compared_normalised():
    scaled = [3 * feature + 7 for feature in features(3)]

    assert feature_loss(scaled, features(3)) < 1e-6


def test_padding_and_embeddings_are_not_compared():
    changed = [feature.clone() for feature in features(2)]
    for feature in changed:
        feature[1, 2:] = 100
    changed[0][:] = -5

    assert feature_loss(changed, features(2)) == 0


def test_the_moments_of_features_are_compared_as_worked_out_by_hand():
    """What a normalised feature map does not show: a mean that is off by 2, and a variance nine times as large."""
    teacher = [torch.zeros(1, 2, 4), torch.tensor([[[1.0, -1.0, 1.0, -1.0], [9.0, 9.0, 9.0, 0.0]]])]
    where = torch.tensor([[True, False]])
    student = [teacher[0], 3 * teacher[1] + 2]
    means, variances = transfer.moment_losses(student, teacher, where, range(1, 2))

    assert transfer.feature_loss(student, teacher, where, range(1, 2)) == pytest.approx(0, abs=1e-6)
    assert means == pytest.approx(2**2)
    assert variances == pytest.approx(9 - 1)


@pytest.mark.parametrize(("depth", "twins"), [(2, [3, 6]), (3, [2, 4, 6]), (6, [1, 2, 3, 4, 5, 6]), (1, [6])])
def test_each_layer_imitates_the_one_at_the_same_share_of_the_depth(depth, twins):
    teacher = features(6)
    student = [features(1, seed=9)[0], *(teacher[twin] for twin in twins)]

    assert len(student) == depth + 1
    assert feature_loss(student, teacher) == 0


def test_only_the_layers_that_are_named_are_compared():
    student = features(3)
    student[1] = student[3] = features(1, seed=1)[1]

    assert transfer.feature_loss(student, features(3), WHERE, range(2, 3)) == 0
    assert transfer.feature_loss(student, features(3), WHERE, range(2, 4)) > 0.1


@pytest.mark.parametrize(("name", "task"), [("bert", "qa"), ("albert", "classify"), ("mobilebert", "qa")])
def test_attention_is_watched_as_it_is_paid(name, task, monkeypatch):
    """The values that heads read are one-hot, so that what comes out is how much each token was looked at."""
    encoder, depth = network(name, task).encoder, CONFIGS[name]["num_hidden_layers"]
    ids = torch.randint(5, 100, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    paid = []

    def attend(query, key, value, heads, bias):
        split = [x.view(2, 7, heads, -1).transpose(1, 2) for x in (query, key)]
        paid.append(nn.functional.scaled_dot_product_attention(*split, torch.eye(7).expand(2, heads, 7, 7), bias))
        return real(query, key, value, heads, bias)

    module = sys.modules[type(encoder).__module__]
    real = module.attend
    monkeypatch.setattr(module, "attend", attend)
    with torch.no_grad(), transfer.attentions(encoder, mask) as found:
        encoder(ids, ids * 0, mask)

    assert len(found) == len(paid) == depth
    for log_probabilities, share in zip(found, paid, strict=True):
        assert torch.allclose(log_probabilities.exp(), share, atol=1e-6)
        assert log_probabilities[1, :, :, 4:].exp().max() == 0  # padding
    encoder(ids, ids * 0, mask)
    assert len(found) == depth  # nobody watches any more


def test_attention_that_is_the_teachers_loses_nothing_and_other_attention_its_divergence():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(3, 2, 4, 5, 5, generator=generator).log_softmax(-1) for _ in range(2))
    by_hand = (theirs.exp() * (theirs - ours)).sum(-1)[1].transpose(1, 2)[WHERE].mean().item()

    assert transfer.attention_loss(list(ours), list(ours), WHERE, range(1, 4)) == pytest.approx(0, abs=1e-6)
    assert transfer.attention_loss(list(ours), list(theirs), WHERE, range(2, 3)) == pytest.approx(by_hand, rel=1e-5)


def test_predictions_follow_what_was_there_and_the_teacher_by_their_shares():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 6, 9, generator=generator)
    targets = torch.randint(9, (6,), generator=generator)
    log = ours.log_softmax(-1)
    hard, soft = -log[range(6), targets].mean().item(), -(theirs.softmax(-1) * log).sum(-1).mean().item()

    for share in (0, 0.25, 1):
        loss = transfer.prediction_loss(ours, theirs, targets, share)
        assert loss == pytest.approx(share * hard + (1 - share) * soft, rel=1e-5)


@pytest.mark.parametrize(
    ("strategy", "progress", "imitated", "below", "predicts"),
    [
        ("auxiliary", 0.0, [1, 2, 3, 4], 0, True),
        ("auxiliary", 0.9, [1, 2, 3, 4], 0, True),
        ("joint", 0.0, [1, 2, 3, 4], 0, False),
        ("joint", 0.49, [1, 2, 3, 4], 0, False),
        ("joint", 0.5, [], 0, True),
        ("progressive", 0.0, [1], 0, False),
        ("progressive", 0.124, [1], 0, False),
        ("progressive", 0.125, [2], 1, False),
        ("progressive", 0.49, [4], 3, False),
        ("progressive", 0.5, [], 0, True),
    ],
)
def test_a_strategy_says_what_is_learnt_when(strategy, progress, imitated, below, predicts):
    now = transfer.phase(Transfer(strategy=strategy, share=0.5, feature_weight=1.0), progress, depth=4)

    assert (list(now.imitated), now.below, now.predicts) == (imitated, below, predicts)


@pytest.fixture
def teacher():
    return conversion(reference(SMALL["bert"], "fill-mask", max_position_embeddings=512), "fill-mask").model.encoder


def test_the_teachers_table_is_cut_to_the_rows_kept(teacher):
    before = teacher.embeddings.word.weight.detach().clone()
    start.cut_vocabulary(teacher, [7, 3, 210])

    assert torch.equal(teacher.embeddings.word.weight, before[[7, 3, 210]])
    assert not teacher.embeddings.word.weight.requires_grad


def test_principal_directions_keep_what_a_table_of_low_rank_holds():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, 3, generator=generator) @ torch.randn(3, 20, generator=generator)
    basis = start.principal_directions(table, torch.arange(50.0), 3)

    assert torch.allclose(basis.T @ basis, torch.eye(3), atol=1e-5)
    assert torch.allclose(table @ basis @ basis.T, table, atol=1e-4)


def test_principal_directions_are_those_of_frequent_words():
    table = torch.eye(4)

    assert torch.allclose(start.principal_directions(table, torch.tensor([0.0, 99, 0, 0]), 1).abs()[:, 0], table[1])


ROWS = torch.randint(5, 211, (8, 30), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("groups", "firsts"), [(3, [0, 1, 2]), (2, [0, 1]), (1, [0])])
def test_albert_starts_with_the_first_of_the_teachers_layers_that_a_group_covers(teacher, groups, firsts):
    sizes = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    settings = sizes | {
        "embedding_size": 16,
        "num_hidden_layers": 6,
        "num_hidden_groups": groups,
        "layer_norm_eps": 0.05,
    }
    student = build("albert", settings, "masked_lm")
    start.start_albert(student, teacher, torch.ones(211), Sample.of(ROWS))

    assert len(teacher.layers) == 3
    for group, first in zip(student.encoder.groups, firsts, strict=True):
        assert same(group[0], teacher.layers[first])


@pytest.mark.parametrize("dead", [48, 40])
def test_a_layer_with_fewer_neurons_starts_with_those_that_say_most(teacher, dead):
    """The teacher has 96; of those that say nothing none is missed, and for those that do others make up."""
    source = teacher.layers[1]
    chance = torch.Generator().manual_seed(3)
    silent = torch.randperm(96, generator=chance)[:dead]
    source.ffn_out.weight.data[:, silent] = 0
    (layer,) = (
        build(
            "albert",
            {
                "vocab_size": 211,
                "hidden_size": 48,
                "num_attention_heads": 4,
                "embedding_size": 16,
                "intermediate_size": 48,
                "num_hidden_layers": 1,
                "layer_norm_eps": 0.05,
            },
            "masked_lm",
        )
        .encoder.groups[0]
        .children()
    )
    entering = torch.randn(600, 48, generator=chance)
    with torch.no_grad():
        start.start_layer(layer, source, entering)
        widened = source.act(source.ffn_in(entering))
        wanted = source.ffn_out(widened)
        error = (layer.ffn_out(layer.act(layer.ffn_in(entering))) - wanted).square().mean()
        kept = widened * torch.isin(
            torch.arange(96), (widened.square().mean(0) * source.ffn_out.weight.square().sum(0)).topk(48).indices
        )
        cut = (source.ffn_out(kept) - wanted).square().mean()

    assert torch.equal(layer.query.weight, source.query.weight)
    if dead == 48:
        assert error < 1e-5 * wanted.square().mean()
    else:
        assert 0 < error < 0.95 * cut


def test_what_enters_the_teachers_feed_forward_networks_is_what_its_layers_hold(teacher):
    found = start.enter_feed_forward(teacher, Sample.of(ROWS))
    layer, every = teacher.layers[0], torch.ones_like(ROWS, dtype=torch.bool)
    entered = found[0] + layer.ffn_out(layer.act(layer.ffn_in(found[0])))

    assert len(found) == 3
    assert torch.allclose(layer.ffn_norm(entered), teacher.features(ROWS, ROWS * 0, every)[1].flatten(0, 1), atol=1e-5)
    teacher(ROWS, ROWS * 0, every)
    assert len(found) == 3  # nothing is left that listens


@pytest.mark.parametrize("architecture", ["albert", "mobilebert"])
def test_a_student_starts_with_embeddings_like_the_teachers(teacher, architecture):
    """The tables of real words and of positions are nearly of low rank; here they are exactly so."""
    generator = torch.Generator().manual_seed(0)
    for table, size in ((teacher.embeddings.word.weight.data, 4), (teacher.embeddings.position.weight.data, 8)):
        table[:] = table[:, :12] @ torch.randn(12, 48, generator=generator) / size
    sizes = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    settings = sizes | {"embedding_size": 32, "intermediate_size": 96}
    student = build(
        architecture, settings | ({"intra_bottleneck_size": 32} if architecture == "mobilebert" else {}), "token", 2
    )
    ids = torch.randint(5, 211, (4, 30), generator=torch.Generator().manual_seed(2))
    every = torch.ones_like(ids, dtype=torch.bool)

    @torch.no_grad()
    def likeness(ids: torch.Tensor) -> float:
        """Of the embeddings, less what all positions share: one word everywhere shows how positions differ."""
        ours = student.encoder.features(ids, ids * 0, every)[0]
        theirs = teacher.features(ids, ids * 0, every)[0]
        less = (value - value.mean(1, keepdim=True) for value in (ours, theirs))
        return float(torch.cosine_similarity(*less, dim=-1).mean())

    assert abs(likeness(ids)) < 0.3
    STARTS[architecture](student, teacher, torch.ones(211), Sample.of(ROWS))
    assert likeness(ids) > 0.8
    assert likeness(ids[:, :1].expand(-1, 30)) > 0.8


@pytest.mark.parametrize(("architecture", "words"), [("bert", 48), ("albert", 16)])
def test_a_mobilebert_starts_as_the_teacher_where_it_has_the_room(architecture, words):
    """With a bottleneck as wide as the stream: what is left is what no linear map makes of a norm."""
    shape = reference(SMALL[architecture], "fill-mask", max_position_embeddings=512)
    teacher = conversion(shape, "fill-mask").model.encoder
    config = {"vocab_size": 211, "hidden_size": 48, "intra_bottleneck_size": 48, "num_attention_heads": 4}
    config |= {"embedding_size": words, "intermediate_size": 96, "num_hidden_layers": 3, "num_feedforward_networks": 1}
    rows = torch.randint(5, 211, (60, 30), generator=torch.Generator().manual_seed(4))
    every = torch.ones_like(ROWS, dtype=torch.bool)
    for layer in set(transfer.layers(teacher)):  # a trained teacher looks somewhere
        layer.query.weight.data *= 2
        layer.key.weight.data *= 2

    @torch.no_grad()
    def errors(student) -> tuple[float, float]:
        with transfer.attentions(student.encoder, every) as ours:
            features = student.encoder.features(ROWS, ROWS * 0, every)
        with transfer.attentions(teacher, every) as theirs:
            known = teacher.features(ROWS, ROWS * 0, every)
        return (
            float(transfer.feature_loss(features, known, every, range(1, 4))),
            float(transfer.attention_loss(ours, theirs, every, range(1, 4))),
        )

    torch.manual_seed(0)
    student = build("mobilebert", config, "masked_lm")
    before = errors(student)
    start_mobilebert(student, teacher, torch.ones(211), Sample.of(rows))
    after = errors(student)

    assert after[0] < 0.3 < 1 < before[0]
    assert after[1] < 0.2 * before[1], (before, after)


def test_a_mobileberts_head_starts_as_that_of_an_albert():
    """It says nearly the same, with ReLU in GELU's place, of rows that it was not fitted on."""
    shape = {"vocab_size": 211, "hidden_size": 48, "embedding_size": 16, "num_attention_heads": 4}
    torch.manual_seed(0)
    source, head = (build(name, shape | more, "masked_lm").head for name, more in (("albert", {}), ("mobilebert", {})))
    words, rows = torch.randn(211, 16), torch.randn(3000, 48)
    source.transform.weight.data.normal_(std=0.2)
    source.bias.data.normal_()

    @torch.no_grad()
    def off() -> float:
        """How far what it says is from what the source says, in parts of how that differs from row to row."""
        known = source(rows[:600], words)
        return float((head(rows[:600], words) - known).square().mean() / (known - known.mean(0)).square().mean())

    before = off()
    start_words(head, source, words, rows[600:], rows[600:])

    assert off() < 0.1 < 0.9 < before


@pytest.mark.parametrize(
    "change", [{"num_attention_heads": 2}, {"normalization_type": "layer_norm"}, {"use_bottleneck_attention": True}]
)
def test_a_mobilebert_of_another_kind_starts_with_the_embeddings_only(teacher, change):
    config = {"vocab_size": 211, "hidden_size": 48, "intra_bottleneck_size": 32, "num_attention_heads": 4}
    config |= {"embedding_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | change
    torch.manual_seed(0)
    student = build("mobilebert", config, "masked_lm")
    before = [parameter.clone() for parameter in student.encoder.layers.parameters()]
    words = student.encoder.embeddings.word.weight.clone()
    start_mobilebert(student, teacher, torch.ones(211), Sample.of(ROWS))

    assert all(torch.equal(a, b) for a, b in zip(before, student.encoder.layers.parameters(), strict=True))
    assert not torch.equal(words, student.encoder.embeddings.word.weight)


def test_narrower_heads_give_the_same_scores_where_fewer_directions_are_used():
    chance = torch.Generator().manual_seed(0)
    query = torch.randn(500, 3, generator=chance) @ torch.randn(3, 8, generator=chance)
    key = torch.randn(500, 3, generator=chance) @ torch.randn(3, 8, generator=chance) + 2  # alike for all: not seen
    narrow = narrow_pair(query, key, 4)
    scores = [(a[:50] @ b[:40].T / b.shape[1] ** 0.5).log_softmax(-1) for a, b in ((query, key), narrow)]

    assert torch.allclose(*scores, atol=1e-2)


def test_a_share_of_the_stream_is_found_beside_a_map_of_the_inside():
    chance = torch.Generator().manual_seed(0)
    x, stream = torch.randn(400, 3, generator=chance), torch.randn(400, 5, generator=chance)
    shares = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.0])
    made = x @ torch.randn(3, 5, generator=chance) + shares * stream + 7

    assert torch.allclose(kept_share(x, stream, made), shares, atol=1e-4)


def test_a_head_starts_with_how_often_words_occur():
    settings = {"vocab_size": 4, "hidden_size": 8, "num_attention_heads": 2, "embedding_size": 8}
    student = build("albert", settings, "masked_lm")
    start.start_head(student.head, torch.tensor([0.0, 1, 2, 3]))
    student.head.norm.weight.data.zero_()
    said = student.head(torch.randn(3, 8), student.encoder.embeddings.word.weight).softmax(-1)

    assert torch.allclose(said, torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(3, 4))


def test_a_linear_layer_is_fitted_to_what_it_should_say():
    generator = torch.Generator().manual_seed(0)
    wanted, layer = nn.Linear(5, 3), nn.Linear(5, 3)
    inputs = torch.randn(4, 6, 5, generator=generator)
    with torch.no_grad():
        start.fit(layer, inputs, wanted(inputs))

    assert torch.allclose(layer.weight, wanted.weight, atol=2e-3)  # the ridge takes a thousandth of it
    assert torch.allclose(layer.bias, wanted.bias, atol=2e-3)


# --- Fine-tuning

TOKENIZER = make_tokenizer()


@st.composite
def asked(draw: st.DrawFn) -> Question:
    """A context of words and spaces, and an answer somewhere in it that begins and ends with a letter."""
    words = draw(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=60))
    gaps = draw(st.lists(st.sampled_from([" ", "  ", "\n "]), min_size=len(words), max_size=len(words)))
    context = "".join(gap + word for gap, word in zip(gaps, words, strict=True))
    letters = [i for i, character in enumerate(context) if not character.isspace()]
    start = draw(st.sampled_from(letters))
    end = draw(st.sampled_from([i for i in letters if start <= i < start + 10])) + 1
    return Question("1", "abc?", context, (context[start:end],), (start,))


@given(asked(), st.integers(12, 60))
def test_targets_are_where_the_answer_stands(question, max_tokens):
    examples = windows(question, TOKENIZER, max_tokens)
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
        (("c",), (0,), (6, 6)),  # not where it is said to be: the first place where it is
        (("z",), (0,), (0, 0)),
        (("",), (0,), (0, 0)),
    ],
)
def test_the_first_answer_counts_and_none_is_the_first_token(answers, starts, target):
    (example,) = windows(Question("1", "a?", "a b c d", answers, starts), TOKENIZER, 40)

    assert example.target == target


def test_a_question_that_leaves_no_room_is_left_out():
    assert windows(Question("1", "a" * 40, "a b", ("a",), (0,)), TOKENIZER, 40) == []


def test_examples_are_spread_over_a_file():
    assert spread(list(range(10)), 4) == [0, 3, 6, 9]
    assert spread(list(range(3)), 10) == [0, 1, 2]
    assert spread([], 10) == []


def lengths(*sizes: int) -> list[Example]:
    return [
        Example(Encoding(np.ones(size, np.int64), np.zeros(size, np.int64), np.zeros(1, np.int64)), (0,))
        for size in sizes
    ]


@given(st.lists(st.integers(1, 50), max_size=120), st.integers(1, 9), st.integers(0, 3))
def test_batches_hold_every_example_once(sizes, rows, seed):
    drawn = batches(lengths(*sizes), rows, seed)

    assert sorted(i for batch in drawn for i in batch) == list(range(len(sizes)))
    assert all(0 < len(batch) <= rows for batch in drawn)
    assert len(drawn) == -(-len(sizes) // rows)


def test_batches_differ_by_epoch_and_hold_rows_of_like_length():
    examples = lengths(*np.random.default_rng(0).integers(1, 100, 400).tolist())
    drawn = batches(examples, 8, seed=1)

    assert drawn == batches(examples, 8, seed=1) != batches(examples, 8, seed=2)
    sizes = [[len(examples[i].encoding.input_ids) for i in batch] for batch in drawn]
    assert sum(max(batch) * len(batch) - sum(batch) for batch in sizes) < 0.1 * sum(map(sum, sizes))


def test_the_loss_of_answers_looks_at_the_context_and_the_first_token_alone():
    question = Question("1", "ab?", "abc cab " * 3, ("cab",), (4,))
    examples = [*windows(question, TOKENIZER, 20), *windows(replace(question, answers=()), TOKENIZER, 40)]
    model = network("mobilebert", "qa")
    expected = []
    for example in examples:
        ids, types = (
            torch.from_numpy(array)[None] for array in (example.encoding.input_ids, example.encoding.token_type_ids)
        )
        logits = model(ids, types, torch.tensor([ids.shape[1]]), torch.arange(ids.shape[1]))  # (S, 2)
        places = [0, *example.context]
        chances = logits[places].log_softmax(0)
        expected += [-chances[places.index(place), side] for side, place in enumerate(example.target)]

    assert len({len(example.encoding.input_ids) for example in examples}) > 1
    assert label_loss(task_logits(model, examples), examples).item() == pytest.approx(
        torch.stack(expected).mean().item(), rel=1e-4
    )


def test_the_loss_of_labels_is_that_of_each_row_alone():
    model = network("bert", "classify")
    examples = [
        Example(encoding, (label,)) for label, encoding in enumerate(TOKENIZER.encode(["a", "abc abc", ""], 20))
    ]
    alone = [label_loss(task_logits(model, [example]), [example]).item() for example in examples]

    assert label_loss(task_logits(model, examples), examples).item() == pytest.approx(sum(alone) / 3, rel=1e-4)


# --- Recipes


@pytest.fixture(params=sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def shipped(request) -> Recipe:
    return read_recipe(request.param)


def lineage(recipe: Recipe) -> list[Recipe]:
    """The recipe, and those whose bodies and models went into what it makes."""
    plan = recipe.pretraining.transfer or Transfer()
    names = {recipe.pretraining.continues, plan.recipe} - {""}
    names |= {open_artifact(BUNDLED / plan.model).manifest.source["recipe"]} if plan.model else set()
    return [recipe, *(one for name in sorted(names) for one in lineage(read_recipe(RECIPES / f"{name}.toml")))]


# What ../shared/data sets aside to measure on.
ONLY_MEASURED = {
    "squad/squad-v1.1.eval.json",
    "squad/squad-v2.0.eval.json",
    "sst2/dev.tsv",
    "cola/in_domain_dev.tsv",
    "nsmc/test.tsv",
    "qa/fairytaleqa.test.json",
}


def test_nothing_is_trained_on_what_is_to_be_measured_on(shipped):
    trained = set[str]()
    for recipe in lineage(shipped):
        read = (file for work in recipe.finetuning.values() for file in (*work.train, *work.unlabelled))
        trained |= {*recipe.pretraining.corpora, *read}

    assert not trained & ONLY_MEASURED
    assert not {file for file in trained if "eval" in file or file.endswith(("dev.tsv", "test.tsv", "test.json"))} - {
        "qa/qamr.test.json"
    }
    for work in shipped.finetuning.values():
        assert work.evaluate in ONLY_MEASURED or work.skip > 0
        assert ONLY_MEASURED.issuperset(work.also)


def test_every_artifact_of_a_recipe_says_whose_data_it_was_made_of(shipped):
    sources = {
        "corpora/enwiki": "Wikipedia",
        "corpora/kowiki": "Wikipedia",
        "corpora/imdb": "IMDb",
        "sst2": "SST-2",
        "cola": "CoLA",
        "squad": "SQuAD",
        "qa/qamr": "QAMR",
    }
    sources |= {"qa/fairytale": "Fairytale", "qa/covid": "COVID", "corpora/gutenberg": "Gutenberg", "nsmc": "NSMC"}
    for work in shipped.finetuning.values():
        for file in (*shipped.pretraining.corpora, *work.train, *work.unlabelled):
            (name,) = (name for start, name in sources.items() if file.startswith(start))
            assert any(name in licence for licence in work.licences), (file, work.licences)


@needs_data
def test_articles_that_are_measured_on_lie_behind_those_that_are_read(shipped):
    for work, origin in product(shipped.finetuning.values(), lineage(shipped)):
        if work.evaluate not in origin.pretraining.corpora:
            continue
        wanted, length = origin.pretraining.corpora[work.evaluate], origin.pretraining.row_tokens - 2
        rows = read = 0
        for text in documents(DATA / work.evaluate):
            read += 1
            rows += len(re.findall(r"\w+|[^\w\s]", text)) // length  # at the least: no token has parts of two of these
            if rows >= wanted:
                break
        assert max(read, COUNTED) < work.skip


def teacher_package(directory: Path, name: str) -> None:
    """A package that carries a small BERT under `model/`, as the teachers there are."""
    model = directory / name / "model"
    settings = {"vocab_size": len(dict.fromkeys(PIECES)), "hidden_size": 32, "intermediate_size": 64}
    settings |= {"num_hidden_layers": 2, "max_position_embeddings": 128, "layer_norm_eps": 1e-12}
    reference(SMALL["bert"], "fill-mask", **settings).save_pretrained(model)
    wordpiece().save(str(model / "tokenizer.json"))
    (directory / name / "__init__.py").write_text("")


RECIPE = """
name = "tiny"
version = "3"
summary = "A test."
seed = 1
teacher = "TEACHER"
vocabulary = 50
architecture = "albert"
[config]
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 64
max_position_embeddings = 128
[pretraining]
corpora = { "text.txt.xz" = 40, "more.txt" = 9 }
row_tokens = 16
batch_rows = 8
steps = 12
learning_rate = 1e-3
[pretraining.transfer]
feature_weight = 1.0
[finetuning.tiny-mood]
task = "classify"
labels = ["QUIET", "LOUD"]
train = { "mood.tsv" = 1000 }
evaluate = "mood.tsv"
licences = ["our own"]
epochs = 8
batch_rows = 8
learning_rate = 2e-3
max_tokens = 32
[[finetuning.tiny-mood.weaknesses]]
about = "shouting in the snow"
inputs = "SNOW! SNOW! SNOW!"
right = "VERY LOUD"
[[finetuning.tiny-mood.weaknesses]]
about = "none"
inputs = "the rain falls on the old rain"
right = "LOUD"
[finetuning.tiny-qa]
task = "qa"
train = { "asked.json" = 20 }
evaluate = "asked.json"
licences = ["our own"]
batch_rows = 4
max_tokens = 32
[finetuning.tiny-mask]
task = "fill-mask"
evaluate = "text.txt.xz"
licences = ["our own"]
skip = 30
limit = 3
"""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """A folder with a recipe, its data, and a teacher that can be imported."""
    folder = tmp_path_factory.mktemp("workshop")
    data = folder / "data"
    data.mkdir()
    chance = np.random.default_rng(0)

    def sentence(words: int) -> str:
        return " ".join(chance.choice(WORDS, words)) + "."

    articles = [f"= {number} =\n" + " ".join(sentence(9) for _ in range(8)) for number in range(36)]
    (data / "text.txt.xz").write_bytes(lzma.compress("\n".join(articles).encode()))
    (data / "more.txt").write_text("\n".join(sentence(40) for _ in range(20)), "utf-8")
    moods = [(number % 2, f"{sentence(3)} {['snow', 'rain'][number % 2]} {sentence(3)}") for number in range(64)]
    moods = [(label, text if label else text.replace("rain", "river")) for label, text in moods]
    (data / "mood.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in moods), "utf-8")
    paragraphs = []
    for number in range(20):
        context = sentence(30)
        answer = context.split()[number]
        entry = {"id": str(number), "question": "the mill", "answers": [{"text": answer, "answer_start": 0}]}
        paragraphs.append({"context": context, "qas": [entry]})
    (data / "asked.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), "utf-8")
    name = "tiny_teacher_of_the_tests"
    teacher_package(folder / "packages", name)
    (folder / "tiny.toml").write_text(RECIPE.replace("TEACHER", name), "utf-8")
    sys.path.insert(0, str(folder / "packages"))
    yield folder
    sys.path.remove(str(folder / "packages"))


@pytest.fixture(scope="module")
def made(workshop):
    """The artifacts that the recipe makes. What int8 loses on so little data is a matter of luck."""
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trains, "release", partial(release, max_loss=100))
        artifacts = follow(
            str(workshop / "tiny.toml"), (), workshop / "data", workshop / "runs", workshop / "out", said.append
        )
    return artifacts, said


def test_a_recipe_makes_an_artifact_of_each_task(made, workshop):
    artifacts, said = made

    assert [artifact.manifest.name for artifact in artifacts] == ["tiny-mood", "tiny-qa", "tiny-mask"]
    assert [artifact.manifest.task for artifact in artifacts] == ["classify", "qa", "fill-mask"]
    for artifact in artifacts:
        manifest, card = artifact.manifest, artifact.card()
        assert (manifest.version, manifest.precision, manifest.max_tokens) == ("3", "int8", 128)
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
    assert any(line.startswith("step 12/12 mlm ") for line in said)
    assert any(line.startswith("tiny-qa: step ") for line in said)
    assert sorted(path.name for path in (workshop / "out").iterdir()) == ["tiny-mask", "tiny-mood", "tiny-qa"]


def test_a_card_shows_what_goes_wrong_and_nothing_that_goes_right(made):
    artifacts, said = made
    (shown,) = artifacts[0].card()["weaknesses"]

    assert shown == {
        "about": "shouting in the snow",
        "inputs": "SNOW! SNOW! SNOW!",
        "right": "VERY LOUD",
        "answer": shown["answer"],
    }
    assert shown["answer"] in {"QUIET", "LOUD"}
    assert "tiny-mood: is right, and so not weak there: none" in said
    assert "weaknesses" not in artifacts[0].card()["finetuning"]
    assert "weaknesses" not in artifacts[1].card()


def test_what_a_recipe_makes_can_be_served(made):
    artifacts, _ = made

    async def ask() -> dict[str, object]:
        runtime = Runtime.load(Settings(models=tuple(str(artifact.path) for artifact in artifacts)))
        bodies = {
            "classify": {"inputs": "the rain falls on the old rain"},
            "qa": {"inputs": {"question": "the mill", "context": "snow lies over the quiet town"}},
            "fill-mask": {"inputs": "the [MASK] falls on the old mill"},
        }
        try:
            return {
                task: await lane.answer(lane.model.task.Request.model_validate(bodies[task]), time.monotonic() + 60)
                for task, lane in runtime.tasks.items()
            }
        finally:
            await runtime.close()

    answers = asyncio.run(ask())

    assert answers["classify"][0][0]["label"] == "LOUD"  # it rains
    answer = answers["qa"]
    assert "snow lies over the quiet town"[answer["start"] : answer["end"]] == answer["answer"] != ""
    assert len(answers["fill-mask"]) == 5
    assert all(0 < one["score"] < 1 for one in answers["fill-mask"])


def test_a_classifier_learns_what_a_word_means(made):
    assert made[0][0].card()["scores"]["int8"]["accuracy"]["value"] >= 90


def test_a_recipe_whose_tasks_have_teachers_is_followed_to_its_artifacts(made, workshop, tmp_path, monkeypatch):
    """And what was done is not done again."""
    text = (workshop / "tiny.toml").read_text("utf-8")
    taught = "\n[finetuning.{}.distillation]\nhard = 0.25\nepochs = 2\nlearning_rate = 1e-3\n"
    text = text.replace("epochs = 8", 'epochs = 8\nalso = ["moods.tsv"]')
    (workshop / "data/moods.tsv").write_text("label\ttext\n1\tthe rain\n0\tthe snow\n1\train\n", "utf-8")
    (tmp_path / "tiny.toml").write_text(text + taught.format("tiny-mood") + taught.format("tiny-qa"), "utf-8")
    monkeypatch.setattr(trains, "release", partial(release, max_loss=100))
    arguments = (("tiny-mood", "tiny-qa"), workshop / "data", tmp_path / "runs", tmp_path / "out")
    said: list[str] = []
    moods, asked = (artifact.card() for artifact in follow(str(tmp_path / "tiny.toml"), *arguments, said.append))

    assert [card["taught_by"] for card in (moods, asked)] == [
        "tiny_teacher_of_the_tests, fine-tuned on the same labelled examples"
    ] * 2
    plan = {"hard": 0.25, "temperature": 2.0, "epochs": 2, "learning_rate": 1e-3, "begin": False}
    assert moods["finetuning"]["distillation"] == plan
    assert moods["scores"]["int8"]["accuracy"]["value"] >= 80
    assert moods["also"]["moods.tsv"]["scores"]["accuracy"]["n"] == 3
    assert "moods.tsv" not in moods["trained_on"]
    assert not {"taught_by", "also"} & made[0][0].card().keys()
    assert any(line.startswith("tiny-mood: teacher: step ") for line in said)
    again: list[str] = []
    follow(str(tmp_path / "tiny.toml"), *arguments, again.append)
    assert not any("step" in line or "answers" in line for line in again)


def test_a_run_that_ended_is_taken_up_as_it_is(made, workshop):
    """Nothing is trained again, and the parameters are those of the run."""
    recipe = read_recipe(workshop / "tiny.toml")
    said: list[str] = []
    again, _ = pretrain(recipe, workshop / "data", workshop / "runs" / "tiny", said.append)
    anew, _ = pretrain(recipe, workshop / "data", workshop / "elsewhere", SILENT)

    assert said == []
    assert same(again, anew)


@pytest.mark.parametrize(
    "change",
    [
        ("steps = 12", "steps = 11"),
        ("num_hidden_layers = 2", "num_hidden_layers = 1"),
        ("epochs = 8", "epochs = 1"),
        ('"mood.tsv" = 1000', '"mood.tsv" = 9'),
    ],
)
def test_a_recipe_that_was_changed_is_not_mixed_with_what_was_made_before(made, workshop, tmp_path, change):
    text = (workshop / "tiny.toml").read_text("utf-8")
    assert change[0] in text
    (tmp_path / "tiny.toml").write_text(text.replace(*change), "utf-8")

    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        follow(
            str(tmp_path / "tiny.toml"), ("tiny-mood",), workshop / "data", workshop / "runs", tmp_path / "out", SILENT
        )


def tiny(workshop, **changes):
    """The recipe with another pre-training, of MobileBERT, which shares no layers."""
    recipe = read_recipe(workshop / "tiny.toml")
    config = recipe.config | {"intra_bottleneck_size": 16, "num_feedforward_networks": 1}
    work = replace(recipe.pretraining, **{"steps": 6, "transfer": None} | changes)
    return replace(recipe, architecture="mobilebert", config=config, pretraining=work)


@pytest.fixture(scope="module")
def guide(made, workshop, tmp_path_factory):
    """A body that a recipe trained, with a bottleneck as wide as IB-BERT's are."""
    recipe = tiny(workshop)
    recipe = replace(recipe, config=recipe.config | {"intra_bottleneck_size": 64})
    body, _ = pretrain(recipe, workshop / "data", tmp_path_factory.mktemp("guide"), SILENT)
    return body


PLAN = Transfer(
    recipe="guide", feature_weight=1.0, attention_weight=1.0, hard=0.5, mean_weight=1.0, variance_weight=1.0
)
IMITATED = {"features", "means", "variances", "attention"}


@pytest.mark.parametrize(
    ("strategy", "lost"),
    [
        ("auxiliary", [{"mlm", *IMITATED}] * 6),
        ("joint", [IMITATED] * 3 + [{"mlm"}] * 3),
        ("progressive", [IMITATED] * 4 + [{"mlm"}] * 2),
    ],
)
def test_a_strategy_decides_what_is_learnt_when_and_where(workshop, guide, tmp_path, monkeypatch, strategy, lost):
    """Told by the losses of each step, and by the parts of the network that it changes."""
    share = 2 / 3 if strategy == "progressive" else 0.5
    recipe = tiny(workshop, transfer=replace(PLAN, strategy=strategy, share=share))
    seen, changed = [], []

    def watching(model, loss, *arguments, **named):
        def watched(number):
            parts = [model.encoder.embeddings, *model.encoder.layers]
            changed.append([all(p.requires_grad for p in part.parameters()) for part in parts])
            losses = loss(number)
            seen.append(set(losses))
            changed[-1] = [all(p.requires_grad for p in part.parameters()) for part in parts]
            return losses

        train(model, watched, *arguments, **named)

    monkeypatch.setattr("swiftlet_serve.models.training.pretrain.train", watching)
    pretrain(recipe, workshop / "data", tmp_path, SILENT, body=guide)

    assert seen == lost
    second = [False, False, True] if strategy == "progressive" else [True] * 3
    assert changed == [[True] * 3] * 2 + [second] * 2 + [[True] * 3] * 2


def test_layers_below_the_one_that_imitates_may_learn_a_little(workshop, guide, tmp_path, monkeypatch):
    """Of two layers and four steps that imitate, the last two leave the first layer and the embeddings a tenth."""
    plan = replace(PLAN, strategy="progressive", share=2 / 3)
    slowed = {}

    def watching(model, loss, *arguments, **named):
        parts = {id(model.encoder.embeddings): "embeddings", id(model.encoder.layers[0]): "first"}
        for step in range(6):
            share, slow = named["slowed"](step)
            slowed[step] = share, [parts[id(part)] for part in slow]
        train(model, loss, *arguments, **named)

    monkeypatch.setattr("swiftlet_serve.models.training.pretrain.train", watching)
    hard, soft = (tiny(workshop, transfer=replace(plan, below=below)) for below in (0.0, 0.1))
    frozen, _ = pretrain(hard, workshop / "data", tmp_path / "hard", SILENT, body=guide)
    assert all(slow == [] for _, slow in slowed.values())
    moving, _ = pretrain(soft, workshop / "data", tmp_path / "soft", SILENT, body=guide)

    assert [slowed[step][1] for step in range(6)] == [[], [], ["embeddings", "first"], ["embeddings", "first"], [], []]
    assert slowed[2][0] == 0.1
    assert not same(frozen, moving)


def test_what_a_guide_says_changes_what_is_learnt(workshop, guide, tmp_path):
    alone, _ = pretrain(tiny(workshop), workshop / "data", tmp_path / "alone", SILENT)
    plan = Transfer(recipe="guide", hard=0.5)
    guided, _ = pretrain(tiny(workshop, transfer=plan), workshop / "data", tmp_path / "guided", SILENT, body=guide)

    assert not same(alone, guided)
    assert all(not p.requires_grad for p in guide.parameters())


def test_a_mobilebert_can_begin_as_the_albert_that_guides_it(made, workshop, tmp_path):
    body, _ = pretrain(read_recipe(workshop / "tiny.toml"), workshop / "data", workshop / "runs" / "tiny", SILENT)
    plan = Transfer(recipe="albert", hard=0.5, begin=True)
    recipe = tiny(workshop, transfer=plan, learning_rate=1e-12, steps=1)
    model, _ = pretrain(recipe, workshop / "data", tmp_path, SILENT, body=body)

    assert torch.allclose(model.encoder.embeddings.word.weight, body.encoder.embeddings.word.weight, atol=1e-6)
    assert torch.allclose(model.head.bias, body.head.bias, atol=1e-6)
    assert model.encoder.embeddings.word.weight.data_ptr() != body.encoder.embeddings.word.weight.data_ptr()


@pytest.mark.parametrize("part", ["begin", "body"])
def test_a_run_that_was_built_on_another_body_is_not_gone_on_with(made, workshop, guide, tmp_path, part):
    """The recipe names the other one, and what that makes may have changed meanwhile."""
    changes = {"transfer": Transfer(recipe="guide", hard=0.5)} if part == "body" else {"continues": "guide"}
    recipe = tiny(workshop, **changes)
    other = guide if part == "body" else pretrain(tiny(workshop), workshop / "data", tmp_path / "one", SILENT)[0]
    pretrain(recipe, workshop / "data", tmp_path / "run", SILENT, **{part: other})
    pretrain(recipe, workshop / "data", tmp_path / "run", SILENT, **{part: other})
    altered = copy.deepcopy(other)
    next(altered.parameters()).data[0] += 1e-3

    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        pretrain(recipe, workshop / "data", tmp_path / "run", SILENT, **{part: altered})


def test_a_recipe_can_begin_from_nothing_though_it_has_a_teacher(workshop, tmp_path):
    recipe = tiny(workshop, learning_rate=1e-12, steps=1, fitted=False)
    model, _ = pretrain(recipe, workshop / "data", tmp_path / "nothing", SILENT)
    fitted, _ = pretrain(tiny(workshop, learning_rate=1e-12, steps=1), workshop / "data", tmp_path / "fitted", SILENT)

    torch.manual_seed(recipe.seed)
    anew = build("mobilebert", {**recipe.config, "vocab_size": len(model.head.bias)}, "masked_lm")
    for name, value in anew.encoder.state_dict().items():
        assert torch.allclose(model.encoder.state_dict()[name], value, atol=1e-6), name
    assert not same(model, fitted)


def test_a_recipe_that_continues_others_begins_with_their_bodies(made, workshop, tmp_path):
    text, _, _ = (workshop / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text = text.replace("learning_rate = 1e-3", f'learning_rate = 1e-12\ncontinues = "{workshop / "tiny.toml"}"')
    text = text.replace('name = "tiny"', 'name = "on"').replace("seed = 1", "seed = 2")
    (tmp_path / "on.toml").write_text(text, "utf-8")
    further = text.replace(str(workshop / "tiny.toml"), str(tmp_path / "on.toml")).replace('name = "on"', 'name = "up"')
    (tmp_path / "further.toml").write_text(further, "utf-8")
    follow(str(tmp_path / "further.toml"), (), workshop / "data", workshop / "runs", tmp_path / "out", SILENT)
    names = ("tiny", "on", "up")
    ends = [torch.load(workshop / "runs" / name / "checkpoint.pt", weights_only=True)["model"] for name in names]

    assert all(torch.allclose(ends[0][name], end[name], atol=1e-6) for end in ends[1:] for name in end)


@pytest.mark.parametrize(("part", "said"), [("continues", "be continued"), ("recipe", "guide")])
def test_a_recipe_that_needs_itself_is_refused(workshop, tmp_path, part, said):
    for name, other in (("one", "two"), ("two", "one")):
        line = f'{part} = "{tmp_path / other}.toml"'
        text = (workshop / "tiny.toml").read_text("utf-8").replace('name = "tiny"', f'name = "{name}"')
        where = "feature_weight = 1.0" if part == "recipe" else "learning_rate = 1e-3"
        assert where in text
        (tmp_path / f"{name}.toml").write_text(text.replace(where, f"{where}\n{line}", 1), "utf-8")

    with pytest.raises(SetupError, match=f"'one' cannot {said}: it needs itself for that"):
        follow(str(tmp_path / "one.toml"), (), workshop / "data", tmp_path / "runs", tmp_path / "out", SILENT)


def test_only_a_body_of_the_same_shape_is_continued(made, workshop, tmp_path):
    begin = build("mobilebert", {**tiny(workshop).config, "vocab_size": 50, "num_hidden_layers": 1}, "masked_lm")

    with pytest.raises(RecipeError, match="of the same architecture and shape"):
        pretrain(tiny(workshop), workshop / "data", tmp_path, SILENT, begin=begin)


@pytest.mark.parametrize("sentences", ["order", "next"])
@pytest.mark.parametrize("spans", ["words", "ngrams"])
def test_pairs_of_texts_and_whole_words_are_learnt(made, workshop, tmp_path, sentences, spans):
    recipe = tiny(workshop, sentences=sentences, spans=spans)
    said: list[str] = []
    body, _ = pretrain(recipe, workshop / "data", tmp_path, said.append)

    assert re.fullmatch(r"step 6/6 mlm [\d.]+ sentences [\d.]+ \(.*", said[-1])
    assert set(body.state_dict()) == set(build("mobilebert", recipe.config, "masked_lm").state_dict())


def test_a_batch_is_drawn_by_its_number_and_masks_what_the_recipe_says(made, workshop):
    recipe = tiny(workshop, sentences="order", spans="words")
    tokenizer, _, _ = vocabulary(recipe, workshop / "data", workshop / "runs" / "tiny")
    rows = corpus(recipe, tokenizer, workshop / "data", workshop / "runs" / "tiny")
    draw = Draw(recipe, tokenizer, rows)
    batch, again, other = draw(3), draw(3), draw(4)
    holes = batch.input_ids != batch.whole

    assert torch.equal(batch.input_ids, again.input_ids)
    assert not torch.equal(batch.input_ids, other.input_ids)
    assert torch.equal(batch.targets, batch.whole.flatten()[batch.focus])
    assert set(holes.flatten().nonzero()[:, 0].tolist()) <= set(batch.focus.tolist())
    assert batch.token_type_ids.max() == 1
    assert batch.labels.shape == (8,)


def test_what_is_held_out_is_in_no_batch_and_its_holes_are_always_the_same(made, workshop):
    plain = tiny(workshop, held_out=16)
    changed = tiny(workshop, held_out=16, spans="words", masked=0.5)
    tokenizer, _, _ = vocabulary(plain, workshop / "data", workshop / "runs" / "tiny")
    rows = corpus(plain, tokenizer, workshop / "data", workshop / "runs" / "tiny")
    draws = [Draw(recipe, tokenizer, rows) for recipe in (plain, changed)]
    aside = [draws[0].held_out(number) for number in (0, 1)]
    learnt = {tuple(row) for number in range(20) for row in draws[0](number).whole.tolist()}

    assert len(learnt) == len(rows) - 16
    assert not learnt & {tuple(row) for batch in aside for row in batch.whole.tolist()}
    for number, batch in enumerate(aside):
        assert torch.equal(batch.input_ids, draws[1].held_out(number).input_ids)
    share = len(draws[1](0).focus) / (draws[1](0).whole >= 5).sum()
    assert share > 0.3


def test_the_words_held_out_are_the_same_whatever_is_learnt_beside_them(made, workshop):
    tokenizer, _, _ = vocabulary(tiny(workshop), workshop / "data", workshop / "runs" / "tiny")
    rows = corpus(tiny(workshop), tokenizer, workshop / "data", workshop / "runs" / "tiny")
    alone, paired = [
        Draw(tiny(workshop, held_out=16, sentences=kind), tokenizer, rows).held_out(0) for kind in ("none", "order")
    ]

    assert torch.equal(alone.input_ids, paired.input_ids)
    assert (alone.labels, paired.labels) == (None, None)


def test_where_a_row_was_cut_tells_nothing_of_the_order_of_its_sentences(made, workshop):
    recipe = tiny(workshop, sentences="order")
    tokenizer, _, _ = vocabulary(recipe, workshop / "data", workshop / "runs" / "tiny")
    draw = Draw(recipe, tokenizer, corpus(recipe, tokenizer, workshop / "data", workshop / "runs" / "tiny"))
    draw.ends = torch.arange(50) == 9
    whole = torch.tensor([7, 9, 10, 11, 9, 12, 13, 14, 9, 15, 16, 9])

    assert [part.tolist() for part in draw._sentences(whole)] == [[10, 11, 9], [12, 13, 14, 9], [15, 16, 9]]
    assert [part.tolist() for part in draw._sentences(whole[:-1])] == [[10, 11, 9], [12, 13, 14, 9]]
    assert [len(part) for part in draw._sentences(whole[:8])] == [3, 3, 2]  # it has only one
    assert [len(part) for part in draw._sentences(torch.arange(20, 24))] == [2, 2]


def test_the_curve_ends_with_the_loss_on_what_is_held_out(made, workshop, tmp_path):
    recipe = tiny(workshop, held_out=16, sentences="order")
    body, _ = pretrain(recipe, workshop / "data", tmp_path, SILENT)
    tokenizer, _, _ = vocabulary(recipe, workshop / "data", tmp_path)
    draw = Draw(recipe, tokenizer, corpus(recipe, tokenizer, workshop / "data", tmp_path))
    losses = []
    with torch.no_grad():
        for batch in (draw.held_out(0), draw.held_out(1)):
            hidden = body.encoder(batch.input_ids, batch.token_type_ids, batch.real).flatten(0, 1)[batch.focus]
            logits = body.head(hidden, body.encoder.embeddings.word.weight)
            losses.append(float(nn.functional.cross_entropy(logits, batch.targets)))
    (point,) = read_curve(tmp_path / "losses.csv")

    assert point.losses["held_out_mlm"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert point.losses.keys() == {"mlm", "sentences", "held_out_mlm", "held_out_sentences"}


def test_something_is_left_to_learn_from(made, workshop, tmp_path):
    with pytest.raises(RecipeError, match="of 49 rows 48 are held out"):
        pretrain(tiny(workshop, held_out=48), workshop / "data", tmp_path, SILENT)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": 49}, "vocabulary of another size"),
        ({"hidden_size": 16, "num_attention_heads": 4}, "the guide's hidden_size"),
        ({"num_attention_heads": 2}, "as many heads as the guide has"),
    ],
)
def test_a_guide_that_cannot_be_imitated_is_refused(made, workshop, tmp_path, change, said):
    recipe = tiny(workshop, transfer=PLAN)
    body = build("mobilebert", {**recipe.config, "vocab_size": 50} | change, "masked_lm")

    with pytest.raises(RecipeError, match=said):
        pretrain(recipe, workshop / "data", tmp_path, SILENT, body=body)


def test_what_a_recipe_cannot_imitate_is_refused(made, workshop, guide, tmp_path):
    recipe = read_recipe(workshop / "tiny.toml")
    work = replace(recipe.pretraining, transfer=Transfer(strategy="progressive", feature_weight=1.0))
    with pytest.raises(RecipeError, match="layers that are shared"):
        pretrain(replace(recipe, pretraining=work), workshop / "data", tmp_path / "shared", SILENT)
    with pytest.raises(RecipeError, match="as wide as the ALBERT"):
        pretrain(
            *(tiny(workshop, transfer=replace(PLAN, begin=True)), workshop / "data", tmp_path / "begin", SILENT),
            body=guide,
        )
    with pytest.raises(RecipeError, match="predicts no words"):
        pretrain(tiny(workshop, transfer=Transfer(hard=0.5)), workshop / "data", tmp_path / "silent", SILENT)


def test_the_recipe_of_a_guide_is_followed_first(made, workshop, tmp_path, monkeypatch):
    text = (workshop / "tiny.toml").read_text("utf-8")
    (tmp_path / "guide.toml").write_text(text.replace('name = "tiny"', 'name = "guide"'), "utf-8")
    guided = text.replace("feature_weight = 1.0", f'recipe = "{tmp_path / "guide.toml"}"\nhard = 0.5')
    (tmp_path / "tiny.toml").write_text(guided, "utf-8")
    monkeypatch.setattr(trains, "release", partial(release, max_loss=100))
    said: list[str] = []
    follow(
        *(str(tmp_path / "tiny.toml"), ("tiny-mask",), workshop / "data", tmp_path / "runs", tmp_path / "out"),
        said.append,
    )

    first, second = (i for i, line in enumerate(said) if "step 12/12" in line)
    assert said[first].startswith("guide: step 12/12 mlm ")
    assert said[second].startswith("step 12/12 mlm ")
    assert (tmp_path / "out/tiny-mask").is_dir()


def test_a_model_that_was_made_before_guides_in_the_place_of_a_recipe(made, workshop, tmp_path, monkeypatch):
    """Its weights are those that it is served with."""
    path = workshop / "out/tiny-mask"
    text, _, _ = (workshop / "tiny.toml").read_text("utf-8").partition("[finetuning")
    text = text.replace("feature_weight = 1.0", f'model = "{path}"\nhard = 0.5')
    (tmp_path / "tiny.toml").write_text(text, "utf-8")
    guides: list[Model] = []

    def watched(*arguments, body, **named):
        guides.append(body)
        return pretrain(*arguments, body=body, **named)

    monkeypatch.setattr(trains, "pretrain", watched)
    said: list[str] = []
    follow(str(tmp_path / "tiny.toml"), (), workshop / "data", tmp_path / "runs", tmp_path / "out", said.append)
    (guide,) = guides
    weights = read_weights(path / "model.onnx")

    assert [line for line in said if line.startswith("step 12/12 mlm ")]
    assert {name: value.numpy() for name, value in guide.state_dict().items()}.keys() == weights.keys()
    assert all(np.array_equal(value.numpy(), weights[name]) for name, value in guide.state_dict().items())


def test_the_corpus_is_rows_of_the_length_and_number_asked_for(made, workshop):
    recipe = read_recipe(workshop / "tiny.toml")
    tokenizer, kept, counts = vocabulary(recipe, workshop / "data", workshop / "runs" / "tiny")
    rows = corpus(recipe, tokenizer, workshop / "data", workshop / "runs" / "tiny")

    assert rows.shape == (49, 16)
    assert (rows[:, 0] == tokenizer.token_to_id("[CLS]")).all()
    assert (rows[:, -1] == tokenizer.token_to_id("[SEP]")).all()
    assert (rows[:, 1:-1] >= len(SPECIALS)).all()
    assert len(kept) == len(counts) == tokenizer.get_vocab_size() <= 50
    first = next(islice(documents(workshop / "data" / "text.txt.xz"), 0, None))
    assert rows[0, 1:-1].tolist() == tokenizer.encode(first, add_special_tokens=False).ids[:14]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("seed = 1", "seed = 1\nspeed = 9"), "tiny.toml: the field 'speed' of recipe is unknown"),
        (("row_tokens = 16", "rows = 16"), "tiny.toml: the field 'rows' of pretraining is unknown"),
        (('version = "3"\n', ""), "tiny.toml: recipe: "),
        (("seed = 1", "seed = = 1"), "tiny.toml: it is not valid TOML"),
        (("tiny_teacher_of_the_tests", "no_such_teacher"), "no_such_teacher is not installed"),
        (("feature_weight = 1.0", "begin = true"), "begin is to start as the guide, and transfer names no recipe"),
        (("feature_weight = 1.0", 'recipe = "one"\nmodel = "two"'), "one guides: the body of a recipe, or a model"),
        (("feature_weight = 1.0", 'model = "nobody"'), "There is no model 'nobody'"),
        (("feature_weight = 1.0", 'model = "albert-fill-mask"'), "the model that is to guide reads other pieces"),
        (("batch_rows = 8\nsteps", "batch_rows = 0\nsteps"), "batch_rows and row_tokens are 1 or more"),
        (("steps = 12", "steps = -1"), "and steps not negative"),
        (("batch_rows = 8\nsteps", 'batch_rows = 1\nsentences = "next"\nsteps'), "batch_rows must be 2 or more"),
        (("vocabulary = 50", "vocabulary = 70000"), "less than 65536 pieces, and not 70000"),
        (("vocabulary = 50", "vocabulary = 9"), "do not fit into a vocabulary of 9"),
        (('"mood.tsv" = 1000', '"mood.tsv" = 0'), "how many examples there are of a file are 1 or more"),
        (("epochs = 8", "epochs = 0"), "batch_rows, epochs and how many examples"),
        (('"albert"\n[config]\nembedding_size = 16', '"bert"\n[config]'), "no way is known to begin 'bert'"),
        (("embedding_size", "embeding_size"), "config: albert: "),
        (("more.txt", "nowhere.txt"), "This recipe needs the file nowhere.txt, which is not in "),
        (("epochs = 8", 'distillation = {}\nunlabelled = { "nowhere.tsv" = 9 }'), "needs the file nowhere.tsv"),
        (("feature_weight = 1.0", 'strategy = "joint"'), "joint imitates before words are learnt, and no weight says"),
        (("feature_weight = 1.0", "feature_weight = 1.0\nbelow = 0.1"), "below is a share between 0 and 1 of the"),
        (('"mood.tsv"\nlicences', '"nowhere.tsv"\nlicences'), "This recipe needs the file nowhere.tsv"),
        (("epochs = 8", 'also = ["nowhere.tsv"]'), "This recipe needs the file nowhere.tsv"),
    ],
    ids=lambda change: str(change)[:30],
)
def test_a_recipe_that_cannot_be_followed_is_refused_in_a_sentence(workshop, tmp_path, change, said):
    text = (workshop / "tiny.toml").read_text("utf-8")
    assert change[0] in text
    (tmp_path / "tiny.toml").write_text(text.replace(*change), "utf-8")
    arguments = ["--data", workshop / "data", "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    result = CliRunner().invoke(main, ["train", str(tmp_path / "tiny.toml"), *map(str, arguments)])

    assert result.exit_code == 1
    assert said in result.output
    assert isinstance(result.exception, SystemExit)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "There is no recipe 'nonsense': it is no file, and the shipped ones are "),
        (["albert", "--only", "bread"], "but no 'bread'"),
        ([], "Missing argument 'RECIPE'"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(arguments, said):
    result = CliRunner().invoke(main, ["train", *arguments])

    assert result.exit_code != 0
    assert said in result.output
    assert isinstance(result.exception, SystemExit)


def test_train_explains_itself():
    result = CliRunner().invoke(main, ["train", "--help"])

    assert result.exit_code == 0
    assert all(
        said in result.output for said in ("RECIPE", "--only", "--runs", "../shared/data", "goes on where it was")
    )


def test_a_recipe_of_bytes_is_refused(tmp_path):
    (tmp_path / "r.toml").write_bytes(b"\xff\xfe")

    with pytest.raises(RecipeError, match="not valid TOML"):
        read_recipe(tmp_path / "r.toml")
    with pytest.raises(SetupError, match=r"r\.toml: it is not valid TOML"):
        follow(str(tmp_path / "r.toml"), (), tmp_path, tmp_path, tmp_path, SILENT)


# --- Studies

STUDY = """
name = "depth"
question = "Do two layers learn more than one?"
[variants.one.config]
num_hidden_layers = 1
[variants.two.pretraining]
corpora = { "more.txt" = 40 }
masked = 0.3
[recipe]
"""


@pytest.fixture
def study_file(workshop, tmp_path):
    recipe, _, _ = (workshop / "tiny.toml").read_text("utf-8").partition("[finetuning")
    recipe = recipe.replace("[pretraining]", "[recipe.pretraining]\nheld_out = 8").replace(
        "[config]", "[recipe.config]"
    )
    recipe = recipe.replace("[pretraining.transfer]", "[recipe.pretraining.transfer]")
    lines = [line for line in recipe.splitlines() if not line.startswith(("name", "version", "summary"))]
    (tmp_path / "depth.toml").write_text(STUDY + "\n".join(lines), "utf-8")
    return tmp_path / "depth.toml"


def test_a_variant_is_the_recipe_but_for_what_it_sets(study_file):
    variants = read_study(study_file).variants
    one, two = variants["one"], variants["two"]

    assert (one.config["num_hidden_layers"], two.config["num_hidden_layers"]) == (1, 2)
    assert one.pretraining.corpora == {"text.txt.xz": 40, "more.txt": 9}
    assert two.pretraining.corpora == {"more.txt": 40}
    assert replace(two.pretraining, corpora=one.pretraining.corpora, masked=0.15) == one.pretraining


def test_a_study_ends_in_a_table_and_a_plot(workshop, study_file, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ["study", str(study_file), "--data", str(workshop / "data"), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    again = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    head, _, *rows = result.stdout.splitlines()[:4]

    assert result.exit_code == 0
    assert head == "| variant | M parameters | steps | TFLOP | held-out mlm |"
    for row, name in zip(rows, ("one", "two"), strict=True):
        (*_, point) = read_curve(tmp_path / "runs/depth" / name / "losses.csv")
        assert row.startswith(f"| {name} | 0.0")
        assert row.endswith(f"| 12 | 0 | {point.losses['held_out_mlm']:.3f} |")
    assert (tmp_path / "out/depth.png").read_bytes().startswith(b"\x89PNG")
    assert again.stdout == result.stdout
    assert "step" in result.stderr
    assert "step" not in again.stderr  # what has ended is not repeated


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("held_out = 8", "held_out = 0"), "variant 'one' holds nothing out"),
        (("question = ", "questions = "), "a study has a name, a question"),
        (("num_hidden_layers = 1", "num_hidden_layers ="), "it is not valid TOML"),
        (('"more.txt" = 40', '"none.txt" = 40'), "needs the file none.txt"),
    ],
)
def test_what_is_wrong_with_a_study_is_said_in_a_sentence(workshop, study_file, tmp_path, change, said):
    text = study_file.read_text("utf-8")
    assert change[0] in text
    study_file.write_text(text.replace(*change), "utf-8")
    result = CliRunner().invoke(
        main, ["study", str(study_file), "--data", str(workshop / "data"), "--runs", str(tmp_path)]
    )

    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_study_that_is_not_there_is_named():
    result = CliRunner().invoke(main, ["study", "nothing"])

    assert result.exit_code == 1
    assert "There is no study 'nothing'" in result.output


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_study_can_be_read_and_its_answer_is_there(path):
    study = read_study(path)
    answer = path.with_suffix(".md").read_text("utf-8")

    assert study.name == path.stem
    assert study.question in answer
    for name in study.variants:
        assert f"| {name} |" in answer
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
