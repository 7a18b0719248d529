"""The requests and responses of `entities`, whatever the kind of model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.tasks._requests import Failure, OneByOne, Strict, TextsRequest, empty_input, input_too_long
from swiftlet_serve.tasks._token_labels import SchemeName, Strategy

MAX_CHARACTERS: Final = 1 << 18  # of all texts of a request: tokenising them takes about 0.25 s
MAX_SEQUENCES: Final = 256  # of one request
MAX_LABELS: Final = 256  # that a request may name
MAX_LABEL: Final = 1000  # characters
MAX_PAIRS: Final = 1 << 17  # of a word and a label in one request: the head takes seconds to score them
STRIDE: Final = "/parameters/stride"
LABELS: Final = "/parameters/labels"


class EntitiesParameters(Strict):
    """Options for the grouping of tokens, and for long texts."""

    aggregation_strategy: Annotated[
        Strategy,
        Field(
            description="How tokens become entities. none: not at all. simple: adjacent tokens of one label. first, "
            "average, max: as simple, but a word has one label, that of its first token, of its tokens' mean scores, "
            "or of its most certain token."
        ),
    ] = "simple"
    ignore_labels: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(description="Labels to leave out.", max_length=1000)
    ] = ["O"]  # noqa: RUF012  # the model is frozen, and copies its defaults
    stride: Annotated[
        int | None,
        Field(
            description="Overlap of the windows of a long text in tokens. Default: only one window is read. For a "
            "model that reads labels, it is in words, the default is the widest entity, and all windows are read.",
            ge=0,
        ),
    ] = None
    label_scheme: Annotated[
        SchemeName,
        Field(
            description="Prefixes of labels. bio: B- begins an entity, I- continues it, as in the pipeline. bilou: "
            "also L- or E- for the last token, U- or S- for the only one."
        ),
    ] = "bio"
    truncation: Annotated[
        bool,
        Field(description="Without a stride: truncates a text that exceeds the token limit. If false, rejects it."),
    ] = True
    labels: Annotated[
        list[Annotated[str, Field(max_length=MAX_LABEL)]] | None,
        Field(
            description="The labels to find. Only for a model that reads labels. Default: those of the model.",
            min_length=1,
            max_length=MAX_LABELS,
        ),
    ] = None
    threshold: Annotated[
        float, Field(description="Lowest score of an entity. Only for a model that reads labels.", ge=0.01, le=1)
    ] = 0.5
    flat: Annotated[
        bool,
        Field(description="Entities do not overlap. If false, one may lie in another. For a model that reads labels."),
    ] = True
    multi_label: Annotated[
        bool, Field(description="A span may have several labels. Only for a model that reads labels.")
    ] = False


DEFAULTS: Final = EntitiesParameters()
# Parameters that one kind of model has no use for.
OF_LABELS: Final = ("labels", "threshold", "flat", "multi_label")
OF_TOKENS: Final = ("aggregation_strategy", "label_scheme")


class EntitiesRequest(TextsRequest):
    """A token classification request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": "Clara lives in Bern.", "parameters": {"aggregation_strategy": "first"}}]
        }
    )

    parameters: Annotated[EntitiesParameters | None, Field(description="Optional parameters.")] = None


class Entity(BaseModel):
    """Adjacent tokens of one label."""

    entity_group: Annotated[str, Field(description="The label, without its prefix.")]
    score: Annotated[float, Field(description="Mean probability of the label over the tokens or words.")]
    word: Annotated[str, Field(description="The tokens as text. Case and spaces may differ from text[start:end].")]
    start: Annotated[int, Field(description="Start of the entity in the text, in code points.")]
    end: Annotated[int, Field(description="End of the entity, exclusive.")]


class LabelledToken(BaseModel):
    """A token and its label, with the strategy none."""

    entity: Annotated[str, Field(description="The label.")]
    score: Annotated[float, Field(description="Probability of the label.")]
    index: Annotated[int, Field(description="Position of the token in the sequence, special tokens included.")]
    word: Annotated[str, Field(description="The token as it is in the vocabulary.")]
    start: Annotated[int, Field(description="Start of the token in the text, in code points.")]
    end: Annotated[int, Field(description="End of the token, exclusive.")]


Found = list[Entity] | list[LabelledToken]


class EntitiesTask(OneByOne):
    """The parts that do not depend on the kind of model."""

    Request = EntitiesRequest
    Response = Found | list[Found | Failure]

    def check_lengths(self, texts: Sequence[str], places: Sequence[str], most: int | None) -> None:
        """Raises Unprocessable if a text is empty, or the texts have more than `most` characters."""
        total = 0
        for text, pointer in zip(texts, places, strict=True):
            if not text.strip():
                raise empty_input(pointer)
            total += len(text)
            if most is not None and total > most:
                detail = f"The texts have more than {most} characters. Send less text in one request."
                raise input_too_long(pointer, detail, most)


def changed(parameters: EntitiesParameters, names: Sequence[str]) -> str | None:
    """Returns the first of some parameters that has another value than the default."""
    return next((name for name in names if getattr(parameters, name) != getattr(DEFAULTS, name)), None)


def too_many_windows(pointer: str) -> Unprocessable:
    detail = f"The texts make more than {MAX_SEQUENCES} windows. Send less text in one request."
    return input_too_long(pointer, detail, MAX_SEQUENCES)
