"""Hostile artifacts: a seed gives a small artifact of one of the families, with faults that its author could make.

An artifact's checksums protect nothing, because its author writes them.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from swiftlet_models.architectures import describe
from swiftlet_models.artifact import CARD, GOLDEN, MANIFEST, TOKENIZER, WEIGHTS, Embedding, Manifest
from swiftlet_models.tensors import block_of, pack
from swiftlet_models.weights import INT8, MIN_ROWS, SCALE
from tests.support.artifacts import HEADS, LABELS, VOCABULARY, make_tokenizer
from tests.support.network_sizes import CONFIGS, POSITIONS

WORDS: Final = 144  # at least as many as the tokenizer has
TASKS: Final = ("classify", "qa", "fill-mask", "embed")
# Other structures of a family: without bottlenecks, with other ones, without a trigram, with another norm.
VARIANTS: Final[dict[str, list[dict[str, Any]]]] = {
    "mobilebert": [
        {"use_bottleneck_attention": True},
        {"key_query_shared_bottleneck": False, "intra_bottleneck_size": 80, "num_attention_heads": 5},
        {"trigram_input": False, "classifier_activation": True},
        {"use_bottleneck": False, "hidden_size": 96, "normalization_type": "layer_norm", "layer_norm_eps": 1e-5},
        {"normalization_type": "layer_norm"},
    ],
    "roberta": [{"type_vocab_size": 2}],
    "electra": [{"embedding_size": 96}],
    "albert": [{"inner_group_num": 2}, {"shared_parameters": "attention"}, {"shared_parameters": "feed_forward"}],
}
EMBEDDINGS: Final = (
    Embedding("cls"),
    Embedding("mean", dense="tanh"),
    Embedding("max", dense="identity", prompts={"query": "q: "}),
)
NUMBERS: Final = (
    -1,
    0,
    1,
    2,
    3,
    5,
    8,
    15,
    16,
    17,
    32,
    48,
    64,
    80,
    96,
    112,
    144,
    1024,
    1025,
    4096,
    16384,
    66320,
    1 << 24,
)
HUGE: Final = ((1 << 24) + 1, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 62, 10**9, 10**30, 10**400, -(1 << 63))
OTHERS: Final[tuple[Any, ...]] = (
    0.0,
    1.0,
    16.0,
    1e300,
    -1e-9,
    "16",
    "",
    "gelu",
    None,
    True,
    False,
    [],
    [16],
    {},
    {"a": 1},
    "\0",
    "é" * 999,
)
EXTREMES: Final = (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e30, 1e-38, 1e-45, 0.0, -0.0, 1e6)

WIDTHS: Final = ("_size", "_heads", "n_head", "n_embd", "n_inner", "dim")  # the ends of settings that are widths
OUT: Final = (".leave.weight", ".ffn_out.weight", ".dense_out.weight")  # of the products that end a layer

Arrays = dict[str, np.ndarray]


@dataclass
class Hostile:
    """An artifact before it is written."""

    manifest: dict[str, Any]
    weights: Arrays
    golden: Arrays

    @property
    def bytes(self) -> int:
        """The size of its arrays."""
        return sum(array.nbytes for array in (*self.weights.values(), *self.golden.values()))


def hostile(seed: int) -> Hostile:
    """Returns the artifact of a seed. One of eight has no fault."""
    draw = random.Random(seed)
    artifact = _valid(draw)
    for _ in range(draw.choice((0, 1, 1, 1, 1, 2, 2, 4))):
        draw.choice(FAULTS)(artifact, draw)
        if not isinstance(artifact.manifest.get("config"), dict):  # other faults change it
            break
    return artifact


def write(artifact: Hostile, directory: Path, seed: int) -> None:
    """Writes the files of an artifact. Half of its seeds also damage the content of files."""
    draw = random.Random(~seed)
    _save(artifact.weights, directory / WEIGHTS)
    golden = io.BytesIO()
    np.savez_compressed(golden, allow_pickle=True, **artifact.golden)  # the writer would refuse objects
    contents = {
        WEIGHTS: (directory / WEIGHTS).read_bytes(),
        GOLDEN: golden.getvalue(),
        TOKENIZER: _tokenizer(),
        CARD: b'{"summary": "Hostile."}',
    }
    if draw.random() < 0.5:
        name = draw.choice((WEIGHTS, GOLDEN, CARD))
        contents[name] = _damaged(contents[name], draw)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    files = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in contents.items()
    }
    (directory / MANIFEST).write_text(json.dumps(artifact.manifest | {"files": files}), "utf-8")


def _save(weights: Arrays, file: Path) -> None:
    """Writes int8 weights, also with numbers that the product refuses to write."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        if array.ndim == 2 and len(array) >= MIN_ROWS and array.size and (block := block_of(array.shape[1])):
            with np.errstate(all="ignore"):
                tensors[name + INT8], tensors[name + SCALE] = pack(array, block)
        else:
            tensors[name] = array
    save_file(tensors, file)


