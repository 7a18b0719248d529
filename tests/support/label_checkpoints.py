"""Checkpoints of GLiNER and GLiClass with random weights, as `save_pretrained` of the packages writes them.

The weights depend on the names and shapes of the parameters alone, so that the packages, which are not installed where
the tests run, read the same checkpoints as the tests (`tests/goldens/write_labels.py`).
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors.numpy
import tokenizers
import transformers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, processors

from tests.goldens import cases

SIZES: Final = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "deberta-v2": SIZES
    | {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 64,
    },
    "bert": SIZES | {"max_position_embeddings": 48},
    "modernbert": SIZES
    | {"local_attention": 16, "global_attn_every_n_layers": 2, "max_position_embeddings": 512, "pad_token_id": 3},
}
SPECIALS: Final = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
Shapes = dict[str, tuple[int, ...]]


def write_tokenizer(directory: Path, trunk: str, added: tuple[str, ...]) -> int:
    """Writes a small tokenizer, and returns the number of its tokens."""
    fast: Any
    if trunk == "deberta-v2":
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copy(cases.HERE / "spiece.model", directory / "spm.model")
        (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}', "utf-8")
        fast = transformers.AutoTokenizer.from_pretrained(directory)
        (directory / "spm.model").unlink()
    elif trunk == "bert":
        directory.mkdir(parents=True, exist_ok=True)
        fast = transformers.BertTokenizer.from_pretrained(shutil.copy(cases.HERE / "vocab.txt", directory))
        (directory / "vocab.txt").unlink()
    else:
        vocab = json.loads((cases.HERE / "vocab.json").read_text("utf-8"))
        vocab = {token: number for number, token in enumerate([*SPECIALS, *(t for t in vocab if t not in SPECIALS)])}
        lines = (cases.HERE / "merges.txt").read_text("utf-8").splitlines()
        merges = [(left, right) for left, right in (line.split(" ") for line in lines if not line.startswith("#"))]
        own = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
        own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        own.decoder = decoders.ByteLevel()
        ends = [(token, vocab[token]) for token in ("[CLS]", "[SEP]")]
        own.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ends)
        names = {f"{token[1:-1].lower()}_token": token for token in SPECIALS}
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **names)
    fast.add_tokens(list(added), special_tokens=True)
    fast.save_pretrained(directory)
    return len(fast)


def trunk_shapes(trunk: str, prefix: str, **settings: Any) -> tuple[dict[str, Any], Shapes]:
    """Returns the configuration of an encoder, and the shapes of its tensors under `prefix`."""
    config = transformers.AutoConfig.for_model(trunk, **SETTINGS[trunk], **settings)
    network = transformers.AutoModel.from_config(config)
    return config.to_dict(), {prefix + name: tuple(t.shape) for name, t in network.state_dict().items()}


def linear(name: str, outputs: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def projection(name: str, inputs: int, outputs: int) -> Shapes:
    """The shapes of `create_projection_layer` of gliner."""
    return linear(f"{name}.0", 4 * outputs, inputs) | linear(f"{name}.3", outputs, 4 * outputs)


def lstm(name: str, inputs: int, hidden: int, layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for layer in range(layers):
        for direction in ("", "_reverse"):
            width = 2 * hidden if layer else inputs
            for part, shape in (("weight_ih", (width,)), ("weight_hh", (hidden,)), ("bias_ih", ()), ("bias_hh", ())):
                yield f"{name}.{part}_l{layer}{direction}", (4 * hidden, *shape)


def write_tensors(directory: Path, shapes: Shapes, gain: Mapping[str, float], shift: Mapping[str, float]) -> None:
    """Writes tensors whose products keep the size of what they multiply, times the `gain` of the name's beginning."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, shape in shapes.items():
        numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
        factor = next((factor for start, factor in gain.items() if name.startswith(start)), 1.0)
        if len(shape) < 2:
            offset = 1.0 if name.endswith("orm.weight") else shift.get(name, 0.0)
            tensors[name] = np.array(0.1 * numbers + offset, np.float32)
        else:
            tensors[name] = (factor * numbers / np.sqrt(shape[1])).astype(np.float32)
    safetensors.numpy.save_file(tensors, directory / "model.safetensors")


