"""Classifiers of model2vec: the probabilities of model2vec itself, and what is refused."""

from __future__ import annotations

import json
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Library

from swiftlet_models import datasets
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.errors import ModelError
from swiftlet_models.static_classifiers import ARCHIVE, LAYERS, MAX_BYTES, StaticClassifier, read_classifier
from swiftlet_serve import evaluation
from swiftlet_serve.inference.loading import BUNDLED, load_model
from swiftlet_serve.offline.evaluate import respond
from tests.models.test_static_embeddings import UNKNOWN, imported, save

PARITY = 1e-6
WIDTH = 32
VECTORS = np.random.default_rng(1).normal(size=(60, WIDTH)).astype(np.float32)
NAMES = ["yes", "no", "peut-être"]
TEXTS = ["A warm film.", "a", f"films {UNKNOWN} warm", UNKNOWN, "a of " * 400]  # the last one: more than 512 tokens


def layers(*widths: int) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(2)
    tensors = {}
    for i, (inputs, outputs) in enumerate(zip((WIDTH, *widths), widths, strict=False)):
        tensors[f"head.{i}.weight"] = numbers.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
        tensors[f"head.{i}.bias"] = numbers.normal(size=outputs).astype(np.float32)
    return tensors


def scores(response: list[Any], labels: list[str]) -> np.ndarray:
    of = [{one["label"]: one["score"] for one in each} for each in response]
    return np.array([[one[label] for label in labels] for one in of])


