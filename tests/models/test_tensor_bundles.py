"""Tensor bundles of TensorFlow are read without it, and what is damaged or hostile is refused."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors
from swiftlet_models.tensor_bundles import crc32c
from swiftlet_models.tensor_bundles.bundle import Bundle, BundleError
from swiftlet_models.tensor_bundles.table import MAX_BYTES, read_table
from tests.support import tensor_bundles as support
from tests.support.tensor_bundles import KINDS, STRING, entry, header, table, write_bundle

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "bert/embeddings/word_embeddings": RANDOM.normal(size=(40, 300)).astype(np.float32),
    "bert/encoder/layer_0/attention/self/query/kernel": RANDOM.normal(size=(3, 5)).astype(np.float32),
    "bert/encoder/layer_0/attention/self/query/bias": RANDOM.normal(size=5),
    "bert/encoder/layer_0/attention/self/query/bias/adam_m": np.ones(5, np.float32),
    "bert/pooler/dense/bias": np.arange(3, dtype=np.float16),
    "empty": np.zeros((0, 3), np.float32),
    "global_step": np.array(1000, np.int64),
}
DATA = "it.ckpt.data-00000-of-00001"


def write(directory: Path, **options: Any) -> Path:
    write_bundle(directory / "it.ckpt", ARRAYS, **options)
    return directory


def read(directory: Path) -> dict[str, np.ndarray]:
    files = []

    def opened(file: Path) -> Any:
        files.append(file.open("rb", buffering=0))
        return files[-1]

    try:
        bundle = Bundle(directory / "it.ckpt.index", opened)
        return {name: np.asarray(tensor) for name, tensor in bundle.tensors(bundle.entries).items()}
    finally:
        for file in files:
            file.close()


def check(directory: Path) -> None:
    found = read(directory)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array.astype(found[name].dtype))
        assert found[name].shape == array.shape


@pytest.mark.parametrize("options", [{}, {"per_block": 1}, {"files": 3}, {"per_block": 3}])
def test_arrays_are_read_as_they_were_written(tmp_path: Path, options: dict[str, Any]) -> None:
    check(write(tmp_path, **options))


SCRIPT = """
import sys, numpy, tensorflow
directory, tf = sys.argv[1], tensorflow.compat.v1
tf.disable_eager_execution()
arrays = {name.replace("|", "/"): array for name, array in numpy.load(directory + "/arrays.npz").items()}
for options in sys.argv[2:]:
    reader = tensorflow.train.load_checkpoint(f"{directory}/{options}/it.ckpt")
    assert reader.get_variable_to_shape_map().keys() == arrays.keys()
    assert all(numpy.array_equal(reader.get_tensor(name), array) for name, array in arrays.items())
