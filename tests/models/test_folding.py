"""Every rewrite of a network is exact, and a network that is not known is refused rather than computed wrongly."""

from __future__ import annotations

from dataclasses import MISSING, fields

import numpy as np
import pytest
import torch

from swiftlet_serve.models import architectures
from swiftlet_serve.models.folding import DEFAULTS, FoldingError, fold
from swiftlet_serve.service.types import Batch
from tests.support.checkpoints import relative_error, untrained
from tests.support.native_kernels import CONFIGS, NETWORKS, encoding, network, run_folded, torch_rows, weights

EXACT = 1e-13  # in float64; measured: 4e-15


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_a_folded_network_is_the_same_network(architecture, task):
    model = untrained(architecture, CONFIGS[architecture], task)
    model.load_state_dict(network(architecture, task).state_dict())
    model.double().eval()
    batch = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(24, [23, 5], 3)])

    folded = fold(architecture, CONFIGS[architecture], weights(model, np.float64))
    far = relative_error(torch.from_numpy(run_folded(folded, batch)), torch.from_numpy(torch_rows(model, batch)))

    assert far <= EXACT


@pytest.mark.parametrize("architecture", DEFAULTS)
def test_the_defaults_are_those_of_the_architectures(architecture):
    defaults = {f.name: f.default for f in fields(architectures.load(architecture).Config)}

    assert MISSING not in defaults.values()
    assert DEFAULTS[architecture] == {name: defaults[name] for name in DEFAULTS[architecture]}


@pytest.mark.parametrize(
    ("architecture", "config", "why"),
    [
        ("table", {}, "architecture is 'table'"),
        ("mobilebert", {"normalization_type": "layer_norm"}, "normalization_type is 'layer_norm'"),
        ("mobilebert", {"trigram_input": False}, "trigram_input is False"),
        ("bert", {"num_attention_heads": 12}, "a width of it is 8"),
        ("bert", {"num_attention_heads": 0}, "other shapes"),
        ("bert", {"num_hidden_layers": 3}, "no parameter"),
        ("albert", {"num_hidden_groups": 3}, "no parameter"),
    ],
)
def test_a_network_that_is_not_known_is_refused(architecture, config, why):
    known = architecture if architecture in CONFIGS else "bert"
    with pytest.raises(FoldingError, match=why):
        fold(architecture, CONFIGS[known] | config, weights(network(known, "classify")))


def test_a_parameter_too_many_is_refused():
    given = weights(network("bert", "classify"))
    without = {name: array for name, array in given.items() if name != "head.pooler.weight"}

    with pytest.raises(FoldingError, match=r"'head\.pooler\.bias' more"):
        fold("bert", CONFIGS["bert"], without)


@pytest.mark.parametrize("architecture", CONFIGS)
def test_a_parameter_of_another_shape_is_refused(architecture):
    given = weights(network(architecture, "fill-mask"))
    for name, array in given.items():
        shorter = given | {name: array[:-1]}
        if name.removeprefix("encoder.embeddings.") in ("position.weight", "token_type.weight"):
            continue  # how many there are is the parameter's to say
        with pytest.raises(FoldingError):
            fold(architecture, CONFIGS[architecture], shorter)
        with pytest.raises(FoldingError):
            fold(architecture, CONFIGS[architecture], given | {name: array[..., :-1]})
        with pytest.raises(FoldingError, match=r"no parameter|unexpected shape|other shapes"):
            fold(architecture, CONFIGS[architecture], {key: value for key, value in given.items() if key != name})
