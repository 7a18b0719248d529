"""The addresses of Hugging Face's inference servers: `/models/{model}`, for a client that is given a base address.

The bodies, the answers and the errors are ours, which have the format of Hugging Face's clients. Those clients accept a
complete address such as `http://host/classify`, too.
"""

from __future__ import annotations

from typing import Any, Final

from swiftlet_serve.http import problem_details
from swiftlet_serve.http.dialect_parts.dialect import Operation
from swiftlet_serve.http.endpoints import bodies
from swiftlet_serve.http.endpoints.model_endpoint import Translation, renderer
from swiftlet_serve.http.gate.request import Request
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.tasks._requests import Request as TaskRequest


def infer(runtime: Runtime, request: Request) -> Translation:
    """Translates a request to a model."""
    pipeline = runtime.catalog.find(request.parameters["model"], request.version)
    task_request = bodies.parse(pipeline.model.task.Request, request.body)
    return Translation(pipeline, task_request, renderer(task_request), is_whole=True)


render_error = problem_details.render

OPERATIONS: Final = (Operation("/models/{model}", "The task of a model", infer, TaskRequest, Any),)
