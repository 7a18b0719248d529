"""Identifies the path or name of a model to serve or import, and says what to do with it.

Only names of files, files of JSON and the first bytes of others are read. Nothing here needs torch.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, Literal

from swiftlet_models import architectures
from swiftlet_models.artifact import MANIFEST, Head

Kind = Literal["artifact", "checkpoint", "name", "other", "unknown"]

WEIGHTS: Final = (  # of a checkpoint that can be imported
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
ONNX: Final = ("model.onnx", "onnx/model.onnx")  # weights, if there are no others
GLINER: Final = "gliner_config.json"  # in place of a config.json
GLICLASS: Final = "GLiClass"  # the model_type
SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")  # in JSON: half of a character
HUB_NAME: Final = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)
HUB_URL: Final = re.compile(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:/.*)?", re.ASCII)
STEP: Final = re.compile(r"checkpoint-(\d+)")  # a directory that the Trainer of transformers writes

# Weights that are not read, by the names of their files, with what they are and the next step.
_NEW: Final = "swiftlet serve NEW"
_SOURCE: Final = "Serve the checkpoint that it was made from: swiftlet serve DIRECTORY"
_ONNX: Final = (
    "a model in ONNX without its checkpoint, which cannot be served",
    "Serve the checkpoint that it was exported from, or a directory with config.json and model.onnx, neither quantised "
    "nor optimised: swiftlet serve DIRECTORY",
)
_TF: Final = "transformers 4 converts them: CLASS.from_pretrained(DIR, from_{}=True).save_pretrained(NEW). Serve it:"
_TORCH: Final = (
    "a checkpoint in a file of torch that transformers does not read",
    "Name it pytorch_model.bin if it holds the weights of this model, as a checkpoint of Lightning does. Otherwise "
    f"load it with the code that wrote it, and save the model with save_pretrained(NEW). Serve it: {_NEW}",
)
OTHER_WEIGHTS: Final[Mapping[str, tuple[str, str]]] = {
    "*.onnx": _ONNX,
    "onnx": _ONNX,
    "tf_model.h5": ("a checkpoint whose weights are tf_model.h5", f"{_TF.format('tf')} {_NEW}"),
    "flax_model.msgpack": ("a checkpoint whose weights are flax_model.msgpack", f"{_TF.format('flax')} {_NEW}"),
    "*.ckpt*.index": (
        "the index of a checkpoint of TensorFlow without its data",
        "Copy its .data-00000-of-00001 beside it.",
    ),
    "*.gguf": ("a model in GGUF, which cannot be served", _SOURCE),
    "openvino_model.xml": ("a model of OpenVINO, which cannot be served", _SOURCE),
    "zero_to_fp32.py": (
        "a checkpoint of DeepSpeed",
        "Its zero_to_fp32.py puts the weights together: python DIR/zero_to_fp32.py DIR DIR. Then serve it.",
    ),
    "*.safetensors": (
        "a checkpoint whose weights have another name",
        "Name the file model.safetensors. Several files need their model.safetensors.index.json, which names them.",
    ),
    **dict.fromkeys(("*.ckpt", "*.pth", "*.pt", "*.ot"), _TORCH),
    **dict.fromkeys(("*.zip", "*.tar", "*.tar.gz", "*.tgz"), ("an archive", "Unpack it, and serve the directory.")),
}
_DATA: Final = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")  # of a checkpoint of TensorFlow, beside its index
STATIC: Final = "model2vec"  # the model_type of static embeddings, which are no checkpoint of transformers
TRAINING_STATE: Final = ("optimizer", "scheduler", "scaler", "rng_state")  # beginnings of files that a Trainer writes

# The task and the head of the classes of transformers, by the end of their names.
CLASSES: Final[Mapping[str, tuple[str, Head]]] = {
    "ForSequenceClassification": ("classify", "classification"),
    "ForTokenClassification": ("entities", "token"),
    "ForQuestionAnswering": ("qa", "token"),
    "ForMaskedLM": ("fill-mask", "masked_lm"),
    "ForPreTraining": ("fill-mask", "masked_lm"),
    "GPT2LMHeadModel": ("score", "causal_lm"),
}
DISCRIMINATOR: Final = "ElectraForPreTraining"  # finds replaced tokens, which is no task here
ENCODER: Final = re.compile(r"(?<!Head)(?<!Heads)Model$")  # the end of the name of a class without a head


@dataclass(frozen=True)
class Source:
    """What a path or name is."""

    kind: Kind  # "name": of a repository on the hub; "other": none that is read; "unknown": nothing that is recognised
    what: str  # a noun phrase
    next_step: str  # a sentence with the next command; empty for an artifact and for what is unknown


def identify(name: str) -> Source:
    """Returns what a path or name is."""
    path = Path(name)
    try:
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            path.stat()  # the functions below tell nothing of other errors, since Python 3.14
        if path.is_dir():
            return _directory(path)
        if path.is_file():
            return _file(path)
        if path.parent.is_dir() and path.name in bundles(path.parent):  # as TensorFlow names it
            return _weights_file(path)
    except OSError as error:
        return Source("other", f"a path that cannot be read ({error.strerror})", "Give another one.")
    if url := HUB_URL.fullmatch(name):
        return Source("other", "the address of a repository on the hub", f"Give its name. {_serve(url[1])}")
    if HUB_NAME.fullmatch(name):
        return Source("name", "no directory here, but may be a repository on the Hugging Face hub", _serve(name))
    return Source("unknown", "no directory", "")


def refusal(name: str) -> str | None:
    """Returns why a source cannot be imported, and the next command. None if its files do not tell."""
    source = identify(name)
    if source.kind == "artifact":
        return f"{name} is an artifact already. {_serve(name)}"
    if source.kind == "other":
        return f"{name} is {source.what}. {source.next_step}"
    if labelling_of(Path(name)):
        return None
    if "model_type" in (config := read_config(Path(name) / "config.json")):
        return None if config["model_type"] == STATIC else architectures.refusal(config["model_type"])
    return None


def labelling_of(directory: Path) -> Literal["gliner_config.json", "GLiClass"] | None:
    """Returns whether a directory holds a checkpoint of GLiNER or of GLiClass; None: of neither."""
    if (directory / GLINER).is_file():
        return GLINER
    return GLICLASS if read_config(directory / "config.json").get("model_type") == GLICLASS else None


def bundles(directory: Path) -> list[str]:
    """Returns the names of the checkpoints of TensorFlow in a directory, without the ends of their files' names."""
    prefixes = {match[1] for file in directory.iterdir() if (match := _DATA.fullmatch(file.name))}
    return sorted(prefix for prefix in prefixes if (directory / f"{prefix}.index").is_file())


