"""The routes of a container on Vertex AI, which names them in `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE`.

The first served model answers. At a route that Swiftlet has anyway, a body with `instances` is Vertex AI's, and any
other body, which a raw prediction may send, is the route's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import JSONResponse, Response

from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.dialect_parts import instances
from swiftlet_serve.http.dialect_parts.dialect import Operation, Page
from swiftlet_serve.http.dialect_parts.instances import PredictRequest, PredictResponse
from swiftlet_serve.http.endpoints.model_endpoint import Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime

ROUTE: Final = re.compile(r"/[\w./:@~-]*", re.ASCII)
OF_KSERVE: Final = re.compile(r"/v1/models/[^/]+:predict")  # the same protocol, for the model in the path


def _route(variable: str, default: str) -> str:
    route = os.environ.get(variable) or default
    if not ROUTE.fullmatch(route):
        raise SetupError(f"The environment variable {variable} is not a path such as {default}.")
    return route


def predict(runtime: Runtime, request: Request) -> Translation:
    """Translates a prediction request."""
    return instances.predict(runtime.catalog.find(None, request.version), request)


def _ready(runtime: Runtime, _: Mapping[str, str]) -> Response:
    runtime.check_ready()
    return JSONResponse({"ready": True})


render_error = instances.render_error

PREDICT: Final = _route("AIP_PREDICT_ROUTE", "/vertex")
OPERATIONS: Final = (
    ()
    if OF_KSERVE.fullmatch(PREDICT)
    else (Operation(PREDICT, "Prediction", predict, PredictRequest, PredictResponse, fields=frozenset({"instances"})),)
)
PAGES: Final = (Page(_route("AIP_HEALTH_ROUTE", "/vertex/health"), "Readiness check", _ready, public=True),)