def _damaged(content: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 64))):
        at = draw.randrange(min(len(damaged), draw.choice((64, 4096, len(damaged)))))  # headers come first
        match draw.randrange(4):
            case 0:
                damaged[at] = draw.randrange(256)
            case 1:
                damaged[at:at] = draw.randbytes(draw.choice((1, 9)))
            case 2:
                del damaged[at : at + draw.choice((1, 8, 100))]
            case 3:
                damaged[at] ^= 1 << draw.randrange(8)
        damaged = damaged or bytearray(b"\0")
    return bytes(damaged)


@cache
def _tokenizer() -> bytes:
    return json.dumps(make_tokenizer()._document).encode()


# Valid artifacts


def _valid(draw: random.Random) -> Hostile:
    """Returns a valid artifact. One of four has drawn sizes."""
    architecture = draw.choice(sorted(CONFIGS))
    config = CONFIGS[architecture] | draw.choice([{}, {}, *VARIANTS.get(architecture, [])]) | {"vocab_size": WORDS}
    if draw.random() < 0.25:
        config |= _sizes(architecture, config, draw)
    task = "score" if architecture == "gpt2" and draw.random() < 0.5 else draw.choice(TASKS)
    embedding = draw.choice(EMBEDDINGS) if task == "embed" else None
    width = {"classify": 3, "qa": 2, "embed": 48}.get(task, WORDS)
    try:
        shapes = _shapes(architecture, json.dumps(config), task, width, embedding and EMBEDDINGS.index(embedding))
    except ValueError:  # of drawn sizes
        return _valid(draw)
    if embedding and not embedding.dense:
        width = next(shape[0] for name, shape in shapes.items() if name.endswith(OUT))
    rng = np.random.default_rng(draw.randrange(1 << 30))
    weights = {name: (rng.standard_normal(shape, np.float32) * np.float32(0.3)) for name, shape in shapes.items()}
    labels = LABELS[task] if len(LABELS[task]) == width else ()
    manifest = Manifest(
        name="hostile",
        version="1",
        architecture=architecture,
        task=task,
        head=HEADS[task],
        precision=draw.choice(("int8", "int8", "bf16")),
        max_tokens=POSITIONS,
        vocab_size=WORDS,
        width=width,
        labels=labels,
        problem="single_label" if labels else None,
        embedding=embedding,
        tolerance=1e30,
        config=config,
        source={},
    )
    return Hostile(json.loads(json.dumps(asdict(manifest))), weights, _golden(width, rng))


