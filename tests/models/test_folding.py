"""Tests of folding: every rewrite is exact, and an unsupported network is rejected."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swiftlet_serve.models import architectures
from swiftlet_serve.models.architectures import bert
from swiftlet_serve.models.architectures.traits import EmbeddingTraits, PositionBias
from swiftlet_serve.models.folding import FoldingError, fold
from swiftlet_serve.service.types import Batch
from tests.support.checkpoints import relative_error, untrained
from tests.support.native_kernels import CONFIGS, NETWORKS, encoding, network, run_folded, torch_rows, weights

EXACT = 1e-13  # in float64; measured: 4e-15
VARIANTS = {
    "tiny": {"use_bottleneck_attention": True},
    "own-bottlenecks": {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 80, "num_attention_heads": 5},
    "no-trigram": {"trigram_input": False},
    "gelu": {"hidden_act": "gelu"},
    "no-bottlenecks": {"use_bottleneck": False, "hidden_size": 96, "hidden_act": "gelu_new"}
    | {"normalization_type": "layer_norm", "layer_norm_eps": 1e-5},
}


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_fold_is_exact(architecture, task):
    model = untrained(architecture, CONFIGS[architecture], task)
    model.load_state_dict(network(architecture, task).state_dict())

    assert deviation(model, architecture, CONFIGS[architecture]) <= EXACT


@pytest.mark.parametrize("name", VARIANTS)
def test_fold_is_exact_for_variants_of_mobilebert(name):
    config = CONFIGS["mobilebert"] | VARIANTS[name]

    assert deviation(untrained("mobilebert", config, "qa"), "mobilebert", config) <= EXACT


def deviation(model, architecture, config):
    """The relative error of the folded network in float64."""
    model.double().eval()
    batch = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5], 3)])
    folded = fold(architecture, config, weights(model, np.float64))
    return relative_error(torch.from_numpy(run_folded(folded, batch)), torch.from_numpy(torch_rows(model, batch)))


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        ("table", {}, "the architecture 'table' is unknown"),
        ("layers", {}, "the architecture 'layers' is unknown"),
        ("mobilebert", {"normalization_type": "layer_norm"}, "the bottlenecks have a LayerNorm"),
        (
            "mobilebert",
            {"normalization_type": "layer_norm", "use_bottleneck": False},
            "the LayerNorms have different epsilons",
        ),
        (
            "mobilebert",
            {"use_bottleneck": False, "trigram_input": False, "embedding_size": 80},
            "the embeddings have a NoNorm without a projection",
        ),
        ("mobilebert", {"trigram_input": False}, r"embeddings\.projection has an unexpected shape"),
        ("bert", {"num_attention_heads": 8}, "one of the widths is 8"),
        ("bert", {"num_attention_heads": 0}, "do not have the shapes of its configuration"),
        ("bert", {"num_hidden_layers": "two"}, "do not have the shapes of its configuration"),
        ("bert", {"num_hidden_layers": 0}, "the network has no layers"),
        ("bert", {"num_hidden_layers": 3}, r"the parameter .* is missing"),
        ("albert", {"num_hidden_groups": 3}, r"the parameter .* is missing"),
    ],
)
def test_fold_rejects_unsupported_networks(architecture, config, reason):
    known = architecture if architecture in CONFIGS else "bert"
    with pytest.raises(FoldingError, match=reason):
        fold(architecture, CONFIGS[known] | config, weights(network(known, "classify")))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"embedding": EmbeddingTraits(window=3)}, "the trigram is not projected"),
        ({"norm_position": "before", "norm": "no_norm"}, "is preceded by a norm"),
        ({"position_bias": PositionBias((1, 2))}, r"position_bias\.weight' is missing"),
        ({"feed_forward": ()}, "no feed-forward network"),
    ],
)
def test_fold_rejects_unsupported_traits(monkeypatch, changes, reason):
    traits = bert.Config(**CONFIGS["bert"]).traits()
    config = type("Config", (bert.Config,), {"traits": lambda _: replace(traits, **changes)})
    monkeypatch.setattr(architectures, "describe", lambda _: SimpleNamespace(Config=config))

    with pytest.raises(FoldingError, match=reason):
        fold("bert", CONFIGS["bert"], weights(network("bert", "classify")))


def test_fold_rejects_an_unexpected_parameter():
    given = weights(network("bert", "classify"))
    without = {name: array for name, array in given.items() if name != "head.pooler.weight"}

    with pytest.raises(FoldingError, match=r"'head\.pooler\.bias' is unexpected"):
        fold("bert", CONFIGS["bert"], without)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_fold_rejects_parameters_of_unexpected_shapes(architecture):
    given = weights(network(architecture, "fill-mask"))
    for name, array in given.items():
        shorter = given | {name: array[:-1]}
        if name.removeprefix("encoder.embeddings.") in ("position.weight", "token_type.weight"):
            continue  # these two define how many positions and token types there are
        with pytest.raises(FoldingError):
            fold(architecture, CONFIGS[architecture], shorter)
        with pytest.raises(FoldingError):
            fold(architecture, CONFIGS[architecture], given | {name: array[..., :-1]})
        with pytest.raises(FoldingError, match=r"is missing|unexpected shape|do not have the shapes"):
            fold(architecture, CONFIGS[architecture], {key: value for key, value in given.items() if key != name})


def test_fold_does_not_import_torch():
    code = """
import sys
from swiftlet_serve.models.architectures import describe, names
from swiftlet_serve.models.folding import FoldingError, fold
for name in names():
    try:
        fold(name, describe(name).Config().__dict__, {})
    except FoldingError as error:
        assert "is missing" in str(error), error
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
