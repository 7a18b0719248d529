"""Sparse models whose queries are looked up (OpenSearch's doc-only models): parity with sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling

from swiftlet_models.artifact import Artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline import probe
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.fakes import soon
from tests.support.sentence_checkpoints import edit, save_masked_lm

TEXTS: Final = ["A warm film.", "the the THE film", "서울의 봄은 짧다.", "emoji 😀", "long words " * 60, "[SEP] no"]
QUERY: Final = "a warm film in spring?"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Router as sentence-transformers writes it, with random weights."""
    monkeypatch.setattr(probe, "MAX_WORK", 10e6)  # a few of the built-in texts
    checkpoint = save_masked_lm(tmp_path / "checkpoint")
    document = Transformer(str(checkpoint), transformer_task="fill-mask")
    weights = torch.rand(len(document.tokenizer), generator=torch.Generator().manual_seed(1)) * 5
    weights[::7] = 0
    query = SparseStaticEmbedding(document.tokenizer, weights, frozen=True)
    router = Router.for_query_document([query], [document, SpladePooling()])
    SparseEncoder(modules=[router], device="cpu").save(str(tmp_path / "model"))
    return tmp_path / "model"


def imported(source: Path) -> Artifact:
    out = source.parent / "out"
    artifact, _ = import_checkpoint(
        str(source), None, out, name="m", precision="fp32", max_loss=0.5, report=lambda _: None
    )
    return artifact


def weights_of(vectors: torch.Tensor) -> list[dict[int, float]]:
    return [{i: float(row[i]) for i in np.flatnonzero(row)} for row in vectors.to_dense().numpy()]


def test_queries_and_documents_have_the_vectors_of_the_sparse_encoder(source: Path) -> None:
    """A query has no special tokens, and a word that occurs twice has one weight."""
    model = SparseEncoder(str(source), device="cpu")
    model[0].sub_modules["document"][0].tokenizer.split_special_tokens = True
    model[0].sub_modules["query"][0].tokenizer.split_special_tokens = True
    artifact = imported(source)
    about = artifact.manifest.embedding
    assert about is not None
    assert about.sparse is not None
    assert (artifact.manifest.task, about.sparse.static_query) == ("embed", True)
    loaded = load_model(artifact.path, "onnx_cpu")
    names = ("query", "document", None)
    bodies = [{"inputs": TEXTS, "parameters": {"prompt_name": name}} for name in names]
    queries, documents, default = respond(loaded, bodies)
    assert documents == default
    for found, expected in (
        (queries, model.encode_query(TEXTS)),
        (documents, model.encode_document(TEXTS)),
    ):
        for one, other in zip(found, weights_of(expected), strict=True):
            assert dict(zip(one["indices"], one["values"], strict=True)) == pytest.approx(other, abs=1e-5)


def test_default_route_is_that_of_a_text_without_a_prompt(source: Path) -> None:
    router = source / "router_config.json"
    config = json.loads(router.read_text("utf-8"))
    edit(router, parameters=config["parameters"] | {"default_route": "query"})
    model = SparseEncoder(str(source), device="cpu")
    model[0].sub_modules["query"][0].tokenizer.split_special_tokens = True
    loaded = load_model(imported(source).path, "onnx_cpu")
    bodies = [{"inputs": TEXTS, "parameters": {"prompt_name": name}} for name in (None, "query", "document")]
    default, queries, documents = respond(loaded, bodies)
    assert default == queries != documents
    for one, other in zip(default, weights_of(model.encode(TEXTS)), strict=True):
        assert dict(zip(one["indices"], one["values"], strict=True)) == pytest.approx(other, abs=1e-5)
    edit(source / "config_sentence_transformers.json", prompts={"other": "x "}, default_prompt_name="other")
    with pytest.raises(ConversionError, match="has another default prompt"):
        imported(source)