@pytest.mark.parametrize(
    ("activation", "classes", "hidden", "normalize"),
    [
        ("softmax", NAMES, (20, 48), True),
        ("sigmoid", [3, 1], (16,), False),
        ("identity", None, (), False),
    ],
)
def test_scores_are_those_of_model2vec(
    activation: str, classes: list[Any] | None, hidden: tuple[int, ...], normalize: bool, tmp_path: Path
) -> None:
    model2vec = pytest.importorskip("model2vec")
    inference = pytest.importorskip("model2vec.inference.model")
    tokenizer = Library.from_file(str(BUNDLED / "mobilebert-embed/tokenizer.json"))
    table = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), WIDTH)).astype(np.float32)
    names = [str(label) for label in classes] if classes else ["LABEL_0", "LABEL_1", "LABEL_2"]
    tensors = layers(*hidden, len(names))
    parts = [inference.Layer(tensors[f"head.{i}.weight"], tensors[f"head.{i}.bias"]) for i in range(len(tensors) // 2)]
    head = inference.MLPHead(parts, inference.Activation(activation), np.asarray(classes) if classes else None)
    model = model2vec.StaticModel(table, tokenizer, normalize=normalize)
    pipeline = inference.StaticModelPipeline(model, head)
    pipeline.save_pretrained(str(tmp_path / "model"))
    texts = [*TEXTS, *(text.text for text in datasets.unlabelled(evaluation.BUILT_IN))]
    expected = head.predict_proba(model.encode(texts))

    artifact = imported(tmp_path / "model", tmp_path)
    assert (artifact.manifest.task, artifact.manifest.max_tokens) == ("classify", 512)
    for engine in ("onnx_cpu", "torch"):
        (response,) = respond(load_model(artifact.path, engine), [{"inputs": texts}])
        assert np.abs(scores(response, names) - expected).max() <= PARITY * max(1, np.abs(expected).max())
    (response,) = respond(
        load_model(imported(tmp_path / "model", tmp_path, "bf16").path, "native"), [{"inputs": texts}]
    )
    assert np.corrcoef(scores(response, names).ravel(), expected.ravel())[0, 1] > 0.999
    vectors = imported(tmp_path / "model", tmp_path, "fp32", task="embed", name="vectors")
    (found,) = respond(load_model(vectors.path, "onnx_cpu"), [{"inputs": texts[:3]}])
    assert np.abs(found - model.encode(texts[:3])).max() <= PARITY


def probabilities(head: StaticClassifier) -> np.ndarray:
    x = VECTORS
    parameters = {name: np.asarray(value) for name, value in head.parameters().items()}
    for i in range(len(head.hidden_widths)):
        x = np.maximum(x @ parameters[f"head.hidden.{i}.weight"].T + parameters[f"head.hidden.{i}.bias"], 0)
    logits = x @ parameters["head.output.weight"].T + parameters["head.output.bias"]
    if head.problem == "single_label":
        logits = np.exp(logits - logits.max(1, keepdims=True))
        return logits / logits.sum(1, keepdims=True)
    return 1 / (1 + np.exp(-logits)) if head.problem == "multi_label" else logits


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_an_older_archive_of_skops_is_read(tmp_path: Path) -> None:
    io = pytest.importorskip("skops.io")
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline

    numbers = np.arange(60) % 3
    several = np.stack([numbers == 0, numbers > 0, numbers == 2], 1).astype(int)
    for head, labels in (
        (MLPClassifier((20, 8), max_iter=3).fit(VECTORS, np.array(NAMES)[numbers]), sorted(NAMES)),
        (MLPClassifier((16,), max_iter=3).fit(VECTORS, several), ["0", "1", "2"]),
        (MLPRegressor(hidden_layer_sizes=(), max_iter=3).fit(VECTORS, several), ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ):
        io.dump(make_pipeline(head), tmp_path / ARCHIVE)
        read = read_classifier(tmp_path, {}, WIDTH)
        expected = head.predict_proba(VECTORS) if isinstance(head, MLPClassifier) else head.predict(VECTORS)
        assert list(read.labels) == labels
        assert np.abs(probabilities(read) - expected).max() < PARITY
    head.classes_ = np.array(["a", "b", "c"], object)
    head.out_activation_ = "softmax"
    io.dump(make_pipeline(head), tmp_path / ARCHIVE)
    assert read_classifier(tmp_path, {}, WIDTH).labels == ("a", "b", "c")


def archive(directory: Path, schema: object, **arrays: bytes) -> None:
    with zipfile.ZipFile(directory / ARCHIVE, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("schema.json", json.dumps(schema))
        for name, content in arrays.items():
            file.writestr(name, content)


def pipeline(kind: str = "MLPClassifier", **state: object) -> dict[str, Any]:
    step = {"__module__": "sklearn.neural_network", "__class__": kind, "content": {"content": state}}
    return {"content": {"content": {"steps": {"content": [{"content": [None, step]}]}}}}


def node(value: object) -> dict[str, Any]:
    return {"__loader__": "JsonNode", "content": json.dumps(value)}


def trained(*files: str, **state: object) -> dict[str, Any]:
    """One layer for each file, whose matrix and bias are both in it."""
    arrays = [{"__loader__": "NdArrayNode", "type": "numpy", "file": file} for file in files]
    listed = {"__loader__": "ListNode", "content": arrays}
    return pipeline(**{"activation": node("relu"), "coefs_": listed, "intercepts_": listed} | state)


def begin(shape: str, kind: str = "<f4") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


FILES: dict[str, bytes] = {
    "objects": begin("(1,)", "|O") + b"N.",
    "huge": begin("(4000000000, 2)"),
    "large": begin("(400000000, 2)"),
    "open": begin("((4,)"),
    "text": begin("(1,)", "<U1") + b"\xff" * 4,
    "zeros": begin(f"({5 << 20},)") + bytes(20 << 20),
    "bomb": bytes(65 << 20),
}
STEPS = {"content": {"content": {"steps": {"content": ["a text"]}}}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, "it is no pipeline of scikit-learn"),
        ([], "it is no pipeline of scikit-learn"),
        (STEPS, "it is no pipeline of scikit-learn"),
        ({"content": {"content": {"steps": {"content": [{"content": ["", "ab"]}]}}}}, "it is no pipeline of scikit"),
        (json.loads(json.dumps(pipeline()).replace("{}", "[1]")), "it is no pipeline of scikit-learn"),
        (pipeline("SVC"), "it is no MLPClassifier, but 'SVC'"),
        (pipeline(), "it is not trained"),
        (pipeline(coefs_=[1], intercepts_="a text"), "it is not trained"),
        (trained(activation=node("tanh")), "its hidden layers have another activation"),
        (trained(activation={"__loader__": "JsonNode", "content": "{"}), "it is damaged"),
        (trained(coefs_={"content": ["a"]}, intercepts_={"content": [1]}), "it is damaged"),
        (trained("gone"), "it is damaged"),
        (trained("objects"), "it holds an array that is not read"),
        (trained("huge"), "it holds an array that is not read"),
        (trained("large"), "an array has another size than its shape says"),
        (trained("open"), "it holds an array that is not read"),
        (trained(classes_={"__loader__": "NdArrayNode", "type": "numpy", "file": "text"}), "it is damaged"),
        (trained("bomb"), "it is too long"),
        (trained("zeros", "zeros"), "it is too long"),
        (trained(*["zeros"] * 17), "it has 17 layers"),
        (pipeline(name=" " * (9 << 20)), "it is too long"),
    ],
)
def test_other_archives_are_refused(schema: object, message: str, tmp_path: Path) -> None:
    """An array of objects would be a pickle, and a file of zeros takes a thousandth of its memory in the archive."""
    archive(tmp_path, schema, **{name: FILES[name] for name in FILES if name in json.dumps(schema)})
    tracemalloc.start()
    with pytest.raises(
        ConversionError, match=f"{ARCHIVE} cannot be read as a classifier of model2vec: {message}.*Save"
    ):
        read_classifier(tmp_path, {}, WIDTH)
    (_, peak), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
    assert peak < 3 * MAX_BYTES


def test_archive_of_lzma_is_refused(tmp_path: Path) -> None:
    """A file of LZMA says how much memory it takes."""
    with zipfile.ZipFile(tmp_path / ARCHIVE, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("schema.json", json.dumps(trained()))
    with pytest.raises(ConversionError, match="it is compressed in a way that is not read"):
        read_classifier(tmp_path, {}, WIDTH)


def test_damaged_archives_give_one_sentence(tmp_path: Path) -> None:
    random.seed(0)
    archive(tmp_path, pipeline(activation=node("relu"), coefs_={"__loader__": "ListNode", "content": []}))
    content = (tmp_path / ARCHIVE).read_bytes()
    outcomes = set()
    for _ in range(200):
        damaged = bytearray(content)
        at = random.randrange(len(content))
        damaged[at : at + random.choice((0, 1, 4))] = random.randbytes(random.choice((0, 1, 4)))
        (tmp_path / ARCHIVE).write_bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))])
        with pytest.raises(ConversionError) as caught:
            read_classifier(tmp_path, {}, WIDTH)
        outcomes.add(str(caught.value))
    assert len(outcomes) > 3


