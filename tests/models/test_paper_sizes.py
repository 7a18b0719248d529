"""The sizes that the papers of BERT and ALBERT state, counted from the shapes of parameters. No network is built."""

from __future__ import annotations

import math
from typing import Any

import pytest

from swiftlet_models.parameters import ParametersError, configure, expected_parameters

LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def shapes(architecture: str, **settings: Any) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of an encoder's parameters with the pooler, for the vocabulary of ALBERT."""
    config: Any = configure(architecture, {"vocab_size": 30_000} | settings)
    e, h, i = config.embedding_size, config.hidden_size, config.intermediate_size
    first = f"encoder.{config.traits().layers[0]}."
    given = {f"encoder.embeddings.{name}.weight": (rows, e) for name, rows in (("position", 512), ("token_type", 2))}
    given |= {"encoder.embeddings.word.weight": (config.vocab_size, e), f"{first}ffn_in.weight": (i, h)}
    given |= {f"{first}query.weight": (h, h), f"{first}key.weight": (h, h)}
    expected, _ = expected_parameters(config, given, None)
    return expected | {"head.pooler.weight": (h, h), "head.pooler.bias": (h,)}


def millions(architecture: str, **settings: Any) -> float:
    return sum(map(math.prod, shapes(architecture, **settings).values())) / 1e6


@pytest.mark.parametrize(
    ("shared", "paper"), [("all", 12), ("attention", 64), ("feed_forward", 38), ("none", 89)], ids=str
)
def test_albert_base_has_the_parameters_of_each_sharing(shared: str, paper: int) -> None:
    """ALBERT, table 4 (E = 128). The paper rounds up or down by up to 0.7 million."""
    assert abs(millions("albert", shared_parameters=shared) - paper) < 0.7


@pytest.mark.parametrize(("size", "shared", "own"), [(64, 10, 87), (128, 12, 89), (256, 16, 93), (768, 31, 109)])
def test_albert_base_has_the_parameters_of_each_embedding_size(size: int, shared: int, own: int) -> None:
    """ALBERT, table 3. At E = 768 the paper has BERT's 108 million without a projection."""
    assert abs(millions("albert", embedding_size=size) - shared) < 0.75
    assert abs(millions("albert", embedding_size=size, shared_parameters="none") - own) < 0.75


def test_layers_of_their_own_are_the_same_network_as_a_group_for_each_layer() -> None:
    assert shapes("albert", shared_parameters="none") == shapes("albert", num_hidden_groups=12)


@pytest.mark.parametrize(("shared", "layers"), [("attention", 4), ("feed_forward", 4)])
def test_parts_are_shared_within_a_group(shared: str, layers: int) -> None:
    names = shapes("albert", shared_parameters=shared, num_hidden_layers=layers, num_hidden_groups=2)
    part, other = ("query", "ffn_in") if shared == "attention" else ("ffn_in", "query")

    assert [name.split(".")[2] for name in names if name.endswith(f"{part}.weight")] == ["0", "2"]
    assert [name.split(".")[2] for name in names if name.endswith(f"{other}.weight")] == ["0", "1", "2", "3"]


def test_albert_large_has_an_18th_of_the_parameters_of_bert_large() -> None:
    """ALBERT, section 3.2 and table 1: 18 against 334 million."""
    albert, bert = millions("albert", **LARGE), millions("bert", **LARGE)

    assert (round(albert), int(bert), int(bert / albert)) == (18, 334, 18)


def test_factorised_embeddings_are_a_fifth_of_those_of_bert() -> None:
    """ALBERT, section 3.1: V * E + E * H parameters instead of V * H are 80 % fewer or more."""
    named = shapes("albert")
    factors = [named[f"encoder.embeddings.{name}.weight"] for name in ("word", "projection")]

    assert sum(map(math.prod, factors)) <= 0.2 * math.prod(shapes("bert")["encoder.embeddings.word.weight"])


@pytest.mark.parametrize("value", ["ALL", "ffn", "", None, 1, ["all"]])
def test_unknown_sharing_is_refused(value: object) -> None:
    with pytest.raises(ParametersError, match="shared_parameters"):
        configure("albert", {"shared_parameters": value})
