"""Tests of the multiply-adds that a network needs."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from swiftlet_models.artifact import Embedding
from swiftlet_models.heads import build
from swiftlet_models.operations import Operations
from tests.support import native_kernels


def operations_of(architecture, config, head, width=0, embedding=None):
    with torch.device("meta"):
        model = build(architecture, config, head, width, embedding)
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    return model, Operations.of(architecture, config, shapes, embedding)


@pytest.mark.parametrize("architecture", sorted(native_kernels.CONFIGS.keys() - {"gpt2"}))
def test_operations_equal_the_products_of_torch_if_every_row_is_read(architecture):
    """Without padding, and with a head that reads every token, torch computes no superfluous product."""
    rows, tokens = 3, 11
    config = native_kernels.CONFIGS[architecture]
    if "local_attention" in config:  # torch multiplies beyond a window, too
        config = config | {"local_attention": 2 * tokens}
    model, operations = operations_of(architecture, config, "token", 2)
    ids = torch.zeros((rows, tokens), dtype=torch.int64, device="meta")
    lengths = torch.full((rows,), tokens, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(ids, ids, lengths, torch.arange(rows * tokens, device="meta"))

    # The table of distances is mapped to keys and queries in every call of torch, and once in an engine.
    maps = model.encoder.relative.weight.shape[0] * 2 * 96 * 96 * 2 if architecture == "deberta_v2" else 0
    assert 2 * (operations.count([tokens] * rows, [tokens] * rows) + maps) == counter.get_total_flops()


@pytest.mark.parametrize("tokens", [1, 16, 384])
def test_operations_count_the_read_rows_of_the_last_layer(tokens):
    """By hand for google/mobilebert-uncased as a classifier, and albert-base-v2 as a masked LM with two masks."""
    _, mobilebert = operations_of("mobilebert", {}, "classification", 2)
    keys = 512 * 128 + 128 * 128 + 512 * 128  # bottleneck, key, value
    rest = 128 * 128 + 512 * 128 + 128 * 128 + 4 * 2 * 128 * 512 + 128 * 512  # from the query to the last product
    layers = 23 * tokens * (keys + rest + 2 * 128 * tokens) + tokens * keys + rest + 2 * 128 * tokens
    assert mobilebert.count([tokens], [1]) == tokens * 384 * 512 + layers + 2 * 512

    _, albert = operations_of("albert", {}, "masked_lm")
    keys, rest = 2 * 768 * 768, 2 * 768 * 768 + 2 * 768 * 3072
    layers = 11 * tokens * (keys + rest + 2 * 768 * tokens) + tokens * keys + 2 * (rest + 2 * 768 * tokens)
    assert albert.count([tokens], [2]) == tokens * 128 * 768 + layers + 2 * (768 * 128 + 128 * 30_000)


def test_operations_of_causal_networks_count_the_pairs_of_attention_once():
    """By hand for GPT-2, as a classifier that reads the last token, and as a language model that reads all tokens."""
    keys, rest, tokens = 2 * 768 * 768, 2 * 768 * 768 + 2 * 768 * 3072, 100
    pairs = tokens * (tokens + 1) // 2
    layers = 11 * (tokens * (keys + rest) + pairs * 2 * 768) + tokens * keys
    _, classifier = operations_of("gpt2", {}, "classification", 2)
    _, language_model = operations_of("gpt2", {}, "causal_lm")

    assert classifier.count([tokens], [1]) == layers + rest + tokens * 2 * 768 + 2 * 768
    head = tokens * 768 * 50_257
    assert language_model.count([tokens], [tokens]) == layers + tokens * rest + pairs * 2 * 768 + head


@pytest.mark.parametrize("tokens", [1, 3, 4, 20])
def test_operations_of_a_window_count_the_pairs_within(tokens):
    """For ModernBERT, whose every third layer has none."""
    config = native_kernels.CONFIGS["modernbert"] | {"num_hidden_layers": 6, "local_attention": 7}
    _, local = operations_of("modernbert", config, "token", 2)
    _, full = operations_of("modernbert", config | {"local_attention": 2 * tokens}, "token", 2)
    pairs = sum(abs(i - j) <= 3 for i in range(tokens) for j in range(tokens))

    difference = full.count([tokens], [tokens]) - local.count([tokens], [tokens])
    assert difference == 4 * 2 * 64 * (tokens**2 - pairs)


def test_operations_of_a_head_that_pools_count_all_tokens():
    """The last layer computes every token, and a dense layer only the pooled vectors."""
    pooled, dense = Embedding("mean"), Embedding("mean", dense="tanh")
    _, first = operations_of("bert", {}, "embedding", 768, Embedding("cls"))
    _, mean = operations_of("bert", {}, "embedding", 768, pooled)
    _, with_dense = operations_of("bert", {}, "embedding", 100, dense)

    assert mean.count([7, 3], [1, 1]) == first.count([7, 3], [7, 3])
    assert with_dense.count([7, 3], [1, 1]) == mean.count([7, 3], [1, 1]) + 2 * 768 * 100


def test_operations_of_mpnet_are_those_of_bert():
    config = {"vocab_size": 211}
    (_, mpnet), (_, bert) = (operations_of(name, config, "token", 2) for name in ("mpnet", "bert"))

    assert mpnet == bert


def test_operations_of_rows_add_up_without_padding():
    _, operations = operations_of("albert", native_kernels.CONFIGS["albert"], "classification", 2)

    assert operations.count([3, 40], [1, 1]) == operations.count([3], [1]) + operations.count([40], [1])
