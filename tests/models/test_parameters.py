"""Tests of the parameters: a network has exactly those of its configuration, in shapes that fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swiftlet_models import architectures
from swiftlet_models.architectures import bert
from swiftlet_models.architectures.traits import PositionBias
from swiftlet_models.artifact import Artifact, ArtifactError, Embedding
from swiftlet_models.parameters import ParametersError, Sizes, check_artifact, check_parameters, configure
from tests.support.native_kernels import CONFIGS, NETWORKS, POSITIONS, SETTINGS, VOCABULARY, network
from tests.support.networks import draft
from tests.support.networks import network as small_network
from tests.support.tiers import first

Shapes = dict[str, tuple[int, ...]]
HUGE = 10**9


def shapes_of(architecture: str, task: Any) -> Shapes:
    return {name: tuple(one.shape) for name, one in network(architecture, task).state_dict().items()}


def check(architecture: str, shapes: Shapes, config: Mapping[str, Any] = {}) -> Sizes:
    return check_parameters(configure(architecture, SETTINGS[architecture] | config), shapes)


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_check_reads_the_sizes_of_every_network(architecture: str, task: Any) -> None:
    sizes = check(architecture, shapes_of(architecture, task))

    assert (sizes.vocabulary, sizes.positions) == (VOCABULARY, POSITIONS)
    assert sizes.outputs == {"classify": 3, "qa": 2}.get(task, VOCABULARY)
    assert (sizes.inner != sizes.hidden) == (architecture == "mobilebert")


@pytest.mark.parametrize(
    ("architecture", "task"),
    first(
        product(CONFIGS, ("fill-mask", "classify", "qa")),
        ("albert", "fill-mask"),
        ("mobilebert", "classify"),
        ("deberta_v2", "qa"),
    ),
)
def test_check_rejects_every_other_shape(architecture: str, task: Any) -> None:
    """Of each parameter alone: a dimension more or less, and each dimension longer, shorter, 0 or huge."""
    given = shapes_of(architecture, task)
    tables = {f"encoder.embeddings.{name}.weight" for name in ("position", "token_type")}
    for name, shape in given.items():
        others = [(), (*shape, 1), shape[:-1]]
        for axis, size in enumerate(shape):
            # The rows of these tables define how many positions and token types there are.
            sizes = (0, HUGE) if not axis and name in tables else (size + 1, size - 1, 2 * size, 0, HUGE)
            others += [(*shape[:axis], other, *shape[axis + 1 :]) for other in sizes]
        for other_shape in others:
            with pytest.raises(ParametersError):
                check(architecture, given | {name: other_shape})
        if architecture == "roberta" and "token_type" in name:
            continue  # its only row is optional
        with pytest.raises(ParametersError, match=r"is missing|is unexpected|fewer"):
            check(architecture, {key: value for key, value in given.items() if key != name})
    with pytest.raises(ParametersError, match=r"'encoder\.layers\.99\.query' is unexpected"):
        check(architecture, given | {"encoder.layers.99.query": (1, 1)})


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("bert", {"num_attention_heads": HUGE}, "num_attention_heads has an invalid value"),
        ("bert", {"num_attention_heads": 0}, "num_attention_heads has an invalid value"),
        ("bert", {"num_attention_heads": 1.0}, "num_attention_heads has an invalid value"),
        ("bert", {"num_attention_heads": "2"}, "num_attention_heads has an invalid value"),
        ("bert", {"num_attention_heads": True}, "num_attention_heads has an invalid value"),
        ("bert", {"num_attention_heads": 7, "hidden_size": 7}, "hidden_size is 7, but the parameters have 64"),
        ("bert", {"num_attention_heads": 128, "hidden_size": 128}, "hidden_size is 128, but the parameters have 64"),
        ("bert", {"num_hidden_layers": HUGE}, "num_hidden_layers has an invalid value"),
        ("bert", {"num_hidden_layers": -1}, "num_hidden_layers has an invalid value"),
        ("bert", {"num_hidden_layers": 1024}, "fewer parameters than the layers need"),
        ("bert", {"num_hidden_layers": 3}, "is missing"),
        ("bert", {"num_hidden_layers": 1}, "is unexpected"),
        ("bert", {"vocab_size": 10**400}, "vocab_size has an invalid value"),
        ("bert", {"vocab_size": 84}, "vocab_size is 84, but the parameters have 83"),
        ("bert", {"hidden_act": []}, "hidden_act has an invalid value"),
        ("bert", {"hidden_act": {}}, "hidden_act has an invalid value"),
        ("bert", {"hidden_act": "sine"}, "hidden_act 'sine' is not one of"),
        ("bert", {"layer_norm_eps": float("inf")}, "layer_norm_eps has an invalid value"),
        ("bert", {"layer_norm_eps": -1e-12}, "layer_norm_eps has an invalid value"),
        ("bert", {"layer_norm_eps": None}, "layer_norm_eps has an invalid value"),
        ("albert", {"num_hidden_layers": 1024, "inner_group_num": 1024}, "more than 1024 layers"),
        ("albert", {"num_hidden_groups": 3}, "is missing"),
        ("mobilebert", {"num_feedforward_networks": 1024, "num_hidden_layers": 1024}, "fewer parameters"),
        ("mobilebert", {"trigram_input": 1}, "trigram_input has an invalid value"),
        ("mobilebert", {"trigram_input": False}, r"embeddings\.projection\.weight' has the shape \(80, 144\)"),
        ("roberta", {"pad_token_id": 1000}, "there are no positions"),
        ("roberta", {"pad_token_id": -1}, "pad_token_id has an invalid value"),
        ("gpt2", {"n_inner": "112"}, "n_inner has an invalid value"),
        ("gpt2", {"n_embd": 48}, "hidden_size is 48, but the parameters have 96"),
    ],
)
def test_check_rejects_other_configurations(architecture: str, changes: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ParametersError, match=reason):
        check(architecture, shapes_of(architecture, "classify"), changes)


@pytest.mark.parametrize("number", [0, 1])
def test_whole_number_of_a_float_setting_is_a_float(number: int) -> None:
    """Graphs have floats and whole numbers as different kinds of attributes."""
    assert type(bert.Config(**CONFIGS["bert"] | {"layer_norm_eps": number}).layer_norm_eps) is float


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": ()}, "the network has no layers"),
        ({"feed_forward": ()}, "no feed-forward network"),
        ({"position_bias": PositionBias((1, 2))}, r"position_bias\.weight' is missing"),
    ],
)
def test_check_rejects_other_traits(monkeypatch: pytest.MonkeyPatch, changes: Any, reason: str) -> None:
    traits = bert.Config(**CONFIGS["bert"]).traits()
    config = type("Config", (bert.Config,), {"traits": lambda _: replace(traits, **changes)})
    monkeypatch.setattr(architectures, "describe", lambda _: SimpleNamespace(Config=config))

    with pytest.raises(ParametersError, match=reason):
        check("bert", shapes_of("bert", "classify"))


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    """A description of an artifact, without its files."""
    return Artifact(tmp_path, replace(draft("bert", "classify").manifest, max_tokens=512))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"architecture": "table"}, None),
        ({"width": 4}, "the manifest's width is 4, but the network has 3"),
        ({"vocab_size": 212}, "the manifest's vocab_size is 212, but the network has 211"),
        ({"max_tokens": 513}, "the manifest's max_tokens is 513, but the network has 512 positions"),
        ({"head": "token"}, r"'head\.pooler\.bias' is unexpected"),
        ({"head": "masked_lm"}, r"'head\.transform\.weight' is missing"),
        ({"head": "causal_lm"}, r"'head\.bias' is missing"),
        ({"head": "embedding", "embedding": Embedding("mean")}, r"'head\.output\.bias' is unexpected"),
        ({"architecture": "gpt2", "config": {}}, "is missing"),
        ({"config": {"num_hidden_layers": HUGE}}, "num_hidden_layers has an invalid value: 1000000000"),
    ],
)
def test_check_compares_a_manifest_with_its_network(artifact: Artifact, changes: Any, reason: str | None) -> None:
    given = {name: tuple(one.shape) for name, one in small_network("bert", "classify").state_dict().items()}
    changed = replace(artifact, manifest=replace(artifact.manifest, **changes))
    if reason is None:
        check_artifact(changed, given)
    else:
        with pytest.raises(ArtifactError, match=reason):
            check_artifact(changed, given)
