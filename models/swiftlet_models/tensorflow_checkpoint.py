"""Directories that Google released: a checkpoint of TensorFlow, its configuration and its vocabulary.

Their configuration does not name the network or its head: the variables tell them.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from swiftlet_models import sources
from swiftlet_models.checkpoint_tensors import ConversionError, bundle_errors, bundle_of
from swiftlet_models.tensor_bundles.bundle import Bundle
from swiftlet_models.tensor_bundles.variables import Network, network_of

_CLASSES: Final[Mapping[Network, str]] = {
    "albert": "Albert",
    "bert": "Bert",
    "electra": "Electra",
    "mobilebert": "MobileBert",
}
# What Google's code takes for settings that a configuration does not have, where transformers takes something else.
_IMPLIED: Final[Mapping[str, Mapping[str, Any]]] = {
    "mobilebert": {
        "trigram_input": False,
        "use_bottleneck": False,
        "key_query_shared_bottleneck": False,
        "num_feedforward_networks": 1,
        "normalization_type": "layer_norm",
    }
}
# Networks whose code computes gelu with tanh. That of BERT computed it with erf when BERT was trained.
_TANH: Final = ("albert", "mobilebert")
_SIZES: Final = {"hidden_size", "num_hidden_layers", "num_attention_heads"}  # in every configuration


def as_transformers(directory: Path, report: Callable[[str], None]) -> Path:
    """Returns a directory with the same files as transformers names them: itself, unless Google's code wrote it.

    The new directory holds links, and is removed when the process ends.

    Raises:
        ConversionError: the checkpoint is damaged, there are several, the configuration is missing, or no temporary
            directory can be written.
    """
    if (directory / "config.json").is_file() or not sources.bundles(directory):
        return directory
    files = [file for file in directory.iterdir() if file.is_file()]
    config, settings = _settings(directory, files)
    try:
        root = Path(tempfile.mkdtemp(prefix="swiftlet-tensorflow-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        new = root / directory.resolve().name
        new.mkdir(exist_ok=True)
        for file in files:
            (new / file.name).symlink_to(file.resolve())
        (new / "config.json").write_text(json.dumps(settings, indent=2), "utf-8")
        reading = _name_vocabulary(new, settings["model_type"])
    except OSError as error:
        raise ConversionError(f"no temporary directory can be written ({error.strerror}). Set TMPDIR.") from None
    report(f"{config.name} is read with the architectures {json.dumps(settings['architectures'])}{reading}")
    return new


def _settings(directory: Path, files: list[Path]) -> tuple[Path, dict[str, Any]]:
    """Returns the file of the configuration, and the settings that transformers would write to `config.json`."""
    index = bundle_of(directory)
    with ExitStack() as opened, bundle_errors(index):
        entries = Bundle(index, lambda file: opened.enter_context(file.open("rb", buffering=0))).entries
        network = network_of(entries)
    configs = [(file, sources.read_config(file)) for file in sorted(files) if file.suffix == ".json"]
    configs = [(file, config) for file, config in configs if config.keys() >= _SIZES]
    if len(configs) != 1:
        what = "several configurations" if configs else "no configuration, such as bert_config.json"
        raise ConversionError(
            f"the directory holds {what} beside the checkpoint of TensorFlow. Put the sizes of the network into "
            f'config.json, with "model_type": "{network}".'
        )
    head, labels = "Model", 2
    if "output_weights" in entries:
        head, labels = "ForSequenceClassification", next(iter(entries["output_weights"].shape), 0)
    elif "cls/squad/output_weights" in entries:
        head = "ForQuestionAnswering"
    elif any(name.endswith("cls/predictions/output_bias") for name in entries):
        head = "ForPreTraining"
    ((file, config),) = configs
    made = {"model_type": network, "architectures": [_CLASSES[network] + head], "num_labels": labels}
    regression = {"problem_type": "regression"} if labels == 1 else {}  # the code of Google has no other use for one
    settings = {**made, **regression, **_IMPLIED.get(network, {}), **config}
    if network in _TANH and settings.get("hidden_act") == "gelu":
        settings["hidden_act"] = "gelu_new"
    return file, settings


def _name_vocabulary(directory: Path, network: Network) -> str:
    """Gives the vocabulary the name that transformers reads. Returns a note on its letters, or nothing."""
    if any((directory / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        return ""
    pieces, words = [*directory.glob("*.model")], [*directory.glob("vocab*.txt")]
    vocabulary = directory / "vocab.txt"
    if network == "albert" and len(pieces) == 1:
        pieces[0].rename(directory / "spiece.model")
        return ""
    if len(words) == 1:
        words[0].rename(vocabulary)
    lowers = not vocabulary.is_file() or b"A" not in vocabulary.read_bytes().splitlines()
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowers}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return "" if lowers else ", and the vocabulary with capital letters"
