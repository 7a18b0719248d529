"""The parameters that a network must have, and their shapes.

An artifact may come from anywhere, and compiled code computes with its parameters. So every engine checks them before
it folds or builds a network. Each size is read from one parameter, and no loop or memory depends on a size in the
configuration alone. Parameters have the names in `architectures.traits`, and in `heads` for the heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from swiftlet_models import architectures
from swiftlet_models.architectures.settings import SIZE, Settings
from swiftlet_models.architectures.traits import PositionBias, Traits
from swiftlet_models.artifact import Artifact, ArtifactError, Embedding, Head, Manifest
from swiftlet_models.errors import ModelError

Shapes = Mapping[str, tuple[int, ...]]

_EMBEDDINGS: Final = "encoder.embeddings."


class ParametersError(ModelError):
    """Raised when parameters do not fit together, or not their configuration. The message is a clause."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network."""

    vocabulary: int
    embedding: int  # the width of the word table
    positions: int  # counted from a sequence's first token
    token_types: int  # 0 if the network does not tell them apart
    hidden: int
    inner: int  # the width inside a layer
    attended: int  # the width of the query
    keys: int  # the width of the keys, and of the values
    intermediate: int
    outputs: int  # of the head, per position


def configure(architecture: str, config: Mapping[str, Any]) -> Settings:
    """Returns the configuration of a network. Settings that the architecture does not have are ignored.

    Raises:
        ParametersError: the architecture is unknown, or a setting has an invalid value.
    """
    try:
        config_class: Any = architectures.describe(architecture).Config
        known = {setting.name for setting in fields(config_class)}
        own: Settings = config_class(**{name: value for name, value in config.items() if name in known})
    except ValueError as error:
        raise ParametersError(str(error).removesuffix(".")) from None
    return own


def check_parameters(
    config: Settings, shapes: Shapes, head: Head | None = None, embedding: Embedding | None = None
) -> Sizes:
    """Checks that a network has exactly the parameters of its configuration, in shapes that fit together.

    Without `head`, the parameters tell which head it is. `embedding` describes the head `embedding`.

    Raises:
        ParametersError: a parameter is missing or unexpected, or has an unexpected shape.
    """
    for name, shape in shapes.items():
        if not all(SIZE.least <= n <= SIZE.most for n in shape):
            raise ParametersError(f"the parameter {name!r} has a dimension that is not from 1 to {SIZE.most}")
    traits = config.traits()
    if len(set(traits.layers)) * len(traits.feed_forward) > len(shapes):
        raise ParametersError("there are fewer parameters than the layers need")
    expected, sizes = expected_parameters(
        config, shapes, "embedding" if embedding else head or _head_of(shapes), embedding
    )
    for name in sorted(expected.keys() - shapes.keys()):
        raise ParametersError(f"the parameter {name!r} is missing")
    for name in sorted(shapes.keys() - expected.keys()):
        raise ParametersError(f"the parameter {name!r} is unexpected")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ParametersError(f"the parameter {name!r} has the shape {shapes[name]}, expected {shape}")
    check_sizes(config, sizes)
    return sizes


def expected_parameters(
    config: Settings, shapes: Shapes, head: Head | None, embedding: Embedding | None = None
) -> tuple[dict[str, tuple[int, ...]], Sizes]:
    """Returns the shapes of the parameters that a network must have, and its sizes, by the shapes of some parameters.

    Without `head`, they are those of the encoder.

    Raises:
        ParametersError: a parameter that tells a size is missing, or the widths do not fit together.
    """
    expected = _Expected(config, config.traits(), shapes)
    expected.add_encoder()
    if head:
        expected.add_head(head, embedding)
    return expected.shapes, expected.sizes()


