"""What most people write instead: transformers' own pipeline in a FastAPI handler. For comparison only.

Run as `python loadtest/pipeline.py CHECKPOINT`, in an environment that has transformers and torch; prints its address.
"""

import sys

import transformers
from fastapi import FastAPI
from pydantic import BaseModel

from loadtest import peer

pipeline = transformers.pipeline("text-classification", model=sys.argv[1])
app = FastAPI()


class Body(BaseModel):
    inputs: str


@app.post("/classify")
def classify(body: Body) -> list[list[dict[str, object]]]:
    return [pipeline(body.inputs, truncation=True, top_k=None)]


peer.serve(app)