def write_gliner(
    directory: Path, trunk: str = "deberta-v2", form: str = "span", labels: str | None = None, **settings: Any
) -> Path:
    """Writes a checkpoint of GLiNER. The form is span or token. `labels` is the trunk of a second encoder for them."""
    markers = () if labels else ("[FLERT]", "<<ENT>>", "<<SEP>>")
    count = write_tokenizer(directory, trunk, markers)
    encoder, shapes = trunk_shapes(trunk, "token_rep_layer.bert_layer.model.", vocab_size=count)
    config: dict[str, Any] = {
        "model_type": None,
        "labels_encoder": None,
        "represent_spans": False,
        "precomputed_prompts_mode": None,
        "model_name": "none",
        "max_width": 4,
        "hidden_size": 48,
        "dropout": 0.1,
        "subtoken_pooling": "first",
        "span_mode": "markerV0" if form == "span" else "token_level",
        "max_len": 32,
        "words_splitter_type": "whitespace",
        "num_rnn_layers": 1,
        "embed_ent_token": True,
        "ent_token": "<<ENT>>",
        "sep_token": "<<SEP>>",
        "vocab_size": count,
        "class_token_index": count - 2,
        "encoder_config": encoder,
    } | settings
    h, own = config["hidden_size"], encoder["hidden_size"]
    if h != own:
        shapes |= linear("token_rep_layer.projection", h, own)
    if labels:
        of_labels = write_tokenizer(directory / "labels_tokenizer", labels, ())
        second, more = trunk_shapes(labels, "token_rep_layer.labels_encoder.model.", vocab_size=of_labels)
        config |= {"labels_encoder": "none", "labels_encoder_config": second, "class_token_index": -1}
        shapes |= more | (linear("token_rep_layer.labels_projection", h, own) if h != own else {})
    shapes |= dict(lstm("rnn.lstm", h, h // 2, config["num_rnn_layers"]))
    if form == "span":
        shapes |= projection("prompt_rep_layer", h, h)
        for part in ("start", "end"):
            shapes |= projection(f"span_rep_layer.span_rep_layer.project_{part}", h, h)
        shapes |= projection("span_rep_layer.span_rep_layer.out_project", 2 * h, h)
    else:
        shapes |= linear("scorer.proj_token", 2 * h, h) | linear("scorer.proj_label", 2 * h, h)
        shapes |= linear("scorer.out_mlp.0", 4 * h, 3 * h) | linear("scorer.out_mlp.3", 3, 4 * h)
    write_tensors(directory, shapes, {"rnn": 2, "scorer": 3, "prompt_rep": 1.7}, {"scorer.out_mlp.3.bias": 7})
    (directory / "gliner_config.json").write_text(json.dumps(config), "utf-8")
    return directory


def write_gliclass(directory: Path, trunk: str = "deberta-v2", **settings: Any) -> Path:
    """Writes a checkpoint of GLiClass, in the form of one encoder."""
    count = write_tokenizer(directory, trunk, ("<<LABEL>>", "<<SEP>>"))
    encoder, shapes = trunk_shapes(trunk, "model.encoder_model.", vocab_size=count)
    config: dict[str, Any] = {
        "model_type": "GLiClass",
        "architectures": ["GLiClassModel"],
        "architecture_type": "uni-encoder",
        "encoder_config": encoder,
        "encoder_model": "none",
        "hidden_size": 48,
        "vocab_size": count,
        "class_token_index": count - 2,
        "text_token_index": count - 1,
        "scorer_type": "simple",
        "pooling_strategy": "first",
        "class_token_pooling": "first",
        "prompt_first": True,
        "problem_type": "multi_label_classification",
    } | settings
    h, own = config["hidden_size"], encoder["hidden_size"]
    for part in ("text_projector", "classes_projector"):
        shapes |= linear(f"model.{part}.linear_1", h, own) | linear(f"model.{part}.linear_2", own, h)
    shapes["model.logit_scale"] = ()
    match config["scorer_type"]:
        case "weighted-dot":
            shapes |= linear("model.scorer.proj_text", 2 * h, h) | linear("model.scorer.proj_label", 2 * h, h)
            shapes |= linear("model.scorer.out_mlp.0", 4 * h, 3 * h) | linear("model.scorer.out_mlp.3", 1, 4 * h)
        case "mlp":
            m = 256  # the package ignores scorer_mlp_hidden_size
            shapes |= linear("model.scorer.mlp.0", m, 2 * h) | linear("model.scorer.mlp.2", m // 2, m)
            shapes |= linear("model.scorer.mlp.4", 1, m // 2)
    write_tensors(directory, shapes, {"model.scorer": 3}, {})
    (directory / "config.json").write_text(json.dumps(config), "utf-8")
    return directory
