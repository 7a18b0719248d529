"""Swiftlet's own kernels for CPUs, in int8 and bf16.

A batch is ragged: the tokens of all sequences end to end, without padding. In int8, weights have one scale per output,
and activations one scale per token, so that a row never depends on the rest of the batch, to the bit. In bf16, weights
are rounded, and activations too where the CPU multiplies bf16; elsewhere products are fp32. A call is one call into a
library without Python's global lock. It allocates little memory once its thread has run a batch of the same
size. The weights are packed once and shared by all threads, and by worker processes if the system has sealed files
(`machine/sealed_files.py`). `native/` holds the C++, with a small file for each instruction set.
`swiftlet_models/folding.py` makes the program and its parameters of an artifact.

A call runs on the thread that makes it, and on the helpers of the process while cores are idle
(`native/helpers.h`). That changes no bit of an answer.

Where the CPU has AMX, products run on tiles. The operating system may refuse them, and virtual machines exist that lose
their content. So the kernel is tested when it is loaded, and some sums are computed again in every call. After a wrong
sum the process uses no tiles. The engine's title gives the kernel, and why a faster one does not serve.

If no kernel is compiled for this CPU, folding does not support the network, or the card says that this engine was
refused when the artifact was made, `onnx_cpu` serves the artifact, and a warning gives the reason.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import CARD, Artifact, ArtifactError, Precision
from swiftlet_models.folded import Folded, FoldingError
from swiftlet_models.folding import MULTIPLE, Part, fold_artifact
from swiftlet_models.tensors import Adapted, Weights, WeightsError, round_to_bf16
from swiftlet_models.weights import open_weights
from swiftlet_serve.engines import _kernel_selection, onnx_cpu
from swiftlet_serve.engines._kernel_library import INTERFACE, Library
from swiftlet_serve.engines._matrices import PRECISIONS, finite, stored_ahead
from swiftlet_serve.engines._program_numbers import (
    Adapter,
    Parameters,
    listed_matrices,
    program_numbers,
    without_adapter,
)
from swiftlet_serve.engines._shared_trunk import SharedTrunk
from swiftlet_serve.machine.cores import numa_nodes
from swiftlet_serve.machine.sealed_files import SealedFiles
from swiftlet_serve.types import Batch, Cost, Engine, Row

log = logging.getLogger(__name__)

SHARES_CORES: Final = True
SHARES_WEIGHTS: Final = True
WRONG_SUM: Final = 4  # the status of a call that found a wrong sum and was computed again
ERRORS: Final = {
    1: "there is not enough memory",
    2: "the batch is invalid",
    3: "a parameter is missing",
    5: "the network's sizes contradict each other",
    6: "the kernel has failed",
}


class Native:
    """A network in kernels of int8 or bf16."""

    # A call costs little besides its tokens: it reads the weights once for all of them.
    cost: ClassVar[Cost] = Cost(padded=False, call_tokens=8, max_tokens=512, max_rows=64, shares_cores=True)
    runs_network: ClassVar[bool] = True
    # The artifact's tolerance is for the weights in the file. The weights of folded products are rounded again.
    extra_tolerance: ClassVar[float] = 0.05

    def __init__(
        self,
        library: Library,
        folded: Folded,
        passed_over: Sequence[str] = (),
        precision: Precision = "int8",
        files: SealedFiles | None = None,
        source: str = "",
        adapters: Sequence[Adapter] = (),
    ) -> None:
        """Packs the parameters. `passed_over` holds faster kernels that do not serve, each with the reason.

        `precision` is one of `PRECISIONS`. If there are `files`, the weights lie in one of them if possible. `source`
        identifies what `folded` and `adapters` were made of. Each sequence of a batch has the adapter whose number is
        in `heads`. Without `adapters`, there is one: what adapters have added to the products of `folded`.

        Raises:
            MemoryError: there is not enough memory.
            FoldingError: the kernels do not support the network.
            ValueError: a parameter has an invalid size or number.
            RuntimeError: the kernel has failed otherwise.
        """
        self._library, self._c = library, library.c
        self._precision = precision
        self._kernel = "; ".join((library.kernel, *(["bf16"] if precision == "bf16" else []), *passed_over))
        self._outputs = folded.outputs
        self._given, self.reads_all = folded.given, folded.reads_all
        self._last_call = threading.local()
        self._model: int | None = None
        most = max((product.matrix.shape[1] for product in folded.products.values()), default=0)
        if precision == "int8" and most > library.max_inputs:
            raise FoldingError(f"a product has {most} inputs, more than the {library.max_inputs} of {library.kernel}")
        folded, own = without_adapter(folded)
        self._adapters = adapters or [own]
        self._shapes = {name: product.matrix.shape for name, product in folded.products.items()}
        network = folded, Parameters.of(folded)
        numbers = program_numbers(*network)
        with self._created(numbers) as measured:
            self._add_sizes(measured, *network)
            size = self._c.swiftlet_model_bytes(measured)
        file = None if files is None else self._packed_file(files, source, size, numbers, network)
        with self._created(numbers, size, file, packed=file is not None) as model:
            (self._add_parameters if file is None else self._add_sizes)(model, *network)
            _check(self._c.swiftlet_finish(model))
            if self._c.swiftlet_outputs(model) != self._outputs:
                raise ValueError(ERRORS[5])
            self._model = model
        self._adapter_count = len(self._adapters)
        del self._adapters, self._shapes  # which are packed
        self._destroy = weakref.finalize(self, self._c.swiftlet_destroy, model)  # if nobody closes the engine
        self._destroy.atexit = False

    @contextmanager
    def _created(
        self, numbers: NDArray[np.int32], size: int = 0, file: int | None = None, *, packed: bool = False
    ) -> Iterator[int]:
        """Creates a model without parameters for the block. Destroys it afterwards, unless the engine keeps it."""
        created = ctypes.c_void_p()
        about = PRECISIONS[self._precision], numbers, numbers.size, size, -1 if file is None else file, packed
        _check(self._c.swiftlet_create(*about, ctypes.byref(created)))
        assert created.value is not None  # noqa: S101  # for the type checker
        try:
            yield created.value
        finally:
            if self._model is None:
                self._c.swiftlet_destroy(created.value)

    def _packed_file(
        self, files: SealedFiles, source: str, size: int, numbers: NDArray[np.int32], network: tuple[Folded, Parameters]
    ) -> int | None:
        """Returns the descriptor of a file with the packed parameters, or None if the system cannot make one."""
        about = repr((INTERFACE, self._library.kernel, self._precision, source, size)).encode() + numbers.tobytes()
        key = hashlib.sha256(about).digest()
        if (found := files.find(key, size)) is not None:
            return found
        with suppress(OSError, MemoryError), files.make(key, size) as file, self._created(numbers, size, file) as model:
            self._add_parameters(model, *network)
        return files.find(key, size)

    def _add_parameters(self, model: int, folded: Folded, parameters: Parameters) -> None:
        products, words = listed_matrices(folded, parameters)
        matrices = stored_ahead([*(product.matrix for product in products), *words], self._precision)
        for product, (weight, scale) in zip(products, matrices, strict=False):  # the table of words follows
            bias = finite(product.bias)
            if bias.shape != weight.shape[:1]:
                raise ValueError(ERRORS[5])
            _check(self._c.swiftlet_add_product(model, *weight.shape, weight, scale, bias))
        for table, scale in matrices:
            _check(self._c.swiftlet_add_words(model, *table.shape, table, scale))
        for name in parameters.vectors:
            floats = finite(parameters.vectors[name])
            _check(self._c.swiftlet_add_vector(model, floats.size, floats))
        self._add_adapters(model, parameters, reads=True)
        self._share_words(model, folded, parameters)

    def _add_sizes(self, model: int, folded: Folded, parameters: Parameters) -> None:
        """Does the same for a model that does not read the parameters."""
        products, words = listed_matrices(folded, parameters)
        for product in products:
            _check(self._c.swiftlet_add_product(model, *product.matrix.shape, None, None, None))
        for table in words:
            _check(self._c.swiftlet_add_words(model, *table.shape, None, None))
        for vector in parameters.vectors.values():
            _check(self._c.swiftlet_add_vector(model, vector.size, None))
        self._add_adapters(model, parameters, reads=False)
        self._share_words(model, folded, parameters)

    def _add_adapters(self, model: int, parameters: Parameters, *, reads: bool) -> None:
        _check(self._c.swiftlet_set_adapters(model, len(self._adapters)))
        for number, adapter in enumerate(self._adapters):
            for name, (a, b) in adapter.items():
                if not len(a) or (len(b), a.shape[1], b.shape[1]) != (*self._shapes[name], len(a)):
                    raise ValueError("an adapter does not fit its product")
                rank = len(a) + -len(a) % MULTIPLE
                a, b = np.pad(a, ((0, rank - len(a)), (0, 0))), np.pad(b, ((0, 0), (0, rank - len(a))))
                matrices = (round_to_bf16(a), round_to_bf16(b)) if reads else (None, None)
                _check(self._c.swiftlet_add_delta(model, number, parameters.products[name], rank, *matrices))

    def _share_words(self, model: int, folded: Folded, parameters: Parameters) -> None:
        if folded.words is not None and parameters.words_in is not None:
            shared = parameters.products[parameters.words_in]
            _check(self._c.swiftlet_share_words(model, shared, folded.words.shape[1]))

    @property
    def title(self) -> str:
        wrong = self._library.kernel_faults
        return f"native ({self._kernel}{'; without tiles, which computed a wrong sum' if wrong else ''})"

    @property
    def kernel_faults(self) -> int:
        return self._library.kernel_faults

    @property
    def helped_s(self) -> float:
        """The time that other cores spent on this thread's last call."""
        seconds: float = getattr(self._last_call, "helped_s", 0.0)
        return seconds

    @property
    def bytes(self) -> int:
        """The size of the parameters, which all threads share."""
        size: int = self._c.swiftlet_model_bytes(self._model)
        return size

    def run(self, batch: Batch) -> Sequence[Row]:
        """Computes a batch.

        Raises:
            ValueError: the batch is invalid: an id or a position in focus is out of range, or a sequence is empty or
                too long.
            MemoryError: there is not enough memory.
            RuntimeError: the kernel has failed otherwise.
        """
        tokens, rows = len(batch.input_ids), len(batch.offsets) - 1
        offsets = batch.offsets, batch.focus_offsets, batch.candidate_offsets
        counts, limits = {len(batch.top_k), len(batch.attended), len(batch.heads)}, {*map(len, offsets)}
        if len(batch.token_type_ids) != tokens or counts != {rows} or limits != {rows + 1}:
            raise ValueError(ERRORS[2])
        if (batch.heads < 0).any() or (batch.heads >= self._adapter_count).any():
            raise ValueError(ERRORS[2])
        shapes = batch.row_shapes([self._outputs] * self._adapter_count)
        # The batch is not validated yet: this bounds the memory. The rows of a valid batch are never longer.
        longest = min(max([0, *(width for _, width in shapes)]), 1 + 2 * self._outputs)
        numbers = np.empty(len(batch.focus) * longest, np.float32)
        sizes = rows, tokens, len(batch.focus), len(batch.candidates)
        given = None if batch.given is None else np.ascontiguousarray(batch.given, np.float32)
        if given is not None and given.shape != (tokens, self._given):
            raise ValueError(ERRORS[2])
        # One array, because passing an array takes a microsecond.
        input_numbers = np.concatenate(batch.arrays, dtype=np.int64, casting="unsafe")
        helped_ns = ctypes.c_int64()
        status = self._c.swiftlet_run(self._model, *sizes, input_numbers, given, numbers, ctypes.byref(helped_ns))
        self._last_call.helped_s = 1e-9 * helped_ns.value
        if status == WRONG_SUM:
            log.error(
                "AMX tiles computed a wrong sum. The call was computed again. This process uses no tiles any more."
            )
        else:
            _check(status)
        ends = [0, *accumulate(read * width for read, width in shapes)]
        return [numbers[ends[b] : ends[b + 1]].reshape(shape).copy() for b, shape in enumerate(shapes)]

    def close(self) -> None:
        self._destroy()
        self._model = None


