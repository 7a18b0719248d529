"""Odd checkpoints that users have: each is served with the answers of transformers, or refused with the next step.

`odd_checkpoints.json` says which, and the documentation shows it. A row is a change to a checkpoint that is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch import Tensor, nn

from swiftlet_models.errors import ModelError
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference import loading
from swiftlet_serve.inference.model_cache import ModelCache
from swiftlet_serve.inference.model_source import ModelSource
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.goldens.cases import HERE
from tests.support.checkpoints import SMALL, randomise
from tests.support.drafts import answers, catch_drafts
from tests.support.sentence_checkpoints import edit, save_encoder
from tests.support.tensor_bundles import google_variables, write_bundle

ROWS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("odd_checkpoints.json").read_text("utf-8"))
TEXTS = ["A warm film about bread.", "She sells bread, and he bakes it.", "서울의 봄"]
PAIRS = [("Who sells bread?", text) for text in TEXTS]
WORDS = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 133466304\n"
VOCABULARY = (HERE / "vocab.txt").read_text("utf-8").splitlines()
NAMED = {"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
LORA = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": "../base", "r": 2, "lora_alpha": 4}

Tensors = dict[str, Tensor]
Make = Callable[[Path], object]  # changes a copy of the base, or writes a checkpoint to an empty directory


def save(path: Path, kind: str = "SequenceClassification", name: str = "bert", **settings: Any) -> Any:
    """Writes a checkpoint of two layers with random weights and the tokenizer of the golden tests."""
    sizes = {"vocab_size": len(VOCABULARY), "num_hidden_layers": 2, "num_labels": 3} | settings
    model = getattr(transformers, f"AutoModel{kind and 'For'}{kind}").from_config(SMALL[name].config(**sizes)).eval()
    randomise(model)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', "utf-8")
    return model


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of three labels."""
    directory = tmp_path_factory.mktemp("odd") / "base"
    save(directory)
    return directory


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Draft]:
    """Does what `swiftlet serve` does with a word, up to the rounding of the weights."""
    drafts = catch_drafts(monkeypatch)

    def fetch(_: object, source: ModelSource) -> Path:
        options: dict[str, Any] = {"task": None, **source.options, "name": source.name}
        import_checkpoint(
            source.source,
            out=tmp_path / "out",
            max_loss=0.5,
            report=lambda _: None,
            revision=source.revision,
            **options,
        )
        return tmp_path

    def run(word: str) -> Draft:
        loading.locate([word], str(tmp_path / "cache"))
        return drafts[-1]

    monkeypatch.setattr(ModelCache, "fetch", fetch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return run


# Changes


def config(**changes: Any) -> Make:
    return lambda path: edit(path / "config.json", **changes)


def tokenizer(**changes: Any) -> Make:
    return lambda path: edit(path / "tokenizer_config.json", **changes)


def tensors(change: Callable[[Tensors], Tensors]) -> Make:
    def make(path: Path) -> None:
        file = path / "model.safetensors"
        changed = change(load_file(file))
        save_file({name: tensor.contiguous() for name, tensor in changed.items()}, file)

    return make


def altered(change: Callable[[Tensor], Tensor], *parts: str) -> Make:
    """Changes each tensor whose name has one of these parts."""
    return tensors(lambda old: {k: change(v) if any(part in k for part in parts) else v for k, v in old.items()})


def renamed(change: Callable[[str], str]) -> Make:
    return tensors(lambda old: {change(name): tensor for name, tensor in old.items()})


def without(*parts: str) -> Make:
    return tensors(lambda old: {k: v for k, v in old.items() if not any(part in k for part in parts)})


def written(name: str, content: bytes | str) -> Make:
    return lambda path: (path / name).write_bytes(content.encode() if isinstance(content, str) else content)


def described(**settings: Any) -> Make:
    """Adds settings of sentence-transformers."""

    def make(path: Path) -> None:
        file = path / "config_sentence_transformers.json"
        known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        file.write_text(json.dumps(known | settings), "utf-8")

    return make


def piped(name: str) -> Make:
    """Adds a link to a pipe that nobody writes to."""

    def make(path: Path) -> None:
        os.mkfifo(path / "pipe")
        (path / name).symlink_to("pipe")

    return make


def removed(*names: str) -> Make:
    return lambda path: [(path / name).unlink() for name in names]


def instead(*names: str) -> Make:
    """Replaces the weights by other files."""

    def make(path: Path) -> None:
        (path / "model.safetensors").unlink()
        for name in names:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).touch()

    return make


