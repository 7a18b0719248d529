"""The initialisation of a student from a teacher."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swiftlet_models.architectures import albert
from swiftlet_models.heads import build
from swiftlet_train.initialisation import find_initialiser
from swiftlet_train.initialisation.bottleneck_layers import narrow_query_key, residual_scale
from swiftlet_train.initialisation.fitting import Sample, fit, principal_directions
from swiftlet_train.initialisation.mobilebert import initialise_mobilebert, initialise_wide_head
from swiftlet_train.initialisation.standard_layers import (
    feed_forward_inputs,
    initialise_factorised,
    initialise_layer,
    initialise_masked_lm_head,
    standard_layers,
)
from swiftlet_train.pretraining import knowledge_transfer
from swiftlet_train.recipe import RecipeError
from swiftlet_train.teachers.encoders import prune_embeddings
from tests.support.checkpoints import SMALL, conversion, reference
from tests.support.tiers import first
from tests.support.training import same_state


@pytest.fixture
def teacher():
    return conversion(reference(SMALL["bert"], "fill-mask", max_position_embeddings=512), "fill-mask").model.encoder


def test_prune_embeddings_keeps_the_given_rows(teacher):
    before = teacher.embeddings.word.weight.detach().clone()
    prune_embeddings(teacher, [7, 3, 210])

    assert torch.equal(teacher.embeddings.word.weight, before[[7, 3, 210]])
    assert not teacher.embeddings.word.weight.requires_grad


def test_principal_directions_preserve_a_table_of_low_rank():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(50, 3, generator=generator) @ torch.randn(3, 20, generator=generator)
    basis = principal_directions(table, torch.arange(50.0), 3)

    assert torch.allclose(basis.T @ basis, torch.eye(3), atol=1e-5)
    assert torch.allclose(table @ basis @ basis.T, table, atol=1e-4)


def test_principal_directions_weigh_frequent_words():
    table = torch.eye(4)

    assert torch.allclose(principal_directions(table, torch.tensor([0.0, 99, 0, 0]), 1).abs()[:, 0], table[1])


COPIED = {"use_bottleneck": False, "normalization_type": "layer_norm", "num_feedforward_networks": 1}
"""The settings of a MobileBERT whose layers are those of a BERT."""
ROWS = torch.randint(5, 211, (8, 30), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("groups", "firsts"), [(3, [0, 1, 2]), (2, [0, 1]), (1, [0])])
def test_initialise_factorised_copies_the_first_covered_layer(teacher, groups, firsts):
    sizes = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 96}
    settings = sizes | {
        "embedding_size": 16,
        "num_hidden_layers": 6,
        "num_hidden_groups": groups,
        "layer_norm_eps": 0.05,
    }
    student = build("albert", settings, "masked_lm")
    initialise_factorised(student, teacher, torch.ones(211), Sample.from_sequences(ROWS))

    assert len(teacher.layers) == 3
    for group, layer in zip(student.encoder.groups, firsts, strict=True):
        assert same_state(group[0], teacher.layers[layer])


@pytest.mark.parametrize("shared", ["attention", "feed_forward"])
def test_network_that_shares_a_part_of_its_layers_cannot_be_initialised(shared):
    with pytest.raises(RecipeError, match="shared_parameters"):
        find_initialiser("albert", albert.Config(shared_parameters=shared).traits())


@pytest.mark.parametrize("dead", [48, 40])
def test_initialise_layer_keeps_the_neurons_with_the_largest_contribution(teacher, dead):
    """The teacher has 96 neurons. The fit compensates for dropped ones, exactly if they are dead."""
    source_layer = standard_layers(teacher)[1]
    source = source_layer.module
    chance = torch.Generator().manual_seed(3)
    source.ffn_out.weight.data[:, torch.randperm(96, generator=chance)[:dead]] = 0
    config = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "embedding_size": 16}
    config |= {"intermediate_size": 48, "num_hidden_layers": 1, "layer_norm_eps": 0.05}
    (student_layer,) = standard_layers(build("albert", config, "masked_lm").encoder)
    layer = student_layer.module
    inputs = torch.randn(600, 48, generator=chance)
    with torch.no_grad():
        initialise_layer(student_layer, source_layer, inputs)
        neurons = source.act(source.ffn_in(inputs))
        wanted = source.ffn_out(neurons)
        error = (layer.ffn_out(layer.act(layer.ffn_in(inputs))) - wanted).square().mean()
        contributions = neurons.square().mean(0) * source.ffn_out.weight.square().sum(0)
        kept = neurons * torch.isin(torch.arange(96), contributions.topk(48).indices)
        cut = (source.ffn_out(kept) - wanted).square().mean()

    assert torch.equal(layer.query.weight, source.query.weight)
    if dead == 48:
        assert error < 1e-5 * wanted.square().mean()
    else:
        assert 0 < error < 0.95 * cut


def test_feed_forward_inputs_returns_the_inputs_of_each_layer(teacher):
    found = feed_forward_inputs(teacher, Sample.from_sequences(ROWS))
    layer, every = teacher.layers[0], torch.ones_like(ROWS, dtype=torch.bool)
    outputs = found[0] + layer.ffn_out(layer.act(layer.ffn_in(found[0])))

    assert len(found) == 3
    assert torch.allclose(layer.ffn_norm(outputs), teacher.features(ROWS, ROWS * 0, every)[1].flatten(0, 1), atol=1e-5)
    teacher(ROWS, ROWS * 0, every)
    assert len(found) == 3  # the hooks are removed


@pytest.mark.parametrize(
    ("architecture", "more"),
    [("albert", {}), ("mobilebert", {"intra_bottleneck_size": 32}), ("mobilebert", COPIED)],
)
def test_initialisers_reproduce_the_teachers_embeddings(teacher, architecture, more):
    """The embedding tables have low rank, as trained ones nearly have."""
    generator = torch.Generator().manual_seed(0)
    for table, size in ((teacher.embeddings.word.weight.data, 4), (teacher.embeddings.position.weight.data, 8)):
        table[:] = table[:, :12] @ torch.randn(12, 48, generator=generator) / size
    sizes = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
    settings = sizes | {"embedding_size": 32, "intermediate_size": 96}
    student = build(architecture, settings | more, "token", 2)
    ids = torch.randint(5, 211, (4, 30), generator=torch.Generator().manual_seed(2))
    every = torch.ones_like(ids, dtype=torch.bool)

    @torch.no_grad()
    def similarity(ids: torch.Tensor) -> float:
        """Compares the embeddings without their mean over the positions."""
        ours = student.encoder.features(ids, ids * 0, every)[0]
        theirs = teacher.features(ids, ids * 0, every)[0]
        less = (value - value.mean(1, keepdim=True) for value in (ours, theirs))
        return float(torch.cosine_similarity(*less, dim=-1).mean())

    assert abs(similarity(ids)) < 0.3
    find_initialiser(architecture, student.encoder.config.traits())(
        student, teacher, torch.ones(211), Sample.from_sequences(ROWS)
    )
    assert similarity(ids) > 0.8
    assert similarity(ids[:, :1].expand(-1, 30)) > 0.8


@pytest.mark.parametrize(("architecture", "words"), [("bert", 48), ("albert", 16)])
def test_initialise_mobilebert_reproduces_a_teacher_of_the_same_width(architecture, words):
    """The bottleneck is as wide as the hidden size. The remaining error is due to the missing norms."""
    shape = reference(SMALL[architecture], "fill-mask", max_position_embeddings=512)
    teacher = conversion(shape, "fill-mask").model.encoder
    config = {"vocab_size": 211, "hidden_size": 48, "intra_bottleneck_size": 48, "num_attention_heads": 4}
    config |= {"embedding_size": words, "intermediate_size": 96, "num_hidden_layers": 3, "num_feedforward_networks": 1}
    rows = torch.randint(5, 211, (60, 30), generator=torch.Generator().manual_seed(4))
    every = torch.ones_like(ROWS, dtype=torch.bool)
    for layer in set(teacher.applied_layers()):  # a trained teacher has sharper attention
        layer.query.weight.data *= 2
        layer.key.weight.data *= 2

    @torch.no_grad()
    def errors(student) -> tuple[float, float]:
        with knowledge_transfer.record_attention(student.encoder, every) as ours:
            features = student.encoder.features(ROWS, ROWS * 0, every)
        with knowledge_transfer.record_attention(teacher, every) as theirs:
            known = teacher.features(ROWS, ROWS * 0, every)
        return (
            float(knowledge_transfer.feature_loss(features, known, every, range(1, 4))),
            float(knowledge_transfer.attention_loss(ours, theirs, every, range(1, 4))),
        )

    torch.manual_seed(0)
    student = build("mobilebert", config, "masked_lm")
    before = errors(student)
    initialise_mobilebert(student, teacher, torch.ones(211), Sample.from_sequences(rows))
    after = errors(student)

    assert after[0] < 0.3 < 1 < before[0]
    assert after[1] < 0.2 * before[1], (before, after)


@pytest.mark.parametrize("neurons", [96, 64])
def test_initialise_mobilebert_copies_the_layers_of_a_student_without_bottlenecks(teacher, neurons):
    config = {"vocab_size": 211, "hidden_size": 48, "num_attention_heads": 4, "embedding_size": 32}
    config |= {"intermediate_size": neurons, "num_hidden_layers": 3} | COPIED
    student = build("mobilebert", config, "token", 2)
    initialise_mobilebert(student, teacher, torch.ones(211), Sample.from_sequences(ROWS))

    for layer, source in zip(student.encoder.layers, teacher.layers, strict=True):
        assert torch.equal(layer.query.weight, source.query.weight)
        assert torch.equal(layer.attention_norm.bias, source.attention_norm.bias)
        assert torch.equal(layer.last_ffn.norm.weight, source.ffn_norm.weight)
        kept, rows = layer.last_ffn.dense_in.weight, source.ffn_in.weight
        assert (kept[:, None] == rows).all(2).any(1).all()  # each neuron is one of the teacher's


def test_initialise_wide_head_reproduces_the_teachers_head():
    """The heads are compared on inputs that the fit has not seen."""
    shape = {"vocab_size": 211, "hidden_size": 48, "embedding_size": 16, "num_attention_heads": 4}
    torch.manual_seed(0)
    source, head = (build(name, shape | more, "masked_lm").head for name, more in (("albert", {}), ("mobilebert", {})))
    words, rows = torch.randn(211, 16), torch.randn(3000, 48)
    source.transform.weight.data.normal_(std=0.2)
    source.bias.data.normal_()

    @torch.no_grad()
    def relative_error() -> float:
        """Returns the error of the predictions, relative to the variance of the teacher's."""
        known = source(rows[:600], words)
        return float((head(rows[:600], words) - known).square().mean() / (known - known.mean(0)).square().mean())

    before = relative_error()
    initialise_wide_head(head, source, words, rows[600:], rows[600:])

    assert relative_error() < 0.1 < 0.9 < before