variables = [tf.Variable(array, name=name, dtype=array.dtype) for name, array in arrays.items()]
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, directory + "/it.ckpt")
"""


@pytest.mark.exhaustive
@pytest.mark.skipif("TENSORFLOW_PYTHON" not in os.environ, reason="needs the Python of an environment with TensorFlow")
def test_tensorflow_reads_and_writes_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", **{name.replace("/", "|"): array for name, array in ARRAYS.items()})
    options: dict[str, dict[str, Any]] = {"plain": {}, "files": {"files": 2}}
    for name, chosen in options.items():
        (tmp_path / name).mkdir()
        write(tmp_path / name, **chosen)
    subprocess.run([os.environ["TENSORFLOW_PYTHON"], "-c", SCRIPT, tmp_path, *options], check=True, env={})
    check(tmp_path)


def test_checksum_is_that_of_the_standard() -> None:
    """RFC 3720 has these in appendix B.4."""
    for data, expected in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)):
        assert crc32c.update(crc32c.START, data) ^ 0xFFFFFFFF == expected


@pytest.mark.parametrize("length", [0, 1, 2, 63, 64, 129, 1000, 8191])
def test_checksum_of_parts_is_that_of_the_whole(length: int) -> None:
    data = random.Random(length).randbytes(length)
    state = crc32c.update(crc32c.update(crc32c.START, data[: length // 3]), data[length // 3 :])
    assert crc32c.mask(state) == support.checksum(data)


def test_each_cut_and_each_flip_of_the_index_is_found(tmp_path: Path) -> None:
    """A flip is refused, or changes nothing: an empty block and the space in the footer are not read."""
    content = (write(tmp_path, per_block=3) / "it.ckpt.index").read_bytes()
    whole, unread = read_table(content), 0
    for at in range(len(content)):
        with pytest.raises(ValueError, match=r"table|block"):
            read_table(content[:at])
        try:
            assert read_table(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]) == whole
            unread += 1
        except ValueError:
            pass
    assert unread < 40 + 13


def test_each_flip_of_the_data_is_found(tmp_path: Path) -> None:
    data = write(tmp_path) / DATA
    content = data.read_bytes()
    for at in range(0, len(content), 999):
        data.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(BundleError, match="does not have its checksum"):
            read(tmp_path)


def index(**entries: bytes) -> Callable[[Path], object]:
    """Replaces the index by one with these entries."""
    values = {name.encode(): value for name, value in entries.items()}
    return lambda path: (path / "it.ckpt.index").write_bytes(table({b"": header()} | values))


F32 = KINDS["float32"]
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no data": (lambda path: (path / DATA).unlink(), "it.ckpt.data-00000-of-00001 is missing; copy it"),
    "short data": (lambda path: os.truncate(path / DATA, 100), "shorter than the index says, as if its download"),
    "place beyond the data": (index(a=entry(F32, [4], 1 << 50, 16, 0)), "shorter than the index says"),
    "place beyond all files": (index(a=entry(F32, [4], (1 << 64) - 1, 16, 0)), "shorter than the index says"),
    "file that is not counted": (index(a=entry(F32, [4], 0, 16, 0, file=7)), "a file of data that it does not count"),
    "huge shape": (index(a=entry(F32, [1 << 40], 0, 1 << 42, 0)), "a variable is too large"),
    "negative shape": (index(a=entry(F32, [-1], 0, 4, 0)), "a variable is too large"),
    "shape of many zeros": (index(a=entry(F32, [0, 1 << 40], 0, 0, 0)), "a variable is too large"),
    "many dimensions": (index(a=entry(F32, [1] * 9, 0, 4, 0)), "a variable is too large"),
    "shape that lies": (index(a=entry(F32, [5], 0, 16, 0)), "another size than its shape says"),
    "shape that is a text": (index(a=support.field(2, support.field(2, support.field(1, b"x")))), "invalid shape"),
    "overlap": (
        index(a=entry(F32, [4], 0, 16, 0), b=entry(F32, [4], 8, 16, 0)),
        "variables overlap",
    ),
    "text": (index(a=entry(STRING, [1], 0, 4, 0)), "the variable a is not numbers"),
    "part": (index(a=entry(F32, [4], 0, 16, 0) + support.field(7, b"")), "the variable a is in several parts"),
    "no header": (
        lambda path: (path / "it.ckpt.index").write_bytes(table({b"a": entry(F32, [4], 0, 16, 0)})),
        "the number of files is invalid",
    ),
    "many files": (
        lambda path: (path / "it.ckpt.index").write_bytes(table({b"": header(1 << 40)})),
        "the number of files is invalid",
    ),
    "compressed": (
        lambda path: (path / "it.ckpt.index").write_bytes(table({b"": header()}, compressed=True)),
        "a block is compressed or too large",
    ),
    "big-endian": (
        lambda path: (path / "it.ckpt.index").write_bytes(table({b"": header(endianness=1)})),
        "the order of bytes of a big-endian machine",
    ),
    **{
        f"name {name!r}": (
            lambda path, name=name: (path / "it.ckpt.index").write_bytes(table({b"": header(), name: b""})),
            "the name of a variable cannot be printed",
        )
        for name in (b"\xe9", b"a\n", b"\x1b[31m", "\u202e".encode())
    },
    "long name": (index(**{"a" * 2000: entry(F32, [4], 0, 16, 0)}), "the index is damaged: a block is damaged"),
    "large index": (lambda path: os.truncate(path / "it.ckpt.index", MAX_BYTES + 1), "the index is too large"),
    "empty index": (lambda path: os.truncate(path / "it.ckpt.index", 0), "the end of the table is missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bundles_are_refused(tmp_path: Path, name: str) -> None:
    change, message = HOSTILE[name]
    change(write(tmp_path))
    with pytest.raises(BundleError, match=message):
        read(tmp_path)


def test_names_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftlet_models.tensor_bundles.table.MAX_ENTRIES", 2)
    with pytest.raises(ValueError, match="too many keys"):
        read_table(table(dict.fromkeys((b"a", b"b", b"c"), b"")))


def test_blocks_do_not_repeat_others() -> None:
    """A small file would otherwise have as much content as it says."""
    assert read_table(table({b"a": b"1"})) == {b"a": b"1"}
    with pytest.raises(ValueError, match="blocks overlap"):
        read_table(table({b"a": b"1"}, repeat=True))


def test_checkpoint_is_read_as_transformers_names_it(tmp_path: Path) -> None:
    write_bundle(tmp_path / "it.ckpt", {name: array for name, array in ARRAYS.items() if name != "empty"})
    query = "bert.encoder.layer.0.attention.self.query"
    with open_tensors(tmp_path) as weights:
        assert sorted(weights) == [
            "bert.embeddings.word_embeddings.weight",
            f"{query}.bias",
            f"{query}.weight",
            "bert.pooler.dense.bias",
        ]
        kernel = ARRAYS["bert/encoder/layer_0/attention/self/query/kernel"]
        assert np.array_equal(np.asarray(weights[f"{query}.weight"]), kernel.T)
        assert np.array_equal(weights[f"{query}.weight"][1:4], kernel.T[1:4])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["model/layer/.ATTRIBUTES/VARIABLE_VALUE", "_CHECKPOINTABLE_OBJECT_GRAPH"], "as TensorFlow 2 saves them"),
        (["resnet/conv1/kernel"], "are not those of Google's BERT, ALBERT, MobileBERT or ELECTRA; download it"),
        (["module/bert/pooler/dense/kernel", "bert/pooler/dense/kernel"], "two variables name the parameter bert"),
    ],
)
def test_other_variables_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    write_bundle(tmp_path / "it.ckpt", dict.fromkeys(names, np.ones((2, 2), np.float32)))
    with pytest.raises(ConversionError, match=message) as caught, open_tensors(tmp_path):
        pass
    assert str(caught.value).startswith("the checkpoint of TensorFlow it.ckpt cannot be read: ")


def test_one_of_several_checkpoints_is_not_guessed(tmp_path: Path) -> None:
    write(tmp_path)
    write_bundle(tmp_path / "it.ckpt-9", ARRAYS)
    message = r"several checkpoints of TensorFlow, it\.ckpt and it\.ckpt-9\. Keep the files of one\."
    with pytest.raises(ConversionError, match=message), open_tensors(tmp_path):
        pass
