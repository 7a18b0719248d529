"""Directories of sentence-transformers with random weights, written by sentence-transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn

from tests.goldens.cases import HERE
from tests.support.checkpoints import SMALL, randomise

PROMPTS = {"query": "search for ", "document": ""}
WIDTH = 48
DENSE_WIDTH = 40
MAX_TOKENS = 24


def save_transformer(path: Path, labels: int | None = None, **settings: Any) -> Path:
    """Writes a small BERT with the tokenizer of the golden tests: an encoder, or a classifier with this many labels."""
    vocabulary = (HERE / "vocab.txt").read_text("utf-8").splitlines()
    config = SMALL["bert"].config(
        vocab_size=len(vocabulary), **settings, **({} if labels is None else {"num_labels": labels})
    )
    kind: Any = transformers.AutoModel if labels is None else transformers.AutoModelForSequenceClassification
    model = kind.from_config(config).eval()
    randomise(model)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}), "utf-8")
    return path


def save_encoder(
    directory: Path,
    pooling: str = "mean",
    *,
    normalize: bool = True,
    dense: nn.Module | None = None,
    default_prompt: str | None = None,
    first_unit: bool = False,
    bias: bool = True,
) -> SentenceTransformer:
    """Writes an embedding model to `directory/model`, and returns it as sentence-transformers reads it.

    `first_unit` puts a Normalize before the module Dense, whose activation is `dense`.
    """
    encoder = Transformer(
        str(save_transformer(directory / "encoder")), processor_kwargs={"model_max_length": MAX_TOKENS}
    )
    modules: list[nn.Module] = [encoder, Pooling(WIDTH, pooling_mode=pooling)]
    if first_unit:
        modules.append(Normalize())
    if dense is not None:
        modules.append(Dense(WIDTH, DENSE_WIDTH, bias=bias, activation_function=dense))
        randomise(modules[-1])
    if normalize:
        modules.append(Normalize())
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=default_prompt, device="cpu")
    model.save(str(directory / "model"))
    return SentenceTransformer(str(directory / "model"), device="cpu")


def make_sentence_encoder(checkpoint: Path, pooling: str) -> None:
    """Makes a checkpoint of transformers an embedding model of sentence-transformers."""
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    kinds = [{"path": path, "type": f"sentence_transformers.models.{name}"} for path, name in names.items()]
    (checkpoint / "modules.json").write_text(json.dumps(kinds), "utf-8")
    (checkpoint / "1_Pooling").mkdir()
    (checkpoint / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": pooling}), "utf-8")


def edit(file: Path, **changes: Any) -> None:
    """Changes entries of a JSON object. None removes an entry."""
    document = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not None}), "utf-8")


def save_masked_lm(path: Path) -> Path:
    """Writes a small BERT that fills masks, with the tokenizer of the golden tests."""
    vocabulary = (HERE / "vocab.txt").read_text("utf-8").splitlines()
    model = transformers.AutoModelForMaskedLM.from_config(SMALL["bert"].config(vocab_size=len(vocabulary))).eval()
    randomise(model)
    model.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}), "utf-8")
    return path
