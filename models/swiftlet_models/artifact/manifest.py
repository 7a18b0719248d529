"""The manifest: the description of an artifact, and the names of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

Head = Literal["classification", "token", "masked_lm", "causal_lm", "embedding"]
Outputs = int | Literal["labels", "vocabulary", "hidden"]  # of a head, per position
Problem = Literal["single_label", "multi_label", "regression"]
Precision = Literal["fp32", "bf16", "int8"]
Pooling = Literal["cls", "last", "mean", "max"]
PoolingOption = Literal["cls", "last", "mean", "max", "splade"]
"""What makes a checkpoint without a head an embedding model."""
AdapterForm = Literal["merged"]
"""What an adapter becomes that could stay apart from its base."""
Dense = Literal["identity", "tanh", "relu", "gelu", "silu", "unit"]
Output = Literal["dense", "sparse", "multi_vector"]
Side = Literal["left", "right"]
Scored = Literal["spans", "words", "text"]
LabelRows = Literal["marker", "next", "mean"]
WordRows = Literal["first", "last", "mean", "max"]
LabelScorer = Literal["dot", "weighted-dot", "mlp"]

MANIFEST: Final = "manifest.json"
TOKENIZER: Final = "tokenizer.json"
WEIGHTS: Final = "weights.safetensors"
ONNX: Final = "model.onnx"
SAFETENSORS: Final = "model.safetensors"
ACTIVATIONS: Final = "activations.safetensors"
HEAD: Final = "head.safetensors"
GOLDEN: Final = "golden.npz"
CARD: Final = "card.json"
CERTIFICATE: Final = "certificate.json"
SIGNATURE: Final = "certificate.sig"

FORMATS: Final[Mapping[str, int]] = {WEIGHTS: 2, ONNX: 1}  # by the file of the parameters
REQUIRED: Final = frozenset({TOKENIZER, GOLDEN, CARD})  # and one of FORMATS
OF_LABELS: Final = "labels."  # begins the names of the files of an encoder of labels
REQUIRED_OF_LABELS: Final = frozenset({f"{OF_LABELS}{name}" for name in (TOKENIZER, GOLDEN, WEIGHTS)})
SAFETENSORS_OF_LABELS: Final = f"{OF_LABELS}{SAFETENSORS}"
OPTIONAL: Final = frozenset({SAFETENSORS, ACTIVATIONS, HEAD, *FORMATS, *REQUIRED_OF_LABELS, SAFETENSORS_OF_LABELS})
UNLISTED: Final = (CERTIFICATE, SIGNATURE)  # files that may lie beside those that a manifest lists
MAX_MANIFEST_BYTES: Final = 1 << 20  # and of the certificate
MAX_BYTES: Final[Mapping[str, int]] = {TOKENIZER: 64 << 20, GOLDEN: 4 << 20, CARD: 1 << 20}
"""The size that a file may have if reading it takes more memory than its bytes."""
MAX_NAME: Final = 64
NAME: Final = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{MAX_NAME - 1}}}")
NAME_RULE: Final = f"at most {MAX_NAME} lower-case letters, digits and the characters . _ -, a letter or digit first"
LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*")  # a BCP 47 tag, such as en, ko or zh-Hant


@dataclass(frozen=True)
class File:
    """The manifest's entry for one file."""

    size: int  # bytes
    sha256: str  # 64 hexadecimal digits


@dataclass(frozen=True)
class Sparse:
    """How a text becomes weights of tokens of the vocabulary.

    By `vocabulary`, a token's weight is its largest logit of a masked language model over the tokens of the text. By
    `tokens`, the network gives each token of the text a weight, and a token that occurs several times has the largest.
    Negative weights become 0, and then a weight w becomes log(1 + w), as often as there are `logarithms`.
    """

    by: Literal["vocabulary", "tokens"]
    logarithms: int = 1
    ignored: tuple[int, ...] = ()  # ids of tokens that have no weight
    static_query: bool = False  # whether the tokens of a query have weights of `head.safetensors`, without the network


