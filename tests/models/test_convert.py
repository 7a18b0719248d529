"""Conversion of transformers checkpoints: parity of the result, and one expected for each rejection."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftlet_models import architectures
from swiftlet_models.architectures import standard
from swiftlet_models.checkpoint_files import locate
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.heads import weights_of
from tests.support.checkpoints import (
    AUTO,
    HEADS,
    SMALL,
    TASKS,
    Shape,
    Task,
    convert,
    our_rows,
    reference,
    reference_rows,
    relative_error,
    rows,
)
from tests.support.tiers import first_of_each

Tensors = dict[str, Tensor]
FAMILIES = ("bert", "albert", "mobilebert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert")
KNOWN = f"supported are {', '.join(name.replace('_', '-') for name in architectures.model_types())}."
WORDS = "bert.embeddings.word_embeddings.weight"


def save(directory: Path, name: str = "bert", task: Task = "classify") -> Any:
    model = reference(SMALL[name], task)
    model.save_pretrained(directory)
    return model


def edit_config(directory: Path, **changes: Any) -> None:
    """Changes settings of config.json. A value of None removes the setting."""
    file = directory / "config.json"
    settings = json.loads(file.read_text("utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}), "utf-8")


def edit_tensors(directory: Path, edit: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def error_message(directory: Path, task: Task = "classify") -> str:
    """Returns the message with which `convert` rejects a checkpoint."""
    with pytest.raises(ConversionError) as caught:
        convert(directory, *HEADS[task])
    expected = str(caught.value)
    assert expected.endswith(".")
    assert "\n" not in expected
    return expected


@pytest.mark.parametrize(("name", "task"), first_of_each(product(SMALL, TASKS), itemgetter(0)))
def test_convert_uses_or_ignores_every_tensor(tmp_path: Path, name: str, task: Task) -> None:
    save(tmp_path, name, task)
    found = set(load_file(tmp_path / "model.safetensors"))
    converted = convert(tmp_path, *HEADS[task])
    ignored = set(converted.ignored)
    assert len(converted.model.state_dict()) == len(found - ignored)
    unread = {
        "mobilebert-tiny": ".bottleneck.attention.",
        "mobilebert-no-bottleneck": ".embedding_transformation.",
    }.get(name)
    assert ignored - {"cls.predictions.dense.weight"} == {key for key in found if unread and unread in key}
    if "cls.predictions.dense.weight" in ignored:
        assert name == "mobilebert-no-bottleneck"  # there it is empty


def test_convert_returns_architecture_labels_and_origin(tmp_path: Path) -> None:
    save(tmp_path)
    edit_config(tmp_path, id2label={"0": "sad", "1": "so-so", "2": "glad"})
    converted = convert(tmp_path, *HEADS["classify"])
    assert (converted.architecture, converted.labels, converted.problem) == (
        "bert",
        ("sad", "so-so", "glad"),
        "single_label",
    )
    assert converted.config["layer_norm_eps"] == 0.05
    assert converted.source == {"directory": tmp_path.name}
    assert not converted.model.training


# Tensors


@pytest.mark.parametrize(
    "extra",
    ["bert.encoder.layer.3.output.dense.bias", "bert.encoder.adapter.weight", "lora_A.weight", "bert.pooler.act.scale"],
)
def test_convert_rejects_unknown_tensor(tmp_path: Path, extra: str) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({extra: torch.ones(48)}))
    assert error_message(tmp_path).startswith(
        f"the tensor {extra} is not part of bert as config.json describes it. Take"
    )


def test_convert_rejects_wrong_shape(tmp_path: Path) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({WORDS: torch.ones(210, 48)}))
    assert error_message(tmp_path) == (
        "the weights do not fit config.json: vocab_size is 211, but the parameters have 210. Take the config.json that "
        "was saved with these weights."
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_convert_rejects_values_outside_float32(tmp_path: Path, value: float) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({WORDS: torch.full((211, 48), value, dtype=torch.float64)}))
    assert (
        error_message(tmp_path) == f"the tensor {WORDS} holds values that are not finite. Take an earlier checkpoint."
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
def test_convert_rejects_non_float_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({WORDS: torch.ones(211, 48).to(dtype)}))
    assert (
        error_message(tmp_path)
        == f"the tensor {WORDS} holds no floating-point numbers. Save it before it is quantised."
    )


def test_convert_rejects_numbers_of_an_unknown_type(tmp_path: Path) -> None:
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({WORDS: torch.ones(211, 48).to(torch.complex64)}))
    assert error_message(tmp_path).startswith("model.safetensors cannot be read as safetensors: it holds numbers of a")


def test_convert_rejects_duplicate_parameter(tmp_path: Path) -> None:
    """A checkpoint with the old and the new name of one parameter is ambiguous."""
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"bert.embeddings.LayerNorm.gamma": torch.ones(48)}))
    assert error_message(tmp_path) == (
        "the tensors bert.embeddings.LayerNorm.gamma and bert.embeddings.LayerNorm.weight name the same parameter."
    )


@pytest.mark.parametrize("name", ["bert", "albert-groups", "mobilebert", "ib-bert"])
def test_convert_accepts_gamma_and_beta(tmp_path: Path, name: str) -> None:
    """Checkpoints from TensorFlow call the weight of a norm gamma and its bias beta."""
    model = save(tmp_path, name)

    def use_old_names(tensors: Tensors) -> None:
        for key in [key for key in tensors if "layer_norm." in key.lower() or "LayerNorm." in key]:
            tensors[key.replace(".weight", ".gamma").replace(".bias", ".beta")] = tensors.pop(key)

    edit_tensors(tmp_path, use_old_names)
    assert any(key.endswith("gamma") for key in load_file(tmp_path / "model.safetensors"))
    batch = rows("classify", [9, 3], 211)
    ours = convert(tmp_path, *HEADS["classify"]).model
    assert relative_error(our_rows(ours, batch), reference_rows(model, "classify", batch)) <= 1e-5


def test_convert_ignores_position_ids(tmp_path: Path) -> None:
    """Older versions of transformers saved this buffer."""
    save(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.update({"bert.embeddings.position_ids": torch.arange(64)[None]}))
    assert convert(tmp_path, *HEADS["classify"]).ignored == ("bert.embeddings.position_ids",)


@pytest.mark.parametrize(
    ("name", "decoder", "words"),
    [
        ("bert", "cls.predictions.decoder", "bert.embeddings.word_embeddings.weight"),
        ("albert", "predictions.decoder", "albert.embeddings.word_embeddings.weight"),
        ("mobilebert", "cls.predictions.decoder", "mobilebert.embeddings.word_embeddings.weight"),
    ],
)
def test_convert_accepts_decoder_only_if_tied(tmp_path: Path, name: str, decoder: str, words: str) -> None:
    save(tmp_path, name, "fill-mask")
    edit_tensors(tmp_path, lambda tensors: tensors.update({f"{decoder}.weight": tensors[words].clone()}))
    assert convert(tmp_path, *HEADS["fill-mask"]).ignored == (f"{decoder}.weight",)
    edit_tensors(tmp_path, lambda tensors: tensors[f"{decoder}.weight"][5, 5].add_(1))
    assert error_message(tmp_path, "fill-mask") == f"the tensor {decoder}.weight is not tied to {words}."
    edit_tensors(tmp_path, lambda tensors: tensors.pop(f"{decoder}.weight"))
    edit_tensors(tmp_path, lambda tensors: tensors.update({f"{decoder}.bias": torch.full((211,), 3.0)}))
    assert error_message(tmp_path, "fill-mask").startswith(f"the tensor {decoder}.bias is not tied to ")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("bert", transformers.BertForPreTraining),
        ("albert", transformers.AlbertForPreTraining),
        ("mobilebert", transformers.MobileBertForPreTraining),
    ],
)
def test_convert_reads_pretraining_checkpoint_as_masked_lm(tmp_path: Path, name: str, model: Any) -> None:
    """Released checkpoints have this form. The pooler and the sentence objective are ignored."""
    model(SMALL[name].config()).save_pretrained(tmp_path)
    ignored = convert(tmp_path, *HEADS["fill-mask"]).ignored
    assert ignored
    assert all("pooler" in key or "seq_relationship" in key or "sop_classifier" in key for key in ignored)
    assert "ForPreTraining, which fits --task fill-mask." in error_message(tmp_path, "qa")


# Heads


@pytest.mark.parametrize("name", ["bert", "albert", "mobilebert"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("other", TASKS)
def test_convert_rejects_checkpoint_of_another_task(tmp_path: Path, name: str, task: Task, other: Task) -> None:
    save(tmp_path, name, task)
    edit_config(tmp_path, id2label={"0": "a", "1": "b"})
    if task == other == "classify":
        assert error_message(tmp_path).startswith("config.json is for 2 labels, but the head has 3.")
    elif task == other:
        convert(tmp_path, *HEADS[task])
    else:
        assert error_message(tmp_path, other).endswith(f", which fits --task {task}.")


@pytest.mark.parametrize("task", TASKS)
def test_convert_rejects_encoder_without_head(tmp_path: Path, task: Task) -> None:
    """Names without the prefix are accepted, so the error is about the missing head."""
    transformers.BertModel(SMALL["bert"].config()).save_pretrained(tmp_path)
    assert error_message(tmp_path, task).startswith("the checkpoint has no trained head for this task. Fine-tune it")


@pytest.mark.parametrize("size", [10**9, 10**30])
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("bert", "hidden_size"),
        ("bert", "num_hidden_layers"),
        ("bert", "intermediate_size"),
        ("bert", "vocab_size"),
        ("bert", "max_position_embeddings"),
        ("albert", "num_hidden_layers"),
        ("albert", "num_hidden_groups"),
        ("albert", "inner_group_num"),
        ("albert", "embedding_size"),
        ("mobilebert", "num_feedforward_networks"),
        ("mobilebert", "intra_bottleneck_size"),
    ],
)
def test_convert_rejects_sizes_that_the_tensors_do_not_have(tmp_path: Path, name: str, setting: str, size: int) -> None:
    """At once, and without memory for them."""
    save(tmp_path, name)
    edit_config(tmp_path, **{setting: size, "num_attention_heads": 1})
    error_message(tmp_path)


def test_convert_rejects_more_labels_than_a_network_has(tmp_path: Path) -> None:
    save(tmp_path)
    edit_config(tmp_path, id2label=None, num_labels=10**12)
    assert error_message(tmp_path).startswith("config.json: num_labels has an invalid value.")


@pytest.mark.parametrize("name", ["bert", "albert", "mobilebert", "mobilebert-tiny"])
def test_convert_encoder_only_accepts_encoder_without_head(tmp_path: Path, name: str) -> None:
    """Training starts from an encoder in this way."""
    config = SMALL[name].config()
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    words = convert(tmp_path, *HEADS["qa"], encoder_only=True).model.state_dict()["encoder.embeddings.word.weight"]
    assert torch.equal(words, tensors["embeddings.word_embeddings.weight"])
    edit_tensors(tmp_path, lambda tensors: tensors.pop("embeddings.LayerNorm.weight"))
    with pytest.raises(ConversionError, match=r"embeddings\.norm\.weight is not in the checkpoint"):
        convert(tmp_path, *HEADS["qa"], encoder_only=True)


# Settings


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert", {"model_type": "longformer"}, f"model_type 'longformer' is not supported; {KNOWN}"),
        ("bert", {"model_type": None}, "there is no model_type. Set that of the model: albert, bert, "),
        ("bert", {"model_type": ["bert"]}, f"model_type ['bert'] is not supported; {KNOWN}"),
        ("bert", {"model_type": "layers"}, f"model_type 'layers' is not supported; {KNOWN}"),
        (
            "bert",
            {"hidden_act": "mish"},
            "hidden_act 'mish' is not one of gelu, gelu_new, gelu_pytorch_tanh, relu,",
        ),
        ("bert", {"hidden_act": ["gelu"]}, "hidden_act has an invalid value: ['gelu']."),
        ("bert", {"is_decoder": True}, "is_decoder True is not supported, only False."),
        ("bert", {"add_cross_attention": True}, "add_cross_attention True is not supported, only False."),
        ("albert", {"hidden_size": "48"}, "hidden_size has an invalid value: '48'."),
        ("albert", {"num_hidden_layers": 0}, "num_hidden_layers has an invalid value: 0."),
        ("albert", {"num_hidden_layers": True}, "num_hidden_layers has an invalid value: True."),
        ("albert", {"num_attention_heads": 2.0}, "num_attention_heads has an invalid value: 2.0."),
        ("albert", {"num_hidden_layers": 10**9}, "num_hidden_layers has an invalid value: 1000000000."),
        ("albert", {"inner_group_num": 1000}, "there are more than 1024 layers."),
        ("albert", {"shared_parameters": "ffn"}, "shared_parameters 'ffn' is not one of all, attention, feed_forward,"),
        ("albert", {"layer_norm_eps": float("nan")}, "layer_norm_eps has an invalid value: nan."),
        ("albert", {"layer_norm_eps": -1}, "layer_norm_eps has an invalid value: -1."),
        ("bert", {"num_attention_heads": 7}, "num_attention_heads 7 does not divide the width 48."),
        ("albert", {"num_attention_heads": 7}, "num_attention_heads 7 does not divide the width 48."),
        ("mobilebert", {"num_attention_heads": 7}, "num_attention_heads 7 does not divide the width 32."),
        (
            "mobilebert",
            {"normalization_type": "rms_norm"},
            "normalization_type 'rms_norm' is not one of layer_norm, no_norm.",
        ),
        ("mobilebert", {"trigram_input": "yes"}, "trigram_input has an invalid value: 'yes'."),
        ("mobilebert", {"key_query_shared_bottleneck": False}, "intra_bottleneck_size must equal hidden_size."),
        ("bert", {"id2label": {"1": "a", "2": "b", "3": "c"}}, "id2label does not number the labels from 0."),
        ("bert", {"id2label": ["a", "b", "c"]}, "id2label does not number the labels from 0."),
        ("bert", {"id2label": 3}, "id2label does not number the labels from 0."),
        ("bert", {"id2label": None, "num_labels": "3"}, "num_labels has an invalid value."),
        ("bert", {"id2label": None, "num_labels": -3}, "num_labels has an invalid value."),
        ("bert", {"problem_type": "ranking"}, "problem_type 'ranking' is not supported, only "),
        ("bert", {"problem_type": ["regression"]}, "problem_type ['regression'] is not supported, only "),
        ("roberta", {"pad_token_id": -1}, "config.json: pad_token_id has an invalid value: -1."),
        ("roberta", {"pad_token_id": "1"}, "config.json: pad_token_id has an invalid value: '1'."),
        ("roberta", {"is_decoder": True}, "config.json: is_decoder True is not supported, only False."),
        ("roberta", {"num_attention_heads": 7}, "config.json: num_attention_heads 7 does not divide the width 48."),
        ("electra", {"embedding_size": 0}, "config.json: embedding_size has an invalid value: 0."),
        ("electra", {"hidden_act": "mish"}, "config.json: hidden_act 'mish' is not one of gelu"),
        ("distilbert", {"activation": "mish"}, "config.json: activation 'mish' is not one of gelu"),
        ("distilbert", {"n_heads": 7}, "config.json: num_attention_heads 7 does not divide the width 48."),
        ("distilbert", {"dim": 4.8}, "config.json: dim has an invalid value: 4.8."),
    ],
)
def test_convert_rejects_unsupported_setting(
    tmp_path: Path, name: str, changes: Mapping[str, Any], expected: str
) -> None:
    save(tmp_path, name)
    edit_config(tmp_path, **changes)
    message = error_message(tmp_path)
    assert message.startswith("config.json: ")
    assert expected in message


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "distilbert"])
def test_convert_rejects_relative_positions(tmp_path: Path, name: str, kind: str) -> None:
    save(tmp_path, name)
    edit_config(tmp_path, position_embedding_type=kind)
    refused = f"config.json: position_embedding_type {kind!r} is not supported, only 'absolute'"
    assert error_message(tmp_path) == f"{refused}. Train a model with that."


@pytest.mark.parametrize("name", FAMILIES)
def test_convert_rejects_untied_masked_lm(tmp_path: Path, name: str) -> None:
    save(tmp_path, name, "fill-mask")
    edit_config(tmp_path, tie_word_embeddings=False)
    assert error_message(tmp_path, "fill-mask").startswith("config.json: tie_word_embeddings False is not supported")


@pytest.mark.parametrize("architecture", architectures.model_types(of_code=False))
def test_defaults_equal_transformers(architecture: str) -> None:
    module = architectures.load(architecture)
    reference = Shape(architecture, {}).config()
    ours = {field.name: field.default for field in dataclasses.fields(module.Config)} | dict(module.CHECKPOINTS.implied)
    assert ours.pop("shared_parameters", "all") == "all"  # transformers shares whole layers
    # What DeBERTa's code reads without a default in the configuration, and the only Gemma that is an encoder.
    given = (
        {"share_att_key": False, "position_buckets": -1} | reference.to_dict() | {"use_bidirectional_attention": True}
    )
    settings = module.CHECKPOINTS.translate(given)
    theirs = {name: settings[name] if name in settings else getattr(reference, name, None) for name in ours}
    if issubclass(module.Config, standard.RotaryConfig):
        # These families share settings that some do not have. Others follow from the number of heads.
        heads = ours["num_attention_heads"]
        derived = {"num_key_value_heads": heads, "head_dim": ours["hidden_size"] // heads}
        ours |= {name: value for name, value in derived.items() if ours[name] is None}
        theirs = {name: ours[name] if value is None else value for name, value in theirs.items()}
    assert ours == theirs


@pytest.mark.parametrize(
    ("changes", "labels", "problem"),
    [
        ({}, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label"),
        ({"problem_type": "single_label_classification"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label"),
        ({"problem_type": "multi_label_classification"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "multi_label"),
        ({"problem_type": "regression"}, ("LABEL_0", "LABEL_1", "LABEL_2"), "regression"),
        ({"id2label": {"0": "b", "1": "a", "2": "c"}}, ("b", "a", "c"), "single_label"),
        ({"id2label": None, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2"), "single_label"),
    ],
)
def test_convert_reads_labels_and_problem_type(
    tmp_path: Path, changes: Mapping[str, Any], labels: tuple[str, ...], problem: str
) -> None:
    save(tmp_path)
    edit_config(tmp_path, **changes)
    converted = convert(tmp_path, *HEADS["classify"])
    assert (converted.labels, converted.problem) == (labels, problem)


@pytest.mark.parametrize(("labels", "problem"), [(1, "single_label"), (2, "single_label"), (11, "single_label")])
def test_number_of_labels_implies_problem_type(tmp_path: Path, labels: int, problem: str) -> None:
    """Eleven labels, because "10" sorts before "2"; two, because transformers then writes no labels."""
    AUTO["classify"].from_config(SMALL["bert"].config(num_labels=labels)).save_pretrained(tmp_path)
    converted = convert(tmp_path, *HEADS["classify"])
    assert converted.labels == tuple(f"LABEL_{i}" for i in range(labels))
    assert converted.problem == problem


# Files


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "config.json is not valid JSON (line 1, column 2)."),
        (b"\xff\xfe", "config.json is not in UTF-8; save it in that encoding."),
        (b"[" * 100_000, "config.json is not valid JSON."),
        (b"[]", "config.json is not a JSON object."),
        (b"{}", f"config.json: there is no model_type. Set that of the model: {KNOWN.removeprefix('supported are ')}"),
    ],
)
def test_convert_rejects_invalid_configuration(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert error_message(tmp_path) == expected


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_convert_rejects_truncated_safetensors(tmp_path: Path, kept: int) -> None:
    save(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert error_message(tmp_path).startswith("model.safetensors cannot be read as safetensors: it")


def to_pickle(directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


class Payload:
    """Creates a directory when it is unpickled without `weights_only`."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("zipped", [True, False])
