"""The prompt of an embedding model for what a client says that its texts are, as embedding services name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from swiftlet_models.artifact import Manifest
from swiftlet_serve.tasks.rerank import QUERY_PROMPTS, TEXT_PROMPTS

KINDS: Final[Mapping[str, Sequence[str]]] = {
    "search_query": QUERY_PROMPTS,
    "search_document": TEXT_PROMPTS,
    "document": TEXT_PROMPTS,
    "passage": ("passage", *TEXT_PROMPTS),
    "retrieval.query": ("retrieval.query", *QUERY_PROMPTS),
    "retrieval.passage": ("retrieval.passage", *TEXT_PROMPTS),
}
"""The names that the prompt for a kind of text may have, beside its own. Cohere, Voyage, NVIDIA and Jina name them."""


def prompt_name(manifest: Manifest, kind: str | None) -> str | None:
    """Returns the name of the model's prompt for a kind of text, or None for its default one."""
    if kind is None or manifest.embedding is None:
        return None
    prompts = manifest.embedding.prompts
    return next((name for name in (*KINDS.get(kind, ()), kind) if name in prompts), None)
