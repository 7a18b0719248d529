"""What most people write instead: transformers' own pipeline in a FastAPI handler. For comparison only.

Run as `python loadtest/pipeline.py CHECKPOINT`, in an environment that has transformers and torch; prints its address.
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


config = uvicorn.Config(app, port=0, log_level="warning", loop="uvloop", http="httptools")
listener = config.bind_socket()
listener.listen()  # who calls from now on waits, and is answered
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(config).run([listener])