def create(artifact: Artifact, threads: int, files: SealedFiles | None = None) -> Engine:
    """Loads the artifact's network into the best kernels for this CPU, or into ONNX Runtime if that is not possible.

    The weights lie in one of the `files` if possible.

    A call uses up to `threads` cores while they are idle. In ONNX Runtime, which cannot give them back, it uses one.

    Raises:
        ArtifactError: the file of the parameters cannot be read, or does not hold the parameters of the manifest's
            network.
    """
    try:
        return _native(artifact, threads, files)
    except FoldingError as reason:
        log.warning("%s runs on onnx_cpu, because the native engine cannot run it: %s", artifact.manifest.name, reason)
        return onnx_cpu.create(artifact, threads=1)


def create_heads(artifacts: Sequence[Artifact], threads: int, files: SealedFiles | None = None) -> Engine:
    """Loads the heads of artifacts that share a trunk, and the trunk once. `files` are as in `create`.

    Raises:
        FoldingError: no kernel for this CPU supports one of the networks.
        ArtifactError: as `create`.
    """
    found = [_adapter(artifact) for artifact in artifacts]
    adapters: list[Adapter] = [] if all(found) else [{}]  # all heads without an adapter have the first one
    numbers = [0] * len(found)
    for head, adapter in enumerate(found):
        if adapter:
            numbers[head] = len(adapters)
            adapters.append(adapter)
    sources = artifacts if any(adapters) else artifacts[:1]
    trunk = _native(artifacts[0], threads, files, "trunk", adapters, sources)
    return SharedTrunk(trunk, [_native(artifact, threads, files, "head") for artifact in artifacts], numbers)


