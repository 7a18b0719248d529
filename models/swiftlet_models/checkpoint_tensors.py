"""The tensors of a checkpoint of transformers, read when they are used.

They are in safetensors, a pickle, an ONNX graph, or a tensor bundle of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from swiftlet_models.errors import ModelError
from swiftlet_models.onnx_checkpoint import GraphError, open_graph
from swiftlet_models.pickles import PickleError
from swiftlet_models.sources import ONNX, JsonError, bundles, instead, read_config, read_json
from swiftlet_models.tensor_bundles.bundle import INDEX, Bundle, BundleError
from swiftlet_models.tensor_bundles.variables import read_variables
from swiftlet_models.tensors import Weights
from swiftlet_models.torch_pickle import File, open_torch
from swiftlet_models.weights import read_header

SAFETENSORS: Final = "model.safetensors"
PICKLE: Final = "pytorch_model.bin"


class ConversionError(ModelError):
    """Raised when a checkpoint cannot be converted exactly. The message is one sentence, which names the cause."""


@contextmanager
def open_tensors(directory: Path, names: tuple[str, str] = (SAFETENSORS, PICKLE)) -> Iterator[Weights]:
    """Opens a checkpoint for the duration of a block, and gives its tensors by name.

    `names` are those of the files that hold safetensors and a pickle. Files are tried in the same order as in
    transformers.

    Raises:
        ConversionError: there is no file of tensors, or it cannot be read.
    """
    with ExitStack() as files:
        tensors = _find(directory, names, files)
        if not all(name.isprintable() for name in tensors):
            raise ConversionError("a tensor of the checkpoint has a name that cannot be printed.")
        yield tensors


def _find(directory: Path, names: tuple[str, str], files: ExitStack) -> Weights:
    for name, open_file in zip(names, (_open, _open_pickle), strict=True):
        if (directory / name).is_file():
            return open_file(directory / name, files)
        if (index := directory / f"{name}.index.json").is_file():
            return _open_shards(index, files, open_file)
    for name in ONNX if names[0] == SAFETENSORS else ():
        if (directory / name).is_file():
            return _open_onnx(directory / name, files)
    if names[0] == SAFETENSORS and bundles(directory):
        return _open_bundle(bundle_of(directory), files)
    for name in names:
        if (directory / name).is_symlink():
            raise ConversionError(f"{name} is {instead(directory / name)}.")
    if names[0] != SAFETENSORS:
        raise ConversionError(
            f"the adapter holds neither {names[0]} nor {names[1]}. If it was merged into the model here, remove "
            "adapter_config.json."
        )
    raise ConversionError(
        f"the checkpoint holds neither {SAFETENSORS} nor {PICKLE} nor {ONNX[0]}. Save it with save_pretrained."
    )


def read_object(file: Path, kind: type = dict) -> Any:
    """Reads a JSON object, or a value of another `kind`.

    Raises:
        ConversionError: the file is missing, no JSON, or of another kind.
    """
    try:
        document = read_json(file)
    except FileNotFoundError:
        what = f"is {instead(file)}" if file.exists() or file.is_symlink() else "is missing"
        raise ConversionError(f"{file.name} {what}.") from None
    except JsonError as error:
        raise ConversionError(f"{file.name} {error}.") from None
    if not isinstance(document, kind):
        raise ConversionError(f"{file.name} is not a JSON {'object' if kind is dict else 'array'}.")
    return document


def _open(file: Path, files: ExitStack) -> Weights:
    try:
        return read_header(files.enter_context(file.open("rb", buffering=0)))
    except (OSError, ValueError) as error:
        reason = f"it is {what}" if (what := instead(file)) else str(error).removesuffix(".")
        raise ConversionError(
            f"{file.name} cannot be read as safetensors: {reason}. Download it once more, or save it in float16."
        ) from None


@contextmanager
def _refusing(file: Path, errors: tuple[type[Exception], ...], failure: str, advice: str) -> Iterator[None]:
    """Turns errors of a reader into a ConversionError. It tells the content of a file that holds something else."""
    try:
        yield
    except errors as error:
        if what := instead(file):
            raise ConversionError(f"{file.name} is {what}.") from None
        raise ConversionError(f"{failure}: {error}; {advice}") from None


def _open_pickle(file: Path, files: ExitStack) -> Weights:
    advice = f"save the model once more with save_pretrained, which writes {SAFETENSORS}."
    with _refusing(file, (OSError, PickleError), f"{file.name} cannot be read as plain weights", advice):
        return open_torch(files.enter_context(File(file)))


def _open_onnx(file: Path, files: ExitStack) -> Weights:
    opened: dict[str, IO[bytes]] = {}

    def open_beside(name: str) -> IO[bytes]:
        if name not in opened:
            if Path(name).name != name or not (file.parent / name).is_file():
                raise GraphError("it reads a file that is not beside it")
            opened[name] = files.enter_context((file.parent / name).open("rb", buffering=0))
        return opened[name]

    advice = "give the checkpoint that it was exported from, or export that again without optimisation or quantisation."
    with _refusing(file, (OSError, GraphError), f"the weights in {file.name} cannot be read", advice):
        return open_graph(files.enter_context(file.open("rb", buffering=0)), open_beside)


def bundle_of(directory: Path) -> Path:
    """Returns the index of the tensor bundle in a directory. Raises ConversionError if there are several, or none."""
    match bundles(directory):
        case [prefix]:
            return directory / f"{prefix}{INDEX}"
        case [first, second, *_]:
            raise ConversionError(
                f"the directory holds several checkpoints of TensorFlow, {first} and {second}. Keep the files of one."
            )
    raise ConversionError("the directory holds no checkpoint of TensorFlow.")


def bundle_errors(index: Path) -> AbstractContextManager[None]:
    """Turns what a tensor bundle raises into a ConversionError."""
    failure = f"the checkpoint of TensorFlow {index.name.removesuffix(INDEX)} cannot be read"
    advice = "download it once more, or give one that the code of Google's BERT, ALBERT, MobileBERT or ELECTRA wrote."
    return _refusing(index, (OSError, BundleError), failure, advice)


def _open_bundle(index: Path, files: ExitStack) -> Weights:
    classes = read_config(index.with_name("config.json")).get("architectures")
    with bundle_errors(index):
        bundle = Bundle(index, lambda file: files.enter_context(file.open("rb", buffering=0)))
        return read_variables(bundle, generator=classes == ["ElectraForMaskedLM"])


def _open_shards(index: Path, files: ExitStack, open_file: Callable[[Path, ExitStack], Weights]) -> Weights:
    """Opens the tensors of several files. Each tensor must be in the file that the index names."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ConversionError(f"{index.name}: weight_map has an invalid value.")
    shards = sorted(set(weight_map.values()))
    if any(Path(shard).name != shard for shard in shards):
        raise ConversionError(f"{index.name} names a file outside the checkpoint.")
    tensors: dict[str, Any] = {}
    for shard in shards:
        for name, tensor in open_file(index.parent / shard, files).items():
            if weight_map.get(name) != shard:
                raise ConversionError(f"{index.name} does not place the tensor {name} in {shard}.")
            tensors[name] = tensor
    for name in sorted(weight_map.keys() - tensors.keys()):
        raise ConversionError(f"the tensor {name} is not in {weight_map[name]}.")
    return tensors
