"""The contract of SageMaker's containers: `/ping` and `/invocations`.

A body in JSON is one of our requests. In JSON Lines and CSV, each row is an input. SageMaker drops all headers of a
request and of a response but a few, so `X-Amzn-SageMaker-Custom-Attributes` carries what our own headers carry.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from pydantic_core import from_json
from starlette.responses import Response

from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import InvalidRequest, UnsupportedMediaType, invalid_value
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts import instances
from swiftlet_serve.http.dialect_parts.dialect import ForeignBody, Operation, Page
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation, dump, renderer
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.settings import MAX_TIMEOUT_MS
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.tasks._requests import Request as TaskRequest
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types.body_model import BodyModel

ATTRIBUTES: Final = "x-amzn-sagemaker-custom-attributes"
TARGET: Final = "x-amzn-sagemaker-target-model"
JSON: Final = "application/json"
LINES: Final = ("application/jsonlines", "application/x-jsonlines", "application/jsonl", "application/x-ndjson")
CSV: Final = "text/csv"
TEXT_COLUMNS: Final = (["inputs"], ["text"])


class Named(ForeignBody):
    """The model that a body names."""

    model: str | None = None


def invoke(runtime: Runtime, request: Request) -> Translation:
    """Translates a request to a model: the named one, or the first served one."""
    attributes = _attributes(request.headers.get(ATTRIBUTES, ""))
    media_type = _media_type(request.headers.get("content-type", JSON))
    name = request.headers.get(TARGET) or attributes.get("model")
    if media_type == JSON:
        if name is None and b'"model"' in request.body:
            name = bodies.parse(Named, request.body).model
        pipeline = runtime.catalog.find(name, request.version)
        own: TaskRequest = bodies.parse(pipeline.model.task.Request, request.body)
        translation = Translation(pipeline, own, renderer(own), is_whole=True)
    elif media_type in (*LINES, CSV):
        inputs, others = _read(request.body, media_type)
        if name is None and others:
            name = bodies.validate(Named, others).model
        pipeline = runtime.catalog.find(name, request.version)
        translation = instances.translate(pipeline, inputs, others, "", _renderer(request, media_type))
        if translation.request.details:
            detail = f"Rows of answers have no room for details. Send {JSON}, or leave details out."
            raise invalid_value("/0/details", "unsupported", detail)
    else:
        detail = f"The Content-Type is not supported. Send {JSON}, {LINES[0]} or {CSV}."
        raise UnsupportedMediaType("unsupported_media_type", detail, headers={"accept": f"{JSON}, {LINES[0]}, {CSV}"})

    def render(answer: Any, record: RequestRecord) -> TaskResponse:
        response = translation.render(answer, record)
        told = f"request-id={record.id},model={record.model},input-tokens={record.input_tokens}"
        told += f",truncated={len(record.truncated)}"
        response.raw_headers.append((ATTRIBUTES.encode(), told.encode()))
        return response

    return translation._replace(render=render, timeout_s=_timeout_s(attributes))


def _attributes(text: str) -> dict[str, str]:
    """Returns the attributes `name=value`, which commas or semicolons separate. Any other text has no effect."""
    parts = (part.partition("=") for part in text.replace(";", ",").split(","))
    return {name.strip(): value.strip() for name, _, value in parts}


def _timeout_s(attributes: Mapping[str, str]) -> float | None:
    """Returns the timeout that the attributes name in milliseconds, in seconds.

    Raises:
        Unprocessable: it is not a number in its range.
    """
    value = attributes.get("timeout-ms")
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 6 and 1 <= int(value) <= MAX_TIMEOUT_MS):
        detail = f"The custom attribute timeout-ms is invalid. Send a whole number from 1 to {MAX_TIMEOUT_MS}."
        raise invalid_value("", "timeout_header", detail, MAX_TIMEOUT_MS)
    return int(value) / 1000


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()


# Rows


def _read(body: bytes | bytearray, media_type: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Returns the inputs of a body with one in each row, and the other fields of the request.

    Raises:
        InvalidRequest: the body is not UTF-8, or not of its media type.
        Unprocessable: it has no rows or too many, or rows that do not fit together.
    """
    try:
        text = body.decode("utf-8-sig")  # Excel's CSV begins with a byte order mark
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_utf8", "The body is not valid UTF-8. Encode it as UTF-8.") from None
    if media_type == CSV:
        return _read_csv(text), {}
    if bodies.has_more_items(body, BodyModel.max_items):
        raise bodies.too_many_items(BodyModel.max_items)
    return _read_lines(text)