def test_convert_does_not_run_malicious_pickle(tmp_path: Path, zipped: bool) -> None:
    save(tmp_path)
    to_pickle(tmp_path)
    marker = tmp_path / "ran"
    file = tmp_path / "pytorch_model.bin"
    tensors = torch.load(file, weights_only=True) | {"bert.pooler.dense.bias": Payload(marker)}
    torch.save(tensors, file, _use_new_zipfile_serialization=zipped)
    assert "plain weights: it names posix.mkdir, which is never executed; save the model" in error_message(tmp_path)
    assert not marker.exists()
    torch.load(file, weights_only=False)
    assert marker.exists()  # proves that the payload works


@pytest.mark.parametrize("content", [[torch.ones(1)], {"state_dict": {}}, {"epoch": 3}, {1: torch.ones(1)}, None])
def test_convert_rejects_pickle_without_tensors(tmp_path: Path, content: object) -> None:
    save(tmp_path)
    to_pickle(tmp_path)
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert error_message(tmp_path).startswith("pytorch_model.bin cannot be read as plain weights: it is not a mapping")


@pytest.mark.parametrize(("key", "prefix"), [("state_dict", "model."), ("model_state_dict", ""), ("model", "")])
def test_convert_reads_weights_beside_other_things(tmp_path: Path, key: str, prefix: str) -> None:
    """As a checkpoint of Lightning holds them, and those of other loops of training."""
    save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    expected = weights_of(convert(tmp_path, *HEADS["classify"]).model)
    (tmp_path / "model.safetensors").unlink()
    named = {prefix + name: tensor for name, tensor in tensors.items()}
    others = {"epoch": 3, "optimizer_states": [{"state": {0: {"step": torch.ones(1)}}}], "callbacks": {}}
    torch.save({key: named, **others}, tmp_path / "pytorch_model.bin")

    found = weights_of(convert(tmp_path, *HEADS["classify"]).model)
    assert found.keys() == expected.keys()
    assert all((weight == expected[name]).all() for name, weight in found.items())


