"""Tests of DeBERTa v2 and v3: its network computes the rows of transformers, and distances have its rows.

The reference computes each sequence alone, as the engines do.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceTrainer

from swiftlet_models.architectures.traits import RelativeTraits
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.tokenizer_check import difference
from swiftlet_models.transformers_tokens import TEXTS
from tests.goldens import cases
from tests.support.checkpoints import (
    AUTO,
    HEADS,
    Shape,
    Task,
    conversion,
    convert,
    our_rows,
    randomise,
    reference,
    relative_error,
    rows,
    rows_alone,
)
from tests.support.sentence_checkpoints import edit
from tests.support.tiers import first

TOLERANCE: Final = {torch.float32: 1e-5, torch.float64: 1e-8}  # relative; the scale of transformers is in fp32
# The epsilon is so large that a wrong one changes the outputs visibly.
_SMALL: Final = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "layer_norm_eps": 0.05,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": "p2c|c2p",
}
_V3: Final = {"position_buckets": 16, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
SHAPES: Final = {
    "v3": Shape("deberta_v2", _SMALL | _V3),
    "v2": Shape("deberta_v2", _SMALL | {"type_vocab_size": 2, "position_biased_input": True}),
    "c2p": Shape("deberta_v2", _SMALL | {"pos_att_type": ["c2p"], "position_buckets": 32}),
    "p2c": Shape("deberta_v2", _SMALL | {"pos_att_type": ["p2c"], "max_relative_positions": 20}),
    "plain": Shape(
        "deberta_v2",
        _SMALL | {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
    ),
    "v3-base": Shape(
        "deberta_v2",
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 12}
        | {"relative_attention": True, "position_biased_input": False, "pos_att_type": "p2c|c2p"}
        | _V3
        | {"position_buckets": 256},
    ),
}
TASKS: Final[tuple[Task, ...]] = ("classify", "qa", "fill-mask", "entities")


@pytest.mark.parametrize("name", first(sorted(SHAPES.keys() - {"v3-base"}), "v2", "v3"))
def test_network_computes_the_rows_of_transformers(name: str) -> None:
    """In a padded batch as alone."""
    for task in TASKS if name == "v3" else TASKS[:2]:
        model = reference(SHAPES[name], task)
        ours = conversion(model, task).model
        batch = rows(task, [64, 1, 2, 17, 63], 211)
        for dtype, tolerance in TOLERANCE.items():
            expected = rows_alone(model.to(dtype), task, batch)
            ours = ours.to(dtype)

            assert relative_error(our_rows(ours, batch), expected) <= tolerance
            alone = torch.cat([our_rows(ours, own) for own in batch.alone()])
            assert relative_error(alone, expected) <= tolerance


@pytest.mark.exhaustive
def test_released_shape_computes_the_rows_of_transformers() -> None:
    """Full widths and vocabulary, with few layers to save time. 512 tokens reach every bucket of distances."""
    model = reference(SHAPES["v3-base"], "classify")
    batch = rows("classify", [512, 60], 128000)

    ours = our_rows(conversion(model, "classify").model, batch)
    assert relative_error(ours, rows_alone(model, "classify", batch)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("buckets", "longest"), [(256, 512), (32, 128), (16, 40), (128, 2048), (24, 512)])
def test_distances_have_the_rows_of_transformers(buckets: int, longest: int) -> None:
    """For every distance, also at the boundaries between buckets, where rounding could differ."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    positions = 3 * longest
    backwards = torch.arange(positions - 1, -positions, -1)  # from a key to its query
    expected = make_log_bucket_position(backwards, buckets, longest).long() + buckets
    relative = RelativeTraits(buckets, to_positions=True, from_positions=True, longest=longest)

    np.testing.assert_array_equal(relative.rows(positions), expected.clamp(0, 2 * buckets - 1).numpy())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pos_att_type": "p2p"}, "pos_att_type has a part that is not supported"),
        ({"pos_att_type": 3}, "pos_att_type has an invalid value"),
        ({"norm_rel_ebd": "batch_norm"}, "norm_rel_ebd has a part"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is not supported"),
        ({"embedding_size": 24}, "embedding_size is not supported"),
        ({"pooler_hidden_size": 24}, "pooler_hidden_size is not supported"),
        ({"relative_attention": False}, "relative_attention false"),
        ({"position_buckets": 1}, "position_buckets 1 are too many or too few"),
        ({"position_buckets": 200}, "position_buckets 200 are too many or too few"),
        ({"position_buckets": 32}, "rel_embeddings.weight has shape"),
        ({"share_att_key": False}, "is not in the checkpoint"),
        ({"max_position_embeddings": 1 << 17}, "max_position_embeddings has an invalid value"),
    ],
)
def test_other_forms_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = AUTO["classify"].from_config(SHAPES["v3"].config())
    randomise(model)
    model.save_pretrained(tmp_path)
    edit(tmp_path / "config.json", **changes)
    with pytest.raises(ConversionError, match=reason):
        convert(tmp_path, *HEADS["classify"])


