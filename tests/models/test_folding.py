"""Tests of folding: every rewrite is exact, and an unsupported network is rejected."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from swiftlet_models import architectures
from swiftlet_models.architectures.traits import EmbeddingTraits
from swiftlet_models.folded import FoldingError
from swiftlet_models.folding import fold
from swiftlet_models.graphs.ragged import in_fp32
from swiftlet_models.ragged.network import Network
from swiftlet_serve.engines.native import Native
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.engines.torch import RaggedTorch
from swiftlet_serve.types import Batch
from tests.support.checkpoints import randomise, relative_error, untrained
from tests.support.native_kernels import (
    CONFIGS,
    NETWORKS,
    POSITIONS,
    SETTINGS,
    best,
    encoding,
    network,
    run_folded,
    torch_rows,
    weights,
)

BATCH = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5], 3)])
EXACT = 1e-13  # in float64; measured: 4e-15
TINY = {"use_bottleneck_attention": True}
OWN = {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 80, "num_attention_heads": 5}
LAYER_NORM = {"normalization_type": "layer_norm", "layer_norm_eps": 0.1}  # a wrong epsilon changes the outputs visibly
SHARED = {  # two layers of one group, and two of another
    f"shared-{part}": {"shared_parameters": part} for part in ("attention", "feed_forward", "none")
}
VARIANTS = SHARED | {
    "tiny": TINY,
    "own-bottlenecks": OWN,
    "no-trigram": {"trigram_input": False},
    "gelu": {"hidden_act": "gelu"},
    "no-bottlenecks": {"use_bottleneck": False, "hidden_size": 96, "hidden_act": "gelu_new"}
    | {"normalization_type": "layer_norm", "layer_norm_eps": 1e-5},
    "layer-norm": LAYER_NORM,
    "layer-norm-tiny": LAYER_NORM | TINY,
    "layer-norm-own": LAYER_NORM | OWN,
    "layer-norm-no-bottlenecks": LAYER_NORM | {"use_bottleneck": False, "hidden_size": 96},
}


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_fold_is_exact(architecture, task):
    model = untrained(architecture, SETTINGS[architecture], task)
    model.load_state_dict(network(architecture, task).state_dict())

    assert deviation(model, architecture, SETTINGS[architecture]) <= EXACT


def variant(name):
    architecture = "albert" if name in SHARED else "mobilebert"
    return architecture, CONFIGS[architecture] | VARIANTS[name]


@pytest.mark.parametrize("name", VARIANTS)
def test_fold_is_exact_for_variants(name):
    architecture, config = variant(name)

    assert deviation(untrained(architecture, config, "qa"), architecture, config) <= EXACT


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith(("layer-norm", "shared"))])
def test_engines_compute_bottlenecks_with_a_layer_norm_and_shared_parts(name):
    architecture, config = variant(name)
    model = untrained(architecture, config, "qa")
    randomise(model)
    folded, expected = fold(architecture, config, weights(model.eval())), torch.from_numpy(torch_rows(model, BATCH))
    cpu = torch.device("cpu")
    engines = {
        RaggedOnnx(folded, in_fp32, threads=1): 1e-5,
        RaggedTorch(Network(folded, cpu, torch.float32), cpu, POSITIONS): 1e-5,
        Native(best(), folded): 0.1,
        Native(best(), folded, precision="bf16"): 0.03,
    }
    for engine, most in engines.items():
        rows = engine.run(BATCH)
        assert relative_error(torch.from_numpy(np.concatenate(rows)), expected) <= most
    for row, encoding_ in zip(rows, BATCH.encodings(), strict=True):
        assert row.tobytes() == engine.run(Batch.of([encoding_]))[0].tobytes()


@pytest.mark.parametrize(("shared", "attention", "networks"), [("attention", 2, 4), ("feed_forward", 4, 2)])
def test_shared_parts_are_folded_once(shared, attention, networks):
    config = CONFIGS["albert"] | {"shared_parameters": shared}
    products = fold("albert", config, weights(untrained("albert", config, "qa"))).products

    assert sum(name.endswith("key_value") for name in products) == attention
    assert sum(name.endswith("inner") for name in products) == networks


def deviation(model, architecture, config):
    """The relative error of the folded network in float64."""
    model.double().eval()
    folded = fold(architecture, config, weights(model, np.float64))
    return relative_error(torch.from_numpy(run_folded(folded, BATCH)), torch.from_numpy(torch_rows(model, BATCH)))


@pytest.mark.parametrize(
    ("architecture", "config", "reason"),
    [
        (
            "mobilebert",
            {"use_bottleneck": False, "trigram_input": False, "embedding_size": 80},
            "the embeddings have a NoNorm without a projection",
        ),
        ("bert", {"num_attention_heads": 8}, "one of the widths is 8"),
        ("bert", {"hidden_size": 72, "num_attention_heads": 1}, "one of the widths is 72"),
        ("distilbert", {"hidden_dim": 24}, "one of the widths is 24"),
        ("albert", {"embedding_size": 8}, "one of the widths is 8"),
    ],
)
def test_fold_rejects_unsupported_networks(architecture, config, reason):
    config = CONFIGS[architecture] | config
    with pytest.raises(FoldingError, match=reason):
        fold(architecture, config, weights(untrained(architecture, config, "classify")))


@pytest.mark.parametrize("name", ["table", "layers"])
def test_fold_rejects_an_unknown_architecture(name):
    with pytest.raises(FoldingError, match=f"the architecture '{name}' is unknown"):
        fold(name, {}, {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"embedding": EmbeddingTraits(window=3)}, "the trigram is not projected"),
        ({"norm": "no_norm"}, "a NoNorm or a bottleneck is preceded by a norm"),
    ],
)
def test_fold_rejects_unsupported_traits(monkeypatch, changes, reason):
    architecture = "gpt2" if "norm" in changes else "bert"
    own = architectures.describe(architecture).Config
    traits = own(**CONFIGS[architecture]).traits()
    config = type("Config", (own,), {"traits": lambda _: replace(traits, **changes)})
    monkeypatch.setattr(architectures, "describe", lambda _: SimpleNamespace(Config=config))

    with pytest.raises(FoldingError, match=reason):
        fold(architecture, CONFIGS[architecture], weights(network(architecture, "classify")))


def test_fold_does_not_import_torch():
    code = """
import sys
from swiftlet_models.architectures import describe, names
from swiftlet_models.folding import fold
from swiftlet_models.parameters import ParametersError
for name in names():
    try:
        fold(name, describe(name).Config().__dict__, {})
    except ParametersError as error:
        assert "fewer parameters" in str(error) or "is missing" in str(error), error
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)