def test_convert_rejects_invalid_pickle(tmp_path: Path) -> None:
    save(tmp_path)
    to_pickle(tmp_path)
    for content in (b"", b"not a pickle", pickle.dumps(Payload(tmp_path / "ran"))):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        assert error_message(tmp_path).startswith("pytorch_model.bin ")
    assert not (tmp_path / "ran").exists()


def shard(directory: Path) -> dict[str, str]:
    """Saves the small BERT in several files, and returns the file of each tensor."""
    reference(SMALL["bert"], "classify").save_pretrained(directory, max_shard_size="100KB")
    weight_map: dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weight_map.values())) > 2
    return weight_map


def write_index(directory: Path, document: object) -> None:
    (directory / "model.safetensors.index.json").write_text(json.dumps(document))


def test_convert_prefers_single_file_to_shards(tmp_path: Path) -> None:
    """transformers ignores the index of an earlier save in the same way."""
    save(tmp_path)
    write_index(tmp_path, {"weight_map": {WORDS: "gone.safetensors"}})
    convert(tmp_path, *HEADS["classify"])


@pytest.mark.parametrize("outside", ["../model.safetensors", "/etc/hostname", "sub/model.safetensors"])
def test_convert_rejects_shard_outside_checkpoint(tmp_path: Path, outside: str) -> None:
    write_index(tmp_path, {"weight_map": shard(tmp_path) | {WORDS: outside}})
    assert error_message(tmp_path) == "model.safetensors.index.json names a file outside the checkpoint."


