"""The server that people write around fastembed, for a directory of sentence-transformers with `onnx/model.onnx`."""

import json
import os
from pathlib import Path

from fastapi import FastAPI
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from pydantic import BaseModel


class Body(BaseModel):
    inputs: list[str]


model = Path(os.environ["MODEL"])
TextEmbedding.add_custom_model(
    model="it",
    pooling=PoolingType.MEAN,
    normalization=True,
    sources=ModelSource(hf="it"),
    dim=json.loads((model / "config.json").read_text())["hidden_size"],
    model_file="onnx/model.onnx",
)
encoder = TextEmbedding("it", specific_model_path=str(model))
app = FastAPI()


@app.post("/embed")
def embed(body: Body) -> list[list[float]]:
    return [vector.tolist() for vector in encoder.embed(body.inputs)]
