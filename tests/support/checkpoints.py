"""Checkpoints with random weights, written by transformers, and the outputs that its code computes.

The tests compare two implementations of a checkpoint: `reference_rows` runs the modelling code of transformers, and
`our_rows` runs the converted model.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from swiftlet_models import convert as product
from swiftlet_models.artifact import Head, Outputs
from swiftlet_models.convert import ConvertedCheckpoint
from swiftlet_models.heads import Model, build, fill

Task = Literal["classify", "qa", "fill-mask", "score", "entities", "zero-shot"]
TASKS: Final[tuple[Task, ...]] = ("classify", "qa", "fill-mask")
HEADS: Final[Mapping[Task, tuple[Head, Outputs]]] = {
    "classify": ("classification", "labels"),
    "qa": ("token", 2),
    "fill-mask": ("masked_lm", "vocabulary"),
    "score": ("causal_lm", "vocabulary"),
    "entities": ("token", "labels"),
    "zero-shot": ("classification", "labels"),
}
AUTO: Final[Mapping[Task, Any]] = {
    "classify": transformers.AutoModelForSequenceClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "fill-mask": transformers.AutoModelForMaskedLM,
    "score": transformers.AutoModelForCausalLM,
    "entities": transformers.AutoModelForTokenClassification,
}
PAD: Final = 0
FIRST_ID: Final = 2  # of random sequences: 0 and 1 are padding tokens, which no sequence contains

# These networks are small, so several threads would mostly wait for each other.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Shape:
    """An architecture, and its settings that differ from the defaults of transformers."""

    architecture: str
    settings: Mapping[str, Any]

    def config(self, **more: Any) -> transformers.PreTrainedConfig:
        settings = {**self.settings, **more}
        dashed = self.architecture.replace("_", "-")
        model_type = dashed if dashed in transformers.CONFIG_MAPPING else self.architecture
        return transformers.AutoConfig.for_model(model_type, attn_implementation="eager", **settings)


_MOBILEBERT: Final = {"classifier_activation": False}
_TINY: Final = _MOBILEBERT | {"num_feedforward_networks": 2, "use_bottleneck_attention": True}
_TEACHER: Final = {
    "intra_bottleneck_size": 1024,
    "intermediate_size": 4096,
    "num_feedforward_networks": 1,
    "normalization_type": "layer_norm",
    "hidden_act": "gelu",
}
_ROBERTA: Final = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "vocab_size": 50265}
_LARGE: Final = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

# The shapes of released checkpoints, by their names on the Hugging Face hub.
RELEASED: Final[Mapping[str, Shape]] = {
    "bert-base-uncased": Shape("bert", {}),
    "albert-base-v2": Shape("albert", {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}),
    "albert-large-v2": Shape(
        "albert",
        {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24},
    ),
    "albert-xlarge-v2": Shape(
        "albert",
        {"hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "num_hidden_layers": 24},
    ),
    "albert-xxlarge-v2": Shape("albert", {}),
    "mobilebert-uncased": Shape("mobilebert", _MOBILEBERT),
    "mobilebert-tiny": Shape("mobilebert", _TINY),
    "ib-bert": Shape("mobilebert", _TEACHER),
    "roberta-base": Shape("roberta", _ROBERTA),
    "roberta-large": Shape("roberta", _ROBERTA | _LARGE),
    "xlm-roberta-base": Shape("xlm_roberta", _ROBERTA | {"vocab_size": 250002}),
    "camembert-base": Shape("camembert", _ROBERTA | {"vocab_size": 32005}),
    "electra-small-discriminator": Shape("electra", {}),
    "electra-base-discriminator": Shape(
        "electra", {"embedding_size": 768, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    ),
    "distilbert-base-uncased": Shape("distilbert", {}),
}

# Small shapes. The LayerNorm epsilon is so large that a wrong one changes the outputs visibly.
_SMALL: Final = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "layer_norm_eps": 0.05,
}
_SMALL_ALBERT: Final = _SMALL | {"embedding_size": 16}
_SMALL_ROBERTA: Final = _SMALL | {"max_position_embeddings": 66, "type_vocab_size": 1}
_SMALL_DISTILBERT: Final = {
    "vocab_size": 211,
    "dim": 48,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 96,
    "max_position_embeddings": 64,
}
_SMALL_MOBILEBERT: Final = _SMALL_ALBERT | {"intra_bottleneck_size": 32}
SMALL: Final[Mapping[str, Shape]] = {
    "bert": Shape("bert", _SMALL),
    "bert-gelu-new": Shape("bert", _SMALL | {"hidden_act": "gelu_new"}),
    "albert": Shape("albert", _SMALL_ALBERT),
    "albert-gelu": Shape("albert", _SMALL_ALBERT | {"hidden_act": "gelu"}),
    "albert-groups": Shape(
        "albert", _SMALL_ALBERT | {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2}
    ),
    # The float division of transformers puts layer 9 into group 6. Integer division would put it into group 7.
    "albert-14-groups": Shape("albert", _SMALL_ALBERT | {"num_hidden_layers": 18, "num_hidden_groups": 14}),
    "mobilebert": Shape("mobilebert", _SMALL_MOBILEBERT | _MOBILEBERT),
    "mobilebert-pooler": Shape("mobilebert", _SMALL_MOBILEBERT),
    "mobilebert-tiny": Shape("mobilebert", _SMALL_MOBILEBERT | _TINY),
    "mobilebert-no-trigram": Shape("mobilebert", _SMALL_MOBILEBERT | {"trigram_input": False}),
    "mobilebert-own-bottlenecks": Shape(
        "mobilebert", _SMALL_MOBILEBERT | {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 48}
    ),
    "mobilebert-no-bottleneck": Shape(
        "mobilebert", _SMALL_MOBILEBERT | {"use_bottleneck": False, "trigram_input": False, "embedding_size": 48}
    ),
    "ib-bert": Shape(
        "mobilebert", _SMALL_MOBILEBERT | _TEACHER | {"intra_bottleneck_size": 96, "intermediate_size": 128}
    ),
    "roberta": Shape("roberta", _SMALL_ROBERTA),
    "roberta-two-types": Shape("roberta", _SMALL_ROBERTA | {"type_vocab_size": 2}),
    "roberta-relu": Shape("roberta", _SMALL_ROBERTA | {"hidden_act": "relu", "pad_token_id": 0}),
    "xlm-roberta": Shape("xlm_roberta", _SMALL_ROBERTA),
    "camembert": Shape("camembert", _SMALL_ROBERTA),
    "electra": Shape("electra", _SMALL | {"embedding_size": 16}),
    "electra-relu": Shape("electra", _SMALL | {"embedding_size": 48, "hidden_act": "relu"}),
    "distilbert": Shape("distilbert", _SMALL_DISTILBERT),
    "distilbert-relu": Shape("distilbert", _SMALL_DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True}),
}


@dataclass(frozen=True)
class Rows:
    """A batch of B sequences of random tokens, padded to the longest, and the positions that a task reads."""

    input_ids: Tensor  # (B, S)
    token_type_ids: Tensor  # (B, S)
    lengths: Tensor  # (B,)
    focus: Tensor  # (N,), positions b * S + s

    @property
    def mask(self) -> Tensor:
        return torch.arange(self.input_ids.shape[1]) < self.lengths[:, None]

    def alone(self) -> list[Rows]:
        """Returns each sequence as a batch of one, without padding."""
        width = self.input_ids.shape[1]
        return [
            Rows(
                self.input_ids[b : b + 1, :length],
                self.token_type_ids[b : b + 1, :length],
                self.lengths[b : b + 1],
                self.focus[self.focus // width == b] % width,
            )
            for b, length in enumerate(self.lengths.tolist())
        ]


def rows(task: Task, lengths: Sequence[int], vocabulary: int, seed: int = 0) -> Rows:
    """Returns random sequences of these lengths, with the positions that the task reads: at most three masks each."""
    generator = torch.Generator().manual_seed(seed)
    size = (len(lengths), max(lengths))
    input_ids = torch.randint(FIRST_ID, vocabulary, size, generator=generator)
    token_type_ids = torch.randint(0, 2, size, generator=generator)
    for b, length in enumerate(lengths):
        input_ids[b, length:] = PAD
        token_type_ids[b, length:] = 0
    positions: dict[Task, Callable[[int], Iterable[int]]] = {
        "classify": lambda length: [0],
        "qa": range,
        "fill-mask": lambda length: sorted({0, length // 2, length - 1}),
        "score": range,
        "entities": range,
    }
    focus = [b * size[1] + s for b, length in enumerate(lengths) for s in positions[task](length)]
    return Rows(input_ids, token_type_ids, torch.tensor(lengths), torch.tensor(focus))


def untrained(architecture: str, config: Mapping[str, Any], task: Task, labels: int = 3) -> Model:
    """Returns an untrained model with the head of a task."""
    return build(architecture, config, HEADS[task][0], {"classify": labels, "entities": labels, "qa": 2}.get(task, 0))


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Sets random parameters, such that activations stay near 1 and no parameter is trivially 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
        else:
            parameter.normal_(0.7 if name.endswith("weight") else 0, 0.2, generator=generator)


class Uninitialised(TorchFunctionMode):
    """Within it, new networks have NaN where they would draw random parameters.

    It takes half of the time of a large network to draw numbers that are replaced at once. A parameter that is not
    replaced makes all outputs NaN.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_):
            return args[0].fill_(float("nan"))
        return function(*args, **kwargs or {})