def test_stored_positions_are_not_read_where_the_network_has_none(tmp_path: Path) -> None:
    model = AUTO["classify"].from_config(SHAPES["v3"].config())
    randomise(model)
    model.save_pretrained(tmp_path)
    expected = convert(tmp_path, *HEADS["classify"])
    tensors = load_file(tmp_path / "model.safetensors")
    positions = {"deberta.embeddings.position_embeddings.weight": torch.randn(64, 48)}
    save_file(tensors | positions, tmp_path / "model.safetensors")

    found = convert(tmp_path, *HEADS["classify"])
    assert set(found.ignored) - set(expected.ignored) == positions.keys()


# The ids of transformers 4.57.1 for texts: with a ligature, in capitals, with punctuation, with blanks, in Korean.
READ: Final = ("ﬁne ①②", "HELLO World!!", "A.B,C;D", "  two  spaces ", "언제 시장에 갔어? 👍🏽")
IDS: Final[dict[str, list[list[int]]]] = {
    "": [
        [2, 274, 18, 13, 1, 3],
        [2, 291, 1, 408, 408, 411, 86, 107, 113, 312, 312, 3],
        [2, 78, 9, 13, 1, 16, 409, 124, 1, 3],
        [2, 141, 28, 13, 14, 285, 164, 36, 3],
        [2, 13, 1, 385, 195, 13, 365, 378, 1, 13, 392, 1, 3],
    ],
    "do_lower_case": [
        [2, 274, 18, 13, 1, 3],
        [2, 13, 104, 165, 28, 177, 27, 113, 312, 312, 3],
        [2, 22, 9, 30, 16, 164, 124, 23, 3],
        [2, 141, 28, 13, 14, 285, 164, 36, 3],
        [2, 13, 1, 385, 195, 13, 365, 378, 1, 13, 392, 1, 3],
    ],
    "split_by_punct": [
        [2, 274, 18, 13, 1, 3],
        [2, 291, 1, 408, 408, 411, 86, 107, 113, 13, 312, 13, 312, 3],
        [2, 78, 9, 13, 1, 13, 16, 178, 13, 124, 13, 1, 3],
        [2, 141, 28, 13, 14, 285, 164, 36, 3],
        [2, 13, 1, 385, 195, 13, 365, 378, 13, 1, 13, 392, 1, 3],
    ],
}


@pytest.mark.parametrize("option", IDS)
def test_vocabulary_without_tokenizer_json_is_read_as_by_transformers(tmp_path: Path, option: str) -> None:
    """Version 5 normalises otherwise, so that its ids are compared for other texts."""
    shutil.copy(cases.HERE / "spiece.model", tmp_path / "spm.model")
    config = {"tokenizer_class": "DebertaV2Tokenizer"} | ({option: True} if option else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    (pair,) = tokenizer.encode([("a b", "c")], 100)

    assert [encoding.input_ids.tolist() for encoding in tokenizer.encode(READ, 100)] == IDS[option]
    assert pair.token_type_ids.tolist() == [0] * (len(pair.input_ids) - 2) + [1] * 2
    assert difference(tokenizer, tmp_path) is None


PIECES: Final = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")


def test_a_vocabulary_with_persian_letters_is_compared(tmp_path: Path) -> None:
    """SentencePiece makes a blank of the joiner in Persian words, and version 5 of transformers does not."""
    SentencePieceTrainer.train(
        sentence_iterator=iter([TEXTS["fa"]]),
        model_prefix=str(tmp_path / "spm"),
        vocab_size=32,
        hard_vocab_limit=False,
        minloglevel=2,
        **{f"{name}_id": number for number, name in enumerate(("pad", "bos", "eos", "unk"))},
        **{f"{name}_piece": piece for name, piece in zip(("pad", "bos", "eos", "unk"), PIECES, strict=True)},
    )
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}', "utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    joined, parted = tokenizer.encode(["می\u200cآیند", "می آیند"], 100)

    assert tokenizer.unknown_id not in joined.input_ids
    assert joined.input_ids.tolist() == parted.input_ids.tolist()
    assert difference(tokenizer, tmp_path) is None
