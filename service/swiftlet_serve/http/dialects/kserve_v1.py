"""KServe's first protocol, which its client speaks unless told otherwise."""

from __future__ import annotations

from typing import Final

from swiftlet_serve.http.dialect_parts import instances, model_pages
from swiftlet_serve.http.dialect_parts.dialect import Operation
from swiftlet_serve.http.dialect_parts.instances import PredictRequest, PredictResponse
from swiftlet_serve.http.endpoints.model_endpoint import Translation
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime


def predict(runtime: Runtime, request: Request) -> Translation:
    """Translates a prediction request."""
    return instances.predict(runtime.catalog.find(request.parameters["model"], request.version), request)


render_error = instances.render_error

OPERATIONS: Final = (Operation("/v1/models/{model}:predict", "Prediction", predict, PredictRequest, PredictResponse),)
PAGES: Final = model_pages.PAGES
