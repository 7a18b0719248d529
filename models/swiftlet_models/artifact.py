"""The artifact: a directory with all files of one served model. Every file is verified before it is parsed.

    my-model/
      manifest.json       description of the model, and the size and SHA-256 of every other file
      tokenizer.json      for the `tokenizers` library
      weights.safetensors the parameters of the network, int8, bf16 or fp32
      model.safetensors   optional: the parameters in fp32, for the torch engine
      activations.safetensors  optional: fixed ranges of activations, for int8 with onnx_cpu
      head.safetensors    of a model that reads labels: the parameters behind the network, in fp32
      golden.npz          golden answers: inputs and the fp32 network's outputs, replayed at start-up
      card.json           origin, and measured accuracy and latency
      certificate.json    optional: how the answers agree with those of fp32, for exactly this manifest
      certificate.sig     optional: the Ed25519 signature of certificate.json

The manifest lists neither of the last two, because the certificate holds its hash, and can be made again and signed.
In the first format, and for a network that no architecture describes, `model.onnx` holds the parameters and a graph.

This module needs only the standard library, so any program can read an artifact without a runtime.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, get_args

from swiftlet_models.errors import ModelError

Head = Literal["classification", "token", "masked_lm", "causal_lm", "embedding"]
Outputs = int | Literal["labels", "vocabulary", "hidden"]  # of a head, per position
Problem = Literal["single_label", "multi_label", "regression"]
Precision = Literal["fp32", "bf16", "int8"]
Pooling = Literal["cls", "last", "mean", "max"]
PoolingOption = Literal["cls", "last", "mean", "max", "splade"]
"""What makes a checkpoint without a head an embedding model."""
Dense = Literal["identity", "tanh", "unit"]
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
# Fields that manifests of older versions lack.
LATER: Final = ("embedding", "decisions", "languages", "reading", "labelling")
REQUIRED: Final = frozenset({TOKENIZER, GOLDEN, CARD})  # and one of FORMATS
OPTIONAL: Final = frozenset({SAFETENSORS, ACTIVATIONS, HEAD, *FORMATS})
UNLISTED: Final = (CERTIFICATE, SIGNATURE)  # files that may lie beside those that a manifest lists
MAX_MANIFEST_BYTES: Final = 1 << 20  # and of the certificate
MAX_BYTES: Final[Mapping[str, int]] = {TOKENIZER: 64 << 20, GOLDEN: 4 << 20, CARD: 1 << 20}
"""The size that a file may have if reading it takes more memory than its bytes."""
MAX_DEPTH: Final = 32  # of the manifest and the card
MAX_COUNT: Final = 1 << 24  # of tokens, words and outputs
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
TASK: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
IMPORTED: Final = "Imported from "  # begins the summary of an imported model
FOLDERS: Final = re.compile(  # of a path that begins a word
    r"(?<![^\s'\"(=,])(?:~|\.{1,2}|[A-Za-z]:)?[\\/](?:[^\s\\/]+[\\/])*(?=[^\s\\/])"
)
LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{1,8})*")  # a BCP 47 tag, such as en, ko or zh-Hant


class ArtifactError(ModelError):
    """Raised when a directory is not an artifact that can be served. The message names the fault."""


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

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The forms that a text can have, the default first."""
        there = {"dense": self.vector, "sparse": self.sparse, "multi_vector": self.multi_vector}
        return tuple(output for output in get_args(Output) if there[output])

    @property
    def by_vocabulary(self) -> bool:
        """Whether the outputs are logits of the vocabulary, and those of all tokens are pooled."""
        return self.sparse is not None and self.sparse.by == "vocabulary"

    @property
    def by_token(self) -> bool:
        """Whether there are outputs for each token."""
        return self.multi_vector is not None or (self.sparse is not None and not self.by_vocabulary)

    def default_prompt_text(self) -> str:
        """Returns the default prompt, or an empty text."""
        return self.prompts[self.default_prompt] if self.default_prompt else ""


