"""Directories as Google released them give what the same weights give as a checkpoint of transformers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from swiftlet_models import sources
from swiftlet_models.errors import ModelError
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.goldens.cases import HERE
from tests.support.checkpoints import SMALL, randomise
from tests.support.drafts import answers, catch_drafts
from tests.support.tensor_bundles import google_variables, write_bundle
from tests.support.tiers import first_of_each

TEXTS = ["A warm film about bread.", "서울의 봄 👍🏽", ""]
INPUTS: Mapping[str, Any] = {
    "classify": TEXTS[:2],
    "fill-mask": ["She sells [MASK]."],
    "qa": {"question": "Who sells bread?", "context": "She sells bread on Saturdays."},
    "embed": TEXTS[:2],
}
# What transformers adds to the settings that Google's code writes.
OWN = ("model_type", "architectures", "transformers_version", "dtype", "id2label", "label2id", "problem_type")
Import = Callable[..., Draft]


def network(name: str, kind: str, **settings: Any) -> Any:
    words = 1200 if name.startswith("albert") else len((HERE / "vocab.txt").read_text("utf-8").splitlines())
    sizes = {"vocab_size": words, "num_hidden_layers": 2, "num_labels": 3} | settings
    if kind == "QuestionAnswering":
        del sizes["num_labels"]
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(SMALL[name].config(**sizes)).eval()
    randomise(model)
    return model


def save(directory: Path, model: Any, vocabulary: str) -> Path:
    """Writes a checkpoint of transformers."""
    model.save_pretrained(directory)
    shutil.copy(HERE / vocabulary, directory)
    return directory


def release(
    directory: Path, model: Any, vocabulary: str, named: str, *, variables: Mapping[str, NDArray[Any]] | None = None
) -> Path:
    """Writes a directory as Google's code does. The variables also have those of the optimizer."""
    directory.mkdir()
    name = model.config.model_type
    arrays = dict(variables or google_variables(name, model.state_dict()))
    first = next(iter(arrays))
    arrays |= {f"{first}/adam_m": np.ones(3, np.float32), "global_step": np.array(125_000, np.int64)}
    write_bundle(directory / "model.ckpt-best", arrays)
    (directory / "model.ckpt-best.meta").write_bytes(b"\x0a\x05")
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-best"\n')
    settings = {key: value for key, value in model.config.to_dict().items() if key not in OWN}
    if settings["hidden_act"] == "gelu_new":
        settings["hidden_act"] = "gelu"
    (directory / f"{name}_config.json").write_text(json.dumps(settings))
    shutil.copy(HERE / vocabulary, directory / named)
    return directory


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Import:
    """Imports a directory, up to the rounding of the weights."""
    drafts = catch_drafts(monkeypatch)

    def run(source: Path, task: str | None = None, **options: Any) -> Draft:
        settings: dict[str, Any] = {"max_loss": 0.5, "accept_tokenizer": True, "report": lambda _: None} | options
        import_checkpoint(str(source), task, tmp_path / "out", **settings)
        return drafts[-1]

    return run


def check_equal(ours: Draft, expected: Draft) -> None:
    assert ours.weights.keys() == expected.weights.keys()
    assert all(np.array_equal(ours.weights[name], weight) for name, weight in expected.weights.items())
    assert ours.manifest.task == expected.manifest.task
    assert ours.manifest.config == expected.manifest.config
    assert ours.manifest.labels == expected.manifest.labels
    inputs = INPUTS[ours.manifest.task]
    assert answers(ours, inputs) == answers(expected, inputs)


