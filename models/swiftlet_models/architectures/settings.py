"""Settings: the values of an architecture's configuration, each checked, and what every configuration tells."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from swiftlet_models.architectures.traits import Traits


class Range(NamedTuple):
    """The numbers that a setting may have, both ends included."""

    least: float
    most: float


MOST_LAYERS: Final = 1024
SIZE: Final = Range(1, 1 << 24)  # of any dimension of a parameter
Count = Annotated[int, Range(1, MOST_LAYERS)]
"""The number of layers of a network, or of parts of a layer."""
MOST_POSITIONS: Final = 1 << 16  # of a network without a table of positions, since no parameter bounds them
Positions = Annotated[int, Range(1, MOST_POSITIONS)]
Theta = Annotated[float, Range(1, 1e12)]
"""The base of the angles of rotary position embeddings."""
Id = Annotated[int, Range(0, SIZE.most)]
Rows = Annotated[int, Range(0, SIZE.most)]
"""The number of rows of a table that may be missing."""


@dataclass(frozen=True)
class Settings(ABC):
    """The base of every architecture's `Config`: each setting must have the type of its field.

    Whole numbers are sizes, from 1 to 2^24, unless the field is a `Count` or an `Id`. Other numbers are from 0 to 1.
    """

    def __post_init__(self) -> None:
        """Raises ValueError for a setting of another type or out of its range."""
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if not _is_a(value, kind):
                shown = reprlib.repr(value)
                if get_origin(kind) is Literal and isinstance(value, str):
                    raise ValueError(f"{name} {shown} is not one of {', '.join(get_args(kind))}.")
                raise ValueError(f"{name} has an invalid value: {shown}.")
            if type(value) is int and _is_float(kind):  # such as a layer_norm_eps of 0, which graphs need as a float
                object.__setattr__(self, name, float(value))

    @abstractmethod
    def traits(self) -> Traits:
        """Returns the structure of the network."""

    # Sizes that the heads and the training read. A configuration has fields for them, or derives them from its own.
    @property
    @abstractmethod
    def vocab_size(self) -> int: ...
    @property
    @abstractmethod
    def hidden_size(self) -> int: ...
    @property
    @abstractmethod
    def max_position_embeddings(self) -> int: ...
    @property
    def embedding_size(self) -> int:
        """The width of the word table."""
        return self.hidden_size

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.embedding_size

    @property
    def hidden_dropout_prob(self) -> float:
        """The dropout of the heads and, in most networks, of the layers."""
        return 0.0


def _is_a(value: object, kind: Any) -> bool:
    """Returns whether a setting's value is one of its type."""
    allowed = SIZE if kind is int else Range(0, 1)
    if get_origin(kind) is Annotated:
        kind, allowed = get_args(kind)
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_is_a(value, option) for option in get_args(kind))
    if kind not in (int, float):
        return type(value) is kind
    return type(value) in {kind, int} and allowed.least <= value <= allowed.most  # type: ignore[operator]  # a number


def _is_float(kind: Any) -> bool:
    """Returns whether a setting of this type is a float, or may be one."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind is float or (get_origin(kind) in (Union, UnionType) and any(map(_is_float, get_args(kind))))


def check_heads(width: int, heads: int) -> None:
    """Checks that every attention head gets an equal share of the width.

    Raises:
        ValueError: the number of heads does not divide the width.
    """
    if width % heads:
        raise ValueError(f"num_attention_heads {heads} does not divide the width {width}.")