@pytest.mark.parametrize(
    ("head", "tensors", "message"),
    [
        (None, layers(2), "does not describe it"),
        ({"n_layers": 2}, layers(2), "not those of 2 layers"),
        ({"n_layers": 10**9}, layers(2), "not those of 1000000000 layers"),
        ({"n_layers": 1, "activation": "tanh"}, layers(2), "its activation is not"),
        ({"n_layers": 1, "activation": "softmax"}, layers(2), "neither texts nor numbers"),
        ({"n_layers": 1, "activation": "softmax", "classes": [True, False]}, layers(2), "neither texts nor numbers"),
        ({"n_layers": 1, "activation": "softmax", "classes": ["a", "a"]}, layers(2), "its 2 outputs have not"),
        ({"n_layers": 1, "activation": "softmax", "classes": ["a", "\x1b"]}, layers(2), "its 2 outputs have not"),
        ({"n_layers": 1, "activation": "softmax", "classes": ["a"]}, layers(2), "its 2 outputs have not"),
        ({"n_layers": 0, "activation": "identity"}, {}, "it has 0 layers"),
        (
            {"n_layers": 2, "activation": "identity"},
            layers(8, 2) | {"head.1.weight": np.ones((2, 9), np.float32)},
            "its matrices do not fit",
        ),
        ({"n_layers": 1, "activation": "identity"}, layers(2) | {"head.0.bias": np.ones(2, int)}, "no numbers with"),
        (
            {"n_layers": 1, "activation": "identity"},
            layers(2) | {"head.0.bias": np.full(2, np.nan, np.float32)},
            "not finite",
        ),
    ],
)
def test_other_heads_are_refused(head: object, tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / LAYERS)
    with pytest.raises(ModelError, match=message):
        read_classifier(tmp_path, {"head_config": head}, WIDTH)


def test_classifier_has_no_use_for_other_tasks(tmp_path: Path) -> None:
    tokenizer = Library.from_file(str(BUNDLED / "mobilebert-embed/tokenizer.json"))
    about = {"n_layers": 1, "activation": "softmax", "classes": ["a", "b"]}
    save(tmp_path / "model", tokenizer, head_config=about, max_length=None)
    save_file(layers(2), tmp_path / "model" / LAYERS)
    artifact = imported(tmp_path / "model", tmp_path)
    assert (artifact.manifest.labels, artifact.manifest.max_tokens) == (("a", "b"), 8192)
    with pytest.raises(Exception, match="no use for --task qa"):
        imported(tmp_path / "model", tmp_path, task="qa")
