"""The pages under /v1/models, which KServe's first protocol, OpenAI's and System One share.

Each reads its own fields of the list, except `models`, which two have: it holds System One's objects if the server
speaks System One, and KServe's names otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse, Response

from swiftlet_serve.http.dialect_parts import openai_format
from swiftlet_serve.http.dialect_parts.dialect import Page
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime


def _list(runtime: Runtime, _: Mapping[str, str]) -> Response:
    names = runtime.catalog.names
    spoken = runtime.settings.dialects
    models = [*map(_about, names, names.values())] if not spoken or "system-one" in spoken else [*names]
    return JSONResponse({"object": "list", "data": [_describe(name) for name in names], "models": models})


def _about(name: str, pipeline: Pipeline) -> dict[str, str]:
    """Returns the description of a model in System One's form. Its release date is the date of the certificate."""
    model = pipeline.model
    date = (model.certificate or {}).get("date", "")
    return {"name": name, "description": str(model.card.get("summary", "")), "release_date": str(date)}


def _one(runtime: Runtime, parameters: Mapping[str, str]) -> Response:
    name = runtime.catalog.find(parameters["model"]).model.manifest.name
    runtime.check_ready()
    return JSONResponse(_describe(name) | {"name": name, "ready": True})


def _describe(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "swiftlet"}


PAGES: Final = (
    Page("/v1/models", "The served models", _list, render_error=openai_format.render_error),
    Page("/v1/models/{model}", "A model, and whether it is ready", _one),
)