def _renderer(request: Request, media_type: str) -> Callable[[list[Any], RequestRecord], TaskResponse]:
    """Returns the function that writes one answer in each line, or a list where JSON is accepted or CSV was sent."""
    accepted = _media_type(request.headers.get("accept", "*/*"))
    in_lines = accepted in LINES or (accepted != JSON and media_type in LINES)

    def render(answers: list[Any], _: RequestRecord) -> TaskResponse:
        if not in_lines:
            return TaskResponse(dump(answers))
        return TaskResponse(b"".join([dump(answer) + b"\n" for answer in in_turns(answers)]), LINES[0].encode())

    return render


def _read_lines(text: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Returns the inputs of JSON Lines, and the other fields of the request. A line is an input, or a request for one.

    Raises:
        InvalidRequest: a line is not JSON.
        Unprocessable: there are no lines or too many, or they have different other fields.
    """
    read = text.split("\n", MAX_INPUTS + 1)
    lines = [line for line in read if line.strip()]
    _check_rows(len(lines) if len(read) < MAX_INPUTS + 2 else len(read) - 1)
    try:
        documents = [from_json(line, cache_strings="keys", allow_inf_nan=False) for line in lines]
    except ValueError:
        raise InvalidRequest("invalid_json", "A line is not valid JSON. Send one value in each line.") from None
    if not all(isinstance(document, dict) and "inputs" in document for document in documents):
        return documents, {}
    inputs = [document.pop("inputs") for document in documents]
    for number, document in enumerate(documents):
        if document != documents[0]:
            detail = "A line has other parameters than the first one. Send equal ones in all lines of a request."
            raise invalid_value(f"/{number}", "unsupported", detail)
    return inputs, documents[0]


def _read_csv(text: str) -> Sequence[Any]:
    """Returns the inputs of CSV, whose first row names the fields of an input. A column `inputs` or `text` is the text.

    Raises:
        Unprocessable: the body is not CSV, has no rows or too many, two columns of one name, or a row with more or
            fewer columns than the first.
    """
    try:
        read = list(islice(csv.reader(io.StringIO(text, newline=""), strict=True), MAX_INPUTS + 2))
    except csv.Error:
        detail = f"The body is not valid CSV with fields of at most {csv.field_size_limit()} characters. Quote texts."
        raise invalid_value("", "csv_invalid", detail) from None
    header, *rows = [row for row in read if row] or [[]]
    _check_rows(len(rows) if len(read) < MAX_INPUTS + 2 else len(read) - 1)
    if len(set(header)) < len(header):
        raise invalid_value("", "csv_invalid", "Two columns have the same name. Rename one of them.")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            detail = "A row has more or fewer columns than the first one, which names them. Correct it."
            raise invalid_value(f"/{number}", "wrong_length", detail, len(header))
    if header in TEXT_COLUMNS:
        return [row[0] for row in rows]
    return [dict(zip(header, row, strict=True)) for row in rows]


def _check_rows(count: int) -> None:
    """Raises Unprocessable if there are no rows, or too many. Of many rows, blank ones count: the rest is not read."""
    if not count:
        raise invalid_value("", "too_short", "The body has no rows. Send at least one input.")
    if count > MAX_INPUTS:
        raise invalid_value("", "too_long", f"The body has more than {MAX_INPUTS} rows. Send fewer.", MAX_INPUTS)


def _ping(runtime: Runtime, _: Mapping[str, str]) -> Response:
    runtime.check_ready()
    return Response()


render_error = problem_details.render

OPERATIONS: Final = (Operation("/invocations", "The task of a model", invoke, TaskRequest, Any, json_only=False),)
PAGES: Final = (Page("/ping", "Readiness check", _ping, public=True),)
