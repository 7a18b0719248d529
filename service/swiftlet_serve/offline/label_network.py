"""The second network of a checkpoint that encodes labels by themselves, with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from swiftlet_models.artifact import LabelEncoder
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.convert import convert
from swiftlet_models.label_checkpoints import EncoderPart
from swiftlet_models.parameters import configure
from swiftlet_models.tensors import Weights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import SetupError


@dataclass(frozen=True)
class LabelNetwork:
    """An encoder of labels."""

    weights: Weights  # as in `Draft`
    tokenizer: Tokenizer
    about: LabelEncoder


@contextmanager
def open_label_network(part: EncoderPart | None, width: int) -> Iterator[LabelNetwork | None]:
    """Opens the encoder of labels for the duration of a block. `width` is that of the first encoder's vectors.

    Raises:
        ConversionError: it cannot be converted exactly, or its vectors have another width.
        SetupError: its tokenizer does not fit.
        TokenizerError: its tokenizer is not supported.
    """
    if part is None:
        yield None
        return
    embedding, projection = part.read_projection()
    tokenizer = Tokenizer.from_directory(part.tokenizer)
    with convert(
        part.directory, "embedding", "hidden", embedding=embedding, parameters=projection, adapter=part
    ) as own:
        if own.width != width:
            raise ConversionError(f"the vectors of labels have {own.width} numbers, and those of words {width}.")
        assert own.embedding is not None  # noqa: S101  # for the type checker
        vocab_size = configure(own.architecture, own.config).vocab_size
        max_tokens = min(part.max_tokens, own.positions)
        if tokenizer.vocab_size > vocab_size:
            raise SetupError(
                f"The tokenizer of labels has {tokenizer.vocab_size} tokens, and the network only {vocab_size}. Take "
                "that of the training."
            )
        if max_tokens <= tokenizer.special_count(pair=False):
            raise SetupError(f"The limit of {max_tokens} tokens of the tokenizer of labels has no room for a label.")
        yield LabelNetwork(
            own.weights,
            tokenizer,
            LabelEncoder(own.architecture, own.config, max_tokens, vocab_size, own.embedding, tokenizer.reading),
        )