def several(*changes: Make) -> Make:
    return lambda path: [change(path) for change in changes]


def pickled(wrap: Callable[[Tensors], object] = dict, *, legacy: bool = False) -> Make:
    def make(path: Path) -> None:
        content = wrap(load_file(path / "model.safetensors"))
        torch.save(content, path / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
        (path / "model.safetensors").unlink()

    return make


def sharded(change: Callable[[Path], object] = lambda _: None) -> Make:
    def make(path: Path) -> None:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(path)
        (path / "model.safetensors").unlink()
        model.save_pretrained(path, max_shard_size="100KB")
        change(path)

    return make


def linked(path: Path) -> None:
    """Puts the shards elsewhere, as the cache of the hub does."""
    for file in [*path.glob("model-*")]:
        (path.parent / "blobs").mkdir(exist_ok=True)
        file.rename(path.parent / "blobs" / file.name)
        file.symlink_to(Path("../blobs") / file.name)


def outside(path: Path) -> None:
    index = path / "model.safetensors.index.json"
    index.write_text(index.read_text().replace('"model-00002', '"../model-00002'))


def header(**entry: Any) -> bytes:
    content = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | entry}).encode()
    return struct.pack("<Q", len(content)) + content + bytes(4)


def adapter(**changes: Any) -> Make:
    """Replaces the checkpoint by an adapter of the base."""

    def make(path: Path) -> None:
        generator = torch.Generator().manual_seed(0)
        name = f"base_model.model.{QUERY.removesuffix('.weight')}.lora_"
        shapes = {f"{name}A.weight": (2, 48), f"{name}B.weight": (48, 2)}
        (path / "model.safetensors").unlink()
        (path / "config.json").unlink()
        products = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
        save_file(products, path / "adapter_model.safetensors")
        (path / "adapter_config.json").write_text(json.dumps(LORA | changes))

    return make


def bundled(path: Path) -> None:
    """Writes the weights as Google's code does."""
    write_bundle(path / "bert_model.ckpt", google_variables("bert", load_file(path / "model.safetensors")))
    (path / "model.safetensors").unlink()


def trained(path: Path) -> None:
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        torch.save({"step": 3}, path / name)


def resized(rows: int) -> Make:
    """Changes the number of rows of the word embeddings."""
    table = lambda old: torch.cat([old, old[:64]])[:rows].clone()  # noqa: E731
    return several(altered(table, WORDS), config(vocab_size=rows))


def encoder(**options: Any) -> Make:
    """Writes a model of sentence-transformers."""

    def make(path: Path) -> None:
        save_encoder(path.parent / "made", **options)
        shutil.rmtree(path)
        (path.parent / "made" / "model").rename(path)

    return make


