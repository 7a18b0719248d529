"""The forms of an embedding: a vector of a text, weights of tokens of the vocabulary, or a vector of each token.

The head `embedding` has the numbers for all forms that the model knows side by side, so that one pass of the network
gives them all. A form picks its columns, and `focused` the positions that the head reads for the forms of a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from swiftlet_models.artifact import Embedding, Manifest, Output
from swiftlet_models.encodings import Encoding, Ids
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import invalid_value
from swiftlet_serve.tasks._requests import Cut
from swiftlet_serve.types import Row

Floats = NDArray[np.float64]

MAX_NUMBERS: Final = 1 << 23  # of the rows of a request with a vector for each token, or with a whole vocabulary
SMALLEST_NORM: Final = 1e-12  # as in torch's `normalize`: a vector of zeros stays one
QUERY: Final = "query"  # the name of the prompt that makes a text a query
OUTPUT: Final = "/parameters/output"

Outputs = Output | Annotated[list[Output], Field(min_length=1, max_length=3)]


class SparseVector(BaseModel):
    """The weights of some tokens of the vocabulary. All other tokens have the weight 0."""

    indices: Annotated[list[int], Field(description="Ids of tokens, in ascending order.")]
    values: Annotated[list[float], Field(description="The weight of each token.")]
    tokens: Annotated[list[str] | None, Field(description="The tokens, with return_tokens.")] = None


class Embeddings(BaseModel):
    """The forms of a text, if the request names several."""

    dense: list[float] | list[int] | str | None = None
    sparse: SparseVector | None = None
    multi_vector: list[list[float] | list[int] | str] | None = None


@dataclass(frozen=True)
class Sparse:
    """Weights of some tokens of the vocabulary."""

    ids: Ids  # (n,), in ascending order
    weights: Floats  # (n,)


Form = Floats | Sparse
"""A form of a text: a vector (D,), the vectors of its tokens (n, D), or weights."""


class Forms:
    """The forms of one model, from the rows of its network."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        manifest: Manifest,
        embedding: Embedding,
        head: HeadWeights | None = None,
    ) -> None:
        """`head` holds the weights of a query's tokens, if they need no network. Without it, it only encodes.

        Raises:
            ValueError: `head` lacks them, or has not one for each token.
        """
        self.tokenizer, self.embedding = tokenizer, embedding
        self.static_query = embedding.sparse is not None and embedding.sparse.static_query
        self._query_weights = None if head is None else head.get(tasks.QUERY_WEIGHTS)
        if head is not None and (self._query_weights is None or self._query_weights.shape != (tokenizer.vocab_size,)):
            raise ValueError(f"the head lacks {tasks.QUERY_WEIGHTS}, a weight for each token.")
        self.max_tokens = manifest.max_tokens
        several = embedding.multi_vector
        self.several = several.width if several else 0
        weights = 0 if embedding.sparse is None or embedding.by_vocabulary else 1
        self.width = 0 if embedding.by_vocabulary else manifest.width - weights - self.several
        self.row_width = manifest.width
        self.max_positions = max(MAX_NUMBERS // self.row_width, 1 if embedding.by_vocabulary else self.max_tokens)

    def chosen(self, output: Output | Sequence[Output] | None) -> tuple[Output, ...]:
        """Returns the forms that a request asks for, or else the model's first one.

        Raises:
            Unprocessable: the model lacks a form, or a form is named twice.
        """
        known = self.embedding.outputs
        if output is None:
            return known[:1]
        names = (output,) if isinstance(output, str) else tuple(output)
        if len(set(names)) < len(names):
            raise invalid_value(OUTPUT, "duplicate", "An output is named twice. Name each once.")
        for name in names:
            if name not in known:
                detail = f"The model has no {name} output. It has: {', '.join(known)}."
                raise invalid_value(OUTPUT, "unsupported", detail)
        return names

    def max_text_tokens(self, cut: Cut, *, is_query: bool) -> int:
        """Returns the token limit of a text, without the prefix that `focused` adds."""
        several, most = self.embedding.multi_vector, cut.most(self.max_tokens)
        if several is None:  # a query that is looked up loses its special tokens
            return most + (self.tokenizer.special_count(pair=False) if is_query and self.static_query else 0)
        limit = several.query_tokens if is_query else several.document_tokens
        prefix = ("query" if is_query else "document") in several.prefixes
        return min(limit or most, most) - prefix

    def focused(
        self, encodings: Sequence[Encoding], outputs: Sequence[Output], *, is_query: bool = False
    ) -> list[Encoding]:
        """Returns sequences with their prefixes, whose head reads what the outputs need."""
        if is_query and self.static_query:
            return [self._unwrapped(encoding) for encoding in encodings]
        prefixed = [self._prefixed(encoding, is_query=is_query) for encoding in encodings]
        return [self._read(encoding, outputs, is_query=is_query) for encoding in self.pooled(prefixed)]

    def pooled(self, encodings: Iterable[Encoding]) -> list[Encoding]:
        """Returns sequences whose head reads the token that the vector is made of, if it is made of one."""
        return tasks.read_last(encodings) if self.embedding.pooling == "last" else list(encodings)

    def _unwrapped(self, encoding: Encoding) -> Encoding:
        """Returns a query without the special tokens around it, whose tokens are looked up."""
        before, after = self.tokenizer.special_ends
        ids = encoding.input_ids[len(before) : len(encoding.input_ids) - len(after)]
        return replace(encoding, input_ids=ids, token_type_ids=np.zeros_like(ids), looked_up=True)

    def _prefixed(self, encoding: Encoding, *, is_query: bool) -> Encoding:
        """Returns a sequence with the prefix of its kind, and a query filled up with masks."""
        several = self.embedding.multi_vector
        if several is None:
            return encoding
        ids, types = encoding.input_ids, encoding.token_type_ids
        prefix, attended = several.prefixes.get("query" if is_query else "document"), None
        if prefix is not None:
            ids, types = np.insert(ids, 1, prefix), np.insert(types, 1, 0)
        missing = min(several.query_tokens or 0, self.max_tokens) - len(ids)
        if is_query and several.mask is not None and missing > 0:
            attended = None if several.reads_masks else len(ids)
            ids, types = np.pad(ids, (0, missing), constant_values=several.mask), np.pad(types, (0, missing))
        return replace(encoding, input_ids=ids, token_type_ids=types, attended=attended)

    def _read(self, encoding: Encoding, outputs: Sequence[Output], *, is_query: bool) -> Encoding:
        """Returns a sequence whose head reads its first token, and all that an output is made of."""
        if not self.embedding.by_token or outputs == ("dense",):
            return encoding
        read = self._has_vector(encoding.input_ids, np.arange(len(encoding.input_ids)), is_query=is_query)
        if "sparse" in outputs:
            read[:] = True
        read[0] |= "dense" in outputs
        return replace(encoding, focus=np.flatnonzero(read))

    def _has_vector(self, ids: Ids, positions: Ids, *, is_query: bool) -> NDArray[np.bool_]:
        """Returns which of some tokens have a vector."""
        several = self.embedding.multi_vector
        if several is None:
            return np.zeros(len(ids), bool)
        has = positions >= several.first
        return has if is_query else has & ~np.isin(ids, several.ignored)

    def dense(self, rows: Sequence[Row]) -> Floats:
        """Returns the vectors of texts, (N, width)."""
        return np.array([row[0, : self.width] for row in rows], np.float64)

    def sparse(self, row: Row, encoding: Encoding) -> Sparse:
        """Returns the weights of a text."""
        about = self.embedding.sparse
        assert about is not None  # noqa: S101  # for the type checker
        if encoding.looked_up:
            assert self._query_weights is not None  # noqa: S101  # for the type checker
            ids = np.unique(encoding.input_ids)
            found = self._query_weights[ids].astype(np.float64)
            return Sparse(ids[found != 0], found[found != 0])
        if self.embedding.by_vocabulary:
            ids = np.flatnonzero(row[0] > 0)
            weights = row[0, ids].astype(np.float64)
        else:
            every = np.maximum(row[:, self.width], 0).astype(np.float64)
            ids, place = np.unique(encoding.input_ids[encoding.focus], return_inverse=True)
            weights = np.zeros(len(ids))
            np.maximum.at(weights, place, every)
        kept = (weights > 0) & ~np.isin(ids, about.ignored)
        ids, weights = ids[kept], weights[kept]
        for _ in range(about.logarithms):
            weights = np.log1p(weights)
        return Sparse(ids, weights)

    def multi_vector(self, row: Row, encoding: Encoding, *, is_query: bool = False, normalize: bool = True) -> Floats:
        """Returns the vectors of the tokens of a text, (n, D)."""
        focus = encoding.focus
        has = self._has_vector(encoding.input_ids[focus], focus, is_query=is_query)
        vectors = row[has, self.row_width - self.several :].astype(np.float64)
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), SMALLEST_NORM)
        return vectors

    def scores(self, output: Output, encodings: Sequence[Encoding], rows: Sequence[Row]) -> list[float]:
        """Returns how similar texts are to a query, the first of the sequences: a cosine, a product, or MaxSim."""
        if output == "dense":
            vectors = normalized(self.dense(rows))
            scores: list[float] = np.vecdot(vectors[1:], vectors[0]).tolist()
            return scores
        pairs = list(zip(rows, encodings, strict=True))
        if output == "sparse":
            query, *texts = (self.sparse(*pair) for pair in pairs)
            return [dot(query, text) for text in texts]
        vectors = self.multi_vector(*pairs[0], is_query=True)
        return [max_sim(vectors, self.multi_vector(*pair)) for pair in pairs[1:]]

    def named(self, vector: Sparse, *, with_tokens: bool, decimals: int) -> dict[str, Any]:
        """Returns a sparse vector as JSON-serialisable values."""
        named: dict[str, Any] = {"indices": vector.ids.tolist(), "values": vector.weights.round(decimals).tolist()}
        return named | ({"tokens": [self.tokenizer.token(i) for i in named["indices"]]} if with_tokens else {})


