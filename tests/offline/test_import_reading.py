"""Import takes limits, sides and special tokens into the manifest, and refuses what would change positions or order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from swiftlet_models.artifact import Reading
from swiftlet_models.encodings import Encoding
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.tasks.qa import QaRequest
from tests.goldens import cases
from tests.models.test_tokenizer_classes import entry, write
from tests.support.checkpoints import AUTO, randomise
from tests.support.drafts import answers, catch_drafts
from tests.support.sentence_checkpoints import edit
from tests.support.tiers import first

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
TEXT = " ".join(cases.SENTENCES)


def save(path: Path, model_type: str, task: str, vocabulary: str, *, config: Any = None, **tokenizer: Any) -> Path:
    """Writes a checkpoint of one layer with random weights."""
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 1} if model_type == "gpt2" else SIZES
    settings = sizes | {"vocab_size": 1200, "num_labels": 3 if task == "classify" else 2} | (config or {})
    model = AUTO[task].from_config(transformers.AutoConfig.for_model(model_type, **settings)).eval()  # type: ignore[index]
    randomise(model)
    model.save_pretrained(path)
    names = {"xlm-roberta": "XLMRoberta", "bert": "Bert", "roberta": "Roberta", "gpt2": "GPT2", "qwen2": "GPT2"}
    return write(path, vocabulary, tokenizer_config={"tokenizer_class": f"{names[model_type]}Tokenizer", **tokenizer})


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> list[Draft]:
    """The drafts of imports, of which no artifact is made."""
    return catch_drafts(monkeypatch)


def draft(drafts: list[Draft], source: Path, task: str, **options: Any) -> tuple[Draft, list[str]]:
    notes: list[str] = []
    import_checkpoint(str(source), task, source / "out", max_loss=0.5, report=notes.append, **options)
    return drafts[-1], notes


def encode(one: Draft, inputs: Any, **parameters: Any) -> list[list[int]]:
    task = tasks.load(one.manifest.task).create(one.tokenizer, one.manifest)
    request = task.Request.model_validate({"inputs": inputs, "parameters": parameters})
    return [encoding.input_ids.tolist() for encoding in task.encode(request)]


@pytest.mark.parametrize(
    ("limit", "expected"), [(96, 96), (512.0, 512), (1e30, 512), (10**30, 512), (700, 512), (None, 512)]
)
def test_the_limit_of_the_tokenizer_counts(drafts: list[Draft], tmp_path: Path, limit: Any, expected: int) -> None:
    source = save(tmp_path, "bert", "classify", "vocab", model_max_length=limit)
    assert draft(drafts, source, "classify")[0].manifest.max_tokens == expected


@pytest.mark.parametrize("side", first(["left", "right"], "left"))
def test_classifiers_read_what_the_pipeline_reads(drafts: list[Draft], tmp_path: Path, side: str) -> None:
    source = save(tmp_path, "bert", "classify", "vocab", model_max_length=40, truncation_side=side)
    one, _ = draft(drafts, source, "classify")
    reference = transformers.AutoTokenizer.from_pretrained(source)

    assert one.manifest.reading == Reading(side)  # type: ignore[arg-type]
    assert encode(one, TEXT) == [reference(TEXT, truncation=True)["input_ids"]]
    pair = {"text": TEXT, "text_pair": cases.SENTENCES[3]}
    assert encode(one, pair) == [reference(pair["text"], pair["text_pair"], truncation=True)["input_ids"]]


@pytest.mark.parametrize("side", first(["left", "right"], "left"))
def test_vectors_are_of_what_sentence_transformers_reads(drafts: list[Draft], tmp_path: Path, side: str) -> None:
    source = save(tmp_path, "bert", "fill-mask", "vocab", model_max_length=40, truncation_side=side)
    one, _ = draft(drafts, source, "embed", pooling="mean")
    reference = transformers.AutoTokenizer.from_pretrained(source)

    assert encode(one, TEXT) == [reference(TEXT, truncation=True)["input_ids"]]


@pytest.mark.parametrize("side", first(["left", "right"], "left"))
def test_windows_of_questions_and_entities_are_those_of_the_pipelines(
    drafts: list[Draft], tmp_path: Path, side: str
) -> None:
    limits = {"model_max_length": 60, "truncation_side": side}
    reference = transformers.AutoTokenizer.from_pretrained(save(tmp_path / "qa", "bert", "qa", "vocab", **limits))
    overlap = {"return_overflowing_tokens": True}

    one, _ = draft(drafts, tmp_path / "qa", "qa")
    found = encode(one, {"question": "Who?", "context": TEXT})
    expected = reference("Who?", TEXT, truncation="only_second", max_length=60, stride=30, **overlap)["input_ids"]
    assert found == expected
    assert len(found) > 2

    one, _ = draft(drafts, save(tmp_path / "entities", "bert", "entities", "vocab", **limits), "entities")
    assert encode(one, TEXT) == [reference(TEXT, truncation=True)["input_ids"]]
    found = encode(one, TEXT, stride=5, aggregation_strategy="simple")
    assert found == reference(TEXT, truncation=True, stride=5, **overlap)["input_ids"]


def test_questions_after_contexts_are_refused(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "bert", "qa", "vocab", padding_side="left")
    with pytest.raises(SetupError, match="padding_side 'left' makes pipelines put the context before the question"):
        draft(drafts, source, "qa")


def test_a_limit_without_room_is_refused(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "bert", "classify", "vocab", model_max_length=3)
    with pytest.raises(SetupError, match="The limit of 3 tokens"):
        draft(drafts, source, "classify")


@torch.no_grad()
def test_one_token_type_suits_a_tokenizer_that_tells_none(drafts: list[Draft], tmp_path: Path) -> None:
    """The logits are those of transformers, which then reads both texts of a pair with type 0."""
    source = save(tmp_path, "bert", "qa", "vocab", config={"type_vocab_size": 1})
    with pytest.raises(SetupError, match=r'type_vocab_size 1 has no token type .* write "model_input_names"'):
        draft(drafts, source, "qa")
    edit(source / "tokenizer_config.json", model_input_names=["input_ids", "attention_mask"])
    one, _ = draft(drafts, source, "qa")
    (window,) = tasks.create("qa", one.tokenizer, one.manifest).encode(
        QaRequest(inputs={"question": "Who?", "context": cases.SENTENCES[0]})
    )
    (row,) = one.answers([window])
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(source).eval()
    found = model(torch.tensor([window.input_ids.tolist()]))
    expected = torch.stack((found.start_logits[0], found.end_logits[0]), dim=1)

    assert not window.token_type_ids.any()
    torch.testing.assert_close(torch.from_numpy(row), expected[window.focus], atol=1e-4, rtol=1e-4)


# Padding


@torch.no_grad()
@pytest.mark.parametrize("padding", [1, 1100])  # the padding token of the tokenizer, and no token
def test_other_padding_ids_give_the_logits_of_transformers(drafts: list[Draft], tmp_path: Path, padding: int) -> None:
    config = {"pad_token_id": padding, "max_position_embeddings": 1200, "type_vocab_size": 1}
    source = save(tmp_path, "roberta", "classify", "bpe", config=config)
    one, _ = draft(drafts, source, "classify")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    (ids,) = encode(one, cases.SENTENCES[0])
    (row,) = one.answers([Encoding(np.array(ids), np.zeros(len(ids), np.int64), np.array([0]))])

    torch.testing.assert_close(torch.from_numpy(row), model(torch.tensor([ids])).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("padding", [0, 2, 4, 40])  # <s>, </s>, <mask> and a common token
def test_padding_that_texts_contain_is_refused(drafts: list[Draft], tmp_path: Path, padding: int) -> None:
    source = save(tmp_path, "roberta", "classify", "bpe", config={"pad_token_id": padding, "type_vocab_size": 1})
    with pytest.raises(SetupError, match=rf"pad_token_id {padding} is the token .*, which texts contain"):
        draft(drafts, source, "classify")


def test_padding_does_not_concern_other_positions(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "bert", "classify", "vocab", config={"pad_token_id": 40})
    draft(drafts, source, "classify")


def test_causal_classifier_with_common_padding_is_refused(drafts: list[Draft], tmp_path: Path) -> None:
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    source = save(tmp_path / "bad", "gpt2", "classify", "bpe", config={"pad_token_id": 40}, **names)
    with pytest.raises(SetupError, match="pad_token_id 40 is the token"):
        draft(drafts, source, "classify")
    source = save(tmp_path / "good", "gpt2", "classify", "bpe", config={"pad_token_id": 1}, **names)
    draft(drafts, source, "classify")


@pytest.mark.parametrize("is_causal", [False, True])
def test_qwen_classifies_the_last_token_also_if_it_attends_both_ways(
    is_causal: bool, drafts: list[Draft], tmp_path: Path
) -> None:
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    config = {"is_causal": is_causal, "num_key_value_heads": 1, "pad_token_id": 1}
    source = save(tmp_path, "qwen2", "classify", "bpe", config=config, **names)
    reference = transformers.AutoTokenizer.from_pretrained(source)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    one, _ = draft(drafts, source, "classify")
    texts = list(cases.SENTENCES[:3])
    for text, labels in zip(texts, answers(one, texts, top_k=3), strict=True):
        expected = model(**reference(text, return_tensors="pt")).logits.softmax(-1)[0].tolist()
        found = {label["label"]: label["score"] for label in labels}
        assert [found[f"LABEL_{i}"] for i in range(3)] == pytest.approx(expected, abs=1e-5)

    with pytest.raises(ValueError, match="needs an encoder that classifies pairs"):
        tasks.create("zero-shot", one.tokenizer, replace(one.manifest, labels=("entailment", "neutral", "other")))


# Special tokens and separators


def test_special_tokens_of_texts_are_told_and_recorded(drafts: list[Draft], tmp_path: Path) -> None:
    size = len((cases.HERE / "vocab.txt").read_text("utf-8").splitlines())
    added = {str(size): entry("[E1]", special=True), str(size + 1): entry("[E2]", special=True)}
    source = save(tmp_path, "bert", "classify", "vocab", added_tokens_decoder=added)
    one, notes = draft(drafts, source, "classify")
    assert any("[E1], [E2] in a text will be read as common text." in note for note in notes)
    assert size not in encode(one, "a [E1] b")[0]

    one, notes = draft(drafts, source, "classify", special_tokens=("[E1]", "[E2]"))
    assert not any("common text" in note for note in notes)
    assert one.manifest.reading == Reading("right", ("[E1]", "[E2]"))
    assert size in encode(one, "a [E1] b")[0]
    with pytest.raises(SetupError, match=r"'\[E3\]' is not a special token"):
        draft(drafts, source, "classify", special_tokens=("[E3]",))


def test_what_is_chosen_without_asking_is_told(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "bert", "classify", "vocab")
    _, notes = draft(drafts, source, "classify")
    assert any("the labels have no names." in note for note in notes)
    assert not any("the weights are those in" in note for note in notes)

    edit(source / "config.json", id2label={"0": "a", "1": "b", "2": "c"})
    torch.save({"other": torch.ones(1)}, source / "pytorch_model.bin")
    _, notes = draft(drafts, source, "classify")
    assert not any("the labels have no names." in note for note in notes)
    assert "the weights are those in model.safetensors, and not those in pytorch_model.bin" in notes


def test_weights_are_checked_once(drafts: list[Draft], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversion checks them, by the names that they have in the checkpoint."""
    one, _ = draft(drafts, save(tmp_path, "bert", "classify", "vocab"), "classify")
    monkeypatch.setattr("swiftlet_serve.offline.draft.is_finite", lambda _: pytest.fail("They were checked twice."))
    (rows,) = one.answers([Encoding(*np.ones((2, 3), np.int64), np.zeros(1, np.int64))])
    assert rows.shape == (1, 3)


