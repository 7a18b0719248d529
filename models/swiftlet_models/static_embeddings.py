"""Reads static embeddings: a directory of model2vec (potion), or of `StaticEmbedding` of sentence-transformers.

A text has no special tokens, and its vector is the mean of its tokens' vectors. model2vec may store a vector for
several tokens (`mapping`) and a weight for each token (`weights`); both become part of the table. It leaves unknown
tokens out of the mean. The tokenizer does this, too, unless a text has no other: then its answer is zero, as their
vector is.

A text is cut at the `max_length` of model2vec, or at `MAX_TOKENS`; where a classifier of model2vec names none, at its
default. (model2vec cuts the characters first, and counts the unknown tokens that it leaves out.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import static_classifiers
from swiftlet_models.artifact import Embedding, Reading
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.convert import ConvertedCheckpoint
from swiftlet_models.sentence_transformers import MODULES, read_modules, read_prompts
from swiftlet_models.sources import STATIC
from swiftlet_models.static_classifiers import StaticClassifier
from swiftlet_models.tokenizer import Tokenizer

MODULE: Final = "StaticEmbedding"
MODEL2VEC: Final = "embeddings"  # the name of its table
MAX_TOKENS: Final = 8192
CLASSIFIER_TOKENS: Final = 512  # of model2vec, by default
_WORDS: Final = "encoder.embeddings.word.weight"


@dataclass(frozen=True)
class StaticEmbeddings:
    """A table of vectors, and how texts are read for it."""

    table: NDArray[np.float32]  # (V, D)
    tokenizer: Tokenizer
    embedding: Embedding
    max_tokens: int
    classifier: StaticClassifier | None = None

    def converted(self, source: Mapping[str, Any]) -> ConvertedCheckpoint:
        """Returns the network, as `convert` does."""
        vocabulary, width = self.table.shape
        head = self.classifier
        config = {"vocab_size": vocabulary, "hidden_size": width, "max_position_embeddings": MAX_TOKENS}
        return ConvertedCheckpoint(
            weights={_WORDS: self.table, **(head.parameters() if head else {})},
            architecture="static",
            config=config,
            head="embedding",
            width=len(head.labels) if head else width,
            embedding=self.embedding,
            positions=self.max_tokens,
            labels=head.labels if head else (),
            problem=head.problem if head else None,
            ignored=(),
            source=source,
        )


def is_static(directory: Path) -> bool:
    """Returns whether a directory holds static embeddings."""
    if (directory / MODULES).is_file():
        return any(kind == MODULE for kind, _ in read_modules(directory))
    return _config(directory).get("model_type") == STATIC


def is_classifier(directory: Path) -> bool:
    """Returns whether a directory holds static embeddings with a classifier."""
    return static_classifiers.is_classifier(directory) and is_static(directory)


def read(directory: Path, *, classifies: bool = False) -> StaticEmbeddings:
    """Reads the files of a directory, with its classifier or for its vectors.

    Raises:
        ConversionError, WeightsError: a file is missing or invalid, or holds what is not supported.
        TokenizerError: the tokenizer is not supported.
    """
    modules = read_modules(directory) if (directory / MODULES).is_file() else [(MODULE, directory)]
    kinds, config = [kind for kind, _ in modules], _config(directory)
    if kinds not in ([MODULE], [MODULE, "Normalize"]):
        raise ConversionError(f"{MODULES}: only Normalize may follow {MODULE}.")
    folder = modules[0][1]
    prompts, default = read_prompts(directory)
    with open_tensors(folder) as tensors:
        table = _table({name: np.asarray(tensor) for name, tensor in tensors.items()})
        is_model2vec = MODEL2VEC in tensors
    tokenizer = Tokenizer.load(folder / "tokenizer.json").bare(Reading(skip_unknown=is_model2vec))
    if len(table) < tokenizer.vocab_size:
        raise ConversionError(f"the tokenizer has {tokenizer.vocab_size} tokens, but there are {len(table)} vectors.")
    if is_model2vec and tokenizer.unknown_id is not None:
        table[tokenizer.unknown_id] = 0
    normalize = "Normalize" in kinds or bool(config.get("normalize"))
    limit = config.get("max_length", CLASSIFIER_TOKENS if classifies else None) or MAX_TOKENS
    if type(limit) is not int or limit < 1:
        raise ConversionError("config.json: max_length has an invalid value.")
    embedding = Embedding("mean", normalize=normalize, prompts=prompts, default_prompt=default)
    found = StaticEmbeddings(table, tokenizer, embedding, min(limit, MAX_TOKENS))
    if not classifies:
        return found
    head = static_classifiers.read_classifier(directory, config, table.shape[1])
    form = Embedding("mean", dense="unit" if normalize else "identity", hidden_widths=head.hidden_widths)
    return replace(found, embedding=form, classifier=head)


def _config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    return read_object(file) if file.is_file() else {}


def _table(tensors: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Returns the vector of each token."""
    unknown = tensors.keys() - {"embedding.weight", MODEL2VEC, "mapping", "weights"}
    table = tensors.get("embedding.weight", tensors.get(MODEL2VEC))
    if unknown or table is None or table.ndim != 2:
        raise ConversionError("the tensors are not those of static embeddings: embeddings, mapping and weights.")
    mapping, weights = tensors.get("mapping"), tensors.get("weights")
    try:
        table = np.array(table if mapping is None else table[mapping], np.float32)
        if weights is not None:
            table *= weights.astype(np.float32)[:, None]
    except (IndexError, ValueError):
        raise ConversionError("the tensors mapping and weights do not fit the embeddings.") from None
    return table