@dataclass(frozen=True)
class Reading:
    """How texts are read, beyond what `tokenizer.json` says."""

    truncation_side: Side = "right"  # the side where a long text loses tokens, and windows start
    special_tokens: tuple[str, ...] = ()  # that a text may contain. All others are read as common text
    skip_unknown: bool = False  # whether unknown tokens are left out, unless a text has no other


@dataclass(frozen=True)
class Labelling:
    """How a model reads labels that a request names, and what it scores them for (`swiftlet_models/labelling.py`).

    Its network has the head `embedding` without pooling, and gives the hidden states of the tokens that are read.
    """

    scores: Scored  # what has a score for each label: spans of words, words, or the text
    marker: str  # the special token in front of each label
    separator: str  # the special token behind the last label
    label_rows: LabelRows = "marker"  # the tokens that stand for a label; "mean": from its marker to the next one
    word_rows: WordRows = "first"  # the tokens of a word, or of the text, that stand for it
    max_words: int = 384  # of a window
    max_width: int = 12  # of a span in words; for `words`, the overlap of windows alone
    labels: tuple[str, ...] = ()  # of requests that name none; empty: there are no defaults
    labels_first: bool = True  # whether the text follows the labels
    reads_from_separator: bool = False  # whether the text's tokens are those from the separator on, and not all
    scorer: LabelScorer = "dot"  # for `text`
    scale: float | None = None  # of the cosine, for `text`; None: vectors are not normalised


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
    labelling: Labelling | None = None  # for a model with `head.safetensors`, and only for it
    languages: tuple[str, ...] = ()  # BCP 47 tags of the texts that the model was trained for; empty: not known
    format: int = FORMATS[WEIGHTS]


@dataclass(frozen=True)
class Artifact:
    """A directory whose files match its manifest exactly."""

    path: Path
    manifest: Manifest
    digest: str = ""  # SHA-256 of the manifest's file, which has those of all other files; empty before it is written

    def file(self, name: str) -> Path:
        """Returns the path of a listed file.

        Raises:
            ArtifactError: the artifact has no such file.
        """
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.path.name}: this artifact has no {name}.")
        return self.path / name

    @property
    def weights(self) -> Path:
        """The path of the file of the parameters."""
        return self.path / next(name for name in FORMATS if name in self.manifest.files)

    def card(self) -> dict[str, Any]:
        """Returns the model's card: its origin and its measured accuracy and latency."""
        card = _read_json(self.file(CARD))
        if not isinstance(card, dict):
            raise ValueError("the document is not an object")  # noqa: TRY004  # one class for all errors
        return card

    @property
    def files(self) -> list[str]:
        """The names of all files, the manifest last."""
        beside = [name for name in UNLISTED if (self.path / name).is_file()]
        return [*self.manifest.files, *beside, MANIFEST]

    def certificate(self) -> dict[str, Any] | None:
        """Returns the certificate, or None if there is none."""
        document = _read_json(self.path / CERTIFICATE) if (self.path / CERTIFICATE).is_file() else None
        return document if isinstance(document, dict) else None

    def public_card(self) -> dict[str, Any]:
        """Returns the card for clients: of a path of the machine that made the artifact, only the last name is left."""
        card = self.card()
        if "directory" in self.manifest.source and str(card.get("summary", "")).startswith(IMPORTED):
            card["summary"] = f"{IMPORTED}{self.manifest.source['directory']}."
        public: dict[str, Any] = _without_paths(card)
        return public


def _without_paths(value: Any) -> Any:
    """Returns a JSON value whose texts have the last name of an absolute path in its place, recursively."""
    if isinstance(value, dict):
        return {_without_paths(key): _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def open_artifact(path: Path) -> Artifact:
    """Verifies every file of a directory against its manifest.

    Raises:
        ArtifactError: a file is missing, altered, truncated, not listed, or no regular file, or the certificate is of
            another artifact.
    """
    manifest = read_manifest(path)
    present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    _check_certificate(path, present.intersection(UNLISTED))
    present -= {*UNLISTED}
    for name in sorted(set(manifest.files) - present):
        raise ArtifactError(f"{path.name}: {name} is missing.")
    for name in sorted(present - set(manifest.files)):
        raise ArtifactError(f"{path.name}: {name} is not listed in {MANIFEST}.")
    for name, expected in manifest.files.items():
        _verify(path, name, expected)
    artifact = Artifact(path, manifest, _measure(path, MANIFEST).sha256)
    try:
        artifact.card()
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path.name}: {CARD} is not a valid JSON object.") from None
    return artifact


