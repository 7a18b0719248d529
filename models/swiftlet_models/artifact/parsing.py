"""The checks of a manifest that was read: every field has its type and its range."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal, TypeGuard, get_args

from swiftlet_models.artifact.manifest import (
    ACTIVATIONS,
    FORMATS,
    HEAD,
    LANGUAGE,
    MAX_BYTES,
    NAME,
    OF_LABELS,
    REQUIRED,
    REQUIRED_OF_LABELS,
    SAFETENSORS,
    SAFETENSORS_OF_LABELS,
    Decisions,
    Dense,
    Embedding,
    File,
    Fit,
    Head,
    LabelEncoder,
    Labelling,
    LabelRows,
    LabelScorer,
    Manifest,
    MultiVector,
    PairPrompt,
    Pooling,
    Precision,
    Problem,
    Reading,
    Scored,
    Side,
    Sparse,
    WordRows,
)

# Fields that manifests of older versions lack.
LATER: Final = ("embedding", "decisions", "languages", "reading", "labelling")
MAX_COUNT: Final = 1 << 24  # of tokens, words and outputs
TASK: Final = re.compile(r"[a-z][a-z0-9-]{0,63}")
QUESTION_TYPES: Final = frozenset({"predicate", "choice", "score"})
LATER_EMBEDDING: Final = {  # fields that older manifests lack
    "hidden_widths": [],
    "vector": True,
    "sparse": None,
    "multi_vector": None,
}
MAX_HIDDEN_LAYERS: Final = 15
PARTS: Final[Mapping[str, type[Sparse | MultiVector]]] = {"sparse": Sparse, "multi_vector": MultiVector}


def parse(document: object) -> Manifest:
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
    labelling = _parse_labelling(document["labelling"], embedding, has_head=HEAD in files)
    required = REQUIRED | {name for name, number in FORMATS.items() if number == document["format"]}
    optional = {SAFETENSORS, ACTIVATIONS, HEAD}
    if labelling and labelling.encoder:
        required |= REQUIRED_OF_LABELS
        if SAFETENSORS in files:
            required |= {SAFETENSORS_OF_LABELS}
    for name in sorted(required - set(files)):
        raise ValueError(f"the list of files lacks {name}.")
    for name in sorted(set(files) - required - optional):
        raise ValueError(f"the list of files has the unknown name {name!r}.")
    for name, entry in files.items():
        check(
            isinstance(entry, dict)
            and set(entry) == {"size", "sha256"}
            and is_count(entry["size"], MAX_BYTES.get(name.removeprefix(OF_LABELS), math.inf))
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
        "labelling": labelling,
        "languages": tuple(languages),
    }
    return Manifest(**document | parsed)


def _check_parts(field: str, valid: Mapping[str, bool]) -> None:
    """Raises ValueError for the first part of a field that has a wrong value."""
    for key, good in valid.items():
        if not good:
            raise ValueError(f"the field '{field}/{key}' has a wrong value.")


def _has_fields(document: object, kind: type[Any]) -> TypeGuard[dict[str, Any]]:
    """Returns whether a document is an object with exactly the fields of a dataclass."""
    return isinstance(document, dict) and set(document) == {field.name for field in fields(kind)}


def _parse_embedding(document: object) -> Embedding | None:
    """Raises ValueError if the field `embedding` has a wrong value."""
    if document is None:
        return None
    if isinstance(document, dict):
        document = LATER_EMBEDDING | document
    if not _has_fields(document, Embedding):
        raise ValueError("the field 'embedding' has a wrong value.")
    prompts, default, widths = document["prompts"], document["default_prompt"], document["hidden_widths"]
    valid = {
        "pooling": document["pooling"] in get_args(Pooling),
        "normalize": isinstance(document["normalize"], bool),
        "dense": document["dense"] in (None, *get_args(Dense)),
        "hidden_widths": isinstance(widths, list)
        and len(widths) <= (MAX_HIDDEN_LAYERS if document["dense"] else 0)
        and all(type(width) is int and 0 < width <= MAX_COUNT for width in widths),
        "prompts": isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values()),
    }
    valid["default_prompt"] = default is None or (valid["prompts"] and isinstance(default, str) and default in prompts)
    parts = {key: _parse_part(kind, document[key]) for key, kind in PARTS.items()}
    document["hidden_widths"] = tuple(widths) if valid["hidden_widths"] else ()
    embedding = Embedding(**{**document, **{key: None if part is False else part for key, part in parts.items()}})
    valid |= {key: part is not False for key, part in parts.items()}
    valid["vector"] = isinstance(document["vector"], bool) and bool(embedding.outputs)
    if embedding.by_vocabulary:  # nothing else has outputs beside the logits of a vocabulary
        valid["sparse"] &= embedding.outputs == ("sparse",) and document["dense"] is None
    _check_parts("embedding", valid)
    return embedding


def _parse_part(kind: type[Sparse | MultiVector], document: object) -> Sparse | MultiVector | Literal[False] | None:
    """Returns a part of the field `embedding`, or None if it is null, or False if it has a wrong value."""
    if document is None:
        return None
    if kind is Sparse and isinstance(document, dict):
        document = {"static_query": False} | document  # which older manifests lack
    if not _has_fields(document, kind):
        return False

    def is_number(value: object, least: int = 0) -> bool:
        return type(value) is int and least <= value <= MAX_COUNT

    ignored = document["ignored"]
    if not isinstance(ignored, list) or not all(map(is_number, ignored)):
        return False
    if kind is Sparse:
        good = (
            document["by"] in ("vocabulary", "tokens")
            and document["logarithms"] in (0, 1, 2)
            and isinstance(document["static_query"], bool)
        )
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


def _parse_decisions(document: object, labels: Sequence[str]) -> Decisions | None:
    """Raises ValueError if the field `decisions` has a wrong value."""
    if document is None:
        return None
    if isinstance(document, dict):
        document = {"fits": {}} | document  # which older manifests lack
    if not _has_fields(document, Decisions):
        raise ValueError("the field 'decisions' has a wrong value.")
    temperature, predicates, scores, fits = (document[key] for key in ("temperature", "predicates", "scores", "fits"))
    valid = {
        "temperature": _is_temperature(temperature),
        "predicates": isinstance(predicates, dict) and all(label in labels for label in predicates.values()),
        "scores": isinstance(scores, dict)
        and all(isinstance(levels, list) and _are_distinct(levels, labels) for levels in scores.values()),
        "fits": isinstance(fits, dict) and set(fits) <= QUESTION_TYPES and all(map(_is_fit, fits.values())),
    }
    _check_parts("decisions", valid)
    return Decisions(**document | {"fits": {kind: Fit(**fit) for kind, fit in fits.items()}})


def _is_temperature(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= sys.float_info.max  # type: ignore[operator]  # a number


def _is_fit(document: object) -> bool:
    if not _has_fields(document, Fit):
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
    if isinstance(document, dict):
        document = {"skip_unknown": False, "pair_prompt": None} | document  # which older manifests lack
    if not _has_fields(document, Reading):
        raise ValueError("the field 'reading' has a wrong value.")
    tokens, prompt = document["special_tokens"], _parse_pair_prompt(document["pair_prompt"])
    valid = {
        "pair_prompt": prompt is not False,
        "truncation_side": document["truncation_side"] in get_args(Side),
        "special_tokens": isinstance(tokens, list) and all(isinstance(token, str) and token for token in tokens),
        "skip_unknown": document["skip_unknown"] in (True, False),
    }
    _check_parts("reading", valid)
    return Reading(**document | {"special_tokens": tuple(tokens), "pair_prompt": prompt})


def _parse_pair_prompt(document: object) -> PairPrompt | Literal[False] | None:
    """Returns the prompt of a pair, or None if it is null, or False if it has a wrong value."""
    if document is None:
        return None
    if not _has_fields(document, PairPrompt):
        return False
    before = document["before"]
    good = (
        isinstance(before, list)
        and all(isinstance(part, str) for part in (*before, document["after"], document["instruction"]))
        and len(before) % 2 == 1
        and "query" in before[1::2]
        and {*before[1::2]} <= {"query", "instruction"}
    )
    return good and PairPrompt(**document | {"before": tuple(before)})


def _parse_labelling(document: object, embedding: Embedding | None, *, has_head: bool) -> Labelling | None:
    """Raises ValueError if the field `labelling` has a wrong value, or does not fit the files or the network."""
    is_for_queries = embedding is not None and embedding.sparse is not None and embedding.sparse.static_query
    if document is None and has_head == is_for_queries:
        return None
    if isinstance(document, dict):
        document = {"encoder": None} | document  # which older manifests lack
    if not has_head or is_for_queries or not _has_fields(document, Labelling):
        raise ValueError("the field 'labelling' has a wrong value.")
    encoder = _parse_label_encoder(document["encoder"])
    labels, scale = document["labels"], document["scale"]
    valid = {
        "scores": document["scores"] in get_args(Scored) and embedding is not None and embedding.pooling == "cls",
        "label_rows": document["label_rows"] in get_args(LabelRows),
        "word_rows": document["word_rows"] in get_args(WordRows),
        "scorer": document["scorer"] in get_args(LabelScorer),
        "labels": isinstance(labels, list) and all(isinstance(label, str) and label.strip() for label in labels),
        "scale": scale is None or (type(scale) in (int, float) and abs(scale) <= sys.float_info.max),
    }
    valid |= {
        key: isinstance(document[key], str) and bool(document[key]) == (encoder is None)
        for key in ("marker", "separator")
    }
    valid |= {key: isinstance(document[key], bool) for key in ("labels_first", "reads_from_separator")}
    valid |= {key: type(document[key]) is int and 0 < document[key] <= MAX_COUNT for key in ("max_words", "max_width")}
    _check_parts("labelling", valid)
    return Labelling(**document | {"labels": tuple(labels), "encoder": encoder})


def _parse_label_encoder(document: object) -> LabelEncoder | None:
    """Raises ValueError if the encoder of labels has a wrong value."""
    if document is None:
        return None
    if not _has_fields(document, LabelEncoder):
        raise ValueError("the field 'labelling/encoder' has a wrong value.")
    embedding, reading = _parse_embedding(document["embedding"]), _parse_reading(document["reading"])
    valid = {
        "architecture": isinstance(document["architecture"], str),
        "config": isinstance(document["config"], dict),
        "embedding": embedding is not None and embedding.pooling == "mean" and embedding.outputs == ("dense",),
    }
    valid |= {
        key: type(document[key]) is int and 0 < document[key] <= MAX_COUNT for key in ("max_tokens", "vocab_size")
    }
    _check_parts("labelling/encoder", valid)
    return LabelEncoder(**document | {"embedding": embedding, "reading": reading})


def _are_distinct(levels: Sequence[object], labels: Sequence[str]) -> bool:
    """Returns whether the levels of a score are two labels or more, each once."""
    return len(levels) > 1 and all(level in labels for level in levels) and len({*map(str, levels)}) == len(levels)