@torch.no_grad()
def reference(shape: Shape, task: Task, *, pad_is_zero: bool = True, **more: Any) -> Any:
    """Returns the model of transformers with random weights. The embedding of [PAD] is zero, as after training."""
    labels = {"num_labels": 3} if task in ("classify", "entities") else {}
    with Uninitialised():
        model = AUTO[task].from_config(shape.config(**labels, **more)).eval()
    randomise(model)
    if pad_is_zero:
        model.get_input_embeddings().weight[PAD] = 0
    return model


@dataclass(frozen=True)
class Converted(ConvertedCheckpoint):
    """A converted checkpoint in memory, with its network."""

    @cached_property
    def model(self) -> Model:
        return fill(build(*self.network), self.weights)


def convert(directory: Path, head: Head, outputs: Outputs = "labels", **options: Any) -> Converted:
    """Converts a checkpoint, and reads its weights."""
    with product.convert(directory, head, outputs, **options) as opened:
        weights = {name: np.asarray(weight) for name, weight in opened.weights.items()}
        return Converted(**vars(opened) | {"weights": weights})


def conversion(model: Any, task: Task) -> Converted:
    """Converts the checkpoint that transformers writes for a model."""
    with tempfile.TemporaryDirectory() as directory:
        model.save_pretrained(directory)
        with Uninitialised():
            return convert(Path(directory), *HEADS[task])


