"""Adapters of PEFT (LoRA), which are added to their base when the weights are read.

An adapter adds a product of two narrow matrices to a matrix of its base: W + scale * B A (Hu et al. 2021,
arXiv:2106.09685). It holds other tensors whole, such as a head that was trained with it. A setting that is not known to
leave the weights as they are is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import trunks
from swiftlet_models.architectures.traits import Traits
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.tensors import TYPES, Adapted, Array, Computed, Floats, Matrix, Weights
from swiftlet_models.trunks import ENCODER

ADAPTER: Final = "adapter_config.json"
TENSORS: Final = ("adapter_model.safetensors", "adapter_model.bin")

# The settings that are read, and those that do not change what the weights mean.
_READ: Final = frozenset(
    {
        "base_model_name_or_path",
        "revision",
        "peft_type",
        "task_type",
        "auto_mapping",
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "fan_in_fan_out",
        "init_lora_weights",
    }
)
_PLAIN: Final = frozenset(
    {
        "peft_version",
        "inference_mode",
        "target_modules",
        "exclude_modules",
        "lora_dropout",
        "bias",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        "loftq_config",
        "eva_config",
        "megatron_core",
        "qalora_group_size",
        "runtime_config",
        "ensure_weight_tying",
    }
)
# Other ways to begin a training change the base, too.
_BEGINNINGS: Final = (True, False, None, "gaussian", "eva", "orthogonal")
_CLASSES: Final = {
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "CAUSAL_LM": "LMHeadModel",
    "FEATURE_EXTRACTION": "Model",
}
_ENDING: Final = re.compile(r"(For\w+|LMHeadModel|Model)$", re.ASCII)
_PREFIX: Final = "base_model.model."
LARGEST_SHARE: Final = 8  # a rank above this part of a matrix's smaller side costs more time than it saves memory
_PART: Final = re.compile(
    r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?", re.ASCII
)
_HEAD: Final = re.compile(r"((^|\.)classifier|^score|^classifier\.out_proj)\.weight")
MERGE: Final = "merge the adapter into its base with merge_and_unload() of peft, save that, and import it"
_MODULE: Final = re.compile(r"[\w.]+", re.ASCII)
# Methods whose adapters change no weights, so that nothing can be merged.
_PROMPTS: Final = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "CPT")


@dataclass(frozen=True)
class Adapter:
    """An adapter and its base. Both are directories."""

    directory: Path
    base: Path
    origin: Mapping[str, Any]  # of the base, for the manifest
    config: Mapping[str, Any]  # adapter_config.json
    whole: set[str] = field(default_factory=set)  # the tensors of the base that it replaces, once it was opened
    is_merged: bool = False  # whether it is wanted in its base, also if it could stay apart

    @property
    def tokenizer(self) -> Path:
        """The directory of the tokenizer. An adapter may have added tokens."""
        return self.directory if any(self.directory.glob("tokenizer*.json")) else self.base

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The `config.json` of the merged checkpoint.

        An adapter seldom has its own. That of the base names the labels of the base, and its class.
        """
        if (self.directory / "config.json").is_file():
            return read_object(self.directory / "config.json")  # type: ignore[no-any-return]
        settings: dict[str, Any] = read_object(self.base / "config.json")
        names = settings.get("architectures")
        mapping = self.config.get("auto_mapping")
        if ending := _CLASSES.get(str(self.config.get("task_type"))):
            name = _ENDING.sub("", str(names[0])) if isinstance(names, list) and names else ""
            settings["architectures"] = [name + ending]
        elif isinstance(mapping, dict) and isinstance(mapping.get("base_model_class"), str):
            settings["architectures"] = [mapping["base_model_class"]]
        with open_tensors(self.directory, TENSORS) as tensors:
            counts = {len(tensor) for name, tensor in _plain(tensors).items() if _HEAD.search(name) and tensor.shape}
        labels = settings.get("id2label")
        declared = len(labels) if isinstance(labels, dict) else settings.get("num_labels", 2)
        if len(counts) == 1 and (count := counts.pop()) != declared:
            settings |= {"num_labels": count, "id2label": None, "problem_type": None}
        return settings

    def obstacle(self, traits: Traits, weights: Weights, tensors: Mapping[str, str]) -> str | None:
        """Returns why it does not stay apart from its base: a clause. None if it does, or if it changes no encoder.

        `weights` are those of the network, and `tensors` are the names of those that they are, or are a part of.
        """
        if self.is_merged:
            return "this was asked for"
        for setting in ("use_dora", "fan_in_fan_out"):
            if self.config.get(setting):
                return f"{setting} is set"
        adapted = {name: matrix for name, matrix in weights.items() if isinstance(matrix, Adapted)}
        for name, matrix in adapted.items():
            rank, (rows, columns) = len(matrix.a), matrix.shape
            if name.startswith(ENCODER) and rank * LARGEST_SHARE > min(rows, columns):
                return f"its rank of {rank} is large for {name}, which has the shape {rows} x {columns}"
        whole = (name for name in weights if name.startswith(ENCODER) and tensors.get(name) in self.whole)
        if (replaced := next(whole, None)) is not None:
            return f"it replaces {replaced}"
        return trunks.obstacle(traits, weights, adapted)

    @contextmanager
    def open(self) -> Iterator[Weights]:
        """Opens the merged tensors for the duration of a block, as `open_tensors` does.

        Raises:
            ConversionError: a file or setting is missing, invalid or not supported.
        """
        with ExitStack() as files:
            adapter = files.enter_context(open_tensors(self.directory, TENSORS))
            merged = dict(files.enter_context(open_tensors(self.base)))
            places = {name.partition(".")[2]: name for name in merged} | {name: name for name in merged}
            for name, tensor in _plain(adapter).items():
                own = _place(name, places) or name
                merged[own] = tensor
                self.whole.add(own)
            for module, parts in _modules(adapter).items():
                if (place := _place(f"{module}.weight", places)) is None:
                    raise ConversionError(f"the base of the adapter has no tensor {module}.weight.")
                merged[place] = self._merge(module, parts, merged[place])
            yield merged

    def _merge(self, module: str, parts: dict[str, Matrix], weight: Matrix) -> Matrix:
        """Returns a matrix of the base with its product. A matrix (in, out) is that of an embedding or a Conv1D."""
        is_table = "embedding_A" in parts
        a, b = (parts.get(f"embedding_{part}" if is_table else part) for part in "AB")
        magnitude = parts.get("magnitude_vector")
        transposed = is_table or bool(self.config.get("fan_in_fan_out"))
        if (
            a is None
            or b is None
            or len(parts) != 2 + (magnitude is not None)
            or len(a.shape) != 2
            or len(b.shape) != 2
        ):
            raise ConversionError(f"the adapter has no two matrices for {module}.")
        scale = self._scale(module, len(a))
        shape = len(b), a.shape[1]  # (out, in)
        if b.shape[1:] != (len(a),) or weight.shape != (shape[::-1] if transposed else shape):
            raise ConversionError(f"the adapter does not fit the shape of {module} in its base.")
        if (magnitude is not None) != bool(self.config.get("use_dora")):
            raise ConversionError(f"the adapter has no magnitudes of DoRA for {module}, or has them without use_dora.")
        if magnitude is None:
            left, right = (_floats(a).T, _floats(b).T) if transposed else (_floats(b), _floats(a))
            return Adapted(weight, scale * left, right)
        if transposed or magnitude.shape != shape[:1]:
            raise ConversionError(f"{ADAPTER}: use_dora is not supported for {module}; {MERGE}.")
        left, right, lengths = _floats(b), _floats(a), _floats(magnitude)

        def rows(wanted: slice) -> Array:
            sums = weight[wanted] + scale * (left[wanted] @ right)
            scaled: Array = sums * (lengths[wanted] / np.linalg.norm(sums, axis=1))[:, None]
            return scaled

        return Computed(weight.shape, TYPES["F32"], rows)

    def _scale(self, module: str, rank: int) -> np.float32:
        values: dict[str, Any] = {"r": self.config.get("r"), "lora_alpha": self.config.get("lora_alpha")}
        for key, patterns in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern")):
            for pattern, value in _dictionary(self.config, patterns).items():
                if not _MODULE.fullmatch(pattern):  # others are regular expressions, which could take for ever
                    raise ConversionError(f"{ADAPTER}: {patterns} is not supported with a regular expression; {MERGE}.")
                if module == pattern or module.endswith(f".{pattern}"):
                    values[key] = value
                    break
        r, alpha = values["r"], values["lora_alpha"]
        if type(r) is not int or r != rank or r < 1:
            raise ConversionError(f"{ADAPTER}: r is not the rank of the adapter's matrices for {module}.")
        if type(alpha) not in (int, float) or not math.isfinite(alpha):
            raise ConversionError(f"{ADAPTER}: lora_alpha has an invalid value.")
        return np.float32(alpha / (math.sqrt(r) if self.config.get("use_rslora") else r))


