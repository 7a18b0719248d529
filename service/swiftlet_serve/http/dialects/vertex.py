"""The routes of a container on Vertex AI. It names them in variables, which are defaults of two settings.

The first served model answers. At a route that Swiftlet has anyway, a body with `instances` is Vertex AI's, and any
other body, which a raw prediction may send, is the route's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse, Response

from swiftlet_serve.http.dialect_parts import instances
from swiftlet_serve.http.dialect_parts.dialect import Configured, Dialect, Operation, Page
from swiftlet_serve.http.dialect_parts.instances import PredictRequest, PredictResponse
from swiftlet_serve.http.endpoints.model_endpoint import Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.settings import Settings

OF_KSERVE: Final = re.compile(r"/v1/models/[^/]+:predict")  # the same protocol, for the model in the path


def predict(runtime: Runtime, request: Request) -> Translation:
    """Translates a prediction request."""
    return instances.predict(runtime.catalog.find(None, request.version), request)


def _ready(runtime: Runtime, _: Mapping[str, str]) -> Response:
    runtime.check_ready()
    return JSONResponse({"ready": True})


render_error = instances.render_error


def configure(settings: Settings) -> Dialect:
    """Returns the dialect at the routes of the settings."""
    prediction = Operation(
        settings.vertex_predict_route,
        "Prediction",
        predict,
        PredictRequest,
        PredictResponse,
        fields=frozenset({"instances"}),
    )
    page = Page(settings.vertex_health_route, "Readiness check", _ready, public=True)
    return Configured([] if OF_KSERVE.fullmatch(prediction.path) else [prediction], [page], render_error)