def _check_certificate(path: Path, present: Set[str]) -> None:
    """Checks that the certificate belongs to this manifest, which lists the hashes of all other files.

    The owner of a key checks the signature.

    Raises:
        ArtifactError: the certificate is invalid or of another artifact, or there is a signature alone.
    """
    for name in sorted(present):
        if not _is_plain(path / name) or (path / name).stat().st_size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path.name}: {name} is not a regular file of {MAX_MANIFEST_BYTES} bytes at most.")
    if not present:
        return
    try:
        document = _read_json(path / CERTIFICATE)
        is_of_manifest = isinstance(document, dict) and document["manifest"] == _measure(path, MANIFEST).sha256
    except (KeyError, OSError, ValueError, RecursionError):
        is_of_manifest = False
    if not is_of_manifest:
        raise ArtifactError(
            f"{path.name}: {CERTIFICATE} is missing, damaged or of another artifact. Fetch the artifact again, or "
            f"remove {' and '.join(UNLISTED)} and run swiftlet certify."
        )


def check_self_contained(model: Path) -> None:
    """Checks that an ONNX file reads no tensors from other files.

    In the ONNX format, a reference to another file contains the key "location", so the check looks for that word.

    Raises:
        ArtifactError: the file refers to other files.
    """
    if not model.stat().st_size:  # an empty file cannot be mapped
        return
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"location") >= 0:
            raise ArtifactError(f"{model.parent.name}: {model.name} refers to data outside itself.")


def seal(path: Path, manifest: Manifest, card: Mapping[str, Any] | None = None) -> Artifact:
    """Writes `manifest.json` for the files in a directory, and verifies the result.

    Removes the certificate, which is of the artifact as it was.

    Args:
        path: the directory.
        manifest: the manifest. Its `files` are replaced.
        card: the content of `card.json`, which is written first. None: the card stays as it is.

    Raises:
        ArtifactError: a required file is missing, or there is an unknown file.
    """
    for name in (MANIFEST, *UNLISTED):
        (path / name).unlink(missing_ok=True)
    if card is not None:
        (path / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", "utf-8")
    files = {entry.name: _measure(path, entry.name) for entry in sorted(path.iterdir())}
    number = FORMATS[ONNX if ONNX in files else WEIGHTS]
    document = asdict(manifest) | {"files": {name: asdict(file) for name, file in files.items()}, "format": number}
    (path / MANIFEST).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return open_artifact(path)


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of a directory, whose other files are not verified.

    Raises:
        ArtifactError: there is no valid manifest.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path.name}: there is no such directory.")
    file = path / MANIFEST
    if not _is_plain(file):
        raise ArtifactError(f"{path.name}: {MANIFEST} is missing.")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{path.name}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes.")
    try:
        document = _read_json(file)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path.name}: {MANIFEST} is not valid JSON.") from None
    try:
        return _parse(document)
    except ValueError as error:
        raise ArtifactError(f"{path.name}: {MANIFEST}: {error}") from None


def _read_json(file: Path) -> object:
    """Returns the document of a JSON file.

    Raises:
        ValueError, RecursionError: the file is not valid JSON, or has a repeated key, a number that is not finite, or
            more than `MAX_DEPTH` levels.
    """
    text = file.read_text("utf-8")
    document: object = json.loads(text, object_pairs_hook=_object_once, parse_constant=_refuse_constant)
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            break
        children = (sub.values() if isinstance(sub, dict) else sub for sub in level if isinstance(sub, dict | list))
        level = list(chain.from_iterable(children))
        if not level:
            return document
    raise ValueError("the document is too deep, or has a number that is not finite")


