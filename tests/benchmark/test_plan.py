"""The cases of a benchmark, and their networks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.encodings import Encoding
from swiftlet_serve.benchmark import networks, plan
from swiftlet_serve.benchmark.plan import Plan, batches_of_similar_length, texts_of
from swiftlet_serve.inference.loading import locate, open_model
from swiftlet_serve.types import Batch
from tests.support import networks as small_networks


@given(st.lists(st.integers(1, 600), min_size=1, max_size=40), st.integers(1, 600))
def test_batches_hold_texts_of_similar_length(lengths, max_tokens):
    texts = [Encoding(np.full(n, i), np.zeros(n, np.int64), np.zeros(1, np.int64)) for i, n in enumerate(lengths)]
    batches = list(batches_of_similar_length(texts, max_tokens))
    sizes = [[len(text.input_ids) for text in batch] for batch in batches]

    assert [n for batch in sizes for n in batch] == sorted(lengths)
    assert all(len(batch) == 1 or len(batch) * max(batch) <= max_tokens for batch in sizes)


def test_texts_without_data_are_built_in_requests_of_the_task(tmp_path):
    texts = texts_of(open_model(locate(["mobilebert-qa"])[0], "native"), tmp_path / "nothing")

    assert len(texts) >= 3
    assert all(len(text.focus) == len(text.input_ids) for text in texts)


def test_texts_ask_for_whole_rows(tmp_path, monkeypatch):
    model = open_model(locate(["mobilebert-fill-mask"])[0], "native")
    found = model.task.encode(model.task.Request(inputs="The shop is [MASK] on Sundays."))
    monkeypatch.setattr(plan, "encodings", lambda *_: found)
    (text,) = texts_of(model, tmp_path)

    assert Batch.of(found).row_shapes([8192]) != [(1, 8192)]
    assert Batch.of([text]).row_shapes([8192]) == [(1, 8192)]


def test_plan_runs_only_what_is_named():
    assert Plan.of((), (), ()) == Plan(Plan.of((), (), ()).engines)
    named = Plan.of(("torch", "native"), ("minilm", "albert"), ("model",))

    assert named.engines == ["native", "torch"]
    assert named.shapes == {"minilm": plan.SIZES, "albert": plan.SHAPES["albert"]}
    assert named.models == ("model",)
    assert Plan.of((), (), ("model",)).shapes == {}


def test_plan_has_sentence_transformers_if_there_is_a_checkpoint():
    without, with_checkpoint = (Plan.of((), (), (), checkpoint=one).engines for one in (None, networks.Path("model")))

    assert set(with_checkpoint) - set(without) == {"sentence_transformers", "sentence_transformers_bf16"}


def test_sizes_of_an_embedding_model_include_mixed_lengths(monkeypatch):
    monkeypatch.setattr(plan, "released_network", lambda *_: None)
    ((_, cases),) = plan.cases_by_network(Plan(shapes={"minilm": plan.SIZES}, models=()), lambda _: None)
    lengths = [np.diff(batch.offsets).tolist() for batch in cases[-1].batches]

    assert [case.name for case in cases] == ["minilm 1×16", "minilm 1×128", "minilm 32×32", "minilm mixed lengths"]
    assert sorted(n for batch in lengths for n in batch) == list(plan.MIXED_LENGTHS)
    assert (min(plan.MIXED_LENGTHS), max(plan.MIXED_LENGTHS)) == (4, 256)
    assert all(len(batch) * max(batch) <= plan.BATCH_TOKENS for batch in lengths)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", networks.RELEASED)
def test_released_shapes_are_networks(name, monkeypatch):
    """Without exporting them, which takes minutes."""
    made = {}
    monkeypatch.setattr(
        networks, "cached_network", lambda manifest, _, model, *__: made.update(model=model, m=manifest)
    )
    with torch.device("meta"):
        networks.released_network(name, networks.Path(), lambda _: None)
    ids, lengths, focus = torch.zeros((2, 4), dtype=int, device="meta"), torch.tensor([4, 4], device="meta"), [0, 4]
    rows = made["model"](ids, ids, lengths, torch.tensor(focus, device="meta"))

    assert rows.shape == (2, made["m"].width)
    assert made["m"].architecture == networks.RELEASED[name].architecture


def test_network_is_exported_once(tmp_path, monkeypatch):
    manifest = small_networks.draft("albert", "classify").manifest
    model = small_networks.network("albert", "classify")
    graph = small_networks.graph("albert", "classify")
    monkeypatch.setattr("swiftlet_models.graphs.export.export", lambda _: graph)
    networks.cached_network(manifest, "", model, None, tmp_path, lambda _: None)
    monkeypatch.setattr("swiftlet_models.graphs.export.export", lambda _: pytest.fail("It was exported twice."))

    networks.cached_network(manifest, "", model, None, tmp_path, lambda _: None)


def test_sources_of_a_graph_exist():
    """A change in one of them makes another graph."""
    folder = networks.Path(networks.swiftlet_models.__file__).parent

    assert all(list(folder.glob(pattern)) for pattern in networks.GRAPH_SOURCES)