@dataclass(frozen=True)
class MultiVector:
    """How a text becomes a vector for each of its tokens (ColBERT).

    A text is a query if its prompt is called so, and else a document. `prefixes` are ids of tokens behind the first
    one, by "query" and "document".
    """

    width: int  # of a vector
    prefixes: Mapping[str, int] = field(default_factory=dict)
    query_tokens: int | None = None  # the token limit of a query; None: the network's
    document_tokens: int | None = None
    mask: int | None = None  # the id of the token that fills a query up to its limit; None: nothing does
    reads_masks: bool = True  # whether tokens attend to those that fill a query
    first: int = 0  # the first position that has a vector
    ignored: tuple[int, ...] = ()  # ids of tokens that have no vector in a document


@dataclass(frozen=True)
class Embedding:
    """How the head `embedding` makes vectors of a sequence, and how texts are prepared for it.

    The network pools the hidden states, and applies the dense layer if there is one. The task normalises the vector.
    The head's outputs are those for a dense vector, for a sparse one and for several, side by side.
    """

    pooling: Pooling  # of the tokens of a sequence; "cls" reads the positions in focus
    normalize: bool = False  # whether vectors have length 1 by default
    dense: Dense | None = None
    """The layer after pooling: its activation, or "unit" if it reads vectors of length 1. None without a layer."""
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts to put in front of an input, by name
    default_prompt: str | None = None  # the name of the prompt that a request without `prompt_name` uses
    vector: bool = True  # whether there is a dense vector
    sparse: Sparse | None = None
    multi_vector: MultiVector | None = None
    hidden_widths: tuple[int, ...] = ()  # of layers with ReLU in front of the dense layer

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The forms that a text can have, the default first."""
        there = {"dense": self.vector, "sparse": self.sparse, "multi_vector": self.multi_vector}
        return tuple(output for output in get_args(Output) if there[output])

    @property
    def by_vocabulary(self) -> bool:
        """Whether the output is a vector of vocabulary logits, pooled over all tokens."""
        return self.sparse is not None and self.sparse.by == "vocabulary"

    @property
    def by_token(self) -> bool:
        """Whether there are outputs for each token."""
        return self.multi_vector is not None or (self.sparse is not None and not self.by_vocabulary)

    def default_prompt_text(self) -> str:
        """Returns the default prompt, or an empty text."""
        return self.prompts[self.default_prompt] if self.default_prompt else ""


@dataclass(frozen=True)
class PairPrompt:
    """The words around a query and a document, of a model that reads both as one text."""

    before: tuple[str, ...]
    """The words before the document. Every second part is a field: "query", or "instruction"."""
    after: str  # the words behind the document
    instruction: str = ""  # of requests without one


@dataclass(frozen=True)
class Reading:
    """How texts are read, beyond what `tokenizer.json` says."""

    truncation_side: Side = "right"  # the side where a long text loses tokens, and windows start
    special_tokens: tuple[str, ...] = ()  # that a text may contain. All others are read as common text
    skip_unknown: bool = False  # whether unknown tokens are left out, unless a text has no other
    pair_prompt: PairPrompt | None = None  # of a cross-encoder; None: `tokenizer.json` says how a pair is read


@dataclass(frozen=True)
class LabelEncoder:
    """A second network, which makes a vector of each label by itself.

    It has the precision and the tolerance of the first one, and vectors of its width. Its files are `labels.` and the
    names of those of the first one.
    """

    architecture: str
    config: Mapping[str, Any]  # as in the manifest
    max_tokens: int  # of a label, special tokens included
    vocab_size: int
    embedding: Embedding
    reading: Reading = Reading()


@dataclass(frozen=True)
class Labelling:
    """How a model reads labels that a request names, and what it scores them for (`swiftlet_models/label_reader.py`).

    Its network has the head `embedding` without pooling, and gives the hidden states of the tokens that are read.
    """

    scores: Scored  # what has a score for each label: spans of words, words, or the text
    marker: str  # the special token in front of each label; empty: labels do not stand with the text
    separator: str  # the special token behind the last label; empty as the marker
    label_rows: LabelRows = "marker"  # the tokens that stand for a label; "mean": from its marker to the next one
    word_rows: WordRows = "first"  # the tokens of a word, or of the text, that stand for it
    max_words: int = 384  # of a window
    max_width: int = 12  # of a span in words; for `words`, the overlap of windows alone
    labels: tuple[str, ...] = ()  # of requests that name none; empty: there are no defaults
    labels_first: bool = True  # whether the text follows the labels
    reads_from_separator: bool = False  # whether the text's tokens are those from the separator on, and not all
    scorer: LabelScorer = "dot"  # for `text`
    scale: float | None = None  # of the cosine, for `text`; None: vectors are not normalised
    encoder: LabelEncoder | None = None  # of labels; None: they stand with the text


@dataclass(frozen=True)
class Fit:
    """How log-odds become probabilities for one type of question, and which answers are sure enough."""

    temperature: float = 1.0  # that log-odds are divided by, so that probabilities match frequencies
    offset: float = 0.0  # added before, to the log-odds of a single statement
    threshold: float = 0.0  # the probability of an answer below which it is refused


@dataclass(frozen=True)
class Decisions:
    """How a model answers typed questions.

    A zero-shot model or an embedding model answers any question. A classifier answers choices among its labels, and
    those that are mapped.
    """

    temperature: float = 1.0  # that its log-odds are divided by, so that probabilities match frequencies
    predicates: Mapping[str, str] = field(default_factory=dict)  # the label that means yes, by the instructions
    scores: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the labels of the levels, by the instructions
    fits: Mapping[str, Fit] = field(default_factory=dict)  # by the type of question: predicate, choice or score

    def fit(self, kind: str) -> Fit:
        """Returns the fit of a type of question."""
        return self.fits.get(kind, Fit(self.temperature))


@dataclass(frozen=True)
class Manifest:
    """The description of an artifact.

    `config` holds the fields of the architecture's `Config`. `source` names the origin: a checkpoint with its revision,
    or a training recipe.
    """

    name: str
    version: str
    architecture: str
    task: str  # the name of a module in swiftlet_serve/tasks, checked when the task is loaded
    head: Head
    precision: Precision
    max_tokens: int  # longest sequence of the network, special tokens included
    vocab_size: int
    width: int  # outputs of the head per position: the number of labels, 2 (start, end), or the vocabulary size
    labels: tuple[str, ...]  # one for each output, or empty if the outputs have no names
    problem: Problem | None  # None if there are no labels
    tolerance: float  # largest |output - golden answer| that start-up accepts
    config: Mapping[str, Any]
    source: Mapping[str, Any]
    files: Mapping[str, File] = field(default_factory=dict)
    embedding: Embedding | None = None  # for the head "embedding", and only for it
    decisions: Decisions | None = None  # None: not calibrated, and nothing is mapped
    reading: Reading = Reading()
    labelling: Labelling | None = None  # for a model with `head.safetensors`, unless that is for queries
    languages: tuple[str, ...] = ()  # BCP 47 tags of the texts that the model was trained for; empty: not known
    format: int = FORMATS[WEIGHTS]

    @property
    def of_labels(self) -> Manifest | None:
        """The description of the encoder of labels as a model by itself; None if there is none."""
        encoder = self.labelling.encoder if self.labelling else None
        if encoder is None:
            return None
        files = {name.removeprefix(OF_LABELS): file for name, file in self.files.items() if name.startswith(OF_LABELS)}
        return replace(self, **vars(encoder), task="embed", labelling=None, files=files)

    @property
    def widths(self) -> Sequence[int]:
        """The outputs per position of each network, as `width`: that for texts, and that for labels if there is one."""
        return [self.width] * (2 if self.of_labels else 1)
