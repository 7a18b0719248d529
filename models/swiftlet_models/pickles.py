"""Reads pickles without executing them.

A pickle is a program for a small machine with a stack. It calls functions by their names: with `pickle`, any function
of any package. The machine here imports nothing and calls only what its caller lists. It allocates nothing that the
file only announces, and recurses nowhere.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final

MAX_STEPS: Final = 1 << 18  # of a pickle. A network with a thousand tensors has 50,000

_NAME: Final = re.compile(r"[A-Za-z_][\w.]{0,99}", re.ASCII)

Function = Callable[[tuple[Any, ...]], Any]  # of a tuple of arguments


class PickleError(ValueError):
    """Raised when a pickle is damaged, or asks for what is not listed. The message is a clause."""


class Opaque:
    """An object of a class that is known by its name only. Its state is what the pickle gives it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: Any = None

    def build(self, state: Any) -> Any:
        """Returns the object that the pickle goes on with, after it gave this one its state."""
        self.state = state
        return self


def opaque(name: str) -> Function:
    """Returns a function that makes an `Opaque`, whatever its arguments."""
    return lambda _: Opaque(name)


def load(file: IO[bytes], names: Mapping[str, Any], persistent: Function | None = None) -> Any:
    """Returns the object of the pickle that begins at the position of a file, which moves behind its end.

    The object consists of None, numbers, texts, bytes, tuples, lists, dictionaries, and what `names` gives. The keys of
    `names` are a module, a space and a name; a value is a `Function` to call, or a constant. `persistent` gets the ids
    of objects that the pickle does not hold.

    A read of the file must return at most what a caller can afford to keep.

    Raises:
        PickleError: the pickle is damaged, too long, or asks for a name or an instruction that is not listed.
    """
    try:
        return _Machine(names, persistent).run(file)
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, struct.error):
        raise PickleError("it is damaged") from None


class _Machine:
    def __init__(self, names: Mapping[str, Any], persistent: Function | None) -> None:
        self.names, self.persistent = names, persistent
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: IO[bytes]) -> Any:
        """Raises ValueError, IndexError, KeyError, OverflowError and struct.error if the pickle is damaged."""
        for step, (instruction, argument, _) in enumerate(pickletools.genops(file)):
            if step == MAX_STEPS:
                raise PickleError("it is too long")
            self.step(instruction.name, argument)
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self.memo[argument])
            case (
                ("BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT")
                | ("BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8" | "SHORT_BINSTRING" | "BINSTRING")
                | ("SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8" | "BYTEARRAY8")
            ):
                stack.append(argument)
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(name == "NEWTRUE")
            case "MARK":
                self.marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self.since_mark()))
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "APPEND" | "APPENDS":
                items = [stack.pop()] if name == "APPEND" else self.since_mark()
                _as(list, stack[-1]).extend(items)
            case "SETITEM" | "SETITEMS":
                items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else self.since_mark()
                _as(dict, stack[-1]).update(dictionary(zip(items[::2], items[1::2], strict=True)))
            case "GLOBAL":
                stack.append(self.named(argument))
            case "STACK_GLOBAL":
                stack[-2:] = [self.named(f"{_as(str, stack[-2])} {_as(str, stack[-1])}")]
            case "REDUCE" | "NEWOBJ":
                function, arguments = stack[-2:]
                if not callable(function):
                    raise PickleError("it is damaged")
                stack[-2:] = [function(_as(tuple, arguments))]
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], Opaque):
                    stack[-1] = stack[-1].build(state)
                else:
                    _as(dict, stack[-1])  # an OrderedDict with attributes, which say nothing about its content
            case "BINPERSID" if self.persistent:
                stack.append(self.persistent(_as(tuple, stack.pop())))
            case "POP":
                stack.pop()
            case "POP_MARK":
                self.since_mark()
            case "PROTO" | "FRAME" | "STOP":
                pass
            case _:
                raise PickleError(f"it has the instruction {name}, which is not read")

    def named(self, name: str) -> Any:
        if name not in self.names:
            dotted = name.replace(" ", ".")
            raise PickleError(f"it names {dotted if _NAME.fullmatch(dotted) else 'code'}, which is never executed")
        return self.names[name]


def dictionary(pairs: Iterable[Any]) -> dict[Any, Any]:
    """Returns a dictionary of pairs. Raises PickleError if a key is neither a text nor an integer."""
    content = {}
    for pair in pairs:
        match pair:
            case [str() | int() as key, value]:
                content[key] = value
            case _:
                raise PickleError("a key of a dictionary is neither a text nor an integer")
    return content


def _as(kind: type, value: Any) -> Any:
    """Returns a value. Raises PickleError if it is of another kind."""
    if type(value) is not kind:
        raise PickleError("it is damaged")
    return value