@pytest.mark.parametrize(
    "weight_map", [None, [], ["model.safetensors"], {WORDS: 3}, {WORDS: ["a"]}, "model.safetensors"]
)
def test_convert_rejects_malformed_index(tmp_path: Path, weight_map: object) -> None:
    shard(tmp_path)
    write_index(tmp_path, {"weight_map": weight_map})
    assert error_message(tmp_path) == "model.safetensors.index.json: weight_map has an invalid value."


@pytest.mark.parametrize(("file", "what"), [("gone.safetensors", "not readable"), ("..", "not a regular file")])
def test_convert_rejects_missing_shard(tmp_path: Path, file: str, what: str) -> None:
    write_index(tmp_path, {"weight_map": shard(tmp_path) | {WORDS: file}})
    assert f"cannot be read as safetensors: it is {what}" in error_message(tmp_path)


def test_convert_requires_shards_to_match_index(tmp_path: Path) -> None:
    weight_map = shard(tmp_path)
    file = weight_map[WORDS]
    write_index(tmp_path, {"weight_map": weight_map | {"lora": file}})
    assert error_message(tmp_path) == f"the tensor lora is not in {file}."
    other = next(name for name in weight_map.values() if name != file)
    save_file(load_file(tmp_path / other) | {WORDS: torch.ones(211, 48)}, tmp_path / other)
    write_index(tmp_path, {"weight_map": weight_map})
    assert error_message(tmp_path) == f"model.safetensors.index.json does not place the tensor {WORDS} in {other}."


