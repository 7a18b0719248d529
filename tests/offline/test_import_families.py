"""Checkpoints of the families that came after the first three: imported, and served over HTTP by every engine."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from swiftlet_models.artifact import Artifact, open_artifact
from swiftlet_models.encodings import Encoding
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.cli.main import main
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.types import Batch, Row
from tests.goldens import cases, families
from tests.goldens.cases import flatten
from tests.support.checkpoints import AUTO, randomise
from tests.support.fakes import PATIENCE_S
from tests.support.processes import serving
from tests.support.tiers import first

_SIZES = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "num_hidden_layers": 2}
_ROBERTA = _SIZES | {"max_position_embeddings": 130, "type_vocab_size": 1}
_MODERNBERT = (
    _SIZES
    | {"num_attention_heads": 2, "max_position_embeddings": 128, "local_attention": 16, "classifier_pooling": "mean"}
    | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
)
TEXT = "A swift sleeps on the wing, and she sells bread on Saturdays 👍🏽."
PAIR = {"question": "Who sells bread?", "context": f"{TEXT} 언제 시장에 갔어?"}


@dataclass(frozen=True)
class Family:
    """A family, the tokenizer of its checkpoint, its settings, and the task that the test serves."""

    model_type: str
    tokenizer: str
    tokenizer_class: str
    settings: Mapping[str, Any]
    task: str
    inputs: Any
    max_tokens: int = 128

    @property
    def name(self) -> str:
        return f"tiny-{self.model_type}"


FAMILIES = {
    one.model_type: one
    for one in (
        Family("roberta", "bpe", "RobertaTokenizer", _ROBERTA, "qa", PAIR),
        Family("xlm-roberta", "xlm", "XLMRobertaTokenizer", _ROBERTA, "fill-mask", f"She sells <mask>. {TEXT}"),
        Family("camembert", "xlm", "CamembertTokenizer", _ROBERTA, "classify", TEXT),
        Family(
            "electra",
            "vocab",
            "ElectraTokenizer",
            _SIZES | {"embedding_size": 32, "max_position_embeddings": 128},
            "classify",
            TEXT,
        ),
        Family(
            "distilbert",
            "vocab",
            "DistilBertTokenizer",
            {"dim": 64, "n_heads": 4, "hidden_dim": 96, "n_layers": 2, "max_position_embeddings": 128},
            "classify",
            {"text": TEXT, "text_pair": "She bakes it, too."},
        ),
        Family("modernbert", "bpe", "RobertaTokenizer", _MODERNBERT, "classify", TEXT),
    )
}
FEW = ("roberta",)
ENGINES = {
    "torch": 0.05 if torch.cuda.is_available() else 1e-4,
    "onnx_cpu": 0.1,
    "native": 0.1,
}  # the largest difference of a score from transformers'


def write_checkpoint(family: Family, directory: Path) -> Any:
    """Writes a checkpoint with random weights, and returns the network of transformers."""
    directory.mkdir()
    for file in families.FILES[family.tokenizer]:
        shutil.copy(cases.HERE / file, directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": family.tokenizer_class}))
    size = Tokenizer.from_directory(directory).vocab_size
    labels = {"num_labels": 3} if family.task == "classify" else {}
    config = transformers.AutoConfig.for_model(family.model_type, vocab_size=size, **family.settings, **labels)
    model = AUTO[family.task].from_config(config).eval()  # type: ignore[index]
    randomise(model)
    model.save_pretrained(directory)
    return model


Imported = Callable[[Family], tuple[Any, Artifact]]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Imports each family once. Returns the network of transformers, and the artifact."""
    folder = tmp_path_factory.mktemp("imported")

    @cache
    def import_family(name: str) -> tuple[Any, Artifact]:
        family, source = FAMILIES[name], folder / f"checkpoint-{name}"
        network = write_checkpoint(family, source)
        command = ["import", str(source), "--task", family.task, "--name", family.name, "--out", str(folder)]
        result = CliRunner().invoke(main, [*command, "--keep-fp32"])
        assert result.exit_code == 0, result.output
        return network, open_artifact(folder / family.name)

    return lambda family: import_family(family.model_type)