@cache
def _shapes(architecture: str, config: str, task: str, width: int, embedding: int | None) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a network's parameters, as `heads.build` makes them, without torch, which takes longer."""
    own: Any = describe(architecture).Config(**json.loads(config))
    traits, e, h, i, words = own.traits(), own.embedding_size, own.hidden_size, own.intermediate_size, own.vocab_size
    c, summed = getattr(own, "inner_size", h), h if traits.embedding.projection == "words" else e
    bottleneck = traits.bottleneck
    linear = (
        {"embeddings.projection": (h, traits.embedding.window * e)} if traits.embedding.projection != "none" else {}
    )
    norms = {"embeddings.norm": summed} if traits.embedding.norm != "none" else {}
    norms |= {"norm": h} if traits.norm_position == "before" else {}
    for layer in traits.attention_of or traits.layers:
        reads = {"query": bottleneck and bottleneck.query_key, "value": bottleneck and bottleneck.value}
        reads["key"] = reads["query"]
        linear |= {f"{layer}.{part}": (c, c if read else h) for part, read in reads.items()}
        linear[f"{layer}.output"], norms[f"{layer}.attention_norm"] = (c, c), c
        if bottleneck:
            for entry in {bottleneck.residual, *filter(None, reads.values())}:
                linear[f"{layer}.{entry}.dense"], norms[f"{layer}.{entry}.norm"] = (c, h), c
            linear[f"{layer}.leave"], norms[f"{layer}.leave_norm"] = (h, c), h
    for layer in traits.feed_forward_of or traits.layers:
        for network in traits.feed_forward:
            linear |= {f"{layer}.{network.inner}": (i, c), f"{layer}.{network.outer}": (c, i)}
            norms[f"{layer}.{network.norm}"] = c
    shapes: dict[str, tuple[int, ...]] = {"word": (words, e), "position": (own.max_position_embeddings, summed)}
    if hasattr(own, "type_vocab_size"):
        shapes["token_type"] = own.type_vocab_size, summed
    shapes = {f"encoder.embeddings.{name}.weight": shape for name, shape in shapes.items()}
    if traits.position_bias:
        shapes["encoder.position_bias.weight"] = traits.position_bias.buckets, traits.heads
    linear, norms = ({f"encoder.{name}": one for name, one in part.items()} for part in (linear, norms))
    match HEADS[task]:
        case "masked_lm":
            p = own.prediction_size
            linear["head.transform"], norms["head.norm"], shapes["head.bias"] = (p, h), p, (words,)
            shapes |= {"head.extra": (words, p - e)} if p > e else {}
        case "causal_lm":
            shapes["head.bias"] = (words,)
        case head:
            linear |= {"head.pooler": (h, h)} if head == "classification" and traits.pooler else {}
            linear |= {"head.output": (width, h)} if embedding is None or EMBEDDINGS[embedding].dense else {}
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, size in norms.items():
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    return shapes


def _sizes(architecture: str, config: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """Returns other sizes of a network, which need not be multiples of anything."""
    names = [name for name, value in config.items() if type(value) is int and not name.endswith(("positions", "_size"))]
    names += [name for name in config if name.endswith("_size") and name not in ("vocab_size", "type_vocab_size")]
    sizes, counts = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 128), (1, 2, 3, 4)  # many layers take long under sanitizers
    return {name: draw.choice(sizes if name.endswith(WIDTHS) else counts) for name in draw.sample(names, 2)}


def _golden(width: int, rng: np.random.Generator) -> Arrays:
    ids = rng.integers(0, len(VOCABULARY), 6)
    columns = np.arange(min(2, width))
    return {
        "input_ids": ids,
        "token_type_ids": np.zeros_like(ids),
        "offsets": np.array([0, 4, 6]),
        "focus": np.array([0, 3, 1]),
        "focus_offsets": np.array([0, 2, 3]),
        "rows": np.zeros((3, len(columns)), np.float32),
        "columns": columns,
    }


# Faults

Fault = Callable[[Hostile, random.Random], None]


def _value(draw: random.Random) -> Any:
    return draw.choice(draw.choice((NUMBERS, NUMBERS, HUGE, OTHERS)))


def _change_config(artifact: Hostile, draw: random.Random) -> None:
    config = artifact.manifest["config"]
    names = [*config, "num_hidden_groups", "pad_token_id", "type_vocab_size", "layer_norm_eps", "hidden_act", "x"]
    config[draw.choice(names)] = _value(draw)


def _forget_setting(artifact: Hostile, draw: random.Random) -> None:
    config = artifact.manifest["config"]
    if config:
        del config[draw.choice(sorted(config))]


def _scale_settings(artifact: Hostile, draw: random.Random) -> None:
    """Changes several settings in the same way, as heads with the width that they must divide."""
    config, value = artifact.manifest["config"], _value(draw)
    wholes = sorted(name for name, one in config.items() if type(one) is int)
    for name in draw.sample(wholes, min(len(wholes), draw.choice((2, 3)))):
        config[name] = value


def _change_manifest(artifact: Hostile, draw: random.Random) -> None:
    manifest = artifact.manifest
    match draw.randrange(5):
        case 0:
            manifest[draw.choice(("width", "vocab_size", "max_tokens", "labels", "tolerance", "problem"))] = _value(
                draw
            )
        case 1:
            manifest["architecture"] = draw.choice(sorted(CONFIGS))
        case 2:
            manifest["head"] = draw.choice(sorted(HEADS.values()))
        case 3:
            embedding = asdict(draw.choice(EMBEDDINGS))
            embedding[draw.choice(sorted(embedding))] = draw.choice(("mean", "max", "cls", None, _value(draw)))
            manifest["embedding"] = json.loads(json.dumps(embedding))
            manifest["head"] = draw.choice((manifest["head"], "embedding"))
        case 4:
            manifest[draw.choice(sorted(manifest))] = _value(draw)