# Sources


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes huggingface_hub offline, with an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_locate_reads_hub_cache_and_records_commit(hub: Path, tmp_path: Path) -> None:
    """The cache has the layout of huggingface_hub: blobs, links to them by commit, and a ref for each branch."""
    model = save(tmp_path / "checkpoint")
    repository = hub / "models--someone--small-bert"
    snapshot = repository / "snapshots" / COMMIT
    for directory in (repository / "blobs", repository / "refs", snapshot):
        directory.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for i, file in enumerate(sorted((tmp_path / "checkpoint").iterdir())):
        file.rename(repository / "blobs" / f"{i:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{i:040x}")
    for revision in (None, "main", COMMIT):
        directory, source = locate("someone/small-bert", revision)
        assert source == {"hub": "someone/small-bert", "revision": COMMIT}
        batch = rows("classify", [5], 211)
        converted = convert(directory, *HEADS["classify"], source=source)
        assert relative_error(our_rows(converted.model, batch), reference_rows(model, "classify", batch)) <= 1e-5
        assert converted.source == source
    with pytest.raises(ConversionError, match="'someone/small-bert' is not in the local cache and cannot be"):
        locate("someone/small-bert", "another-branch")


@pytest.mark.parametrize("source", ["someone/unknown", "unknown"])
@pytest.mark.usefixtures("hub")
def test_locate_rejects_unknown_hub_id_offline(source: str) -> None:
    with pytest.raises(ConversionError) as caught:
        locate(source)
    assert str(caught.value).startswith(f"{source!r} is not in the local cache and cannot be downloaded: ")


@pytest.mark.parametrize(
    "source", ["./gone", "../gone", "/gone/checkpoint", "a/b/c", "a--b", "-a", "a..b", "a" * 200, "é/b", "a b", "a\n"]
)
@pytest.mark.usefixtures("hub")
def test_locate_rejects_invalid_source(source: str) -> None:
    with pytest.raises(ConversionError) as caught:
        locate(source)
    assert str(caught.value) == f"{source!r} is neither a directory nor a valid hub id."


def test_locate_records_only_the_directory_name(tmp_path: Path) -> None:
    """An artifact holds no path of the machine."""
    assert locate(str(tmp_path)) == (tmp_path, {"directory": tmp_path.name})


def test_names_of_the_hub_need_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConversionError, match="names of the hub need the package huggingface-hub"):
        locate("someone/small-bert")