@torch.no_grad()
def reference_rows(model: Any, task: Task, batch: Rows) -> Tensor:
    """Returns the logits (N, O) that transformers computes at the focus positions."""
    tells_types = getattr(model.config, "type_vocab_size", 1) > 1
    types = {"token_type_ids": batch.token_type_ids} if tells_types else {}
    out = model(input_ids=batch.input_ids, attention_mask=batch.mask.to(torch.int64), **types)
    if task == "classify":
        return out.logits  # type: ignore[no-any-return]
    logits = torch.stack([out.start_logits, out.end_logits], -1) if task == "qa" else out.logits
    return logits.flatten(0, 1)[batch.focus]


def rows_alone(model: Any, task: Task, batch: Rows) -> Tensor:
    """Returns the logits (N, O) that transformers computes for each sequence alone."""
    return torch.cat([reference_rows(model, task, own) for own in batch.alone()])


@torch.no_grad()
def our_rows(model: Model, batch: Rows) -> Tensor:
    """Returns the logits (N, O) that the converted model computes."""
    out: Tensor = model(batch.input_ids, batch.token_type_ids, batch.lengths, batch.focus)
    return out


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Returns the largest Euclidean error of a row, relative to the root mean square norm of the expected rows."""
    assert actual.shape == expected.shape
    assert expected.isfinite().all()
    error = (actual - expected).norm(dim=-1).max() / expected.norm(dim=-1).square().mean().sqrt()
    return float(error.item())
