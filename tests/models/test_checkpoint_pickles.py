"""Files of torch.save are read as torch does, and nothing in them is executed."""

from __future__ import annotations

import json
import pickle
import random
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models import pickles, torch_pickle
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors
from swiftlet_models.tensors import WeightsError
from tests.support.checkpoints import SMALL, reference

NAME = "pytorch_model.bin"
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool)
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(6)}

KEY = "a key of a dictionary is neither a text nor an integer"


def save(directory: Path, content: Any, *, zipped: bool = True, **options: Any) -> Path:
    torch.save(content, directory / NAME, _use_new_zipfile_serialization=zipped, **options)
    return directory / NAME


def check(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    """Compares the tensors of a checkpoint, whole and in part."""
    with open_tensors(directory) as weights:
        assert list(weights) == list(expected)
        for name, tensor in expected.items():
            array = (tensor.detach().float() if tensor.is_floating_point() else tensor.detach()).numpy()
            actual = np.asarray(weights[name])
            assert (actual.dtype.itemsize, actual.shape) == (array.dtype.itemsize, array.shape)
            assert np.array_equal(actual, array)
            if array.ndim:
                assert np.array_equal(weights[name][1:3], array[1:3])


def message(directory: Path) -> str:
    """Returns why the checkpoint is refused."""
    with pytest.raises(ConversionError) as caught, open_tensors(directory):
        pass
    text = str(caught.value)
    assert text.startswith(f"{NAME} cannot be read as plain weights: ")
    assert text.endswith("; save the model once more with save_pretrained, which writes model.safetensors.")
    return text.split(": ", 1)[1].rsplit("; ", 1)[0]


# Files of torch


@st.composite
def states(draw: st.DrawFn) -> OrderedDict[str, torch.Tensor]:
    """Draws tensors of every type, and views that share their storages."""
    tensors: OrderedDict[str, torch.Tensor] = OrderedDict()
    for i in range(draw(st.integers(0, 3))):
        dtype = draw(st.sampled_from((*FLOATS, *WHOLE)))
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        whole = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(i)).to(dtype)
        tensors[f"whole.{i}"] = torch.nn.Parameter(whole) if dtype in FLOATS and draw(st.booleans()) else whole
        for j in range(draw(st.integers(0, 2))):
            view = whole.permute(draw(st.permutations(range(whole.ndim))))
            for axis in range(view.ndim):
                part = slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 3)))
                view = view[(slice(None),) * axis + (part,)]
            tensors[f"view.{i}.{j}"] = view
    tensors._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]  # as of nn.Module
    return tensors