def _object_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises ValueError for a repeated key, which JSON parsers resolve differently."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    """Raises ValueError for NaN and infinities, which Python accepts and JSON does not have."""
    raise ValueError(name)


def _parse(document: object) -> Manifest:
    """Validates a decoded manifest. The task checks the labels and the width when it is loaded.

    Raises:
        ValueError: a field is invalid. The message is a sentence that names it.
    """
    if not isinstance(document, dict):
        raise ValueError("the document is not an object.")  # noqa: TRY004  # the caller handles ValueError only
    if type(document.get("format")) is not int or document["format"] not in FORMATS.values():
        raise ValueError(f"the format is not {' or '.join(map(str, sorted(FORMATS.values())))}.")
    names = {f.name for f in fields(Manifest)}
    for key in LATER:
        document.setdefault(key, [] if key == "languages" else None)
    for key in sorted(names ^ set(document)):
        raise ValueError(f"the field {key!r} is {'missing' if key in names else 'unknown'}.")

    def check(valid: bool, key: str) -> None:
        if not valid:
            raise ValueError(f"the field {key!r} has a wrong value.")

    def is_count(value: object, most: float = MAX_COUNT) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most

    check(isinstance(document["name"], str) and NAME.fullmatch(document["name"]) is not None, "name")
    check(isinstance(document["version"], str), "version")
    check(isinstance(document["architecture"], str), "architecture")
    check(isinstance(document["task"], str) and TASK.fullmatch(document["task"]) is not None, "task")
    check(document["head"] in get_args(Head), "head")
    check(document["precision"] in get_args(Precision), "precision")
    for key in ("max_tokens", "vocab_size", "width"):
        check(is_count(document[key]), key)
    labels, problem = document["labels"], document["problem"]
    check(isinstance(labels, list) and all(isinstance(label, str) for label in labels), "labels")
    check(not labels or len(labels) == document["width"], "labels")
    check(problem is None or (problem in get_args(Problem) and bool(labels)), "problem")
    languages = document["languages"]
    check(
        isinstance(languages, list) and all(isinstance(tag, str) and LANGUAGE.fullmatch(tag) for tag in languages),
        "languages",
    )
    tolerance = document["tolerance"]
    check(type(tolerance) in (int, float) and 0 < tolerance <= sys.float_info.max, "tolerance")
    for key in ("config", "source", "files"):
        check(isinstance(document[key], dict), key)
    embedding = _parse_embedding(document["embedding"])
    check((embedding is not None) == (document["head"] == "embedding"), "embedding")
    files = document["files"]
    required = REQUIRED | {name for name, number in FORMATS.items() if number == document["format"]}
    for name in sorted(required - set(files)):
        raise ValueError(f"the list of files lacks {name}.")
    for name in sorted(set(files) - required - {SAFETENSORS, ACTIVATIONS, HEAD}):
        raise ValueError(f"the list of files has the unknown name {name!r}.")
    for name, entry in files.items():
        check(
            isinstance(entry, dict)
            and set(entry) == {"size", "sha256"}
            and is_count(entry["size"], MAX_BYTES.get(name, math.inf))
            and isinstance(entry["sha256"], str)
            and re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]) is not None,
            f"files/{name}",
        )
    parsed: dict[str, Any] = {
        "labels": tuple(labels),
        "files": {name: File(**entry) for name, entry in files.items()},
        "embedding": embedding,
        "decisions": _parse_decisions(document["decisions"], labels),
        "reading": _parse_reading(document["reading"]),
        "labelling": _parse_labelling(document["labelling"], embedding, has_head=HEAD in files),
        "languages": tuple(languages),
    }
    return Manifest(**document | parsed)


def _parse_embedding(document: object) -> Embedding | None:
    """Raises ValueError if the field `embedding` has a wrong value."""
    if document is None:
        return None
    if isinstance(document, dict):
        document = LATER_EMBEDDING | document
    if not isinstance(document, dict) or set(document) != {field.name for field in fields(Embedding)}:
        raise ValueError("the field 'embedding' has a wrong value.")
    prompts, default = document["prompts"], document["default_prompt"]
    valid = {
        "pooling": document["pooling"] in get_args(Pooling),
        "normalize": isinstance(document["normalize"], bool),
        "dense": document["dense"] in (None, *get_args(Dense)),
        "prompts": isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values()),
    }
    valid["default_prompt"] = default is None or (valid["prompts"] and isinstance(default, str) and default in prompts)
    parts = {key: _parse_part(kind, document[key]) for key, kind in PARTS.items()}
    embedding = Embedding(**{**document, **{key: None if part is False else part for key, part in parts.items()}})
    valid |= {key: part is not False for key, part in parts.items()}
    valid["vector"] = isinstance(document["vector"], bool) and bool(embedding.outputs)
    if embedding.by_vocabulary:  # nothing else has outputs beside the logits of a vocabulary
        valid["sparse"] &= embedding.outputs == ("sparse",) and document["dense"] is None
    for key, good in valid.items():
        if not good:
            raise ValueError(f"the field 'embedding/{key}' has a wrong value.")
    return embedding


def _parse_part(kind: type[Sparse | MultiVector], document: object) -> Sparse | MultiVector | Literal[False] | None:
    """Returns a part of the field `embedding`, or None if it is null, or False if it has a wrong value."""
    if document is None:
        return None
    if not isinstance(document, dict) or set(document) != {field.name for field in fields(kind)}:
        return False

    def is_number(value: object, least: int = 0) -> bool:
        return type(value) is int and least <= value <= MAX_COUNT

    ignored = document["ignored"]
    if not isinstance(ignored, list) or not all(map(is_number, ignored)):
        return False
    if kind is Sparse:
        good = document["by"] in ("vocabulary", "tokens") and document["logarithms"] in (0, 1, 2)
    else:
        prefixes = document["prefixes"]
        good = (
            is_number(document["width"], 1)
            and isinstance(prefixes, dict)
            and set(prefixes) <= {"query", "document"}
            and all(map(is_number, prefixes.values()))
            and all(document[key] is None or is_number(document[key], 1) for key in ("query_tokens", "document_tokens"))
            and (document["mask"] is None or (is_number(document["mask"]) and document["query_tokens"] is not None))
            and isinstance(document["reads_masks"], bool)
            and is_number(document["first"])
        )
    return good and kind(**document | {"ignored": tuple(ignored)})


QUESTION_TYPES: Final = frozenset({"predicate", "choice", "score"})
LATER_EMBEDDING: Final = {"vector": True, "sparse": None, "multi_vector": None}  # fields that older manifests lack
PARTS: Final[Mapping[str, type[Sparse | MultiVector]]] = {"sparse": Sparse, "multi_vector": MultiVector}


def _parse_decisions(document: object, labels: Sequence[str]) -> Decisions | None:
    """Raises ValueError if the field `decisions` has a wrong value."""
    if document is None:
        return None
    if isinstance(document, dict):
        document = {"fits": {}} | document  # which older manifests lack
    if not isinstance(document, dict) or set(document) != {field.name for field in fields(Decisions)}:
        raise ValueError("the field 'decisions' has a wrong value.")
    temperature, predicates, scores, fits = (document[key] for key in ("temperature", "predicates", "scores", "fits"))
    valid = {
        "temperature": _is_temperature(temperature),
        "predicates": isinstance(predicates, dict) and all(label in labels for label in predicates.values()),
        "scores": isinstance(scores, dict)
        and all(isinstance(levels, list) and _are_distinct(levels, labels) for levels in scores.values()),
        "fits": isinstance(fits, dict) and set(fits) <= QUESTION_TYPES and all(map(_is_fit, fits.values())),
    }
    for key, good in valid.items():
        if not good:
            raise ValueError(f"the field 'decisions/{key}' has a wrong value.")
    return Decisions(**document | {"fits": {kind: Fit(**fit) for kind, fit in fits.items()}})


def _is_temperature(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max  # type: ignore[operator]


def _is_fit(document: object) -> bool:
    if not isinstance(document, dict) or set(document) != {field.name for field in fields(Fit)}:
        return False
    offset, threshold = document["offset"], document["threshold"]
    are_numbers = type(offset) in (int, float) and type(threshold) in (int, float)
    return (
        _is_temperature(document["temperature"])
        and are_numbers
        and abs(offset) <= sys.float_info.max
        and 0 <= threshold <= 1
    )


def _parse_reading(document: object) -> Reading:
    """Raises ValueError if the field `reading` has a wrong value."""
    if document is None:
        return Reading()
    known = {field.name for field in fields(Reading)}
    if not isinstance(document, dict) or {*document, "skip_unknown"} != known:  # manifests of older versions lack it
        raise ValueError("the field 'reading' has a wrong value.")
    side, tokens, skips = document["truncation_side"], document["special_tokens"], document.get("skip_unknown", False)
    if side not in get_args(Side):
        raise ValueError("the field 'reading/truncation_side' has a wrong value.")
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token for token in tokens):
        raise ValueError("the field 'reading/special_tokens' has a wrong value.")
    if skips not in (True, False):
        raise ValueError("the field 'reading/skip_unknown' has a wrong value.")
    return Reading(side, tuple(tokens), skips)


def _parse_labelling(document: object, embedding: Embedding | None, *, has_head: bool) -> Labelling | None:
    """Raises ValueError if the field `labelling` has a wrong value, or does not fit the files or the network."""
    if document is None and not has_head:
        return None
    if not has_head or not isinstance(document, dict) or set(document) != {field.name for field in fields(Labelling)}:
        raise ValueError("the field 'labelling' has a wrong value.")
    labels, scale = document["labels"], document["scale"]
    valid = {
        "scores": document["scores"] in get_args(Scored) and embedding is not None and embedding.pooling == "cls",
        "label_rows": document["label_rows"] in get_args(LabelRows),
        "word_rows": document["word_rows"] in get_args(WordRows),
        "scorer": document["scorer"] in get_args(LabelScorer),
        "labels": isinstance(labels, list) and all(isinstance(label, str) and label.strip() for label in labels),
        "scale": scale is None or (type(scale) in (int, float) and abs(scale) <= sys.float_info.max),
    }
    valid |= {key: isinstance(document[key], str) and bool(document[key]) for key in ("marker", "separator")}
    valid |= {key: isinstance(document[key], bool) for key in ("labels_first", "reads_from_separator")}
    valid |= {key: type(document[key]) is int and 0 < document[key] <= MAX_COUNT for key in ("max_words", "max_width")}
    for key, good in valid.items():
        if not good:
            raise ValueError(f"the field 'labelling/{key}' has a wrong value.")
    return Labelling(**document | {"labels": tuple(labels)})


def _are_distinct(levels: Sequence[object], labels: Sequence[str]) -> bool:
    """Returns whether the levels of a score are two labels or more, each once."""
    return len(levels) > 1 and all(level in labels for level in levels) and len({*map(str, levels)}) == len(levels)


def _verify(path: Path, name: str, expected: File) -> None:
    actual = _measure(path, name)
    if actual.size != expected.size:
        raise ArtifactError(f"{path.name}: {name} has {actual.size} bytes, not {expected.size}.")
    if actual.sha256 != expected.sha256:
        raise ArtifactError(f"{path.name}: {name} was altered: its SHA-256 is not the one listed.")


def _measure(path: Path, name: str) -> File:
    file = path / name
    if not _is_plain(file):
        raise ArtifactError(f"{path.name}: {name} is not a regular file.")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return File(size=file.stat().st_size, sha256=digest)


def _is_plain(file: Path) -> bool:
    """Returns whether the path is a regular file. A symbolic link is not, because it may lead out of the directory."""
    try:
        status = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode)


def find_artifacts(directory: Path) -> Iterable[Path]:
    """Returns the subdirectories of `directory` that hold a manifest, sorted by name."""
    return sorted(file.parent for file in directory.glob(f"*/{MANIFEST}"))