@pytest.mark.parametrize(
    "change",
    first(
        [
            {"num_attention_heads": 2},
            {"normalization_type": "layer_norm"},
            {"use_bottleneck_attention": True},
            COPIED | {"normalization_type": "no_norm"},
            COPIED | {"num_attention_heads": 2},
            COPIED | {"num_feedforward_networks": 2},
            COPIED | {"intermediate_size": 97},
        ],
        {"use_bottleneck_attention": True},
        COPIED | {"normalization_type": "no_norm"},
        COPIED | {"intermediate_size": 97},
    ),
)
def test_initialise_mobilebert_leaves_unsupported_layers_unchanged(teacher, change):
    config = {"vocab_size": 211, "hidden_size": 48, "intra_bottleneck_size": 32, "num_attention_heads": 4}
    config |= {"embedding_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | change
    torch.manual_seed(0)
    student = build("mobilebert", config, "masked_lm")
    before = [parameter.clone() for parameter in student.encoder.layers.parameters()]
    words = student.encoder.embeddings.word.weight.clone()
    initialise_mobilebert(student, teacher, torch.ones(211), Sample.from_sequences(ROWS))

    assert all(torch.equal(a, b) for a, b in zip(before, student.encoder.layers.parameters(), strict=True))
    assert not torch.equal(words, student.encoder.embeddings.word.weight)


def test_narrow_query_key_preserves_scores_of_low_rank():
    chance = torch.Generator().manual_seed(0)
    query = torch.randn(500, 3, generator=chance) @ torch.randn(3, 8, generator=chance)
    key = torch.randn(500, 3, generator=chance) @ torch.randn(3, 8, generator=chance) + 2  # shifts all scores alike
    narrow = narrow_query_key(query, key, 4)
    scores = [(a[:50] @ b[:40].T / b.shape[1] ** 0.5).log_softmax(-1) for a, b in ((query, key), narrow)]

    assert torch.allclose(*scores, atol=1e-2)


def test_residual_scale_finds_the_scale_of_each_dimension():
    chance = torch.Generator().manual_seed(0)
    x, stream = torch.randn(400, 3, generator=chance), torch.randn(400, 5, generator=chance)
    shares = torch.tensor([0.1, 0.5, 1.0, 2.0, 0.0])
    made = x @ torch.randn(3, 5, generator=chance) + shares * stream + 7

    assert torch.allclose(residual_scale(x, stream, made), shares, atol=1e-4)


def test_initialise_masked_lm_head_sets_the_word_frequencies():
    settings = {"vocab_size": 4, "hidden_size": 8, "num_attention_heads": 2, "embedding_size": 8}
    student = build("albert", settings, "masked_lm")
    initialise_masked_lm_head(student.head, torch.tensor([0.0, 1, 2, 3]))
    student.head.norm.weight.data.zero_()
    predictions = student.head(torch.randn(3, 8), student.encoder.embeddings.word.weight).softmax(-1)

    assert torch.allclose(predictions, torch.tensor([0.1, 0.2, 0.3, 0.4]).expand(3, 4))


def test_fit_recovers_a_linear_map():
    generator = torch.Generator().manual_seed(0)
    wanted, layer = nn.Linear(5, 3), nn.Linear(5, 3)
    inputs = torch.randn(4, 6, 5, generator=generator)
    with torch.no_grad():
        fit(layer, inputs, wanted(inputs))

    assert torch.allclose(layer.weight, wanted.weight, atol=2e-3)  # the penalty shrinks the weights by a thousandth
    assert torch.allclose(layer.bias, wanted.bias, atol=2e-3)
