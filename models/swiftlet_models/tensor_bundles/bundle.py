"""The tensors of a tensor bundle: `PREFIX.index` names them, `PREFIX.data-00000-of-00001` has their numbers.

The index is a table of messages: BundleHeaderProto for the empty key, BundleEntryProto for each tensor
(https://github.com/tensorflow/tensorflow, tensorflow/core/protobuf/tensor_bundle.proto).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from swiftlet_models.graphs.protobuf import message, read_fields
from swiftlet_models.tensor_bundles import crc32c
from swiftlet_models.tensor_bundles.table import MAX_BYTES, read_table
from swiftlet_models.tensors import MAX_SIZE, TYPES, Tensor

INDEX: Final = ".index"
MAX_DIMENSIONS: Final = 8
MAX_FILES: Final = 1024  # of data

_PART: Final = 4 << 20  # bytes of a tensor to check at a time
_KINDS: Final[Mapping[int, str]] = {  # the values of DataType that are numbers, with keys of TYPES
    1: "F32",
    2: "F64",
    3: "I32",
    4: "U8",
    5: "I16",
    6: "I8",
    9: "I64",
    10: "BOOL",
    14: "BF16",
    17: "U16",
    19: "F16",
    22: "U32",
    23: "U64",
}

Opener = Callable[[Path], IO[bytes]]


class BundleError(ValueError):
    """Raised when a tensor bundle cannot be read. The message is a clause."""


@dataclass(frozen=True)
class Entry:
    """A tensor without its numbers."""

    kind: str | None  # a key of TYPES; None: no numbers
    shape: tuple[int, ...]
    file: int  # its number
    place: range  # in the file
    checksum: int
    in_parts: bool  # a variable that several entries have


class Bundle:
    """The tensors of a bundle by name."""

    def __init__(self, index: Path, opener: Opener) -> None:
        """Reads an index. `opener` opens it, and the files beside it.

        Raises:
            BundleError: it is damaged.
            OSError: it cannot be read.
        """
        self._index, self._opener = index, opener
        self._files: dict[int, IO[bytes]] = {}
        content = opener(index).read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BundleError("the index is too large")
        try:
            table = read_table(content)
            self._file_count = _read_header(table.pop(b"", b""))
            self.entries = {_read_name(name): _read_entry(entry) for name, entry in table.items()}
        except BundleError:
            raise
        except ValueError as error:
            raise BundleError(f"the index is damaged: {str(error).removesuffix('.')}") from None

    def tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Returns tensors, which are read when they are used. Reads them once, for their checksums.

        Raises:
            BundleError: one of them is damaged, or not numbers.
            OSError: a file cannot be read.
        """
        chosen = {name: self.entries[name] for name in names}
        ends: dict[int, int] = {}
        for name, entry in sorted(chosen.items(), key=lambda item: (item[1].file, item[1].place.start)):
            if entry.kind is None or entry.in_parts:
                raise BundleError(f"the variable {name} is {'in several parts' if entry.in_parts else 'not numbers'}")
            if entry.place.start < ends.get(entry.file, 0):
                raise BundleError("variables overlap")
            ends[entry.file] = entry.place.stop
        return {name: self._tensor(name, entry) for name, entry in chosen.items()}

    def _tensor(self, name: str, entry: Entry) -> Tensor:
        descriptor = self._file(entry.file).fileno()
        if entry.place.stop > os.fstat(descriptor).st_size:
            raise BundleError("a file of data is shorter than the index says, as if its download broke off")
        state = crc32c.START
        for at in range(entry.place.start, entry.place.stop, _PART):
            state = crc32c.update(state, os.pread(descriptor, min(_PART, entry.place.stop - at), at))
        if crc32c.mask(state) != entry.checksum:
            raise BundleError(f"the variable {name} does not have its checksum")
        assert entry.kind  # noqa: S101  # `tensors` has refused other entries
        return Tensor(descriptor, entry.place.start, entry.kind, entry.shape)

    def _file(self, number: int) -> IO[bytes]:
        if number >= self._file_count:
            raise BundleError("the index names a file of data that it does not count")
        if number not in self._files:
            stem = self._index.name.removesuffix(INDEX)
            file = self._index.with_name(f"{stem}.data-{number:05}-of-{self._file_count:05}")
            if not file.is_file():
                raise BundleError(f"{file.name} is missing; copy it beside the index")
            self._files[number] = self._opener(file)
        return self._files[number]


def _read_header(content: bytes) -> int:
    """Returns the number of files of data. Raises ValueError."""
    fields = dict(read_fields(content, range(len(content))))
    count = fields.get(1)
    if not isinstance(count, int) or not 0 < count <= MAX_FILES:
        raise ValueError("the number of files is invalid.")
    if fields.get(2, 0) != 0:
        raise BundleError("its numbers are in the order of bytes of a big-endian machine")
    return count


def _read_name(content: bytes) -> str:
    """Raises ValueError."""
    name = content.decode(errors="replace")
    if not name.isprintable() or "\ufffd" in name:
        raise ValueError("the name of a variable cannot be printed.")
    return name


def _read_entry(content: bytes) -> Entry:
    """Raises ValueError."""
    numbers, checksum, in_parts = {1: 0, 3: 0, 4: 0, 5: 0}, 0, False
    shape: tuple[int, ...] = ()
    for number, value in read_fields(content, range(len(content))):
        match number:
            case 1 | 3 | 4 | 5 if isinstance(value, int):
                numbers[number] = value
            case 2:
                dimensions = (part for field, part in read_fields(content, message(value)) if field == 2)
                shape = tuple(_read_dimension(content, message(dimension)) for dimension in dimensions)
            case 6:
                place = message(value)
                checksum = int.from_bytes(content[place.start : place.stop], "little")
            case 7:
                in_parts = True
    kind, file, offset, size = numbers.values()
    if len(shape) > MAX_DIMENSIONS or math.prod(max(n, 1) for n in shape) > MAX_SIZE:
        raise ValueError("a variable is too large.")
    name = _KINDS.get(kind)
    if name and not in_parts and math.prod(shape) * TYPES[name].itemsize != size:
        raise ValueError("a variable has another size than its shape says.")
    return Entry(name, shape, file, range(offset, offset + size), checksum, in_parts)


def _read_dimension(content: bytes, span: range) -> int:
    """Raises ValueError."""
    size = 0
    for number, value in read_fields(content, span):
        if number == 1:
            if not isinstance(value, int):
                raise ValueError("a variable has an invalid shape.")  # one class for all errors
            size = value
    return size
