"""The tensors in a file of `torch.save`, read without torch and without executing the file.

Since torch 1.6, the file is a ZIP archive of uncompressed entries: `NAME/data.pkl` is a pickle of the tensors without
their numbers, and `NAME/data/KEY` holds the numbers of a storage, which several tensors may share. Before, it was five
pickles one after another (a magic number, a version, facts on the machine, the tensors, the keys of the storages), and
the storages in the order of their keys, each behind its length (https://github.com/pytorch/pytorch,
torch/serialization.py).
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftlet_models.pickles import Function, PickleError, dictionary, load
from swiftlet_models.tensors import MAX_SIZE, TYPES, Matrix, Tensor, Weights, strided

MAX_BYTES: Final = 4 << 20  # of a pickle, and of an archive's list of entries. A thousand tensors have 200 kB
MAX_DIMENSIONS: Final = 8

_MAGIC: Final = 0x1950A86A20F9469CFC6C  # of the files before torch 1.6
_VERSION: Final = 1001
_ENTRY: Final = b"PK\3\4"  # the first bytes of an entry of an archive
_LOCAL_HEADER: Final = struct.Struct("<4s2xHH16xHH")
_STORAGES: Final = {
    "Bool": "BOOL",
    "Byte": "U8",
    "Char": "I8",
    "Short": "I16",
    "Int": "I32",
    "Long": "I64",
    "Half": "F16",
    "BFloat16": "BF16",
    "Float": "F32",
    "Double": "F64",
}
_TYPES: Final = ("U16", "U32", "U64")  # which have no class of storages


@dataclass(frozen=True)
class _Storage:
    """The numbers of one tensor or several."""

    key: str
    kind: str  # a key of TYPES
    count: int


NESTED: Final = ("state_dict", "model_state_dict", "model")  # of a mapping, where the mapping of tensors may lie


@dataclass(frozen=True)
class _View:
    """A tensor without its numbers. Offset and strides count numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class File(io.FileIO):
    """A file that is read in small parts, whatever its content asks for."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(MAX_BYTES if size is None or size < 0 else min(size, MAX_BYTES))


def open_torch(file: File) -> Weights:
    """Returns the tensors by name, which are read when they are used, while the file is open.

    Raises:
        PickleError: the file is damaged, or holds more than a mapping of names to tensors. The message is a clause.
    """
    try:
        tensors, storages = _archive(file) if os.pread(file.fileno(), 4, 0) == _ENTRY else _pickles(file)
        return {name: _place(file.fileno(), view, storages) for name, view in _views(tensors).items()}
    except PickleError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, OverflowError, struct.error):
        raise PickleError("it is damaged") from None


def _views(content: object) -> dict[str, _View]:
    if isinstance(content, dict):  # of Lightning, and of many loops of training, which keep other things beside it
        content = next((content[key] for key in NESTED if content.get(key) and isinstance(content[key], dict)), content)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(view, _View) for name, view in content.items()
    ):
        raise PickleError("it is not a mapping of names to tensors")
    return content


def _archive(file: File) -> tuple[Any, dict[str, range]]:
    """Returns the tensors of an archive, and where the storages lie. Raises what `zipfile` raises."""
    entries = _entries(file)
    pickles = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise PickleError("it is an archive without data.pkl")
    root = pickles[0].removesuffix("data.pkl")
    place = entries.get(root + "byteorder", range(0))
    if len(place) < 16 and os.pread(file.fileno(), len(place), place.start) not in (b"", b"little"):
        raise PickleError("its numbers are in the order of bytes of a big-endian machine")
    place = entries[pickles[0]]
    if len(place) > MAX_BYTES:
        raise PickleError("its list of tensors is too long")
    content = io.BytesIO(os.pread(file.fileno(), len(place), place.start))
    prefix = root + "data/"
    storages = {name.removeprefix(prefix): place for name, place in entries.items() if name.startswith(prefix)}
    return load(content, _NAMES, _storage), storages


def _entries(file: File) -> dict[str, range]:
    """Returns where the bytes of each entry of an archive lie. Raises what `zipfile` raises."""
    entries: dict[str, range] = {}
    end = 0
    with zipfile.ZipFile(file) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
            header = os.pread(file.fileno(), _LOCAL_HEADER.size, entry.header_offset)
            magic, flags, method, *lengths = _LOCAL_HEADER.unpack(header)
            start = entry.header_offset + len(header) + sum(lengths)
            if magic != _ENTRY or entry.header_offset < end or entry.filename in entries:
                raise PickleError("it is damaged")
            if method or entry.compress_type or (flags | entry.flag_bits) & 1 or entry.file_size != entry.compress_size:
                raise PickleError("its entries are compressed or encrypted")
            end = start + entry.file_size
            entries[entry.filename] = range(start, end)
        if end > archive.start_dir:
            raise PickleError("it is damaged")
    return entries


def _pickles(file: File) -> tuple[Any, dict[str, range]]:
    """Returns the tensors of a file before torch 1.6, and where the storages lie."""
    size = os.fstat(file.fileno()).st_size
    content = io.BytesIO(os.pread(file.fileno(), MAX_BYTES, 0))
    if load(content, {}) != _MAGIC or load(content, {}) != _VERSION:
        raise PickleError("it is no file of torch.save")
    match load(content, {}):
        case {"little_endian": True}:
            pass
        case _:
            raise PickleError("its numbers are in the order of bytes of a big-endian machine")
    seen: dict[str, _Storage] = {}

    def storage(name: tuple[Any, ...]) -> _Storage:
        if name[-1] is not None:
            raise PickleError("it has a storage within another one")
        place = _storage(name[:-1])
        return seen.setdefault(place.key, place)

    tensors, keys = load(content, _NAMES, storage), load(content, {})
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in seen for key in keys):
        raise PickleError("it is damaged")
    storages, at = {}, content.tell()
    for key in keys:
        (count,) = struct.unpack("<q", os.pread(file.fileno(), 8, at))
        end = at + 8 + count * TYPES[seen[key].kind].itemsize
        if count < 0 or end > size:
            raise PickleError("it is damaged")
        storages[key], at = range(at + 8, end), end
    return tensors, storages


def _storage(name: tuple[Any, ...]) -> _Storage:
    match name:
        case ("storage", str(kind), str(key), _, int(count)) if kind in TYPES and count >= 0:
            return _Storage(key, kind, count)
    raise PickleError("it refers to something else than numbers")


def _rebuild(arguments: tuple[Any, ...]) -> _View:
    match arguments:
        case (_Storage() as storage, int(offset), tuple(shape), tuple(strides), *rest):
            pass
        case _:
            raise PickleError("it is damaged")
    match rest:
        case [] | [_, _]:  # whether it had a gradient, and its hooks
            pass
        case [_, _, str(kind)] if kind in TYPES and storage.kind == "U8":
            storage = replace(storage, kind=kind, count=storage.count // TYPES[kind].itemsize)
        case _:
            raise PickleError("a tensor has properties that are not read")
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in numbers):
        raise PickleError("a tensor has an invalid shape")
    if math.prod(max(n, 1) for n in shape) > MAX_SIZE:
        raise PickleError("a tensor is too large")
    return _View(storage, offset, shape, strides)


def _only(arguments: tuple[Any, ...]) -> _View | tuple[Any, ...]:
    """Returns the tensor of a parameter, or the numbers of a shape."""
    match arguments:
        case (_View() | tuple() as content, *_):
            return content
    raise PickleError("it is damaged")


def _ordered(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    match arguments:
        case ():
            return {}
        case (list(pairs),):
            return dictionary(pairs)
    raise PickleError("it is damaged")


_NAMES: Final[Mapping[str, Function | str]] = {
    "collections OrderedDict": _ordered,
    "torch Size": _only,
    "torch._utils _rebuild_tensor": _rebuild,
    "torch._utils _rebuild_tensor_v2": _rebuild,
    "torch._utils _rebuild_tensor_v3": _rebuild,
    "torch._utils _rebuild_parameter": _only,
    "torch._utils _rebuild_parameter_with_state": _only,
    **{f"torch {name}Storage": kind for name, kind in _STORAGES.items()},
    "torch.storage UntypedStorage": "U8",
    **{f"torch {kind.replace('U', 'uint')}": kind for kind in _TYPES},
}


def _place(descriptor: int, view: _View, storages: Mapping[str, range]) -> Matrix:
    """Returns a tensor in its file.

    Raises:
        PickleError: its storage is missing or too short, or it repeats numbers: the file would not bound its memory.
    """
    storage, shape, strides = view.storage, view.shape, view.strides
    place, size = storages.get(storage.key), TYPES[storage.kind].itemsize
    numbers = math.prod(shape)
    last = view.offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if place is None or storage.count * size > len(place) or (numbers and last >= storage.count):
        raise PickleError("a tensor lies outside its storage")
    if numbers > storage.count:
        raise PickleError("a tensor repeats its numbers")
    return strided(Tensor(descriptor, place.start + view.offset * size, storage.kind, shape), strides)