CASES = [  # the first of each family is in the first tier
    ("bert", "SequenceClassification", "vocab.txt", "vocab.txt"),
    ("bert", "PreTraining", "vocab.txt", "vocab.txt"),
    ("albert", "PreTraining", "spiece.model", "30k-clean.model"),
    ("albert", "QuestionAnswering", "spiece.model", "30k-clean.model"),
    ("albert", "SequenceClassification", "vocab.txt", "vocab_chinese.txt"),
    ("albert-groups", "SequenceClassification", "spiece.model", "30k-clean.model"),
    ("mobilebert", "PreTraining", "vocab.txt", "vocab.txt"),
    ("mobilebert-tiny", "SequenceClassification", "vocab.txt", "vocab.txt"),
    ("ib-bert", "QuestionAnswering", "vocab.txt", "vocab.txt"),
]


@pytest.mark.parametrize(
    ("name", "kind", "vocabulary", "named"), first_of_each(CASES, lambda case: (case[0].partition("-")[0], case[2]))
)
def test_directories_of_google_are_read_as_those_of_transformers(
    tmp_path: Path, draft: Import, name: str, kind: str, vocabulary: str, named: str
) -> None:
    model = network(name, kind, **({"hidden_act": "gelu_new"} if name == "ib-bert" else {}))
    directory = release(tmp_path / "it", model, vocabulary, named)
    assert sources.identify(str(directory)).kind == "checkpoint"
    ours = draft(directory, accept_tokenizer=name != "bert")
    plain = save(tmp_path / "transformers", model, vocabulary)
    if vocabulary == "vocab.txt":
        (plain / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    expected = draft(plain)
    assert ours.manifest.source["directory"] == "it"
    check_equal(ours, expected)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("ib-bert", ["normalization_type", "num_feedforward_networks", "use_bottleneck_attention"]),
        ("mobilebert-tiny", ["key_query_shared_bottleneck"]),
    ],
)
def test_settings_that_a_configuration_lacks_are_those_of_googles_code(
    tmp_path: Path, draft: Import, name: str, missing: list[str]
) -> None:
    """The configurations of MobileBERT's teacher and of its tiny form leave some out."""
    model = network(name, "QuestionAnswering", hidden_act="gelu_new")
    directory = release(tmp_path / "it", model, "vocab.txt", "vocab.txt")
    file = directory / "mobilebert_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in settings.items() if key not in missing}))
    ours, expected = draft(directory), draft(save(tmp_path / "transformers", model, "vocab.txt"))
    assert answers(ours, INPUTS["qa"]) == answers(expected, INPUTS["qa"])
    assert ours.weights.keys() == expected.weights.keys()


def electra(directory: Path, kind: str) -> tuple[Path, Any]:
    """Writes a pre-trained ELECTRA, whose halves have the same embeddings, and returns the half of this kind."""
    halves = {
        "PreTraining": network("electra", "PreTraining"),
        "MaskedLM": network("electra", "MaskedLM", hidden_size=24, num_attention_heads=2, intermediate_size=32),
    }
    shared = halves["PreTraining"].electra.embeddings
    halves["MaskedLM"].electra.embeddings.load_state_dict(shared.state_dict())
    generator = google_variables("electra", halves["MaskedLM"].state_dict())
    variables = google_variables("electra", halves["PreTraining"].state_dict())
    variables |= {
        re.sub("^electra/", "generator/", name): array
        for name, array in generator.items()
        if not name.startswith("electra/embeddings/")
    }
    release(directory, halves[kind], "vocab.txt", "vocab.txt", variables=variables)
    (directory / "electra_config.json").unlink()
    return directory, halves[kind]


@pytest.mark.parametrize(("kind", "options"), [("MaskedLM", {}), ("PreTraining", {"task": "embed", "pooling": "mean"})])
def test_electra_is_read_as_the_half_that_its_configuration_names(
    tmp_path: Path, draft: Import, kind: str, options: dict[str, Any]
) -> None:
    directory, model = electra(tmp_path / "it", kind)
    with pytest.raises(ModelError, match=r'into config.json, with "model_type": "electra"\.'):
        draft(directory, **options)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    check_equal(draft(directory, **options), draft(save(tmp_path / "transformers", model, "vocab.txt"), **options))