@given(states(), st.booleans(), st.integers(2, 5))
def test_tensors_and_views_are_those_of_torch(tmp_path_factory, tensors, zipped, protocol):
    directory = tmp_path_factory.getbasetemp()
    file = save(directory, tensors, zipped=zipped, pickle_protocol=protocol)
    check(directory, torch.load(file, weights_only=protocol == 2))  # with weights_only, torch reads no later protocol


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_a_gpu_are_read(tmp_path, zipped, monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
    file = save(tmp_path, TENSORS, zipped=zipped)
    assert b"cuda:1" in file.read_bytes()
    check(tmp_path, TENSORS)


def test_unsigned_integers_and_attributes_are_read(tmp_path):
    """Types without a class of storages, and a parameter with attributes, are pickled in other ways."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.purpose = "test"  # type: ignore[attr-defined]
    tensors = {"u": torch.arange(6).reshape(2, 3).T.to(torch.uint16), "p": parameter}
    save(tmp_path, tensors)
    check(tmp_path, tensors)


def test_old_files_of_python_2_are_read(tmp_path):
    """They call functions that newer versions do not, and hold byte strings."""
    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x06Nt"
    tensor = b"ctorch._utils\n_rebuild_tensor\n(" + storage + b"QK\x00K\x02K\x03\x86K\x03K\x01\x86tR"
    content = b"\x80\x02ccollections\nOrderedDict\n(](](U\x01a" + tensor + b"eetR."
    facts = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    numbers = struct.pack("<q6f", 6, *range(6))
    head = pickle.dumps(torch_pickle._MAGIC, 2) + pickle.dumps(1001, 2) + facts
    (tmp_path / NAME).write_bytes(head + content + pickle.dumps(["0"], 2) + numbers)
    check(tmp_path, {"a": TENSORS["a"]})


@pytest.mark.parametrize("name", ["bert", "distilbert"])
@pytest.mark.parametrize("sharded", [True, False])
def test_checkpoints_of_transformers_are_read(tmp_path, name, sharded):
    state = reference(SMALL[name], "classify").state_dict()
    shards = [dict(list(state.items())[i::2]) for i in range(2)] if sharded else [state]
    files = [f"pytorch_model-{i}.bin" for i in range(2)] if sharded else [NAME]
    for file, part in zip(files, shards, strict=True):
        torch.save(part, tmp_path / file)
    if sharded:
        weight_map = {key: file for file, part in zip(files, shards, strict=True) for key in part}
        (tmp_path / f"{NAME}.index.json").write_text(json.dumps({"weight_map": weight_map}))
        state = {key: state[key] for part in shards for key in part}
    check(tmp_path, state)


# What is refused


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "payload",
    [
        "c{module}\n{name}\n(X{text}tR",  # REDUCE
        "(X{text}i{module}\n{name}\n",  # INST
        "(c{module}\n{name}\nX{text}o",  # OBJ
        "\x8c{m}{module}\x8c{n}{name}\x93(X{text}tR",  # STACK_GLOBAL
        "c{module}\n{name}\nX{text}\x85\x81",  # NEWOBJ
        "c{module}\n{name}\nX{text}\x85}}\x92",  # NEWOBJ_EX
        "cpickle\nloads\nC{inner}\x85R",  # a pickle in a pickle
        "ccopyreg\n_reconstructor\n(c{module}\n{name}\nc__builtin__\nobject\nNtR",
        "ctorch.storage\n_load_from_bytes\nC{inner}\x85R",
        "ccollections\nOrderedDict\n)R}}X\x08\0\0\0__dict__c{module}\n{name}\nsb",  # BUILD
        "ccollections\nOrderedDict\n(X{text}tR",  # a listed function with another argument
        "c{module}\n{name}\n(X{text}tQ",  # as an id
    ],
)
@pytest.mark.parametrize(("module", "name"), [("os", "mkdir"), ("builtins", "eval"), ("torch._utils", "__builtins__")])
def test_code_is_not_executed(tmp_path, payload, module, name, zipped):
    marker = str(tmp_path / "ran") if name == "mkdir" else f"__import__('os').mkdir({str(tmp_path / 'ran')!r})"

    def fill(payload: str, inner: str) -> str:
        text = struct.pack("<I", len(marker)).decode("latin1") + marker
        lengths = {"m": chr(len(module)), "n": chr(len(name))}
        return payload.format(module=module, name=name, text=text, inner=chr(len(inner)) + inner, **lengths)

    content = fill(payload, fill("\x80\x02c{module}\n{name}\n(X{text}tR.", "")).encode("latin1")
    content = b"\x80\x04}X\x01\0\0\0a" + content + b"s."
    if zipped:
        with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    else:
        head = [torch_pickle._MAGIC, 1001, {"little_endian": True}]
        (tmp_path / NAME).write_bytes(b"".join(pickle.dumps(part, 2) for part in head) + content)
    message(tmp_path)
    assert not (tmp_path / "ran").exists()
    if payload.startswith("c{module}\n{name}\n(X{text}tR") and name != "__builtins__":
        pickle.loads(content)
        assert (tmp_path / "ran").exists()  # proves that the payload works


def rewrite(file: Path, change: Callable[[list[tuple[str, bytes]]], object], method: int = zipfile.ZIP_STORED) -> None:
    """Changes the entries of an archive."""
    with zipfile.ZipFile(file) as archive:
        entries = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    change(entries)
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda entries: None, None),
        (lambda entries: entries.clear(), "it is damaged"),
        (lambda entries: entries.pop(0), "it is an archive without data.pkl"),
        (lambda entries: entries.append(("b/data.pkl", entries[0][1])), "it is an archive without data.pkl"),
        (lambda entries: entries.append(entries[1]), "it is damaged"),
        (lambda entries: entries.extend([(f"{NAME[:-4]}/data/../../x", b"")]), None),
        (
            lambda entries: entries.__setitem__(slice(None), [(f"../{name}", part) for name, part in entries]),
            "it is an archive without data.pkl",
        ),
        (
            lambda entries: entries.__setitem__(
                slice(None), [(name, b"big" if name.endswith("byteorder") else part) for name, part in entries]
            ),
            "its numbers are in the order of bytes of a big-endian machine",
        ),
        (
            lambda entries: entries.__setitem__(
                slice(None), [(name, part[:-8] if "/data/" in name else part) for name, part in entries]
            ),
            "a tensor lies outside its storage",
        ),
        (
            lambda entries: entries.__setitem__(slice(None), [part for part in entries if "/data/" not in part[0]]),
            "a tensor lies outside its storage",
        ),
        (
            lambda entries: entries.__setitem__(0, (entries[0][0], entries[0][1] + bytes(torch_pickle.MAX_BYTES))),
            "its list of tensors is too long",
        ),
    ],
)
def test_damaged_archives_are_refused(tmp_path, change, expected):
    rewrite(save(tmp_path, TENSORS), change)
    if expected:
        assert message(tmp_path) == expected
    else:
        check(tmp_path, TENSORS)


def test_compressed_archives_are_refused(tmp_path):
    rewrite(save(tmp_path, TENSORS), lambda entries: None, zipfile.ZIP_DEFLATED)
    assert message(tmp_path) == "its entries are compressed or encrypted"


@pytest.mark.parametrize("at", [20, 24, 42])  # the sizes of an entry in the list, and where it begins
@pytest.mark.parametrize("value", [0, 1, 0xFFFFFFFE, 0xFFFFFFFF])
def test_lies_in_the_list_of_entries_are_refused(tmp_path, at, value):
    file = save(tmp_path, TENSORS)
    content = bytearray(file.read_bytes())
    entry = content.rindex(b"PK\1\2", 0, content.rindex(b"data/1"))
    struct.pack_into("<I", content, entry + at, value)
    if at != 42:
        struct.pack_into("<I", content, entry + 44 - at, value)  # the other size
    file.write_bytes(content)
    message(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [  # parts of the pickle of TENSORS["a"]: the offset 0, the shape (2, 3), the strides (3, 1)
        (b"K\x00K\x02K\x03\x86", b"K\x01K\x02K\x03\x86", "a tensor lies outside its storage"),
        (b"K\x00K\x02K\x03\x86", b"K\x00K\xffK\xff\x86", "a tensor lies outside its storage"),
        (b"K\x00K\x02K\x03\x86", b"J\xff\xff\xff\xffK\x02K\x03\x86", "a tensor has an invalid shape"),
        (b"K\x00K\x02K\x03\x86", b"K\x00K\x02\x88\x86", "a tensor has an invalid shape"),
        (b"K\x00K\x02K\x03\x86", b"K\x00K\x02\x85", "a tensor has an invalid shape"),
        (b"K\x00K\x02K\x03\x86", b"K\x00\x8a\x04\0\0\0\x7fK\x03\x86", "a tensor is too large"),
        (b"K\x00K\x02K\x03\x86", b"K\x00(" + b"K\x01" * 9 + b"t", "a tensor has an invalid shape"),
        (b"K\x03K\x01\x86", b"K\x00K\x00\x86", None),  # six times the same number: as expand() gives
        (b"FloatStorage", b"ComplexFloatStorage", "it names torch.ComplexFloatStorage, which is never executed"),
        (b"_rebuild_tensor_v2", b"_rebuild_qtensor", "it names torch._utils._rebuild_qtensor, which is never executed"),
        (b"X\x01\0\0\0a", b"X\x01\0\0\0\x1b", "printed"),
        (b"X\x01\0\0\0a", b"N", KEY),
        (b"X\x01\0\0\0a", b"\x95\xff\xff\xff\xff\xff\xff\xff\x7fX\x01\0\0\0a", None),  # the length of a frame
        (b"X\x01\0\0\0a", b"X\xff\xff\xff\xffa", "it is damaged"),
        (b"X\x01\0\0\0a", b"B\xff\xff\xff\x7fa", "it is damaged"),
        (b"X\x01\0\0\0a", b"r\xff\xff\xff\xffX\x01\0\0\0a", None),  # a place that an array could not have
        (b"X\x01\0\0\0a", b"(" * pickles.MAX_STEPS + b"X\x01\0\0\0a", "it is too long"),
        (b"X\x01\0\0\0a", b"N" + b"\x85" * 100_000 + b"X\x01\0\0\0a", KEY),  # tuples in tuples
        (b"X\x01\0\0\0a", b"\x89" + b"\x85" * 100_000, KEY),
    ],
)
def test_lies_in_the_pickle_are_refused(tmp_path, old, new, expected):
    def change(entries: list[tuple[str, bytes]]) -> None:
        assert old in entries[0][1]
        entries[0] = entries[0][0], entries[0][1].replace(old, new, 1)

    rewrite(save(tmp_path, TENSORS), change)
    if expected == "printed":
        with pytest.raises(ConversionError, match="a name that cannot be printed"), open_tensors(tmp_path):
            pass
    elif expected:
        assert message(tmp_path) == expected
    else:
        with open_tensors(tmp_path) as weights:
            assert list(weights) == ["a", "b"]
            assert [np.asarray(weight).shape for weight in weights.values()] == [(2, 3), (6,)]


def test_expanded_tensors_are_refused(tmp_path):
    """A file of a few bytes could ask for any amount of memory."""
    save(tmp_path, {"a": torch.ones(1).expand(1 << 20, 1 << 10)})
    assert message(tmp_path) == "a tensor repeats its numbers"


def test_whole_models_are_refused_by_name(tmp_path):
    save(tmp_path, torch.nn.Linear(2, 2))
    assert message(tmp_path) == "it names torch.nn.modules.linear.Linear, which is never executed"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:pickletools")  # an invalid escape in a text of old pickles
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_give_tensors_or_one_sentence(tmp_path, zipped):
    random.seed(0)
    file = save(tmp_path, TENSORS, zipped=zipped)
    content = file.read_bytes()
    outcomes = set()
    for _ in range(200):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 1, 2, 5))):
            at = random.randrange(len(content))
            damaged[at : at + random.choice((0, 1, 1, 4))] = random.randbytes(random.choice((0, 1, 1, 1, 4)))
        file.write_bytes(damaged[: random.choice((len(damaged), len(damaged), random.randrange(len(damaged))))])
        try:
            with open_tensors(tmp_path) as weights:
                shapes = [np.asarray(weight).shape for weight in weights.values()]
            outcomes.add(len(shapes))
        except ConversionError as error:
            outcomes.add(str(error))
        except WeightsError:  # numbers that are not finite
            pass
    assert len(outcomes) > 2
