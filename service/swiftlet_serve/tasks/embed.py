"""Embedding: a vector for each text, for search, clustering and similarity.

The vectors equal those of `SentenceTransformer.encode`. The network pools the tokens: only a vector leaves the
engine. This module adds the prompt to a text, and cuts and normalises its vector. The response is a list of vectors
even for one text, as in Hugging Face's feature extraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import ConfigDict, Field

from swiftlet_models.artifact import Embedding, Manifest, Output
from swiftlet_models.encodings import Encoding, TextTooLong
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import invalid_value
from swiftlet_serve.tasks import _vectors, _windows
from swiftlet_serve.tasks._requests import (
    MAX_INPUTS,
    Cut,
    Failure,
    OneByOne,
    Request,
    Strict,
    Texts,
    TextsRequest,
    empty_input,
    listed,
    pointers,
    too_many_tokens,
)
from swiftlet_serve.tasks._vector_forms import (
    MAX_NUMBERS,
    QUERY,
    Embeddings,
    Forms,
    Outputs,
    SparseVector,
    largest,
    normalized,
)
from swiftlet_serve.types import Row
from swiftlet_serve.types.json_text import DECIMALS

HEAD: Final = "embedding"
OUTPUTS: Final = "hidden"
READS_HEAD: Final = True

NUMBER_BYTES: Final = 24  # an upper bound of a number in JSON
MAX_IDS: Final = 8192  # of one text: a longer one exceeds every model's limit
MAX_ITEMS: Final = 1 << 17  # of a body that may hold token ids


class EmbedParameters(Strict):
    """Options for the vectors, the prompt and long texts."""

    normalize: Annotated[
        bool | None,
        Field(description="Scales each vector to length 1, or returns it as it is. Default: as the model defines."),
    ] = None
    dimensions: Annotated[
        int | None,
        Field(
            description="Keeps only the first numbers of each vector, before it is normalised. For models that were "
            "trained for this (Matryoshka). Default: all.",
            ge=1,
        ),
    ] = None
    prompt_name: Annotated[
        str | None,
        Field(description="Name of the model's prompt to put in front of each text. Default: the model's default."),
    ] = None
    truncation: _windows.Truncation = True
    window: Annotated[
        _windows.Combination,
        Field(
            description="How the dense vectors of windows become one, with truncation window: their mean, weighted by "
            "their tokens, or the largest of each number."
        ),
    ] = "mean"
    encoding_format: Annotated[
        _vectors.Format,
        Field(
            description="float: a list of numbers. base64: the vector as little-endian 32-bit floats in Base64. int8: "
            "each number times 127, rounded. uint8: that plus 128. ubinary: bytes of 8 bits, which say whether a "
            "number is positive. binary: that minus 128."
        ),
    ] = "float"
    output: Annotated[
        Outputs | None,
        Field(
            description="dense: one vector. sparse: weights of tokens of the vocabulary. multi_vector: a vector for "
            "each token. A list gives several of them at once, by name. Default: the model's first.",
        ),
    ] = None
    return_tokens: Annotated[bool, Field(description="Adds the tokens to a sparse output.")] = False


DEFAULTS: Final = EmbedParameters()


class EmbedRequest(TextsRequest):
    """An embedding request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": ["A man is playing a guitar.", "Somebody makes music."]}]}
    )

    parameters: Annotated[EmbedParameters | None, Field(description="Optional parameters.")] = None


TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(max_length=MAX_IDS)]
Ids = Annotated[TokenIds, Field(min_length=1)] | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]
Inputs = str | Texts | Ids
"""Texts or token ids, in the requests of other protocols."""


def has_ids(inputs: Any) -> bool:
    """Returns whether `Inputs` are token ids."""
    return not isinstance(inputs, str) and not isinstance(inputs[0], str)


class TokenIdsRequest(Request):
    """An embedding request with token ids instead of texts, which only other protocols have."""

    inputs: Ids
    whole: bool = False
    """Whether the ids are whole sequences, which get no special tokens."""
    parameters: EmbedParameters | None = None


Vector = Annotated[list[float], Field(description="The numbers of a vector.")]
Levels = Annotated[list[int], Field(description="A vector in 8 bits or one bit a number, as encoding_format says.")]
Encoded = Annotated[str, Field(description="A vector in Base64, if encoding_format is base64.")]


