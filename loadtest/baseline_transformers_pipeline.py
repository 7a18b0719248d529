"""A baseline for comparison: transformers' own pipeline in a FastAPI handler.

    python -m loadtest.baseline_transformers_pipeline CHECKPOINT

It needs transformers and torch, and prints its URL.
"""

from __future__ import annotations

import sys

import transformers
from fastapi import FastAPI
from pydantic import BaseModel

from loadtest.baseline_server import serve


class Body(BaseModel):
    inputs: str


def create_app(checkpoint: str) -> FastAPI:
    pipeline = transformers.pipeline("text-classification", model=checkpoint)
    app = FastAPI()

    @app.post("/classify")
    def classify(body: Body) -> list[list[dict[str, object]]]:
        return [pipeline(body.inputs, truncation=True, top_k=None)]

    return app


if __name__ == "__main__":
    serve(lambda: create_app(sys.argv[1]))
