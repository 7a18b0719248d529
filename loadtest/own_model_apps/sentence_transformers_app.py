"""The server that people write around sentence-transformers, or for a classifier around the pipeline."""

import os
from pathlib import Path

from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    inputs: list[str]


app = FastAPI()
model = os.environ["MODEL"]
if (Path(model) / "modules.json").exists():
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, device="cpu")

    @app.post("/embed")
    def embed(body: Body) -> list[list[float]]:
        return encoder.encode(body.inputs).tolist()  # type: ignore[no-any-return]
else:
    from transformers import pipeline

    classifier = pipeline("text-classification", model=model, device="cpu", top_k=None)

    @app.post("/classify")
    def classify(body: Body) -> list[list[dict[str, object]]]:
        answers: list[list[dict[str, object]]] = classifier(body.inputs, truncation=True)
        return answers
