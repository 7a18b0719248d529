"""The answers in a response, whatever its protocol, in forms that can be compared."""

from __future__ import annotations

import base64
import math
from bisect import bisect, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic_core import from_json

from swiftlet_serve.repository.agreement import Agreement, compare_one

YES: Final = 0.5  # the least probability of a predicate that holds
MAX_CLASSES: Final = 32  # columns of a tensor without names: so many are the scores of labels, and more are a vector


class Answer(NamedTuple):
    """One answer of a response."""

    kind: str  # predicate, choice, score, refusal, label, ranking, vector or other
    value: Any  # as `compare_one` takes it. Of a decision and of a label: the label and its score
    question: str | None = None  # the name of a decision's question

    @property
    def label(self) -> Any:
        """The chosen label, or None if the answer has no label."""
        first = self.value[0] if isinstance(self.value, list) and self.value else self.value
        return first.get("label") if isinstance(first, dict) else None


class Compared(NamedTuple):
    """The comparison of an answer with the candidate's."""

    kind: str
    agreement: Agreement
    tau: float  # Kendall's, of the entries that both rank; NaN with fewer than two


def read(response: Any, *, several: bool) -> list[Answer]:
    """Returns the answers of a response.

    Args:
        response: the body of a response, as plain JSON.
        several: whether the request has a list of inputs. Each input then has an answer.

    Raises:
        ValueError: it has the form of no response that is known.
    """
    try:
        answers = list(_answers(response, several))
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("the response has no form that is known.") from error
    if not all(_is_finite(answer.value) for answer in answers):
        raise ValueError("the response has no form that is known: a number is not finite.")
    return answers


def _is_finite(value: Any) -> bool:
    """Returns whether all numbers of an answer are finite: a NaN would stay in every sum."""
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def compare(existing: Sequence[Answer], candidate: Sequence[Answer] | None) -> list[Compared]:
    """Compares the answers to one request. All differ if the candidate has none, or another number of them."""
    if candidate is None or len(existing) != len(candidate):
        return [Compared(answer.kind, Agreement(agrees=False, shift=0.0), math.nan) for answer in existing]
    return [_compare(*pair) for pair in zip(existing, candidate, strict=True)]


def _compare(existing: Answer, candidate: Answer) -> Compared:
    same = compare_one(existing.value, candidate.value)
    agrees = same.agrees and existing.kind == candidate.kind
    return Compared(existing.kind, same._replace(agrees=agrees), _kendall(existing.value, candidate.value))


def _answers(response: Any, several: bool) -> Iterator[Answer]:
    match response:
        case {"answers": list(answers)}:  # OpenAI's decisions
            yield from (_decision(answer, answer.get("name")) for answer in answers)
        case {"answers": dict(answers)}:  # System One
            yield from (_decision(answer, name) for name, answer in sorted(answers.items()))
        case {"data": list(data)}:  # OpenAI's embeddings, and vLLM's labels
            for item in sorted(data, key=lambda item: item["index"]):
                yield _item(_vector(item["embedding"]) if "embedding" in item else _label(item))
        case {"results": list(results)}:  # rankings of Cohere, Jina and vLLM
            yield Answer("ranking", _ranked(results))
        case {"embeddings": dict(forms)}:  # Cohere
            yield from (Answer("vector", _vector(vector)) for vectors in forms.values() for vector in vectors)
        case {"embeddings": list(vectors)}:  # Cohere's first version
            yield from map(_item, vectors)
        case {"predictions": list(predictions)}:  # KServe and Vertex AI
            yield from (_columns(item) if _is_vector(item) else _item(item) for item in predictions)
        case {"outputs": list(outputs)}:  # the Open Inference Protocol, as Triton speaks it
            yield from _tensors({output["name"]: output for output in outputs})
        case list() if several and not _is_ranking(response):
            yield from map(_item, response)
        case [list(only)]:
            yield _item(only)
        case dict() | list():
            yield _item(response)
        case _:
            raise ValueError("the response is neither an object nor a list.")


def _decision(answer: Mapping[str, Any], question: str | None) -> Answer:
    kind = "predicate" if answer["type"] == "noul" else answer["type"]
    if kind == "refusal" or answer.get("x_refused"):
        return Answer("refusal", {"label": None}, question)
    if kind == "predicate":
        probability = float(answer["probability"] if "probability" in answer else answer["noul"])
        return Answer(kind, {"label": "yes" if probability >= YES else "no", "score": probability}, question)
    if kind == "choice":
        chosen = {True: "yes", False: "no"}.get(answer["choice"], answer["choice"])
        return Answer(kind, {"label": chosen, "score": _probability(answer)}, question)
    if kind != "score":
        raise ValueError("the type of an answer is not known.")
    levels = answer["probabilities"]
    if isinstance(levels, dict):  # System One, which names the levels in the legend
        level = answer["legend"][max(levels, key=lambda name: float(levels[name]))]
    else:
        level = max(levels, key=lambda level: float(level["probability"]))["label"]
    return Answer(kind, {"label": level, "score": float(answer["score"])}, question)


