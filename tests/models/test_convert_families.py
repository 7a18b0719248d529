"""Conversion of RoBERTa, XLM-RoBERTa, ELECTRA and DistilBERT: heads, ignored tensors, and rejected checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.task_inference import infer_task
from tests.models.test_convert import edit_config, edit_tensors, error_message, save
from tests.support.checkpoints import HEADS, SMALL, TASKS, Task, convert, our_rows, reference_rows, relative_error, rows

FAMILIES = ("roberta", "xlm-roberta", "camembert", "electra", "distilbert")
WORDS = {
    "roberta": "roberta.embeddings.word_embeddings.weight",
    "electra": "electra.embeddings.word_embeddings.weight",
    "distilbert": "distilbert.embeddings.word_embeddings.weight",
}
DECODERS = {
    "roberta": "lm_head.decoder.weight",
    "electra": "generator_lm_head.weight",
    "distilbert": "vocab_projector.weight",
}


@pytest.mark.parametrize("name", DECODERS)
def test_convert_accepts_decoder_only_if_tied(tmp_path: Path, name: str) -> None:
    save(tmp_path, name, "fill-mask")
    decoder, words = DECODERS[name], WORDS[name]
    edit_tensors(tmp_path, lambda tensors: tensors.update({decoder: tensors[words].clone()}))
    assert convert(tmp_path, *HEADS["fill-mask"]).ignored == (decoder,)
    edit_tensors(tmp_path, lambda tensors: tensors[decoder][5, 5].add_(1))
    assert error_message(tmp_path, "fill-mask") == f"the tensor {decoder} is not tied to {words}."


def test_convert_reads_both_biases_of_roberta(tmp_path: Path) -> None:
    """Older versions of transformers saved the bias of the vocabulary under two names."""
    model = save(tmp_path, "roberta", "fill-mask")
    edit_tensors(tmp_path, lambda tensors: tensors.update({"lm_head.decoder.bias": tensors["lm_head.bias"].clone()}))
    converted = convert(tmp_path, *HEADS["fill-mask"])
    batch = rows("fill-mask", [9, 3], 211)

    assert converted.ignored == ("lm_head.decoder.bias",)
    assert relative_error(our_rows(converted.model, batch), reference_rows(model, "fill-mask", batch)) <= 1e-5


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("other", TASKS)
def test_convert_rejects_checkpoint_of_another_task(tmp_path: Path, name: str, task: Task, other: Task) -> None:
    save(tmp_path, name, task)
    if task == other:
        assert convert(tmp_path, *HEADS[task]).architecture == name.replace("-", "_")
        return
    edit_config(tmp_path, id2label={"0": "a", "1": "b"})
    assert error_message(tmp_path, other).startswith("the checkpoint has no ")


def test_electra_discriminator_is_an_encoder_and_fills_no_mask(tmp_path: Path) -> None:
    transformers.ElectraForPreTraining(SMALL["electra"].config()).save_pretrained(tmp_path)
    converted = convert(tmp_path, *HEADS["qa"], encoder_only=True)

    assert {name.split(".")[0] for name in converted.ignored} == {"discriminator_predictions"}
    assert error_message(tmp_path, "fill-mask").startswith("the checkpoint has no trained head for this task.")
    with pytest.raises(ConversionError, match=r"names ElectraForPreTraining, .* swiftlet serve it:task=embed,pooling="):
        infer_task(tmp_path, "it")


@pytest.mark.parametrize("name", FAMILIES)
def test_convert_reads_encoder_without_prefix(tmp_path: Path, name: str) -> None:
    """RoBERTa's own pooler belongs to no head."""
    transformers.AutoModel.from_config(SMALL[name].config()).save_pretrained(tmp_path)
    ignored = convert(tmp_path, *HEADS["qa"], encoder_only=True).ignored

    assert all(tensor.startswith("pooler.") for tensor in ignored)
    assert error_message(tmp_path, "classify").startswith("the checkpoint has no ")


def test_longest_sequence_is_that_of_transformers(tmp_path: Path) -> None:
    """The first two rows of the position table belong to no token."""
    model = save(tmp_path, "roberta")
    longest = convert(tmp_path, *HEADS["classify"]).model.encoder.max_tokens

    assert longest == SMALL["roberta"].settings["max_position_embeddings"] - 2
    model(torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError), match="out of"):
        model(torch.full((1, longest + 1), 5))