def create(tokenizer: Tokenizer, manifest: Manifest, head: HeadWeights | None = None) -> Embed:
    """Makes the task of one artifact. A model whose queries are looked up needs `head` for decoding.

    Raises:
        ValueError: the artifact has labels, or another head.
    """
    tasks.check_unlabelled(manifest)
    if manifest.embedding is None:
        raise ValueError("embed needs a network with the head embedding.")
    return Embed(tokenizer, manifest, manifest.embedding, head)


class Embed(OneByOne):
    """One sequence for each text. Its row is the vector that the network pools, (1, width)."""

    Request = EmbedRequest
    Response = list[Vector | Levels | Encoded | list[Vector | Levels | Encoded] | SparseVector | Embeddings | Failure]
    max_sequences: ClassVar[int] = MAX_INPUTS  # `max_positions` limits those whose rows are not one vector

    def __init__(
        self,
        tokenizer: Tokenizer,
        manifest: Manifest,
        embedding: Embedding,
        head: HeadWeights | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_tokens = manifest.max_tokens
        self.vocab_size = manifest.vocab_size
        self.embedding = embedding
        self.forms = Forms(tokenizer, manifest, embedding, head)
        self.width, self.max_positions = self.forms.width, self.forms.max_positions
        # Vectors of short texts are longer than the limit of other responses.
        self.max_response_bytes = NUMBER_BYTES * max(self.width * MAX_INPUTS, MAX_NUMBERS)

    def encode(self, request: EmbedRequest | TokenIdsRequest) -> list[Encoding]:
        """Encodes each text as one sequence.

        Raises:
            Unprocessable: a text is empty, or is too long while truncation is off, or the model does not have the
                prompt, a token or as many dimensions.
        """
        parameters = request.parameters or DEFAULTS
        outputs = self.forms.chosen(parameters.output)
        self._check_format(parameters, outputs)
        if parameters.dimensions is not None and parameters.dimensions > self.width:
            detail = f"dimensions exceeds the {self.width} dimensions of the model. Lower it, or leave it out."
            raise invalid_value("/parameters/dimensions", "less_than_equal", detail, self.width)
        prompt, is_query = self._prompt(parameters.prompt_name), self._is_query(parameters)
        limit = self.forms.max_text_tokens(request.cut, is_query=is_query)
        most = self.forms.max_text_tokens(Cut(), is_query=is_query)
        _windows.check_cut(self.tokenizer, request.cut, limit, most, prompt=prompt)
        if isinstance(request, TokenIdsRequest):
            encodings = self._encode_ids(request, prompt, limit, parameters.truncation)
        else:
            encodings = self._encode_texts(request, prompt, limit, parameters.truncation)
        return self.forms.focused(encodings, outputs, is_query=is_query)

    def _encode_texts(
        self, request: EmbedRequest, prompt: str, limit: int, truncation: bool | Literal["window"]
    ) -> list[Encoding]:
        """Encodes texts with a prompt in front of each.

        Raises:
            Unprocessable: a text is empty or too long.
        """
        texts = listed(request.inputs)
        places = pointers(request.inputs)
        for text, place in zip(texts, places, strict=True):
            if not text.strip():
                raise empty_input(place)
        prompted = [prompt + text for text in texts]
        tokenizer = self.tokenizer.cutting(request.cut.side)
        encodings = _windows.encode(tokenizer, prompted, limit, truncation, places, self.max_sequences, prefix=prompt)
        for encoding in encodings:
            if not len(encoding.input_ids):  # no special tokens, and a text of control characters
                raise empty_input(places[encoding.text_index])
        return encodings

    def _encode_ids(
        self, request: TokenIdsRequest, prompt: str, limit: int, truncation: bool | Literal["window"]
    ) -> list[Encoding]:
        """Encodes rows of token ids. A flat list is one row.

        Raises:
            Unprocessable: a row is empty or too long, or has an id that is not a token of a text.
        """
        if prompt:
            detail = "The model puts a prompt before each text, and token ids cannot have one. Send texts."
            raise invalid_value("/inputs", "unsupported", detail)
        if truncation == _windows.WINDOW:
            detail = "Token ids cannot be read in windows. Send texts."
            raise invalid_value("/parameters/truncation", "unsupported", detail)
        ids: Any = request.inputs
        rows, places = ([ids], ["/inputs"]) if isinstance(ids[0], int) else (ids, pointers(ids))
        before, after = self.tokenizer.special_ends
        for row, place in zip(rows, places, strict=True):
            used = set(row)
            if wrong := {token for token in used if token >= self.vocab_size or not self.tokenizer.is_text(token)}:
                first = next(i for i, token in enumerate(row) if token in wrong)
                detail = (
                    "A token id is padding, or is not in the vocabulary of the model. Send texts, or ids of its tokens."
                )
                raise invalid_value(f"{place}/{first}", "unknown_token", detail)
            if not used - {*before, *after}:
                raise empty_input(place)
        try:
            tokenizer = self.tokenizer.cutting(request.cut.side)
            return tokenizer.encode_ids(rows, limit, truncate=truncation, whole=request.whole)
        except TextTooLong as error:
            raise too_many_tokens(places[error.index], limit, error.tokens) from None

    def decode(self, request: EmbedRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> list[Any]:
        """Returns the output of each text that the request asks for, or its outputs by name."""
        parameters = request.parameters or DEFAULTS
        outputs = self.forms.chosen(parameters.output)
        answers = [self._answers(output, parameters, encodings, rows) for output in outputs]
        if isinstance(parameters.output, list):
            return [dict(zip(outputs, forms, strict=True)) for forms in zip(*answers, strict=True)]
        return answers[0]

    def _answers(
        self, output: Output, parameters: EmbedParameters, encodings: Sequence[Encoding], rows: Sequence[Row]
    ) -> list[Any]:
        """Returns one output of each text.

        That of several windows is the mean or maximum of their vectors, the largest weight of each token, or the
        vectors of all tokens.
        """

        def of_texts(forms: Iterable[Any], join: Callable[[Sequence[Any], Sequence[int]], Any]) -> list[Any]:
            forms = list(forms)
            return _windows.joined(encodings, forms, join) if parameters.truncation == _windows.WINDOW else forms

        normalizes = self._normalizes(parameters)
        if output == "sparse":
            weights = of_texts(map(self.forms.sparse, rows, encodings), lambda parts, _: largest(parts))
            named = partial(self.forms.named, with_tokens=parameters.return_tokens, decimals=DECIMALS)
            return list(map(named, weights))
        if output == "multi_vector":
            several = partial(self.forms.multi_vector, is_query=self._is_query(parameters), normalize=normalizes)
            texts = of_texts(map(several, rows, encodings), lambda parts, _: np.concatenate(parts))
            return [_vectors.write(vectors, parameters.encoding_format) for vectors in texts]
        finish = normalized if normalizes else np.asarray
        vectors = finish(self.forms.dense(rows)[:, : parameters.dimensions])
        if parameters.truncation == _windows.WINDOW:
            join = _windows.JOINS[parameters.window]
            vectors = np.array(_windows.joined(encodings, list(vectors), lambda *windows: finish(join(*windows))))
        return _vectors.write(vectors, parameters.encoding_format)

    def single(self, response: list[Any]) -> Any:
        """Returns the vector of the only text."""
        return response[0]

    def _is_query(self, parameters: EmbedParameters) -> bool:
        name = self.embedding.default_prompt if parameters.prompt_name is None else parameters.prompt_name
        return name == QUERY

    def _check_format(self, parameters: EmbedParameters, outputs: Sequence[Output]) -> None:
        """Raises Unprocessable for a parameter that no output of a request can have."""
        if parameters.dimensions is not None and "dense" not in outputs:
            detail = "Only a dense vector can be cut. Leave dimensions out, or ask for the output dense."
            raise invalid_value("/parameters/dimensions", "unsupported", detail)
        if parameters.encoding_format != "float" and "sparse" in outputs:
            detail = "A sparse output has the encoding_format float. Leave it out."
            raise invalid_value("/parameters/encoding_format", "unsupported", detail)
        widths = {"dense": parameters.dimensions or self.width, "multi_vector": self.forms.several}
        for width in (width for output, width in widths.items() if output in outputs):
            if error := _vectors.refusal(parameters.encoding_format, width, normalized=self._normalizes(parameters)):
                raise error

    def _normalizes(self, parameters: EmbedParameters) -> bool:
        return self.embedding.normalize if parameters.normalize is None else parameters.normalize

    def _prompt(self, name: str | None) -> str:
        prompts: Mapping[str, str] = self.embedding.prompts
        name = self.embedding.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in prompts:
            known = f"Its prompts are {', '.join(prompts)}." if prompts else "It has no prompts."
            detail = f"The model has no prompt of this name. {known}"
            raise invalid_value("/parameters/prompt_name", "unknown_prompt", detail)
        return prompts[name]


TASK: Final = Embed