def is_adapter(directory: Path) -> bool:
    """Returns whether a directory holds an adapter."""
    return (directory / ADAPTER).is_file()


def read_adapter(directory: Path, locate: Callable[[str, str | None], tuple[Path, dict[str, Any]]]) -> Adapter:
    """Reads an adapter and finds its base. `locate` returns the directory and origin of a base, by name and revision.

    A path of a base is relative to the working directory, as for peft, or to the adapter.

    Raises:
        ConversionError: a setting is missing, invalid or not supported, or there is no such base.
    """
    config = read_object(directory / ADAPTER)
    if (method := config.get("peft_type")) != "LORA":
        step = "train one of LoRA instead" if method in _PROMPTS else MERGE
        raise ConversionError(f"{ADAPTER}: peft_type is not supported, only LORA is; {step}.")
    for key, value in config.items():
        if value and key not in _READ | _PLAIN:
            name = key if _MODULE.fullmatch(key) else "a setting"
            raise ConversionError(f"{ADAPTER}: {name} is not supported; {MERGE}.")
    if config.get("init_lora_weights", True) not in _BEGINNINGS:
        raise ConversionError(f"{ADAPTER}: init_lora_weights has a value that changes the base; {MERGE}.")
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(base, str) or not base or not isinstance(revision, str | None):
        raise ConversionError(f"{ADAPTER}: base_model_name_or_path does not name the base of the adapter; add it.")
    beside = directory / base
    try:
        path, origin = locate(str(beside) if beside.is_dir() and not Path(base).is_dir() else base, revision)
    except ConversionError as error:
        raise ConversionError(
            f"the base of the adapter is not here: {str(error).removesuffix('.')}; set base_model_name_or_path in "
            f"{ADAPTER} to its directory, or to its name on the hub."
        ) from None
    if is_adapter(path):
        raise ConversionError(f"the base of the adapter is an adapter itself; {MERGE}.")
    return Adapter(directory, path, origin, config)


