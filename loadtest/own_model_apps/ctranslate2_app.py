"""The server that people write around CTranslate2, for a directory of sentence-transformers that means tokens.

The network is converted to int8 at the first start. A call for each core runs at once, and takes a batch of similar
lengths, with at most 512 tokens.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ctranslate2
import numpy as np
from fastapi import FastAPI
from pydantic import BaseModel
from tokenizers import Encoding, Tokenizer

TOKENS = 512


class Body(BaseModel):
    inputs: list[str]


model = Path(os.environ["MODEL"])
converted, cores = Path("ctranslate2"), len(os.sched_getaffinity(0))
if not converted.exists():
    ctranslate2.converters.TransformersConverter(str(model)).convert(str(converted), quantization="int8")
encoder = ctranslate2.Encoder(str(converted), inter_threads=cores, intra_threads=1, compute_type="int8")
tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
tokenizer.enable_truncation(TOKENS)
tokenizer.no_padding()
calls = ThreadPoolExecutor(cores)
app = FastAPI()


def vectors(batch: Sequence[Encoding]) -> list[list[float]]:
    """Returns the mean of the tokens of each text, with length 1."""
    states = np.array(encoder.forward_batch([encoding.ids for encoding in batch]).last_hidden_state)
    means = [tokens[: len(encoding.ids)].mean(axis=0) for tokens, encoding in zip(states, batch, strict=True)]
    return [(mean / np.linalg.norm(mean)).tolist() for mean in means]


@app.post("/embed")
def embed(body: Body) -> list[list[float]]:
    encodings = tokenizer.encode_batch(body.inputs)
    batches: list[list[int]] = [[]]
    for number in sorted(range(len(encodings)), key=lambda number: len(encodings[number].ids)):
        if (len(batches[-1]) + 1) * len(encodings[number].ids) > TOKENS and batches[-1]:
            batches.append([])
        batches[-1].append(number)
    parts = calls.map(vectors, ([encodings[number] for number in batch] for batch in batches))
    found = {
        number: vector
        for batch, part in zip(batches, parts, strict=True)
        for number, vector in zip(batch, part, strict=True)
    }
    return [found[number] for number in range(len(encodings))]