def test_pairs_without_a_separator_need_a_choice(drafts: list[Draft], tmp_path: Path) -> None:
    """As for models that rank the turns of a dialogue, whose input has the token for the end between two texts."""
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = {"num_labels": 1}
    source = save(tmp_path, "gpt2", "classify", "bpe", config=config, **names)
    with pytest.raises(SetupError, match="puts nothing between the two texts of a pair, which the task rerank reads"):
        draft(drafts, source, "rerank")
    _, notes = draft(drafts, source, "classify")
    assert any("puts nothing between the two texts of a pair. Add --pair-separator" in note for note in notes)

    reference = transformers.AutoTokenizer.from_pretrained(source)
    inputs = {"query": "Who?", "texts": ["She."]}
    one, _ = draft(drafts, source, "rerank", pair_separator="</s>")
    assert encode(one, inputs) == [reference("Who?</s>She.")["input_ids"]]
    one, _ = draft(drafts, source, "rerank", pair_separator="")
    assert encode(one, inputs) == [reference("Who?", "She.")["input_ids"]]
    several = answers(one, {"query": "Who?", "texts": ["She.", "He."]})
    assert len({text["score"] for text in several}) == 2  # the head reads the last token, which has seen both texts


def test_a_wrong_task_is_refused_before_the_export(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "bert", "classify", "vocab", config={"num_labels": 1})
    with pytest.raises(SetupError, match=r"cannot serve the task zero-shot: .* config\.json fits --task rerank\.$"):
        draft(drafts, source, "zero-shot")
    assert not drafts


def test_reading_is_part_of_the_manifest(drafts: list[Draft], tmp_path: Path) -> None:
    source = save(tmp_path, "xlm-roberta", "classify", "xlm", truncation_side="left")
    one, _ = draft(drafts, source, "classify")
    assert json.dumps(one.manifest.reading.truncation_side) == '"left"'