def in_a_folder(path: Path) -> None:
    """Old versions of sentence-transformers had the checkpoint in a folder."""
    encoder()(path)
    folder = path / "0_Transformer"
    folder.mkdir()
    kept = {"modules.json", "config_sentence_transformers.json"}
    for file in [file for file in path.iterdir() if file.is_file() and file.name not in kept]:
        file.rename(folder / file.name)
    modules = json.loads((path / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (path / "modules.json").write_text(json.dumps(modules))


def dropout(path: Path) -> None:
    """Adds a module that only a training uses."""
    listed = json.loads((path / "modules.json").read_text())
    listed.append({"idx": 2, "name": "2", "path": "2_Dropout", "type": "sentence_transformers.models.Dropout"})
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "2_Dropout").mkdir()
    (path / "2_Dropout" / "config.json").write_text('{"dropout": 0.1}')


def modules(*kinds: str) -> Make:
    """Makes the checkpoint one of sentence-transformers, with modules of these kinds."""
    listed = [{"path": f"{i}_{kind}" if i else "", "type": f"models.{kind}"} for i, kind in enumerate(kinds)]
    return written("modules.json", json.dumps(listed))


def another(
    kind: str = "SequenceClassification", name: str = "bert", *, files: Iterable[str] = (), **settings: Any
) -> Make:
    """Writes a checkpoint of another class. `files` of the golden tests replace its vocabulary."""

    def make(path: Path) -> None:
        save(path, kind, name, **settings)
        if files:
            (path / "vocab.txt").unlink()
            (path / "tokenizer_config.json").unlink()
        for file in files:
            shutil.copy(HERE / file, path)

    return make


def fast(path: Path) -> None:
    transformers.AutoTokenizer.from_pretrained(path).save_pretrained(path)
    (path / "vocab.txt").unlink()


def vocabulary(old: str, new: str) -> Make:
    return written("vocab.txt", "".join(f"{new if word == old else word}\n" for word in VOCABULARY))


def pieces(words: int) -> dict[str, Any]:
    return {"vocab_size": words, "type_vocab_size": 1, "max_position_embeddings": 66, "pad_token_id": 1}


ODD: dict[str, Make] = {
    # Files of weights
    "weights in fp16": altered(Tensor.half, ""),
    "weights in bf16": altered(Tensor.bfloat16, ""),
    "weights in fp64": altered(Tensor.double, ""),
    "shards": sharded(),
    "shards that are links out of the directory, as in the cache of the hub": sharded(linked),
    "pytorch_model.bin": pickled(),
    "pytorch_model.bin before torch 1.6": pickled(legacy=True),
    "checkpoint of a Trainer with its optimizer": trained,
    "tensors named module. (DataParallel)": renamed("module.{}".format),
    "tensors named _orig_mod.module. (torch.compile)": renamed("_orig_mod.module.{}".format),
    "tensors without bert., but with a head": renamed(lambda name: name.removeprefix("bert.")),
    "gamma and beta, of TensorFlow": renamed(
        lambda name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
    ),
    "file of a whole training": pickled(lambda old: {"model": old, "optimizer": {}, "epoch": 3}),
    "checkpoint of Lightning": instead("epoch=3.ckpt"),
    "weights in int64": altered(Tensor.long, QUERY),
    "weights in fp8": altered(lambda tensor: tensor.to(torch.float8_e4m3fn), QUERY),
    "int8 of bitsandbytes": several(config(quantization_config={"load_in_8bit": True}), altered(Tensor.char, QUERY)),
    "GPTQ": several(config(quantization_config={"quant_method": "gptq"}), renamed(lambda k: k.replace("y.w", "y.qw"))),
    "TensorFlow": instead("tf_model.h5"),
    "TensorFlow 1": bundled,
    "TensorFlow 1 without its data": instead("bert_model.ckpt.index", "bert_model.ckpt.meta"),
    "TensorFlow 1 whose download broke off": several(
        bundled, lambda path: os.truncate(path / "bert_model.ckpt.data-00000-of-00001", 1000)
    ),
    "Flax": instead("flax_model.msgpack"),
    "GGUF": instead("model-q8_0.gguf"),
    "OpenVINO": instead("openvino_model.xml", "openvino_model.bin"),
    "ONNX in int8 alone": instead("onnx/model_quantized.onnx"),
    "file without tensors": written("model.safetensors", struct.pack("<Q", 2) + b"{}"),
    "DeepSpeed": instead("zero_to_fp32.py", "latest"),
    "weights of a variant": lambda path: (path / "model.safetensors").rename(path / "model.fp16.safetensors"),
    "weights in a folder": lambda path: (path / "model.safetensors").rename(
        (path / "final").mkdir() or path / "final/w"
    ),
    "NaN in the weights": altered(lambda tensor: tensor * torch.nan, "classifier.bias"),
    "numbers too large for fp32": altered(lambda tensor: tensor.double() + 1e300, "classifier.bias"),
    "a layer that is missing": without(".layer.1."),
    "a head that is missing": without("classifier."),
    "tensors named model. beside the weights of a loss (Lightning)": tensors(
        lambda old: {**{f"model.{name}": tensor for name, tensor in old.items()}, "loss_fn.weight": torch.ones(3)}
    ),
    "no labels in config.json for a head of three": config(id2label=None, label2id=None),
    "a head with other labels than config.json": config(id2label={"0": "no", "1": "yes"}),
    "heads that were pruned": several(config(pruned_heads={"0": [1]}), altered(lambda tensor: tensor[:36], QUERY)),
    "tensors of another network": config(model_type="roberta"),
    # Damage
    "file whose download broke off": lambda path: os.truncate(path / "model.safetensors", 100_000),
    "empty file of weights": written("model.safetensors", b""),
    "pointer of Git LFS for the weights": written("model.safetensors", POINTER),
    "pointer of Git LFS for pytorch_model.bin": several(instead(), written("pytorch_model.bin", POINTER)),
    "pointer of Git LFS for the tokenizer": written("tokenizer.json", POINTER),
    "tokenizer.json without a model": written("tokenizer.json", '{"version": "1.0"}'),
    "web page for config.json": written("config.json", "<!DOCTYPE html>\n<html>"),
    "header of 2^62 bytes": written("model.safetensors", struct.pack("<Q", 1 << 62) + b"{}"),
    "shape of 2^60 numbers": written("model.safetensors", header(shape=[1 << 30, 1 << 30])),
    "shape that lies": written("model.safetensors", header(shape=[5])),
    "shard outside the directory": sharded(outside),
    "shard that is missing": sharded(lambda path: next(path.glob("model-00002*")).unlink()),
    "link to a file that is gone": several(instead(), lambda path: (path / "model.safetensors").symlink_to("gone")),
    "link to a pipe": several(instead(), piped("model.safetensors")),
    "config.json that is a link to a pipe": several(removed("config.json"), piped("config.json")),
    "pickle of a whole model": pickled(lambda _: nn.Linear(2, 2)),
    "no config.json": removed("config.json"),
    "empty directory": removed("config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"),
    "config.json that is no JSON": written("config.json", "{'model_type': 'bert'}"),
    "config.json in UTF-16": lambda path: (path / "config.json").write_text(
        (path / "config.json").read_text(), "utf-16"
    ),
    # config.json
    "config.json with a byte order mark": lambda path: (path / "config.json").write_text(
        (path / "config.json").read_text("utf-8"), "utf-8-sig"
    ),
    "labels without names": config(id2label=None, label2id=None, num_labels=3),
    "two labels of one name": config(id2label={"0": "a", "1": "a", "2": "b"}),
    "labels in Hangul, with accents, emoji": config(id2label={"0": "긍정", "1": "négatif", "2": "👍"}),
    "labels out of order": config(id2label={"2": "c", "0": "a", "1": "b"}),
    "numbers for labels": config(id2label={"0": 1, "1": 2, "2": 3}),
    "gap between labels": config(id2label={"0": "a", "1": "b", "3": "c"}),
    "label without a name": config(id2label={"0": None, "1": "b", "2": "c"}),
    "no model_type": config(model_type=None),
    "no labels": config(id2label={}, num_labels=0),
    "one label": another(num_labels=1),
    "one label of regression": another(num_labels=1, problem_type="regression"),
    "several labels at a time": config(problem_type="multi_label_classification"),
    "regression of three numbers": config(problem_type="regression"),
    "unknown problem_type": config(problem_type="ordinal"),
    "CrossEncoder without a sigmoid": several(
        another(num_labels=1),
        config(sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}),
    ),
    "CrossEncoder with a tanh": several(
        another(num_labels=1),
        config(sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh", "version": "5.0.0"}),
    ),
    "CrossEncoder with a default prompt": several(
        another(num_labels=1), described(default_prompt_name="q", prompts={"q": "is it so? "})
    ),
    "flags of a training": config(
        return_dict=False, torchscript=True, gradient_checkpointing=True, use_cache=False, dtype="float16"
    ),
    "no layer_norm_eps": config(layer_norm_eps=None),
    "half a character in a label": config(id2label={"0": "a\ud800", "1": "b", "2": "c"}),
    "hidden_act gelu_fast": config(hidden_act="gelu_fast"),
    "hidden_act gelu_python": config(hidden_act="gelu_python"),
    "hidden_act quick_gelu": config(hidden_act="quick_gelu"),
    "positions beyond the table": config(max_position_embeddings=128),
    "table of positions beyond config.json": config(max_position_embeddings=32),
    "fewer layers in config.json": config(num_hidden_layers=1),
    "another width in config.json": config(hidden_size=96),
    "relative positions in BERT": config(position_embedding_type="relative_key"),
    "a decoder": config(is_decoder=True),
    "code of a network (auto_map) beside a known model_type": config(auto_map={"AutoModel": "modeling.MyBert"}),
    "code of a tokenizer (auto_map)": tokenizer(auto_map={"AutoTokenizer": ["my.Tokenizer", None]}),
    "no architectures": config(architectures=None),
    "an encoder without a head": another(""),
    "a class of their own": config(architectures=["BertWithAttention"]),
    "BertForMultipleChoice": config(architectures=["BertForMultipleChoice"]),
    "a classifier that does not tie its words": config(tie_word_embeddings=False),
    "a masked LM that does not tie its words": several(another("MaskedLM"), config(tie_word_embeddings=False)),
    **{f"model_type {name}": config(model_type=name) for name in ("llama", "longformer", "bart", "clip")},
    # Tokenizers
    "vocab.txt alone": removed("tokenizer_config.json"),
    "tokenizer.json alone": fast,
    "vocab.json and merges.txt alone": another(name="roberta", files=["vocab.json", "merges.txt"], **pieces(1200)),
    "spiece.model alone": another(name="albert", files=["spiece.model"], vocab_size=1200),
    "no tokenizer": removed("vocab.txt", "tokenizer_config.json"),
    "another class of tokenizer than the files": tokenizer(tokenizer_class="RobertaTokenizer"),
    "unknown class of tokenizer": tokenizer(tokenizer_class="KoBertTokenizer"),
    "capital letters": tokenizer(do_lower_case=False),
    "vocabulary without [PAD]": vocabulary("[PAD]", "[unused]"),
    "vocabulary without [UNK]": vocabulary("[UNK]", "[unused]"),
    "vocabulary in Latin-1": written("vocab.txt", "\n".join([*VOCABULARY, "é"]).encode("latin-1", "ignore")),
    "tokens added after the training": written("added_tokens.json", json.dumps({"[NEW]": len(VOCABULARY)})),
    "words padded to a multiple of 64": resized(-len(VOCABULARY) % 64 + len(VOCABULARY)),
    "fewer words than tokens": resized(len(VOCABULARY) - 1),
    "model_max_length 1e30": tokenizer(model_max_length=int(1e30)),
    "model_max_length 0": tokenizer(model_max_length=0),
    # sentence-transformers and adapters
    "sentence-transformers with Normalize": encoder(normalize=True),
    "sentence-transformers with Dense": encoder(normalize=False, dense=nn.Tanh()),
    "sentence-transformers with truncate_dim": several(encoder(normalize=True), described(truncate_dim=16)),
    "sentence-transformers with processing_kwargs": several(
        encoder(normalize=True),
        written("sentence_bert_config.json", '{"processing_kwargs": {"text": {"max_length": 6}}}'),
    ),
    "sentence-transformers with Dropout": several(encoder(normalize=False), dropout),
    "sentence-transformers with Dense and ReLU": encoder(normalize=False, dense=nn.ReLU()),
    "sentence-transformers in 0_Transformer": in_a_folder,
    "sentence-transformers with WeightedLayerPooling": modules("Transformer", "WeightedLayerPooling", "Pooling"),
    "sentence-transformers with CNN": modules("Transformer", "CNN", "Pooling"),
    "Model2Vec without its table": several(
        modules("StaticEmbedding", "Normalize"), removed("config.json", "model.safetensors")
    ),
    "adapter beside its base": adapter(),
    "adapter whose base is gone": adapter(base_model_name_or_path="/home/me/bert"),
    "adapter without a base": adapter(base_model_name_or_path=None),
    "adapter of IA3": adapter(peft_type="IA3"),
    "adapter of prompt tuning": adapter(peft_type="PROMPT_TUNING"),
    "adapter_config.json beside a merged model": written("adapter_config.json", json.dumps(LORA)),
}


def make(base: Path, name: str, path: Path) -> Path:
    shutil.copytree(base, path.parent / "base")
    shutil.copytree(base, path)
    ODD[name](path)
    return path


def test_every_row_is_made() -> None:
    assert sorted(ODD) == sorted([*ROWS["served"], *ROWS["refused"]])


# What is served


def scores(results: Any) -> list[list[tuple[str, float]]]:
    """Returns labels with their scores, in an order that does not depend on rounding."""
    return [sorted((str(answer["label"]), answer["score"]) for answer in result) for result in results]


def classes(path: Path) -> Any:
    """Returns the answers of the pipeline of transformers in fp32."""
    load = {"dtype": torch.float32, "local_files_only": True}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(path, **load).eval()
    reader = transformers.AutoTokenizer.from_pretrained(path)
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=reader, device="cpu")
    return pipeline([*TEXTS], top_k=None)