def named_head(config: Mapping[str, Any]) -> tuple[str, Head] | None:
    """Returns the task and the head of the class that a `config.json` names. None if the class has no head."""
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name == DISCRIMINATOR:
        return None
    return next((kind for ending, kind in CLASSES.items() if name.endswith(ending)), None)


def seems_for(config: Mapping[str, Any]) -> str | None:
    """Returns the task that the head of a checkpoint fits, as its `config.json` names it. None if there is no head."""
    task, _ = named_head(config) or (None, None)
    labels = config.get("id2label")
    if task == "classify" and isinstance(labels, dict):
        if any("entail" in str(label).lower() for label in labels.values()):
            return "zero-shot"
        is_named = config.get("problem_type") in ("regression", "multi_label_classification")
        if len(labels) == 1 and (not is_named or is_cross_encoder(config)):
            return "rerank"
    return task


def is_cross_encoder(config: Mapping[str, Any]) -> bool:
    """Returns whether a `config.json` was written by a CrossEncoder of sentence-transformers."""
    return "sentence_transformers" in config or "sbert_ce_default_activation_function" in config


def _directory(path: Path) -> Source:
    names = {entry.name for entry in path.iterdir()}
    if MANIFEST in names:
        return Source("artifact", "an artifact", "")
    if "adapter_config.json" in names:
        return Source("checkpoint", "an adapter of PEFT (LoRA)", _serve(path))
    if GLINER in names:
        return Source("checkpoint", "a checkpoint of GLiNER", _serve(path))
    if "config.json" in names or "modules.json" in names:
        return _checkpoint(path, names)
    if bundles(path):
        return Source("checkpoint", "a checkpoint of TensorFlow", _serve(path))
    steps = sorted((int(match[1]), match[0]) for name in names if (match := STEP.fullmatch(name)))
    if steps:
        names_best = read_config(path / steps[-1][1] / "trainer_state.json").get("best_model_checkpoint")
        best = Path(names_best).name if isinstance(names_best, str) else ""
        if best in names:
            step = f"Its trainer_state.json names the best of its checkpoints. {_serve(path / best)}"
        else:
            step = f"Name one of its checkpoints. {_serve(path / steps[-1][1])}"
        return Source("other", "the output directory of a Trainer", step)
    if (snapshots := path / "snapshots").is_dir() and (commits := sorted(snapshots.iterdir())):
        main = path / "refs" / "main"
        named = snapshots / main.read_text("utf-8", "replace").strip() if main.is_file() else commits[-1]
        last = named if named in commits else commits[-1]
        return Source("other", "a repository in the cache of the hub", f"Name a snapshot of it. {_serve(last)}")
    if artifacts := sorted(file.parent for file in path.glob(f"*/{MANIFEST}")):
        command = f"swiftlet serve {shlex.join(map(str, artifacts))}"
        return Source("other", "a folder of artifacts", f"Name the artifacts: {command}")
    if set(WEIGHTS) & names:
        step = "Save the model with save_pretrained of transformers, which writes config.json, and serve that."
        return Source("other", "a directory of weights without config.json", step)
    return _other_weights(names) or Source("unknown", "a directory that holds neither an artifact nor a checkpoint", "")


