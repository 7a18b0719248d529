"""Vectors of this service beside those of `SentenceTransformer.encode`, on many texts and with all options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from swiftlet_models.artifact import Artifact
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.goldens.cases import SENTENCES, strings
from tests.support.sentence_checkpoints import save_encoder
from tests.support.standard_checkpoints import save_model

COUNT: Final = 1000
BATCH: Final = 64  # texts of a request
KOREAN: Final = (
    "서울의 봄은 짧지만 아름답다.",
    "오늘은 시장에 가지 않았다",
    "각난닫 가나다라마바사",
    "그 영화는 재미없었어요 😢",
)
OPTIONS: Final[tuple[Mapping[str, Any], ...]] = (
    {"normalize": True},
    {"normalize": False},
    {"normalize": True, "prompt_name": "query"},
    {"normalize": False, "prompt_name": "query", "dimensions": 17},
    {"normalize": True, "prompt_name": "document", "dimensions": 8},
    {"normalize": True, "dimensions": 1},
)


def texts() -> list[str]:
    """Returns at least `COUNT` texts that are not blank.

    They are English and Korean sentences, long texts, and unusual strings: emoji, combining marks, control characters,
    ligatures, special tokens and other scripts.
    """
    long = [" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in range(0, len(SENTENCES), 9)]
    found = [*SENTENCES, *KOREAN, *(f"{a} {b}" for a in KOREAN for b in SENTENCES[:5]), *long, *strings(COUNT)]
    return [text for text in found if text.strip()]


def save(directory: Path, pooling: str) -> tuple[SentenceTransformer, Artifact]:
    """Writes a small embedding model, and imports it in fp32. Special tokens in a text are text on both sides."""
    model = save_encoder(directory, pooling, normalize=False)
    model.tokenizer.split_special_tokens = True
    return model, imported(directory / "model", directory / "out", keep_fp32=True)


def save_standard(directory: Path, name: str) -> tuple[SentenceTransformer, Artifact]:
    """The same with a model of `standard_checkpoints`."""
    model = save_model(directory, name, texts())
    return model, imported(directory / "model", directory / "out", keep_fp32=True)


def imported(source: Path, out: Path, **options: Any) -> Artifact:
    """Imports an embedding model in fp32."""
    artifact, _ = import_checkpoint(
        str(source), "embed", out, name="model", precision="fp32", max_loss=0.5, report=lambda _: None, **options
    )
    return artifact


def expected(model: SentenceTransformer, options: Mapping[str, Any]) -> NDArray[np.float32]:
    """Returns the vectors of sentence-transformers (N, D)."""
    vectors: NDArray[np.float32] = model.encode(
        texts(),
        prompt_name=options.get("prompt_name"),
        normalize_embeddings=options["normalize"],
        truncate_dim=options.get("dimensions"),
    )
    return vectors


def vectors(artifact: Artifact, engine: str, options: Mapping[str, Any]) -> NDArray[np.float64]:
    """Returns the vectors of the service (N, D)."""
    every = texts()
    parts = [every[i : i + BATCH] for i in range(0, len(every), BATCH)]
    responses = respond(load_model(artifact.path, engine), [{"inputs": one, "parameters": options} for one in parts])
    return np.array([vector for response in responses for vector in response])


def difference(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Returns the largest difference of a number, relative to the largest number if that is above 1."""
    return float(np.abs(found - wanted).max() / max(1, np.abs(wanted).max()))
