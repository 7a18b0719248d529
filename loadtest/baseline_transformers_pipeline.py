"""What most people write instead: transformers' own pipeline in a FastAPI handler. For comparison only.

Run as `python -m loadtest.baseline_transformers_pipeline CHECKPOINT`. It needs transformers and torch, and prints its
address.
"""

import sys

import transformers
from fastapi import FastAPI
from pydantic import BaseModel

from loadtest import baseline_server

pipeline = transformers.pipeline("text-classification", model=sys.argv[1])
app = FastAPI()


class Body(BaseModel):
    inputs: str


@app.post("/classify")
def classify(body: Body) -> list[list[dict[str, object]]]:
    return [pipeline(body.inputs, truncation=True, top_k=None)]


baseline_server.serve(app)