def normalized(vectors: Floats) -> Floats:
    """Returns a vector (D,), or vectors (N, D), with length 1."""
    lengths = np.sqrt(np.vecdot(vectors, vectors))
    return np.asarray(vectors / np.maximum(lengths, SMALLEST_NORM)[..., None])


def cosine(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Returns the cosine of two vectors (D,); 0 if one of them is a vector of zeros, and 1 if both are.

    A static model has zeros for a text of unknown words.
    """
    if not (first.any() or second.any()):
        return 1.0
    return float(normalized(first.astype(np.float64)) @ normalized(second.astype(np.float64)))


def dot(first: Sparse, second: Sparse) -> float:
    """Returns the sum of the products of the weights that two sparse vectors share."""
    _, at, other = np.intersect1d(first.ids, second.ids, assume_unique=True, return_indices=True)
    return float(first.weights[at] @ second.weights[other])


def largest(several: Sequence[Sparse]) -> Sparse:
    """Returns the largest weight of each token of several sparse vectors."""
    ids, places = np.unique(np.concatenate([one.ids for one in several]), return_inverse=True)
    weights = np.zeros(len(ids))
    np.maximum.at(weights, places, np.concatenate([one.weights for one in several]))
    return Sparse(ids, weights)


def max_sim(query: Floats, document: Floats) -> float:
    """Returns how similar a document is to a query (ColBERT): for each vector of the query, its largest product with
    one of the document, added up. 0 if the document has no vectors."""
    return float((query @ document.T).max(1, initial=-np.inf).sum()) if len(document) else 0.0


def similarity(first: Form, second: Form) -> float:
    """Returns the similarity of two texts, 1 for equal ones: a cosine, or the mean over MaxSim.

    Raises:
        ValueError: their vectors differ in form or width.
    """
    if isinstance(first, Sparse) or isinstance(second, Sparse):
        if not (isinstance(first, Sparse) and isinstance(second, Sparse)):
            raise ValueError("the forms differ.")  # noqa: TRY004  # as numpy, if the widths differ
        length = float(np.sqrt(dot(first, first) * dot(second, second)))
        return dot(first, second) / length if length else float(len(first.ids) == len(second.ids))
    return cosine(first, second) if first.ndim == 1 else max_sim(first, second) / max(1, len(first))


def read(answer: Any) -> Form:
    """Returns the form that an answer in JSON holds, or the first of several."""
    if not isinstance(answer, dict):
        return np.asarray(answer, np.float64)
    if "indices" in answer:
        return Sparse(np.asarray(answer["indices"], np.int64), np.asarray(answer["values"], np.float64))
    return read(next(iter(answer.values())))