def check_sizes(config: Settings, sizes: Sizes) -> None:
    """Raises ParametersError if a size of the parameters is not the one in the configuration."""
    for setting, size in (
        ("hidden_size", sizes.hidden),
        ("embedding_size", sizes.embedding),
        ("vocab_size", sizes.vocabulary),
        ("intermediate_size", sizes.intermediate),
    ):
        if (stated := getattr(config, setting, size)) != size:
            raise ParametersError(f"{setting} is {stated}, but the parameters have {size}")
    if config.traits().embedding.token_types and getattr(config, "type_vocab_size", 0) != sizes.token_types:
        raise ParametersError(f"type_vocab_size is not {sizes.token_types}, as in the parameters")
    traits = config.traits()
    key_heads = traits.key_heads or traits.heads
    if sizes.attended % traits.heads:
        raise ParametersError(f"{traits.heads} heads do not divide the width {sizes.attended}")
    if (stated := getattr(config, "depth", sizes.attended // traits.heads)) * traits.heads != sizes.attended:
        raise ParametersError(f"a head is {stated} wide, but in the parameters {sizes.attended // traits.heads}")
    if traits.heads % key_heads or sizes.keys * traits.heads != sizes.attended * key_heads:
        raise ParametersError(f"{key_heads} heads of keys do not fit {traits.heads} heads of queries")


def token_types(manifest: Manifest) -> int | None:
    """Returns the number of token types that a network tells apart; None if it ignores them or is unknown.

    Raises:
        ArtifactError: the configuration is invalid.
    """
    if manifest.architecture not in architectures.names():
        return None
    try:
        config = configure(manifest.architecture, manifest.config)
    except ParametersError as error:
        raise ArtifactError(f"{manifest.name}: {error}.") from error
    return getattr(config, "type_vocab_size", None) if config.traits().embedding.token_types else None


def check_artifact(artifact: Artifact, shapes: Shapes) -> None:
    """Checks that an artifact's parameters fit the network in its manifest.

    An artifact of an unknown architecture is not checked: only its graph describes its network.

    Raises:
        ArtifactError: they are not.
    """
    manifest, name = artifact.manifest, artifact.path.name
    if manifest.architecture not in architectures.names():
        return
    try:
        config = configure(manifest.architecture, manifest.config)
        sizes = check_parameters(config, shapes, manifest.head, manifest.embedding)
    except ParametersError as error:
        raise ArtifactError(f"{name}: the weights do not match the manifest: {error}.") from None
    for field, stated, size in (
        ("vocab_size", manifest.vocab_size, sizes.vocabulary),
        ("width", manifest.width, sizes.outputs),
    ):
        if stated != size:
            raise ArtifactError(f"{name}: the manifest's {field} is {stated}, but the network has {size}.")
    if manifest.max_tokens > sizes.positions:
        raise ArtifactError(
            f"{name}: the manifest's max_tokens is {manifest.max_tokens}, but the network has "
            f"{sizes.positions} positions."
        )


def _head_of(shapes: Shapes) -> Head:
    if any(name.startswith("head.transform.") for name in shapes):
        return "token" if "head.output.weight" in shapes else "masked_lm"
    if "head.bias" in shapes:
        return "causal_lm"
    return "classification" if "head.pooler.weight" in shapes else "token"


class _Expected:
    """The shapes of the parameters that a network must have."""

    def __init__(self, config: Settings, traits: Traits, given: Shapes) -> None:
        """Reads the sizes from the given shapes. Raises ParametersError if one of them is not there."""
        self.config, self.traits, self.given = config, traits, given
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.vocabulary, self.embedding = self._table(_EMBEDDINGS + "word.weight")
        self.attended = self.keys = self.inner = self.hidden = self.embedding
        self.intermediate = 0
        if traits.feed_forward and not traits.layers:
            raise ParametersError("the network has no layers")
        if traits.layers:
            if not traits.feed_forward:
                raise ParametersError("the layers have no feed-forward network")
            first = f"encoder.{traits.layers[0]}."
            self.attended, self.inner = self._table(f"{first}query.weight")
            self.hidden = self.inner
            if traits.bottleneck:
                self.inner, self.hidden = self._table(f"{first}{traits.bottleneck.residual}.dense.weight")
            self.keys, _ = self._table(f"{first}key.weight")
            self.intermediate, _ = self._table(f"{first}{traits.feed_forward[0].inner}.weight")
        self.rows = self._table(_EMBEDDINGS + "position.weight")[0] if traits.embedding.positions else 0
        self.token_types = self._table(_EMBEDDINGS + "token_type.weight")[0] if traits.embedding.token_types else 0
        self.outputs = 0
        if traits.embedding.positions and self.rows <= traits.embedding.position_offset:
            raise ParametersError("there are no positions")
        if traits.bottleneck and self.attended != self.inner:
            raise ParametersError("with a bottleneck, the query has another width than the layer")

    def sizes(self) -> Sizes:
        offset = self.traits.embedding.position_offset
        return Sizes(
            vocabulary=self.vocabulary,
            embedding=self.embedding,
            positions=self.rows - offset if self.rows else self.config.max_position_embeddings,
            token_types=self.token_types,
            hidden=self.hidden,
            inner=self.inner,
            attended=self.attended,
            keys=self.keys,
            intermediate=self.intermediate,
            outputs=self.outputs,
        )

    def add_encoder(self) -> None:
        traits, h, c, a = self.traits, self.hidden, self.inner, self.attended
        self._add_embeddings()
        if isinstance(traits.position_bias, PositionBias):
            self.shapes["encoder.position_bias.weight"] = traits.position_bias.buckets, traits.heads
        relative = traits.relative
        if relative:
            self.shapes["encoder.relative.weight"] = 2 * relative.span, h
            if relative.norm:
                self._norm("encoder.relative_norm", h)
        if traits.norm_position != "after":
            self._norm("encoder.norm", h)
        bottleneck = traits.bottleneck
        for name in dict.fromkeys(traits.attention_of or traits.layers):
            layer = f"encoder.{name}."
            for part in ("query", "key", "value"):
                read = (bottleneck.value if part == "value" else bottleneck.query_key) if bottleneck else None
                self._linear(layer + part, a if part == "query" else self.keys, c if read else h)
            if relative and not relative.shared:
                for part, exists in (("key", relative.to_positions), ("query", relative.from_positions)):
                    if exists:
                        self._linear(f"{layer}relative_{part}", a, h)
            if traits.head_norm:
                for part in ("query", "key"):
                    self.shapes[f"{layer}{part}_norm.weight"] = (a // traits.heads,)
            if traits.wide_norm:
                self._norm(layer + "query_norm", a)
                self._norm(layer + "key_norm", self.keys)
            if traits.second_norm:
                self._norm(layer + "second_norm", c)
            self._linear(layer + "output", c, a)
            if traits.first_norm or name != traits.layers[0]:
                self._norm(layer + "attention_norm", c)
            if traits.norm_position == "around":
                self._norm(layer + "output_norm", c)
            if bottleneck:
                for inner in {bottleneck.residual, bottleneck.query_key, bottleneck.value} - {None}:
                    self._linear(f"{layer}{inner}.dense", c, h)
                    self._norm(f"{layer}{inner}.norm", c)
                self._linear(layer + "leave", h, c)
                self._norm(layer + "leave_norm", h)
        for name in dict.fromkeys(traits.feed_forward_of or traits.layers):
            layer = f"encoder.{name}."
            for network in traits.feed_forward:
                for part in filter(None, (network.gate, network.inner)):
                    self._linear(layer + part, self.intermediate, c)
                self._linear(layer + network.outer, c, self.intermediate)
                self._norm(layer + network.norm, c)
                if traits.norm_position == "around":
                    self._norm(f"{layer}{network.outer}_norm", c)

    def _add_embeddings(self) -> None:
        traits, h, e = self.traits.embedding, self.hidden, self.embedding
        summed = h if traits.projection == "words" else e  # the width of words, positions and token types
        if traits.projection == "none" and e != h:
            raise ParametersError("the words have another width than the layers")
        self.shapes[_EMBEDDINGS + "word.weight"] = self.vocabulary, e
        if traits.positions:
            self.shapes[_EMBEDDINGS + "position.weight"] = self.rows, summed
        if traits.token_types:
            self.shapes[_EMBEDDINGS + "token_type.weight"] = self.token_types, summed
        elif _EMBEDDINGS + "token_type.weight" in self.given:
            self.shapes[_EMBEDDINGS + "token_type.weight"] = 1, summed
        if traits.norm != "none":
            self._norm(_EMBEDDINGS + "norm", summed)
        if traits.projection != "none":
            self._linear(_EMBEDDINGS + "projection", h, traits.window * e)

    def add_head(self, head: Head, embedding: Embedding | None) -> None:
        h = self.hidden
        if embedding and embedding.by_vocabulary:
            head = "masked_lm"
        if head in ("masked_lm", "causal_lm"):
            self.outputs = self.vocabulary
            self.shapes["head.bias"] = (self.vocabulary,)
            if head == "causal_lm" or not self.traits.prediction_map:
                if self.embedding != h:
                    raise ParametersError("the words have another width than the layers")
                return
            width, _ = self._table("head.transform.weight")
            self._linear("head.transform", width, h)
            self._norm("head.norm", width)
            if width != self.embedding:
                self.shapes["head.extra"] = self.vocabulary, width - self.embedding
            return
        if head == "embedding" and embedding:
            self._add_vectors(embedding)
            return
        if head == "classification" and self.traits.pooler:
            self._linear("head.pooler", h, h)
        if head == "token" and self.traits.classifier_norm:
            self._linear("head.transform", h, h)
        if head in ("classification", "token") and self.traits.classifier_norm:
            self._norm("head.norm", h)
        self.outputs, _ = self._table("head.output.weight")
        self._linear("head.output", self.outputs, h)

    def _add_vectors(self, embedding: Embedding) -> None:
        if embedding.vector:
            self.outputs, _ = self._table("head.output.weight") if embedding.dense else (self.hidden, 0)
            if embedding.dense:
                width = self.hidden
                for i, inner in enumerate(embedding.hidden_widths):
                    self._linear(f"head.hidden.{i}", inner, width)
                    width = inner
                self._linear("head.output", self.outputs, width)
        if embedding.sparse:
            self.outputs += 1
            self._linear("head.terms", 1, self.hidden)
        if embedding.multi_vector:
            self.outputs += embedding.multi_vector.width
            self._linear("head.vectors", embedding.multi_vector.width, self.hidden)

    def _table(self, name: str) -> tuple[int, int]:
        """Returns the shape of a given parameter, which must have two dimensions."""
        shape = self.given.get(name)
        if shape is None:
            raise ParametersError(f"the parameter {name!r} is missing")
        if len(shape) != 2:
            raise ParametersError(f"the parameter {name!r} has the shape {shape}, expected two dimensions")
        return shape[0], shape[1]

    def _linear(self, name: str, outputs: int, inputs: int) -> None:
        self.shapes |= {name + ".weight": (outputs, inputs), name + ".bias": (outputs,)}

    def _norm(self, name: str, width: int) -> None:
        self.shapes[name + ".weight"] = (width,)
        if self.traits.norm != "rms_norm":
            self.shapes[name + ".bias"] = (width,)