def _checkpoint(path: Path, names: set[str]) -> Source:
    if "modules.json" in names:
        return Source("checkpoint", "a model of sentence-transformers", _serve(path))
    known = set(WEIGHTS) & names or any((path / name).is_file() for name in ONNX) or bundles(path)
    return (not known and _other_weights(names)) or Source("checkpoint", "a checkpoint of transformers", _serve(path))


def _other_weights(names: set[str]) -> Source | None:
    """Returns what a directory is whose files have these names, by weights that are not read. None without any."""
    names = {name for name in names if not name.startswith(TRAINING_STATE)}
    kinds = (kind for pattern, kind in OTHER_WEIGHTS.items() if any(fnmatch(name, pattern) for name in names))
    return next((Source("other", *kind) for kind in kinds), None)


def _file(path: Path) -> Source:
    if path.name in WEIGHTS or path.name.rpartition(".")[0] in bundles(path.parent):
        return _weights_file(path)
    step = "Give the directory of an artifact, or of a checkpoint."
    return _other_weights({path.name}) or Source("other", "a file", step)


def _weights_file(path: Path) -> Source:
    return Source("other", "a file of weights", f"Give its directory. {_serve(path.parent)}")


def _serve(source: Path | str) -> str:
    return f"Serve it: swiftlet serve {shlex.quote(str(source))}"


class JsonError(ValueError):
    """Raised when a file holds no JSON. The message is a clause without a subject."""


def read_json(file: Path) -> Any:
    """Reads a file of JSON in UTF-8, with or without a byte order mark.

    Raises:
        FileNotFoundError: there is no such file.
        JsonError: it cannot be read, or is no JSON.
    """
    if not file.is_file():  # to read a device may never end
        raise FileNotFoundError(file)
    try:
        text = file.read_text("utf-8-sig")
        document = json.loads(text)
        if SURROGATE.search(text):  # alone, it is no character, and cannot be written again
            json.dumps(document, ensure_ascii=False).encode()
        return document  # noqa: TRY300  # its errors are those of the file
    except OSError as error:
        raise JsonError(f"cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        place = f"not valid JSON (line {error.lineno}, column {error.colno})"
        raise JsonError(f"is {instead(file) or place}") from None
    except UnicodeDecodeError:
        raise JsonError("is not in UTF-8; save it in that encoding") from None
    except UnicodeEncodeError:
        raise JsonError("has half a character, such as \\ud800; correct that text") from None
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        raise JsonError("is not valid JSON") from None


def read_config(file: Path) -> dict[str, Any]:
    """Reads a JSON object, or returns an empty one. Other code reports that it is missing."""
    try:
        document = read_json(file)
    except (OSError, JsonError):
        return {}
    return document if isinstance(document, dict) else {}


def instead(file: Path) -> str:
    """Returns what a file is that cannot be read as its name says, with the next step: a phrase, or an empty text."""
    try:
        if file.is_symlink() and not file.exists():
            return "a link to a file that is gone; copy the directory with the files of its links: cp -rL"
        if file.exists() and not file.is_file():  # to open a pipe may never end
            return "not a regular file; copy the file itself into the directory"
        with file.open("rb") as stream:
            start = stream.read(64).lower()
    except OSError as error:
        return f"not readable ({error.strerror})"
    if start.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS and not the file itself; run git lfs pull in its directory"
    if start.lstrip().startswith((b"<!doctype", b"<html")):
        return "a web page and not the file itself; download it once more"
    return "" if start else "empty; download it once more"
