"""Replaced-token detection: the replacements, the generator and the discriminator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from swiftlet_models.heads import build
from swiftlet_train.pretraining.objectives.masked_lm import Masked, mask
from swiftlet_train.pretraining.objectives.replaced_token import (
    Discriminator,
    Replaced,
    detection_loss,
    generator_config,
    make_generator,
    replace_tokens,
)
from tests.support.networks import CONFIGS, network
from tests.support.tiers import first

CLS, SEP, MASK, SPECIAL = 2, 3, 4, 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


VOCABULARY = 50


@pytest.fixture(scope="module")
def replacement() -> tuple[Tensor, Masked, Tensor, Replaced]:
    """Masked sequences, and replacements by a generator with its own probability for each of 45 words."""
    sequences = torch.randint(SPECIAL, VOCABULARY, (400, 64), generator=seeded(4))
    sequences[:, 0], sequences[:, -1] = CLS, SEP
    sequences[::2, 40:] = 0
    masked = mask(sequences, first_word_id=SPECIAL, mask_id=MASK, vocab_size=VOCABULARY, generator=seeded(5))
    logits = torch.linspace(0, 3, VOCABULARY).repeat(len(masked.focus), 1)
    logits[:, :SPECIAL] = 20.0  # special tokens would always be sampled
    return (
        sequences,
        masked,
        logits,
        replace_tokens(masked, logits, sequences > 0, first_word_id=SPECIAL, generator=seeded(6)),
    )


def test_replace_tokens_samples_the_generators_predictions_without_special_tokens(replacement):
    _, masked, logits, replaced = replacement
    sampled = replaced.input_ids.flatten()[masked.focus]
    shares = torch.bincount(sampled, minlength=VOCABULARY) / len(sampled)
    expected = logits[0, SPECIAL:].softmax(0)

    assert shares[:SPECIAL].sum() == 0
    assert (shares[SPECIAL:] - expected).abs().max() < 0.012
    assert len(masked.focus) > 2500


def test_replace_tokens_keeps_other_tokens_and_leaves_no_mask(replacement):
    sequences, masked, _, replaced = replacement
    unmasked = torch.ones(sequences.numel(), dtype=torch.bool)
    unmasked[masked.focus] = False

    assert torch.equal(replaced.input_ids.flatten()[unmasked], sequences.flatten()[unmasked])
    assert not (replaced.input_ids == MASK).any()


def test_replace_tokens_labels_changed_tokens_and_ignores_padding(replacement):
    sequences, masked, _, replaced = replacement

    assert torch.equal(replaced.focus, (sequences > 0).flatten().nonzero()[:, 0])
    assert torch.equal(replaced.labels.bool(), (replaced.input_ids != sequences).flatten()[replaced.focus])
    unchanged = (replaced.input_ids.flatten()[masked.focus] == masked.targets).sum()
    assert unchanged > 20
    assert replaced.labels.sum() == len(masked.focus) - unchanged


def test_replace_tokens_replaces_nothing_if_the_generator_is_always_right(replacement):
    sequences, masked, _, _ = replacement
    right = nn.functional.one_hot(masked.targets, VOCABULARY) * 100.0
    replaced = replace_tokens(masked, right, sequences > 0, first_word_id=SPECIAL, generator=seeded())

    assert torch.equal(replaced.input_ids, sequences)
    assert replaced.labels.sum() == 0


def test_replace_tokens_is_reproducible_and_has_no_gradient(replacement):
    sequences, masked, logits, replaced = replacement
    learning = logits.clone().requires_grad_()
    again = replace_tokens(masked, learning, sequences > 0, first_word_id=SPECIAL, generator=seeded(6))
    other = replace_tokens(masked, learning, sequences > 0, first_word_id=SPECIAL, generator=seeded(7))

    assert torch.equal(again.input_ids, replaced.input_ids)
    assert not torch.equal(other.input_ids, replaced.input_ids)
    assert not again.labels.requires_grad
    assert (masked.input_ids == MASK).any()  # what was masked is left alone


def test_detection_loss_is_50_times_the_mean_cross_entropy():
    replaced = Replaced(torch.zeros(1, 4), torch.tensor([0, 1, 2]), torch.tensor([1.0, 0.0, 0.0]))
    logits = torch.tensor([[0.0], [0.0], [100.0]])
    two = 2 * torch.log(torch.tensor(2.0))

    assert detection_loss(logits, replaced).item() == pytest.approx(50 * (two + 100).item() / 3)
    assert detection_loss(logits, replaced, weight=1.0).item() == pytest.approx((two + 100).item() / 3)


@pytest.mark.parametrize("name", first(["albert", "bert", "mobilebert"], "mobilebert"))
def test_discriminator_learns_to_detect_replacements(name):
    """The replacements do not occur otherwise, so the token alone reveals them."""
    torch.manual_seed(0)
    model = build(name, CONFIGS[name], "masked_lm")
    model.head = Discriminator(model.encoder.config)
    pieces = model.encoder.config.vocab_size
    sequences = torch.randint(SPECIAL, pieces // 2, (16, 24), generator=seeded(1))
    lengths = torch.full((16,), 24)
    masked = mask(sequences, first_word_id=SPECIAL, mask_id=MASK, vocab_size=pieces // 2, generator=seeded(2))
    logits = torch.zeros(len(masked.focus), pieces).index_fill(1, torch.arange(pieces // 2), -100.0)
    replaced = replace_tokens(masked, logits, sequences > 0, first_word_id=SPECIAL, generator=seeded(3))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = detection_loss(model(replaced.input_ids, torch.zeros_like(sequences), lengths, replaced.focus), replaced)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())

    assert losses[0] == pytest.approx(50 * 0.693, abs=4)
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize("name", first(["albert", "bert", "mobilebert"], "bert", "mobilebert"))
def test_make_generator_halves_the_width_and_shares_word_embeddings(name):
    encoder = network(name, "qa").encoder
    generator = make_generator(name, encoder)
    theirs, ours = (vars(one.config) for one in (generator.encoder, encoder))

    assert theirs["num_hidden_layers"] == ours["num_hidden_layers"]
    assert theirs["intermediate_size"] == ours["intermediate_size"] // 2
    assert (generator.encoder.embeddings.word is encoder.embeddings.word) == (name != "bert")


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
def test_generator_config_has_heads_that_divide_the_width(config, expected):
    generator = generator_config({**config, "intermediate_size": 64})

    assert (generator["hidden_size"], generator["num_attention_heads"]) == expected
    assert generator["hidden_size"] % generator["num_attention_heads"] == 0
