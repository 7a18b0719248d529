"""The desired state of a server: the versions that it should serve, in the file desired.json of the repository.

    {
      "models": {
        "albert-sst2": {
          "version": 3,
          "aliases": {"canary": 4},
          "split": {"3": 95, "4": 5},
          "shadow": {"version": 4, "share": 0.1},
          "pinned": true
        },
        "mobilebert-qa": {}
      }
    }

Without the file, every model of the repository is served in its latest version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from swiftlet_models.artifact import NAME
from swiftlet_serve.inference.catalog import DEFAULT
from swiftlet_serve.repository.store import DESIRED, RepositoryError

Version = Annotated[int, Field(ge=1, lt=10**9)]
Alias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
MAX_BYTES: Final = 1 << 20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Shadow(_Strict):
    """Copies of requests to a candidate."""

    version: Annotated[Version, Field(description="The candidate.")]
    share: Annotated[float, Field(gt=0, le=1, description="Share of the answered requests that are copied.")] = 0.1


class DesiredModel(_Strict):
    """The desired versions of one model."""

    version: Annotated[Version | None, Field(description="The default version. Unset: the latest.")] = None
    aliases: Annotated[Mapping[Alias, Version], Field(description="Versions by alias, for `name@alias`.")] = Field(
        default_factory=dict
    )
    split: Annotated[
        Mapping[Version, Annotated[float, Field(gt=0)]],
        Field(description="Shares of the requests that name no version. Requests with equal keys stay together."),
    ] = Field(default_factory=dict)
    shadow: Shadow | None = None
    pinned: Annotated[bool, Field(description="Whether the model always stays in memory.")] = False

    @model_validator(mode="after")
    def _check_default(self) -> DesiredModel:
        if self.version is not None and self.aliases.get(DEFAULT, self.version) != self.version:
            raise ValueError("the version and the alias default differ")
        return self

    @property
    def fixed(self) -> int | None:
        """The default version, or None for the latest. The alias `default` says the same as the field."""
        return self.version or self.aliases.get(DEFAULT)


class _Desired(_Strict):
    models: Mapping[str, DesiredModel]


class Wanted(BaseModel):
    """The desired versions of one model, with the latest version resolved."""

    model_config = ConfigDict(frozen=True)

    default: int
    aliases: Mapping[str, int] = Field(default_factory=dict)
    split: tuple[tuple[int, float], ...] = ()
    shadow: Shadow | None = None
    pinned: bool = False

    @property
    def versions(self) -> list[int]:
        """All desired versions, the default one first."""
        shadow = [] if self.shadow is None else [self.shadow.version]
        return list(dict.fromkeys([self.default, *self.aliases.values(), *(n for n, _ in self.split), *shadow]))


def parse(content: bytes) -> Mapping[str, DesiredModel]:
    """Returns the models of a desired.json, in its order.

    Raises:
        RepositoryError: the file is invalid. The message names the place.
    """
    if len(content) > MAX_BYTES:
        raise RepositoryError(f"{DESIRED} is larger than {MAX_BYTES} bytes.")
    try:
        models = _Desired.model_validate_json(content).models
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = "/".join(map(str, first["loc"])) or "its root"
        raise RepositoryError(f"{DESIRED} is invalid at {place}: {first['msg']}.") from None
    if not models:
        raise RepositoryError(f"{DESIRED} names no model.")
    for name in models:
        if not NAME.fullmatch(name):
            raise RepositoryError(f"{DESIRED} is invalid: {name!r} is no name of a model.")
    return models


def resolve(models: Mapping[str, DesiredModel] | None, present: Mapping[str, Sequence[int]]) -> dict[str, Wanted]:
    """Returns the desired versions of each model, in order.

    Args:
        models: the desired models; None for all models in their latest version.
        present: the versions in the repository.

    Raises:
        RepositoryError: a version is not in the repository.
    """
    if models is None:
        models = {name: DesiredModel() for name, versions in present.items() if versions}
    wanted = {}
    for name, model in models.items():
        there = present.get(name, [])
        if not there:
            raise RepositoryError(f"The model repository has no version of {name}.")
        wanted[name] = resolved = Wanted(
            default=model.fixed or there[-1],
            aliases={alias: version for alias, version in model.aliases.items() if alias != DEFAULT},
            split=tuple(model.split.items()),
            shadow=model.shadow,
            pinned=model.pinned,
        )
        if missing := [version for version in resolved.versions if version not in there]:
            raise RepositoryError(f"The model repository has no version {missing[0]} of {name}.")
    return wanted