def _dictionary(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key) or {}
    if not isinstance(value, dict):
        raise ConversionError(f"{ADAPTER}: {key} has an invalid value.")
    return value


def _modules(tensors: Weights) -> dict[str, dict[str, Matrix]]:
    """Returns the matrices of each module that has a product."""
    modules: dict[str, dict[str, Matrix]] = {}
    for name, tensor in tensors.items():
        if match := _PART.fullmatch(name):
            modules.setdefault(match["module"].removeprefix(_PREFIX), {})[match["part"]] = tensor
    if not modules:
        raise ConversionError("the adapter has no matrices of LoRA.")
    return modules


def _plain(tensors: Weights) -> Weights:
    """Returns the tensors that replace those of the base."""
    plain = {}
    for name, tensor in tensors.items():
        if _PART.fullmatch(name):
            continue
        if "lora_" in name or not name.startswith(_PREFIX):
            raise ConversionError(f"the tensor {name} of the adapter is not supported; {MERGE}.")
        plain[re.sub(r"\.(base_layer|modules_to_save)(?=\.)", "", name.removeprefix(_PREFIX))] = tensor
    return plain


def _place(name: str, places: Mapping[str, str]) -> str | None:
    """Returns the name of a tensor in the base, which may have a prefix more or less: `bert.`."""
    return places.get(name) or places.get(name.partition(".")[2])


def _floats(matrix: Matrix) -> Floats:
    return np.asarray(matrix, np.float32)
