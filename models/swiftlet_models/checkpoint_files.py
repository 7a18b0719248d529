"""Where the files of a checkpoint are: in a directory that `save_pretrained` wrote, or in a repository on the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from swiftlet_models import sources
from swiftlet_models.adapters import ADAPTER, TENSORS, Adapter, is_adapter, read_adapter
from swiftlet_models.checkpoint_tensors import PICKLE, SAFETENSORS, ConversionError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "spiece.model",
    "spm.model",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "added_tokens.json",
)
# The only files that are downloaded from a hub repository, with the first of `_WEIGHTS` that it has.
HUB_FILES: Final = (
    "config.json",
    sources.GLINER,
    "labels_tokenizer/*",  # of GLiNER with two encoders
    "README.md",  # the model card, which names the languages
    "modules.json",  # of sentence-transformers, as are the next three
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]_*/*",
    "router_config.json",  # and the modules of its routes
    "query_[0-9]_*/*",
    "document_[0-9]_*/*",
    "chat_template.jinja",  # of rerankers with a prompt
    "additional_chat_templates/*.jinja",
    "sparse_linear.pt",  # of bge-m3, as is the next one
    "colbert_linear.pt",
    "artifact.metadata",  # of Stanford's ColBERT
    "config_setfit.json",
    "model_head.pkl",  # of SetFit
    "head.safetensors",  # of model2vec, as is the next one
    "pipeline.skops",
    ADAPTER,
    *TENSORS,
    *TOKENIZER_FILES,
)
_WEIGHTS: Final = (
    (SAFETENSORS, f"{SAFETENSORS}.index.json", "model-*.safetensors"),
    (PICKLE, f"{PICKLE}.index.json", "pytorch_model-*.bin"),
    tuple(f"{name}{data}" for name in sources.ONNX for data in ("", "_data", ".data")),
    ("*.index", "*.data-?????-of-?????"),  # of TensorFlow
)

# What to do, by the error of the hub's client.
_HUB: Final = {
    "GatedRepoError": "accept its terms on the hub, and set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such repository, or it is private; check the name, or set HF_TOKEN",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": (
        "the hub cannot be reached, or HF_HUB_OFFLINE is set; copy the files here, and name their directory"
    ),
}
_BROKEN_OFF: Final = "the download broke off; start again, and it goes on where it ended"


def locate(source: str, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Returns the directory of a source, and its origin for the manifest.

    A source that is not a directory is a hub id. It is read from the local cache, or downloaded. The origin records the
    commit, so that the same command gives the same artifact again.

    Raises:
        ConversionError: the source is not a directory, and the repository cannot be reached.
    """
    directory = Path(source)
    if directory.is_dir():
        return directory, {"directory": directory.resolve().name}
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise ConversionError(
            f"{source!r} is no directory, and names of the hub need the package huggingface-hub. Download the "
            "repository elsewhere (hf download NAME --local-dir DIR), and name its directory."
        ) from None

    try:
        for weights in _WEIGHTS:
            files = [*HUB_FILES, *weights]
            try:
                path = Path(snapshot_download(source, revision=revision, allow_patterns=files, local_files_only=True))
            except LocalEntryNotFoundError:
                path = Path(snapshot_download(source, revision=revision, allow_patterns=files))
            if any((path / name).exists() for name in (*weights, *TENSORS)):
                break
    except HFValidationError:
        raise ConversionError(f"{source!r} is neither a directory nor a valid hub id.") from None
    except Exception as error:  # of any of the clients of HTTP that versions of the package use
        known = [_HUB[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _HUB]
        full = isinstance(error, OSError) and error.errno and f"{error.strerror}; set HF_HOME to another directory"
        reason = known[0] if known else full or f"{_BROKEN_OFF} ({type(error).__name__})"
        raise ConversionError(f"{source!r} is not in the local cache and cannot be downloaded: {reason}.") from None
    return path, {"hub": source, "revision": path.name}  # the directory of a snapshot has the name of its commit


def files(directory: Path) -> list[Path]:
    """Returns the files of a checkpoint that a conversion may read, sorted: its weights in the form that is read."""
    return sorted({*_matching(directory, HUB_FILES), *next(iter(weights(directory)), [])})


def weights(directory: Path) -> list[list[Path]]:
    """Returns the files of weights in each form that a checkpoint has. The first form is read, as by transformers."""
    return [found for form in _WEIGHTS if (found := _matching(directory, form))]


def _matching(directory: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in directory.glob(pattern) if file.is_file()})


def find_adapter(directory: Path) -> Adapter | None:
    """Returns the adapter in a directory, with its base; None if the directory holds no adapter.

    Raises:
        ConversionError: as `read_adapter` and `locate`.
    """
    return read_adapter(directory, locate) if is_adapter(directory) else None
