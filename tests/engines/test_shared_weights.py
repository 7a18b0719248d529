"""Processes share the packed weights of the native engine in sealed files, and refuse any file that is not theirs."""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace

import numpy as np
import pytest

from swiftlet_models.folded import Product
from swiftlet_models.tensors import Computed
from swiftlet_serve.engines import _kernel_library, _kernel_selection, native
from swiftlet_serve.engines._program_numbers import Parameters, program_numbers
from swiftlet_serve.engines.native import Native
from swiftlet_serve.machine.sealed_files import SealedFiles, open_sealed, path_of
from swiftlet_serve.types import Batch
from tests.support.native_kernels import best, encoding, folded
from tests.support.shared_trunks import make_heads, sequences

pytestmark = pytest.mark.skipif(_kernel_selection.best() is None, reason="no kernel is compiled for this CPU")

BATCH = Batch.of([encoding(length, [0, length - 1], length) for length in (2, 9, 33)])


def paths(descriptors):
    return [path_of(os.getpid(), descriptor) for descriptor in descriptors]


def unread(network):
    """Returns a network whose packed matrices must not be read."""

    def hidden(matrix):
        def fail(_):
            raise AssertionError("a matrix was read")

        return Computed(matrix.shape, matrix.dtype, fail)

    packed = Parameters.of(network)
    products = {
        name: Product(hidden(network.products[name].matrix), network.products[name].bias) for name in packed.products
    }
    words = products[packed.words_in].matrix if packed.words_in else hidden(network.words)
    return replace(network, products=network.products | products, words=words)


def rows(engine):
    return [row.tobytes() for row in engine.run(BATCH)]


@pytest.mark.parametrize("precision", ["int8", "bf16"])
@pytest.mark.parametrize(
    ("architecture", "task"), [("albert", "fill-mask"), ("mobilebert", "qa"), ("mpnet", "classify")]
)
def test_process_that_maps_a_file_reads_no_matrix_and_computes_the_same_bits(architecture, task, precision):
    network = folded(architecture, task)
    first = SealedFiles()
    packed = Native(best(), network, precision=precision, files=first, source="a")
    second = SealedFiles(paths(first.new))
    mapped = Native(best(), unread(network), precision=precision, files=second, source="a")
    expected = rows(Native(best(), network, precision=precision))

    assert (len(first.new), len(second.new)) == (1, 0)
    assert rows(packed) == rows(mapped) == expected
    first.close()
    packed.close()
    assert rows(mapped) == expected


def test_heads_on_one_trunk_map_the_files_of_each_part():
    artifacts, first = make_heads("bert", "int8"), SealedFiles()
    packed = native.create_heads(artifacts, 1, first)
    second = SealedFiles(paths(first.new))
    mapped = native.create_heads(artifacts, 1, second)
    batch = Batch.of(sequences(artifacts))

    assert (len(first.new), len(second.new)) == (1 + len(artifacts), 0)
    assert [row.tobytes() for row in packed.run(batch)] == [row.tobytes() for row in mapped.run(batch)]


def test_file_of_another_source_kernel_or_precision_is_not_used(monkeypatch):
    network, first = folded("bert", "qa"), SealedFiles()
    Native(best(), network, files=first, source="a")
    for change in ({"source": "b"}, {"precision": "bf16"}, {"kernel": "another"}):
        with monkeypatch.context() as patch:
            patch.setattr(_kernel_library.Library, "kernel", change.pop("kernel", best().kernel))
            files = SealedFiles(paths(first.new))
            engine = Native(best(), network, files=files, **{"source": "a", **change})

        assert len(files.new) == 1
        assert rows(engine) == rows(Native(best(), network, precision=change.get("precision", "int8")))


def test_only_sealed_files_of_the_right_size_and_key_are_opened(tmp_path):
    key, files = b"k" * 32, SealedFiles()
    with files.make(key, 8192) as descriptor:
        os.pwrite(descriptor, b"weights", 64)
        unsealed = os.dup(descriptor)
        assert open_sealed(path_of(os.getpid(), unsealed)) is None  # as after the death of its writer
    (sealed,) = files.new
    for change in (
        lambda: os.pwrite(unsealed, b"x", 64),
        lambda: os.ftruncate(unsealed, 64),
        lambda: os.ftruncate(unsealed, 1 << 20),
    ):
        with pytest.raises(PermissionError):
            change()
    (tmp_path / "file").write_bytes(key + bytes(8160))
    os.mkfifo(tmp_path / "pipe")
    others = [str(tmp_path / name) for name in ("file", "pipe", "missing")]

    assert [open_sealed(path) for path in others] == [None] * 3
    assert SealedFiles([*others, *paths([sealed])]).find(key, 4096) is None
    assert SealedFiles(paths([sealed])).find(b"o" * 32, 8192) is None
    assert os.pread(SealedFiles([*others, *paths([sealed])]).find(key, 8192), 7, 64) == b"weights"


@pytest.mark.parametrize("refused", ["memfd_create", "posix_fallocate"])
def test_weights_are_private_where_the_system_refuses_the_file(refused, monkeypatch):
    def fail(*_):
        raise OSError

    monkeypatch.setattr(os, refused, fail)
    files, before = SealedFiles(), os.listdir("/proc/self/fd")
    engine = Native(best(), folded("bert", "qa"), files=files)

    assert files.new == []
    assert rows(engine) == rows(Native(best(), folded("bert", "qa")))
    assert os.listdir("/proc/self/fd") == before


def test_invalid_parameter_leaves_no_file():
    network = folded("bert", "qa")
    name = next(iter(network.products))
    broken = replace(network.products[name], bias=np.full_like(network.products[name].bias, np.nan))
    files, before = SealedFiles(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(ValueError, match="not finite"):
        Native(best(), replace(network, products=network.products | {name: broken}), files=files)

    assert files.new == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [1, 64, 4096])
def test_parameters_never_leave_the_memory_of_their_model(size):
    network = folded("bert", "qa")
    numbers = program_numbers(network, Parameters.of(network))
    descriptor, model = os.memfd_create("small"), ctypes.c_void_p()
    os.ftruncate(descriptor, size)
    c = best().c
    assert c.swiftlet_create(0, numbers, numbers.size, size, descriptor, 1, ctypes.byref(model)) == 0
    statuses = {c.swiftlet_add_product(model, *one.matrix.shape, None, None, None) for one in network.products.values()}
    c.swiftlet_destroy(model)
    os.close(descriptor)

    assert 1 in statuses <= {0, 1}