async def test_tokens_of_a_query_count(source: Path) -> None:
    """Those that the table read: special tokens are not among them."""
    runtime = LocalRuntime.load(Settings(models=(str(imported(source).path),), engine="onnx_cpu", cores=1))
    pipeline, counts = runtime.pipelines["m"], {}
    try:
        for name in ("query", "document"):
            record = RequestRecord(model="m")
            body = pipeline.model.task.Request(inputs=[QUERY, QUERY], parameters={"prompt_name": name})
            await pipeline.answer(body, soon(), record=record)
            counts[name] = record.tokens, record.input_tokens, record.accepted
    finally:
        await runtime.close()
    assert counts["query"] == (20, 20, True)
    assert counts["document"] == (24, 24, True)


def test_network_may_lie_beside_the_router(source: Path) -> None:
    """As in the repositories of OpenSearch."""
    expected = imported(source).manifest
    router = source / "router_config.json"
    config = json.loads(router.read_text("utf-8"))
    network, pooling = config["structure"]["document"]
    for file in (source / network).iterdir():
        file.rename(source / file.name)
    config["types"][""] = config["types"].pop(network)
    edit(router, types=config["types"], structure=config["structure"] | {"document": ["", pooling]})
    shutil.rmtree(source.parent / "out")
    found = imported(source).manifest
    assert (found.embedding, found.config, found.files["weights.safetensors"]) == (
        expected.embedding,
        expected.config,
        expected.files["weights.safetensors"],
    )


def test_rerank_adds_the_products_and_a_query_needs_no_network(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SparseEncoder(str(source), device="cpu")
    artifact = imported(source)
    loaded = load_model(artifact.path, "onnx_cpu")
    read: list[int] = []
    run = loaded.engine.run
    monkeypatch.setattr(loaded.engine, "run", lambda batch: (read.append(len(batch.offsets) - 1), run(batch))[1])
    texts = TEXTS[:4]
    query = {"inputs": QUERY, "parameters": {"prompt_name": "query"}}
    ((alone,),) = respond(loaded, [query])
    assert alone["indices"]
    assert not read

    loaded = load_model(artifact.path, "onnx_cpu").for_task("rerank")
    (ranked,) = respond(loaded, [{"inputs": {"query": QUERY, "texts": texts}}])
    scores = (model.encode_query([QUERY]).to_dense() @ model.encode_document(texts).to_dense().T)[0].tolist()
    assert {one["index"]: one["score"] for one in ranked} == pytest.approx(dict(enumerate(scores)), abs=1e-4)


def test_bad_requests_and_routers_are_refused(source: Path) -> None:
    artifact = imported(source)
    loaded = load_model(artifact.path, "onnx_cpu")
    task = loaded.task
    for head in ({}, {tasks.QUERY_WEIGHTS: np.ones(3, np.float32)}):
        with pytest.raises(ValueError, match=r"query\.weight"):
            tasks.create("embed", loaded.tokenizer, artifact.manifest, head)
    for inputs, parameters in ((" ", {}), ("long words " * 60, {"truncation": False})):
        with pytest.raises(Unprocessable):
            task.encode(
                task.Request.model_validate({"inputs": inputs, "parameters": parameters | {"prompt_name": "query"}})
            )
    router = source / "router_config.json"
    config = json.loads(router.read_text("utf-8"))
    (query,) = config["structure"]["query"]
    for change, reason in (
        ({"structure": {"query": config["structure"]["document"]}}, "only a Router with SparseStaticEmbedding"),
        ({"structure": {"query": ["../other"]}}, "does not list modules with a type and a path"),
        ({"structure": {"query": [query], "document": [query]}}, r"SparseStaticEmbedding is not supported"),
        ({"types": None}, "does not list modules"),
        ({"parameters": {"default_route": "third"}}, "only query and document are supported as routes"),
        ({"parameters": {"route_mappings": {"('a', None)": "query"}}}, "Remove route_mappings"),
    ):
        edit(router, **config | change)
        with pytest.raises(ConversionError, match=reason):
            imported(source)