# Checkpoints that transformers reads otherwise or not at all, with the whole one whose answers they must give.
LIKE_THE_BASE = {
    "file of a whole training",
    "TensorFlow 1",
    "tensors named module. (DataParallel)",
    "tensors named _orig_mod.module. (torch.compile)",
    "config.json with a byte order mark",
    "flags of a training",
    "code of a network (auto_map) beside a known model_type",
    "vocabulary without [PAD]",
}


@pytest.mark.parametrize("name", ROWS["served"])
def test_what_is_served_answers_as_transformers(
    base: Path, tmp_path: Path, serve: Callable[[str], Draft], name: str
) -> None:
    path = make(base, name, tmp_path / "Größe 서울")
    draft = serve(str(path))

    assert draft.manifest.task == ROWS["served"][name]
    assert draft.manifest.name == "gr-e"
    assert draft.manifest.max_tokens == (24 if draft.manifest.task == "embed" else 64)
    if draft.manifest.task == "embed":
        expected = SentenceTransformer(str(path), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(np.array(answers(draft, TEXTS)), expected, atol=1e-5)
    elif draft.manifest.task == "rerank":
        query, texts = PAIRS[0][0], [text for _, text in PAIRS]
        ranked = {entry["index"]: entry["score"] for entry in answers(draft, {"query": query, "texts": texts})}
        expected = CrossEncoder(str(path), device="cpu").predict(PAIRS)
        np.testing.assert_allclose([ranked[i] for i in range(len(texts))], expected, atol=1e-5)
    else:
        if name.startswith("adapter"):
            merge(tmp_path / "base", path)
        source = base if name in LIKE_THE_BASE else tmp_path / "base" if name.startswith("adapter") else path
        for ours, theirs in zip(scores(answers(draft, TEXTS, top_k=3)), scores(classes(source)), strict=True):
            assert [label for label, _ in ours] == [label for label, _ in theirs]
            np.testing.assert_allclose([score for _, score in ours], [score for _, score in theirs], atol=1e-5)


def merge(base: Path, path: Path) -> None:
    a, b = load_file(path / "adapter_model.safetensors").values()
    altered(lambda weight: weight + LORA["lora_alpha"] / LORA["r"] * (b @ a), QUERY)(base)  # type: ignore[operator]


def test_the_manifest_names_the_base_of_an_adapter(base: Path, tmp_path: Path, serve: Callable[[str], Draft]) -> None:
    draft = serve(str(make(base, "adapter beside its base", tmp_path / "mine")))
    assert draft.manifest.source == {"directory": "mine", "base": {"directory": "base"}}


# What is refused


@pytest.mark.parametrize("name", ROWS["refused"])
def test_what_is_refused_is_told_with_the_next_step(
    base: Path, tmp_path: Path, serve: Callable[[str], Draft], name: str
) -> None:
    path = make(base, name, tmp_path / "it")
    with pytest.raises((ModelError, SetupError)) as caught:
        serve(str(path))
    message = str(caught.value)

    assert ROWS["refused"][name].replace("{}", str(path)) in message
    assert "\n" not in message


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "vocab.txt"])
def test_files_of_another_user_are_told(
    base: Path, serve: Callable[[str], Draft], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """The administrator, as whom tests may run, can read every file."""
    really = Path.open

    def deny(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == file:
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, *args, **options)

    monkeypatch.setattr(Path, "open", deny)
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: deny(path, encoding=encoding).read())
    with pytest.raises((ModelError, SetupError), match=rf"^{file}.*\(Permission denied\)"):
        serve(str(base))