def _probability(answer: Mapping[str, Any]) -> float:
    """Returns the probability of the option that was chosen; 0 if the answer has none."""
    options = answer.get("probabilities") or ()
    if isinstance(options, dict):
        return float(options.get(answer["choice"], 0.0))
    return next((float(option["probability"]) for option in options if option["value"] == answer["choice"]), 0.0)


def _item(item: Any) -> Answer:
    if isinstance(item, dict) and "labels" in item and "scores" in item:
        pairs = zip(item["labels"], item["scores"], strict=True)
        item = [{"label": label, "score": score} for label, score in pairs]
    if isinstance(item, list) and item and all(isinstance(entry, dict) and "value" in entry for entry in item):  # TEI
        item = {"indices": [entry["index"] for entry in item], "values": [entry["value"] for entry in item]}
    if _is_vector(item) or (isinstance(item, list) and item and all(map(_is_vector, item))):
        return Answer("vector", item)
    if isinstance(item, dict) and "indices" in item:
        return Answer("vector", item)
    if _is_ranking(item):
        return Answer("label" if "label" in item[0] else "ranking", _ranked(item))
    return Answer("label" if isinstance(item, dict) and "label" in item else "other", item)


def _is_ranking(item: Any) -> bool:
    """Returns whether an item is a list of labels or of texts with scores. Entities have a place in the text."""
    return (
        isinstance(item, list)
        and bool(item)
        and all(isinstance(entry, dict) and "score" in entry and "start" not in entry for entry in item)
        and all("label" in entry for entry in item) | all("index" in entry for entry in item)
    )


def _ranked(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns what is ranked with its scores, the best entry first. The texts themselves do not matter."""
    ranked = [
        {name: entry[name] for name in ("index", "label") if name in entry}
        | {"score": float(entry["score"] if "score" in entry else entry["relevance_score"])}
        for entry in entries
    ]
    return sorted(ranked, key=lambda entry: -entry["score"])


def _label(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"label": item["label"], "score": max(map(float, item["probs"]))}


def _tensors(outputs: Mapping[str, Mapping[str, Any]]) -> Iterator[Answer]:
    """Yields the answers in the tensors of a response. Labels and scores, as Swiftlet names them, belong together."""
    if outputs.keys() == {"label", "score"}:
        for labels, scores in zip(*(_rows(outputs[name]) for name in ("label", "score")), strict=True):
            yield _item({"labels": labels, "scores": scores})
        return
    for output in outputs.values():
        is_float = str(output["datatype"]).startswith("FP")
        for row in _rows(output):
            yield from [_columns(row)] if is_float else map(_entry, row)


def _rows(tensor: Mapping[str, Any]) -> list[list[Any]]:
    """Returns the rows of a tensor. Raises ValueError if it has not as many numbers as its shape says."""
    rows: list[list[Any]] = np.asarray(tensor["data"], object).reshape(-1, int(tensor["shape"][-1])).tolist()
    return rows


def _columns(row: Sequence[float]) -> Answer:
    """Returns the answer in numbers without names. Raises ValueError for a single one, which nothing can contradict."""
    if len(row) < 2:
        raise ValueError("a single number is no answer that can be compared.")
    if len(row) > MAX_CLASSES:
        return Answer("vector", list(row))
    best = max(range(len(row)), key=lambda column: row[column])
    return Answer("label", {"label": best, "score": row[best]})


def _entry(entry: Any) -> Answer:
    """Returns the answer in an entry of a tensor: a text, which may be JSON, or a number."""
    try:
        content = from_json(entry)
    except (ValueError, TypeError):
        content = entry
    return _item(content) if isinstance(content, dict | list) else Answer("label", {"label": entry})


def _vector(embedding: Any) -> Any:
    """Returns a vector as numbers. In Base64, it has little-endian 32-bit floats."""
    return np.frombuffer(base64.b64decode(embedding), "<f4").tolist() if isinstance(embedding, str) else embedding


def _is_vector(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(number, int | float) for number in item)


def _kendall(existing: Any, candidate: Any) -> float:
    """Returns Kendall's tau of the entries that two rankings share; NaN if these are fewer than two (Kendall 1938)."""
    places = {key: place for place, key in enumerate(_keys(candidate))}
    order = [places[key] for key in _keys(existing) if key in places]
    if len(order) < 2:
        return math.nan
    seen: list[int] = []
    swapped = 0
    for place in order:
        swapped += len(seen) - bisect(seen, place)
        insort(seen, place)
    return 1 - 4 * swapped / (len(order) * (len(order) - 1))


def _keys(ranking: Any) -> list[str]:
    """Returns what a ranking ranks, the best one first, each once."""
    if not _is_ranking(ranking):
        return []
    return list(dict.fromkeys(str(entry.get("index", entry.get("label"))) for entry in ranking))