def test_pre_trained_network_makes_vectors(tmp_path: Path, draft: Import) -> None:
    model = network("albert", "PreTraining")
    directory = release(tmp_path / "it", model, "spiece.model", "30k-clean.model")
    expected = save(tmp_path / "transformers", model, "spiece.model")
    options = {"task": "embed", "pooling": "mean"}
    check_equal(draft(directory, **options), draft(expected, **options))


@pytest.mark.parametrize(("words", "lowers"), [(["A", "B", "a"], False), (["a", "[A]", "CD"], True)])
def test_vocabulary_tells_whether_texts_are_lower_cased(
    tmp_path: Path, draft: Import, words: list[str], lowers: bool
) -> None:
    directory = release(tmp_path / "it", network("bert", "SequenceClassification"), "vocab.txt", "vocab.txt")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (directory / "vocab.txt").write_text("\n".join([*special, *words]) + "\n")
    notes: list[str] = []
    tokenizer = draft(directory, report=notes.append).tokenizer
    assert tokenizer.encode("A", 8)[0].input_ids[1] == 5
    assert any("with capital letters" in note for note in notes) is not lowers


def test_one_output_is_a_regression_and_labels_have_names(tmp_path: Path, draft: Import) -> None:
    one = release(tmp_path / "one", network("bert", "SequenceClassification", num_labels=1), "vocab.txt", "vocab.txt")
    assert draft(one).manifest.problem == "regression"
    three = release(tmp_path / "three", network("bert", "SequenceClassification"), "vocab.txt", "vocab.txt")
    file = three / "bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"id2label": {"0": "긍정", "1": "no", "2": "👍"}}))
    assert draft(three).manifest.labels == ("긍정", "no", "👍")


@pytest.mark.parametrize(
    ("name", "message"),
    [("settings.json", "several configurations"), (None, "no configuration, such as bert_config.json")],
)
def test_configuration_is_not_guessed(tmp_path: Path, draft: Import, name: str | None, message: str) -> None:
    directory = release(tmp_path / "it", network("bert", "PreTraining"), "vocab.txt", "vocab.txt")
    if name:
        shutil.copy(directory / "bert_config.json", directory / name)
    else:
        (directory / "bert_config.json").unlink()
    with pytest.raises(ModelError, match=f"the directory holds {message} beside the checkpoint of TensorFlow. Put"):
        draft(directory)


def test_damaged_index_is_refused(tmp_path: Path, draft: Import) -> None:
    directory = release(tmp_path / "it", network("bert", "PreTraining"), "vocab.txt", "vocab.txt")
    os.truncate(directory / "model.ckpt-best.index", 500)
    with pytest.raises(ModelError, match=r"model.ckpt-best cannot be read: the index is damaged: the end of the table"):
        draft(directory)
    os.truncate(directory / "model.ckpt-best.index", 0)
    with pytest.raises(ModelError, match=r"^model.ckpt-best.index is empty; download it once more\.$"):
        draft(directory)


def test_temporary_directory_that_cannot_be_written_is_told(
    tmp_path: Path, draft: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = release(tmp_path / "it", network("bert", "PreTraining"), "vocab.txt", "vocab.txt")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(ModelError, match=r"no temporary directory can be written \(No such file or directory\)\. Set"):
        draft(directory)


@pytest.mark.parametrize("end", ["", ".index", ".meta", ".data-00000-of-00001"])
def test_names_of_files_lead_to_their_directory(tmp_path: Path, end: str) -> None:
    directory = release(tmp_path / "it", network("bert", "PreTraining"), "vocab.txt", "vocab.txt")
    source = sources.identify(str(directory / f"model.ckpt-best{end}"))
    assert (source.kind, source.what) == ("other", "a file of weights")
    assert source.next_step == f"Give its directory. Serve it: swiftlet serve {directory}"
