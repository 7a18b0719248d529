"""Fill-mask: valid and invalid requests, and their answers. `test_pipeline_parity.py` compares the scores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.tasks import fill_mask
from swiftlet_serve.types import Batch
from tests.goldens import cases, families
from tests.support.task_requests import MAX_TOKENS, encode, manifest, rejection


def fill(filler: fill_mask.FillMask, inputs: object, wanted: str, **parameters: object) -> Any:
    """Returns the answer of a network that is certain of one token."""
    request = filler.Request.model_validate({"inputs": inputs, "parameters": parameters})
    encodings = filler.encode(request)
    tokenizer = filler.tokenizer
    rows = [np.zeros((len(encoding.focus), tokenizer.vocab_size), np.float32) for encoding in encodings]
    for row in rows:
        row[:, tokenizer.tokenize([wanted])[0].ids[-1]] = 20
    return filler.decode(request, encodings, Batch.of(encodings).split_rows(np.concatenate(rows)))


def test_example_of_a_model_has_its_mask(tmp_path: Path) -> None:
    for file in families.FILES["bpe"]:
        shutil.copy(cases.HERE / file, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}", "utf-8")
    tokenizer = Tokenizer.from_directory(tmp_path)
    task = fill_mask.create(tokenizer, manifest("fill-mask", tokenizer.vocab_size))
    (encoding,) = task.encode(task.Request(**task.example))

    assert task.example["inputs"] == "Paris is the <mask> of France."
    assert encoding.input_ids[encoding.focus].tolist() == [tokenizer.mask_id]


def test_fill_mask_returns_flat_list_for_one_mask(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "and [MASK] river", "the", top_k=2)
    assert len(found) == 2
    assert found[0]["token_str"] == "the"
    assert found[0]["sequence"] == "and the river"
    assert found[0]["score"] > 0.99
    assert fill(filler, ["and [MASK] river"], "the", top_k=2) == found


def test_fill_mask_returns_one_list_for_each_mask(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "the [MASK] and [MASK].", "river", top_k=3)
    assert [len(each) for each in found] == [3, 3]
    assert "[MASK]" in found[0][0]["sequence"]
    several = fill(filler, ["the [MASK] and [MASK].", "a [MASK]"], "river", top_k=3)
    assert several[0] == found
    assert isinstance(several[1][0], dict)


def test_answer_names_the_targets_that_each_token_stands_for(filler: fill_mask.FillMask) -> None:
    """A target that is no token of the model is scored by its first token."""
    first = filler.tokenizer.token(int(filler.tokenizer.tokenize(["zzqxv"])[0].ids[0]))
    found = fill(filler, "a [MASK]", "river", targets=["river", "zzqxv", first, "river"], top_k=50)

    asked = {one["token"]: one["targets"] for one in found}
    assert sorted(asked.values()) == sorted([["river", "river"], ["zzqxv", first]])
    assert asked[filler.tokenizer.token_to_id(first)] == ["zzqxv", first]
    assert "targets" not in fill(filler, "a [MASK]", "river")[0]


@pytest.mark.parametrize("blank", ["", " ", "\u200b", "\x00", "\u2060\ufeff"])
def test_blank_target_is_refused(filler: fill_mask.FillMask, blank: str) -> None:
    place = "/parameters/targets"
    assert rejection(filler, filler.mask, targets=["a", blank]) == ("validation_failed", f"{place}/1", None)
    assert rejection(filler, filler.mask, targets=blank) == ("validation_failed", place, None)


def test_fill_mask_scores_targets_over_whole_vocabulary(filler: fill_mask.FillMask) -> None:
    found = fill(filler, "a [MASK]", "river", targets=["the", "bread", "the"], top_k=50)
    assert 1 <= len(found) <= 2
    assert sum(each["score"] for each in found) < 1e-5
    (single,) = fill(filler, "a [MASK]", "river", targets="river")
    assert single["score"] > 0.99


def test_fill_mask_rejects_invalid_requests(filler: fill_mask.FillMask) -> None:
    far = "a " * MAX_TOKENS + "[MASK]"
    assert rejection(filler, "no mask") == ("no_mask", "/inputs", None)
    assert rejection(filler, ["a [MASK]", "[mask] <mask>"]) == ("no_mask", "/inputs/1", None)
    assert rejection(filler, "[MASK] " * 65) == ("too_many_masks", "/inputs", fill_mask.MAX_MASKS)
    assert rejection(filler, far) == ("input_too_long", "/inputs", MAX_TOKENS)
    assert rejection(filler, ["[MASK]", f"[MASK] {far}"]) == ("input_too_long", "/inputs/1", MAX_TOKENS)
    assert rejection(filler, "a " * 100_000 + "[MASK]") == ("input_too_long", "/inputs", MAX_TOKENS)
    assert rejection(filler, "[MASK] " + "a " * 99, truncation=False) == ("input_too_long", "/inputs", MAX_TOKENS)
    assert rejection(filler, "[MASK]", targets=["a", ""]) == ("validation_failed", "/parameters/targets/1", None)
    assert len(encode(filler, "[MASK] " + "a " * 99)[0].input_ids) == MAX_TOKENS


def test_blanks_do_not_count_as_text_of_the_response(filler: fill_mask.FillMask) -> None:
    text = " " * 18_000 + "a [MASK]"
    assert len(encode(filler, text, top_k=100)[0].input_ids) == 4
    request = fill_mask.FillMaskRequest(inputs=[text, text], parameters=fill_mask.FillMaskParameters(top_k=100))
    assert len(filler.split(request)) == 2
    prose = "[MASK] " * 10 + "bread " * 48
    limit = ("answer_too_large", "/parameters/top_k", fill_mask.MAX_WRITTEN // (10 * len(prose)))
    assert rejection(filler, prose, top_k=100) == limit


def test_fill_mask_rejects_tokenizer_without_mask(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    with pytest.raises(ValueError, match="mask"):
        fill_mask.create(Tokenizer.from_directory(tmp_path), manifest("fill-mask", 5))