def ask(url: str, family: Family) -> Any:
    body = json.dumps({"model": family.name, "inputs": family.inputs, "parameters": {"top_k": 3}}).encode()
    request = urllib.request.Request(f"{url}/{family.task}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


@torch.no_grad()
def reference_row(model: Any, task: str, encoding: Encoding) -> Row:
    """Returns the row that transformers computes for a sequence."""
    ids = torch.from_numpy(encoding.input_ids)[None]
    tells_types = getattr(model.config, "type_vocab_size", 1) > 1
    out = model(ids, **({"token_type_ids": torch.from_numpy(encoding.token_type_ids)[None]} if tells_types else {}))
    if task == "classify":
        return out.logits.numpy()  # type: ignore[no-any-return]
    logits = torch.stack([out.start_logits, out.end_logits], -1) if task == "qa" else out.logits
    return logits[0].numpy()[encoding.focus]  # type: ignore[no-any-return]


def expected(network: Any, artifact: Artifact, family: Family) -> Any:
    """Returns the response that follows from the rows of transformers."""
    task = tasks.load(family.task).create(Tokenizer.load(artifact.path / "tokenizer.json"), artifact.manifest)
    request = task.Request(inputs=family.inputs, parameters={"top_k": 3})
    encodings = task.encode(request)
    rows = np.concatenate([reference_row(network, family.task, one) for one in encodings])
    return task.decode(request, encodings, Batch.of(encodings).split_rows(rows))


@pytest.mark.parametrize(
    ("engine", "names"),
    first([("native", FEW), *((engine, tuple(FAMILIES)) for engine in ENGINES)], ("native", FEW)),
    ids=["native-few", *ENGINES],
)
def test_server_gives_the_answers_of_transformers(
    imported: Imported, tmp_path: Path, engine: str, names: tuple[str, ...]
) -> None:
    if engine == "native" and _kernel_selection.best() is None:
        pytest.skip("there are no kernels for this CPU")
    made = {name: imported(FAMILIES[name]) for name in names}
    paths = ",".join(str(artifact.path) for _, artifact in made.values())
    with serving(tmp_path, "--engine", engine, "--models", paths) as process:
        answered = {name: flatten(ask(process.url, FAMILIES[name])) for name in names}

    for name, answers in answered.items():
        wanted = flatten(expected(*made[name], FAMILIES[name]))
        assert len(answers) == len(wanted) > 1, name
        if engine == "torch" and not torch.cuda.is_available():
            assert [{**one, "score": 0} for one in answers] == [{**one, "score": 0} for one in wanted]
        found = sorted(one["score"] for one in answers)
        np.testing.assert_allclose(found, sorted(one["score"] for one in wanted), atol=ENGINES[engine], err_msg=name)


@pytest.mark.parametrize("name", first(FAMILIES, *FEW))
def test_import_records_the_family(imported: Imported, name: str) -> None:
    family = FAMILIES[name]
    manifest = imported(family)[1].manifest

    assert manifest.architecture == name.replace("-", "_")
    assert manifest.max_tokens == family.max_tokens
    assert manifest.precision == "int8"


def test_import_rejects_fill_mask_without_a_mask_token(tmp_path: Path) -> None:
    """The network would fit the task."""
    family = FAMILIES["xlm-roberta"]
    write_checkpoint(family, tmp_path / "source")
    (tmp_path / "source" / "sentencepiece.bpe.model").unlink()
    write_letters(tmp_path / "source")
    (tmp_path / "source" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "pad_token": "<pad>"}'
    )
    command = ["import", str(tmp_path / "source"), "--task", "fill-mask", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, command)

    assert result.exit_code == 1
    assert "fill-mask needs a tokenizer that has a mask token." in result.output
    assert "Traceback" not in result.output


def write_letters(directory: Path) -> None:
    """Writes a byte-level BPE without a mask token, which is smaller than the network's vocabulary."""
    vocab = json.loads((cases.HERE / "vocab.json").read_text("utf-8"))
    first, *others = [token for token in vocab if len(token) == 1]
    letters = [first, "<pad>", *others]  # the padding token of the network
    (directory / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(letters)}), "utf-8")
    (directory / "merges.txt").write_text("#version: 0.2\n", "utf-8")