def _adapter(artifact: Artifact) -> Adapter:
    """Returns what an artifact's adapter adds to its trunk.

    Raises:
        FoldingError, ArtifactError: as `create_heads`.
    """
    with _open(artifact) as weights:
        if not any(isinstance(weight, Adapted) for weight in weights.values()):
            return {}
        return without_adapter(fold_artifact(artifact, weights, part="trunk"))[1]


@contextmanager
def _open(artifact: Artifact) -> Iterator[Weights]:
    """Opens an artifact's parameters for the duration of a block. Raises ArtifactError if one of them is invalid."""
    try:
        with open_weights(artifact.weights) as weights:
            yield weights
    except (WeightsError, ValueError) as error:
        raise ArtifactError(f"{artifact.path.name}: {error}") from None


def _native(
    artifact: Artifact,
    threads: int,
    files: SealedFiles | None,
    part: Part = "network",
    adapters: Sequence[Adapter] = (),
    sources: Sequence[Artifact] = (),
) -> Native:
    """Loads a part of an artifact's network. `sources` are the artifacts of the adapters."""
    manifest = artifact.manifest
    library, passed_over = _kernel_selection.select()
    if library is None:
        raise FoldingError("no kernel is compiled for this CPU")
    if manifest.precision not in PRECISIONS:
        raise FoldingError(f"the precision is {manifest.precision}")
    made = artifact.card().get("native") if (artifact.path / CARD).is_file() else None  # one in the making has none
    if isinstance(made, dict) and "refused" in made:  # then the answers of onnx_cpu decided on the precision
        raise FoldingError(f"it was refused when the artifact was made ({str(made['refused']).removesuffix('.')})")
    with _open(artifact) as weights:
        folded = fold_artifact(artifact, weights, part=part)
        source = " ".join(each.weights_sha256 for each in sources or [artifact])
        network = Native(library, folded, passed_over, manifest.precision, files, source, adapters)
    library.share_cores(threads, numa_nodes() if threads > 1 else ())
    if passed_over:
        _warn_once(library.kernel, passed_over)
    return network


@cache
def _warn_once(kernel: str, passed_over: tuple[str, ...]) -> None:
    """Logs a warning, once in a process, however many models it loads."""
    log.warning("the native engine serves on %s, because better kernels do not: %s", kernel, "; ".join(passed_over))


def _check(status: int) -> None:
    if status:
        raise {1: MemoryError, 6: RuntimeError}.get(status, ValueError)(ERRORS[status])
