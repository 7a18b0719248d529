"""What most people write instead: transformers' own pipeline in a FastAPI handler. For comparison only.

Run as `python loadtest/pipeline.py CHECKPOINT PORT`, in an environment that has transformers and torch.
"""

import sys

import transformers
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

pipeline = transformers.pipeline("text-classification", model=sys.argv[1])
app = FastAPI()


class Body(BaseModel):
    inputs: str


@app.post("/classify")
def classify(body: Body) -> list[list[dict[str, object]]]:
    return [pipeline(body.inputs, truncation=True, top_k=None)]


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", loop="uvloop", http="httptools")
