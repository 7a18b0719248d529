"""Small embedding models of the families in `architectures/standard.py`, written by sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import pre_tokenizers, processors, trainers
from torch import nn

from tests.goldens.cases import HERE
from tests.support.checkpoints import randomise

WIDTH: Final = 64
MAX_TOKENS: Final = 48
PROMPTS: Final = {"query": "search: ", "document": ""}
_SIZES: Final = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
_KINDS: Final = ["sliding_attention", "full_attention", "sliding_attention"]
_BYTES: Final = [f"<0x{i:02X}>" for i in range(256)]


def _train(tokenizer: Any, trainer: Any, texts: Sequence[str]) -> dict[str, Any]:
    backend = tokenizer._tokenizer
    backend.train_from_iterator(texts, trainer)
    model: dict[str, Any] = json.loads(backend.to_str())["model"]
    return model


def _merges(model: Mapping[str, Any]) -> dict[str, Any]:
    return {"vocab": model["vocab"], "merges": [tuple(pair) for pair in model["merges"]]}


def _gemma(texts: Sequence[str]) -> Any:
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *_BYTES]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=specials, max_token_length=8)
    model = _train(transformers.GemmaTokenizer(), trainer, texts)
    return transformers.GemmaTokenizer(**_merges(model), add_bos_token=True, add_eos_token=True)


def _qwen(texts: Sequence[str]) -> Any:
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer: Any = transformers.Qwen2Tokenizer(**_merges(_train(transformers.Qwen2Tokenizer(), trainer, texts)))
    end = processors.TemplateProcessing(
        single="$A:0 <|endoftext|>:0", pair="$A:0 $B:1 <|endoftext|>:1", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer._tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), end])
    return tokenizer


def _t5(texts: Sequence[str]) -> Any:
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    model = _train(transformers.T5Tokenizer(), trainer, texts)
    return transformers.T5Tokenizer(vocab=[tuple(piece) for piece in model["vocab"]], extra_ids=10)


def _bert(_: Sequence[str]) -> Any:
    words = (HERE / "vocab.txt").read_text("utf-8").splitlines()
    return transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)})


# The tokenizer, the network, the pooling and the Dense modules of each.
MODELS: Final[Mapping[str, tuple[Callable[[Sequence[str]], Any], Any, Mapping[str, Any], str, int]]] = {
    "gemma3_text": (
        _gemma,
        transformers.Gemma3TextConfig,
        _SIZES
        | {"num_key_value_heads": 1, "head_dim": 32, "sliding_window": 16, "layer_types": _KINDS}
        | {"use_bidirectional_attention": True},
        "mean",
        2,
    ),
    "qwen2": (
        _qwen,
        transformers.Qwen2Config,
        _SIZES | {"num_key_value_heads": 1, "tie_word_embeddings": True},
        "lasttoken",
        0,
    ),
    "qwen3": (
        _qwen,
        transformers.Qwen3Config,
        _SIZES | {"num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True},
        "lasttoken",
        0,
    ),
    "t5": (
        _t5,
        transformers.T5Config,
        {"d_model": WIDTH, "d_kv": 32, "d_ff": 96, "num_layers": 3, "num_heads": 2},
        "mean",
        1,
    ),
    "eurobert": (_qwen, transformers.EuroBertConfig, _SIZES | {"bos_token_id": 0, "mask_token_id": 0}, "mean", 0),
    "nomic_bert": (_bert, transformers.NomicBertConfig, _SIZES, "mean", 0),
}


def save_model(directory: Path, name: str, texts: Sequence[str]) -> SentenceTransformer:
    """Writes a model to `directory/model`, and returns it. Special tokens in a text are text."""
    make, config_class, settings, pooling, denses = MODELS[name]
    tokenizer = make(texts)
    ids = {key: value for key in ("pad_token_id", "eos_token_id") if (value := getattr(tokenizer, key)) is not None}
    config = config_class(vocab_size=len(tokenizer), **settings, **ids)
    network: Any = transformers.T5EncoderModel if name == "t5" else transformers.AutoModel
    model = network._from_config(config) if name == "t5" else network.from_config(config)
    randomise(model)
    model.save_pretrained(directory / "encoder")
    tokenizer.save_pretrained(directory / "encoder")
    modules: list[nn.Module] = [
        Transformer(str(directory / "encoder"), processor_kwargs={"model_max_length": MAX_TOKENS}),
        Pooling(WIDTH, pooling_mode=pooling),
    ]
    for _ in range(denses):
        modules.append(Dense(WIDTH, WIDTH, bias=len(modules) > 2, activation_function=nn.Identity()))
        randomise(modules[-1])
    written = SentenceTransformer(modules=[*modules, Normalize()], prompts=PROMPTS, device="cpu")
    written.save(str(directory / "model"))
    loaded = SentenceTransformer(str(directory / "model"), device="cpu")
    loaded.tokenizer.split_special_tokens = True
    return loaded