def _resize(artifact: Hostile, draw: random.Random) -> None:
    """Gives all, or some, dimensions of one size another size."""
    weights = artifact.weights
    sizes = sorted({size for array in weights.values() for size in array.shape})
    old, new = draw.choice(sizes or [1]), draw.choice((0, 1, 2, 3, 8, 15, 16, 17, 32, 48, 64, 80, 96, 112, 128, 160))
    part = draw.choice(
        ("", "encoder.", "head.", ".0.", ".1.", ".weight", ".bias", "query", "key", "value", "output", "norm")
    )
    share = draw.choice((1.0, 1.0, 0.5))
    axes = draw.choice(((0,), (1,), (0, 1)))
    for name, array in weights.items():
        if part in name and draw.random() < share:
            shape = tuple(new if size == old and axis in axes else size for axis, size in enumerate(array.shape))
            weights[name] = np.resize(array, shape).astype(np.float32)


def _reshape_one(artifact: Hostile, draw: random.Random) -> None:
    name = draw.choice(sorted(artifact.weights))
    array = artifact.weights[name]
    match draw.randrange(6):
        case 0:
            array = array.T
        case 1:
            array = array.reshape(-1)
        case 2:
            array = array[None]
        case 3:
            array = array[..., None]
        case 4:
            array = array[:-1]
        case 5:
            array = np.zeros(draw.choice(((), (0,), (0, 16), (16, 0), (1, 1), (1, 4096), (4096, 1))), np.float32)
    artifact.weights[name] = np.ascontiguousarray(array)


def _rename(artifact: Hostile, draw: random.Random) -> None:
    weights = artifact.weights
    one, other = draw.choice(sorted(weights)), draw.choice(sorted(weights))
    match draw.randrange(4):
        case 0:
            del weights[one]
        case 1:
            weights[one], weights[other] = weights[other], weights[one]
        case 2:
            weights[
                draw.choice((one + "x", one.replace("0", "7"), "head.bias", "head.pooler.weight", "head.extra", ""))
            ] = weights[other]
        case 3:
            for name in [name for name in weights if name.startswith(one.rpartition(".")[0])]:
                del weights[name]
            weights.setdefault("head.output.bias", np.zeros(3, np.float32))


def _change_values(artifact: Hostile, draw: random.Random) -> None:
    name, extreme = draw.choice(sorted(artifact.weights)), draw.choice(EXTREMES)
    array = artifact.weights[name]
    if draw.random() < 0.5 and array.size:
        array.flat[draw.randrange(array.size)] = extreme
    else:
        array[...] = extreme


def _scale_all(artifact: Hostile, draw: random.Random) -> None:
    factor = np.float32(draw.choice((1e30, 1e38, 1e-30, 0.0, -1.0)))
    with np.errstate(all="ignore"):
        for name, array in artifact.weights.items():
            artifact.weights[name] = array * factor


def _change_golden(artifact: Hostile, draw: random.Random) -> None:
    golden = artifact.golden
    name = draw.choice(sorted(golden))
    array = golden[name]
    match draw.randrange(7):
        case 0:
            if array.size and array.dtype != object:
                array.flat[draw.randrange(array.size)] = draw.choice((-1, 0, 1, 5, 40, 41, 144, 1 << 20, 1 << 24))
        case 1:
            golden[name] = array.astype(draw.choice((np.int8, np.int32, np.float64, np.bool_, object, "S3")))
        case 2:
            golden[name] = array[:-1] if array.ndim else array
        case 3:
            golden[name] = np.zeros(draw.choice(((), (0,), (2, 2), (1, 1, 1), (1 << 20,), (5000,))), array.dtype)
        case 4:
            del golden[name]
        case 5:
            golden[name + "x"] = array
        case 6:
            if array.dtype.kind == "f":
                array[...] = draw.choice(EXTREMES)
            else:
                golden[name] = np.repeat(array, draw.choice((2, 100)))


FAULTS: Final[tuple[Fault, ...]] = (
    _change_config,
    _change_config,
    _forget_setting,
    _scale_settings,
    _change_manifest,
    _resize,
    _resize,
    _resize,
    _reshape_one,
    _rename,
    _change_values,
    _scale_all,
    _change_golden,
)
