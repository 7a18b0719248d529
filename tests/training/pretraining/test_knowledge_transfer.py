"""The losses and phases of knowledge transfer."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from swiftlet_models.heads import build
from swiftlet_train.pretraining import knowledge_transfer
from swiftlet_train.recipe import KnowledgeTransfer
from tests.support.networks import CONFIGS, network


def features(layers: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 5, 8, generator=generator) for _ in range(layers + 1)]


WHERE = torch.tensor([[True] * 5, [True, True, False, False, False]])


def feature_loss(student: list[torch.Tensor], teacher: list[torch.Tensor]) -> torch.Tensor:
    """Returns the feature loss over all layers."""
    return knowledge_transfer.feature_loss(student, teacher, WHERE, range(1, len(student)))


def test_feature_loss_is_0_for_equal_features():
    assert feature_loss(features(3), features(3)) == 0
    assert feature_loss(features(3), features(3, seed=1)) > 0.5


def test_feature_loss_compares_normalised_features():
    scaled = [3 * feature + 7 for feature in features(3)]

    assert feature_loss(scaled, features(3)) < 1e-6


def test_feature_loss_ignores_padding_and_embeddings():
    changed = [feature.clone() for feature in features(2)]
    for feature in changed:
        feature[1, 2:] = 100
    changed[0][:] = -5

    assert feature_loss(changed, features(2)) == 0


def test_moment_losses_match_values_computed_by_hand():
    """The normalised features are equal. The mean is off by 2, and the variance is nine times as large."""
    teacher = [torch.zeros(1, 2, 4), torch.tensor([[[1.0, -1.0, 1.0, -1.0], [9.0, 9.0, 9.0, 0.0]]])]
    where = torch.tensor([[True, False]])
    student = [teacher[0], 3 * teacher[1] + 2]
    means, variances = knowledge_transfer.moment_losses(student, teacher, where, range(1, 2))

    assert knowledge_transfer.feature_loss(student, teacher, where, range(1, 2)) == pytest.approx(0, abs=1e-6)
    assert means == pytest.approx(2**2)
    assert variances == pytest.approx(9 - 1)


@pytest.mark.parametrize(("depth", "teacher_layers"), [(2, [3, 6]), (3, [2, 4, 6]), (6, [1, 2, 3, 4, 5, 6]), (1, [6])])
def test_feature_loss_pairs_layers_by_relative_depth(depth, teacher_layers):
    teacher = features(6)
    student = [features(1, seed=9)[0], *(teacher[number] for number in teacher_layers)]

    assert len(student) == depth + 1
    assert feature_loss(student, teacher) == 0


def test_feature_loss_compares_only_the_given_layers():
    student = features(3)
    student[1] = student[3] = features(1, seed=1)[1]

    assert knowledge_transfer.feature_loss(student, features(3), WHERE, range(2, 3)) == 0
    assert knowledge_transfer.feature_loss(student, features(3), WHERE, range(2, 4)) > 0.1


def test_record_attention_records_every_layer_of_a_shared_attention():
    config = CONFIGS["albert"] | {"num_hidden_layers": 3, "shared_parameters": "attention"}
    encoder, ids = build("albert", config, "masked_lm").encoder, torch.ones((1, 4), dtype=torch.long)
    with torch.no_grad(), knowledge_transfer.record_attention(encoder, ids > 0) as recorded:
        encoder(ids, ids * 0, ids > 0)

    assert len(recorded) == 3


@pytest.mark.parametrize(("name", "task"), [("bert", "qa"), ("albert", "classify"), ("mobilebert", "qa")])
def test_record_attention_records_the_networks_attention(name, task, monkeypatch):
    """Attention to one-hot values returns the attention weights."""
    encoder, depth = network(name, task).encoder, CONFIGS[name]["num_hidden_layers"]
    ids = torch.randint(5, 100, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    expected = []

    def attend(query, key, value, heads, bias):
        split = [x.view(2, 7, heads, -1).transpose(1, 2) for x in (query, key)]
        expected.append(nn.functional.scaled_dot_product_attention(*split, torch.eye(7).expand(2, heads, 7, 7), bias))
        return real(query, key, value, heads, bias)

    module = sys.modules[type(encoder).__module__]
    real = module.attend
    monkeypatch.setattr(module, "attend", attend)
    with torch.no_grad(), knowledge_transfer.record_attention(encoder, mask) as recorded:
        encoder(ids, ids * 0, mask)

    assert len(recorded) == len(expected) == depth
    for log_probabilities, share in zip(recorded, expected, strict=True):
        assert torch.allclose(log_probabilities.exp(), share, atol=1e-6)
        assert log_probabilities[1, :, :, 4:].exp().max() == 0  # padding
    encoder(ids, ids * 0, mask)
    assert len(recorded) == depth  # the hooks are removed


def test_attention_loss_is_the_divergence_from_the_teacher():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(3, 2, 4, 5, 5, generator=generator).log_softmax(-1) for _ in range(2))
    by_hand = (theirs.exp() * (theirs - ours)).sum(-1)[1].transpose(1, 2)[WHERE].mean().item()

    assert knowledge_transfer.attention_loss(list(ours), list(ours), WHERE, range(1, 4)) == pytest.approx(0, abs=1e-6)
    assert knowledge_transfer.attention_loss(list(ours), list(theirs), WHERE, range(2, 3)) == pytest.approx(
        by_hand, rel=1e-5
    )


def test_prediction_loss_weighs_labels_and_teacher():
    generator = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(2, 6, 9, generator=generator)
    targets = torch.randint(9, (6,), generator=generator)
    log = ours.log_softmax(-1)
    hard, soft = -log[range(6), targets].mean().item(), -(theirs.softmax(-1) * log).sum(-1).mean().item()

    for share in (0, 0.25, 1):
        loss = knowledge_transfer.prediction_loss(ours, theirs, targets, share)
        assert loss == pytest.approx(share * hard + (1 - share) * soft, rel=1e-5)


@pytest.mark.parametrize(
    ("strategy", "progress", "layers", "lower_layers", "predicts_words"),
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
def test_find_phase_follows_the_strategy(strategy, progress, layers, lower_layers, predicts_words):
    now = knowledge_transfer.find_phase(
        KnowledgeTransfer(strategy=strategy, transfer_fraction=0.5, feature_weight=1.0), progress, depth=4
    )

    assert (list(now.layers), now.lower_layers, now.predicts_words) == (layers, lower_layers, predicts_words)
