"""A recipe: everything that decides what comes out of a training run, in one TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from swiftlet_serve.models.artifact import Head
from swiftlet_serve.models.errors import ModelError

MOST_PIECES: Final = 1 << 16  # of a vocabulary: rows of tokens are kept as uint16


class RecipeError(ModelError):
    """The recipe cannot be followed; the message is one sentence."""


Task = Literal["classify", "qa", "fill-mask"]  # the tasks that can be trained
HEADS: Final[Mapping[Task, Head]] = {"classify": "classification", "qa": "token", "fill-mask": "masked_lm"}

Optimiser = Literal["adamw", "lamb"]
Arithmetic = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How steps are taken."""

    optimiser: Optimiser = "adamw"
    accumulate: int = 1  # batches that make one step
    precision: Arithmetic = "fp32"  # bf16: of the matrix products, by autocast; the parameters stay in fp32

    def __post_init__(self) -> None:
        _choose("optimiser", self.optimiser, Optimiser)
        _choose("precision", self.precision, Arithmetic)
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise RecipeError(f"accumulate is a whole number from 1 on, and not {self.accumulate!r}.")


Strategy = Literal["auxiliary", "joint", "progressive"]
Spans = Literal["tokens", "words", "ngrams"]
Sentences = Literal["none", "order", "next"]
Objective = Literal["masked", "replaced"]
Pieces = Literal["wordpiece", "unigram"]


@dataclass(frozen=True)
class Transfer:
    """What is imitated, of whom, and when (Sun et al. 2020, arXiv:2004.02984, section 3)."""

    recipe: str = ""  # whose body guides; without one it is the teacher
    strategy: Strategy = "auxiliary"
    share: float = 0.5  # of the steps, that the other strategies imitate before words are learnt
    feature_weight: float = 0.0
    attention_weight: float = 0.0
    hard: float = 1.0  # of what a hole held; the rest is of what the guide says
    begin: bool = field(default=False, kw_only=True)  # a MobileBERT, as near to the ALBERT that guides it as can be
    model: str = field(default="", kw_only=True)  # an artifact that guides in the place of a recipe's body
    # Of what a feature map's normalisation hides. In the paper's code features weigh 100, means 5000, variances 5 and
    # attention 1.
    mean_weight: float = field(default=0.0, kw_only=True)
    variance_weight: float = field(default=0.0, kw_only=True)
    # Of the learning rate, that "progressive" leaves to the layers below the one that imitates. The paper's is small.
    below: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        _choose("strategy", self.strategy, Strategy)
        if self.recipe and self.model:
            raise RecipeError("one guides: the body of a recipe, or a model.")
        if self.begin and not self.guided:
            raise RecipeError("begin is to start as the guide, and transfer names no recipe of one, and no model.")
        weights = self.feature_weight, self.attention_weight, self.mean_weight, self.variance_weight
        if not (0 < self.share < 1 and 0 <= self.hard <= 1 and min(weights) >= 0):
            raise RecipeError("share and hard are between 0 and 1, and the weights not negative.")
        if not 0 <= self.below <= 1 or (self.below and self.strategy != "progressive"):
            raise RecipeError("below is a share between 0 and 1 of the learning rate, of the progressive strategy.")
        if self.strategy != "auxiliary" and not any(weights):
            raise RecipeError(f"{self.strategy} imitates before words are learnt, and no weight says what.")

    @property
    def guided(self) -> bool:
        """Whether it is another than the recipe's teacher that guides."""
        return bool(self.recipe or self.model)


@dataclass(frozen=True)
class Pretraining(Optimisation):
    """Masked words, or words that a smaller network put in their places, and what is learnt beside them."""

    corpora: Mapping[str, int]  # file under the data folder -> rows taken from it
    row_tokens: int
    batch_rows: int  # that go through the network at once
    steps: int
    learning_rate: float
    spans: Spans = field(default="tokens", kw_only=True)  # what is hidden together
    sentences: Sentences = field(default="none", kw_only=True)  # whether they are in order, or one follows the other
    transfer: Transfer | None = field(default=None, kw_only=True)
    masked: float = field(default=0.15, kw_only=True)  # share of the tokens that are to be predicted
    held_out: int = field(default=0, kw_only=True)  # rows that nothing is learnt from, only how they are predicted told
    objective: Objective = field(default="masked", kw_only=True)  # to fill holes, or to tell words that were put in
    continues: str = field(default="", kw_only=True)  # the recipe whose body this one begins with
    fitted: bool = field(default=True, kw_only=True)  # whether it begins as near to the teacher as can be, or anyhow

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_rows, self.row_tokens, self.steps + 1) < 1:
            raise RecipeError("batch_rows and row_tokens are 1 or more, and steps not negative.")
        if self.sentences == "next" and self.batch_rows < 2:
            raise RecipeError("the text of another document is that of another row: batch_rows must be 2 or more.")
        _choose("spans", self.spans, Spans)
        _choose("sentences", self.sentences, Sentences)
        if not 0 < self.masked < 1:
            raise RecipeError(f"masked is a share between 0 and 1, and not {self.masked!r}.")
        if type(self.held_out) is not int or self.held_out < 0 or self.held_out % self.batch_rows:
            raise RecipeError("held_out is a whole number of batches of batch_rows.")
        _choose("objective", self.objective, Objective)
        if self.objective == "replaced" and self.transfer is not None:
            raise RecipeError("who learns to tell replaced words imitates nobody, so that there can be no transfer.")
        if self.sentences != "none" and any(name.endswith(".tsv") for name in self.corpora):
            raise RecipeError("the texts of a table stand alone, so that sentences can only be none.")


@dataclass(frozen=True)
class Distillation:
    """What is learnt from the recipe's teacher beside the labels (Hinton et al. 2015, arXiv:1503.02531).

    The teacher is fine-tuned first, on the same examples.
    """

    hard: float = 0.5  # share of the loss that is the labels'; the rest is the teacher's
    temperature: float = 2.0  # 1 takes the teacher's choices as they are; more shows what it also thinks possible
    epochs: int = 1  # of the teacher
    learning_rate: float = 5e-5  # of the teacher
    begin: bool = field(default=False, kw_only=True)  # as near to that teacher as can be, not with the recipe's body

    def __post_init__(self) -> None:
        if not (0 <= self.hard <= 1 and 1 <= self.temperature < math.inf):
            raise RecipeError("hard is between 0 and 1, and the temperature 1 or more.")
        if type(self.epochs) is not int or self.epochs < 1 or not 0 < self.learning_rate < math.inf:
            raise RecipeError("a teacher learns for an epoch or more, at a rate above 0.")


@dataclass(frozen=True)
class Weakness:
    """Something that is known to go wrong, with an example that shows it."""

    about: str  # a few words
    inputs: str | Mapping[str, str]  # as a request has them
    right: str  # the label, answer or word that would be right


@dataclass(frozen=True)
class Finetuning(Optimisation):
    """One task: what it is trained on, and what it is measured on once, at the end.

    fill-mask is the objective of the pre-training, so that nothing is trained for it here.
    """

    task: Task
    evaluate: str  # file under the data folder
    licences: tuple[str, ...]  # of what it was trained on
    train: Mapping[str, int] = field(default_factory=dict)  # file under the data folder -> examples taken from it
    skip: int = 0  # examples of `evaluate` passed over
    limit: int | None = None  # and how many are measured on then; all if none is given
    epochs: int = 1
    batch_rows: int = 32
    learning_rate: float = 1e-4
    max_tokens: int = 512
    labels: tuple[str, ...] = ()
    distillation: Distillation | None = field(default=None, kw_only=True)
    also: tuple[str, ...] = field(default=(), kw_only=True)  # more files under the data folder that are measured on
    elsewhere: int = field(default=0, kw_only=True)  # questions that are also asked of a text that does not answer them
    # file under the data folder -> sentences of it that the teacher alone says what they are
    unlabelled: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    weaknesses: tuple[Weakness, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_rows, self.epochs, *self.train.values(), *self.unlabelled.values()) < 1:
            raise RecipeError("batch_rows, epochs and how many examples there are of a file are 1 or more.")
        if self.task == "fill-mask" and self.distillation is not None:
            raise RecipeError("fill-mask is not fine-tuned, so that no teacher is.")
        if type(self.elsewhere) is not int or self.elsewhere < 0 or (self.elsewhere and self.task != "qa"):
            raise RecipeError("elsewhere is a number of questions, of qa.")
        if self.unlabelled and (self.task != "classify" or self.distillation is None):
            raise RecipeError("unlabelled are sentences to classify, and a teacher has to say what they are.")
        if not isinstance(self.also, tuple) or len({Path(file).name for file in self.also}) < len(self.also):
            raise RecipeError("also is a list of files, each of another name.")


@dataclass(frozen=True)
class Tokenisation:
    """How the corpora's texts are made into pieces, where no teacher's are taken."""

    kind: Pieces
    lowercase: bool = True
    strip_accents: bool = True
    coverage: float = 1.0  # of the text, by the characters that are kept

    def __post_init__(self) -> None:
        _choose("kind", self.kind, Pieces)
        if not 0 < self.coverage <= 1:
            raise RecipeError(f"coverage is above 0 and at most 1, and not {self.coverage!r}.")


@dataclass(frozen=True)
class Recipe:
    """One architecture and its tasks, with a teacher or with a tokenizer of its own."""

    name: str
    version: str  # of the artifacts
    summary: str  # a sentence for their cards
    seed: int
    vocabulary: int
    architecture: str
    config: Mapping[str, Any]
    pretraining: Pretraining
    finetuning: Mapping[str, Finetuning]  # artifact name -> task
    teacher: str = ""  # installed package that holds a BERT checkpoint under `model/`
    tokenizer: Tokenisation | None = None

    def __post_init__(self) -> None:
        if not 0 < self.vocabulary < MOST_PIECES:
            raise RecipeError(f"a vocabulary has less than {MOST_PIECES} pieces, and not {self.vocabulary!r}.")
        if bool(self.teacher) == (self.tokenizer is not None):
            raise RecipeError("the pieces are either those of a teacher or made as [tokenizer] says.")
        if not self.teacher and self.pretraining.transfer is not None and not self.pretraining.transfer.guided:
            raise RecipeError("without a teacher there is nothing to imitate, unless transfer names who guides.")
        if not self.teacher and any(work.distillation is not None for work in self.finetuning.values()):
            raise RecipeError("distillation needs a teacher, and this recipe names none.")
        if self.pretraining.objective == "replaced":
            for name, work in self.finetuning.items():
                if work.task == "fill-mask":
                    raise RecipeError(f"a network that learns to tell replaced words fills no masks, as {name} would.")

    def same_pieces(self, other: Recipe) -> bool:
        """Whether the other recipe comes by the same vocabulary."""

        def decides(recipe: Recipe) -> tuple[Any, ...]:
            return recipe.teacher, recipe.tokenizer, recipe.vocabulary, list(recipe.pretraining.corpora)

        return decides(self) == decides(other)


def settings(work: Pretraining | Finetuning | Transfer | Distillation) -> dict[str, Any]:
    """All that is set for it. Fields by keyword came later, and count only where they are not at their default.

    So a run that is older than a field is still the run of its recipe.
    """
    late = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(work)
        if field.kw_only
    }
    found = {name: value for name, value in asdict(work).items() if name not in late or value != late[name]}
    parts = {name: getattr(work, name) for name in found}
    return found | {name: settings(part) for name, part in parts.items() if isinstance(part, Transfer | Distillation)}


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe.

    Raises:
        RecipeError: the file is no TOML, or a field is missing or unknown.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no UTF-8, or no TOML
        raise RecipeError(f"it is not valid TOML: {error}") from None
    return parse_recipe(document)


def parse_recipe(document: Mapping[str, Any]) -> Recipe:
    """A recipe of what stands in its file.

    Raises:
        RecipeError: a field is missing or unknown.
    """
    finetuning = {name: _finetuning(table) for name, table in document.get("finetuning", {}).items()}
    pretraining = _pretraining(document.get("pretraining", {}))
    if "tokenizer" in document:
        document = {**document, "tokenizer": _build(Tokenisation, document["tokenizer"])}
    recipe: Recipe = _build(Recipe, {**document, "pretraining": pretraining, "finetuning": finetuning})
    return recipe


def _pretraining(table: Any) -> Any:
    if isinstance(table, Mapping) and "transfer" in table:
        table = {**table, "transfer": _build(Transfer, table["transfer"])}
    return _build(Pretraining, table)


def _finetuning(table: Any) -> Any:
    if isinstance(table, Mapping) and "distillation" in table:
        table = {**table, "distillation": _build(Distillation, table["distillation"])}
    if isinstance(table, Mapping) and isinstance(table.get("weaknesses"), list):
        table = {**table, "weaknesses": tuple(_build(Weakness, one) for one in table["weaknesses"])}
    return _build(Finetuning, table)


def _choose(name: str, value: str, kinds: Any) -> None:
    if value not in get_args(kinds):
        raise RecipeError(f"{name} is one of {', '.join(get_args(kinds))}, and not {value!r}.")


def _build(kind: type[Any], table: Mapping[str, Any]) -> Any:
    if not isinstance(table, Mapping):
        raise RecipeError(f"{kind.__name__.lower()} is a table, and not {table!r}.")
    known = {field.name for field in fields(kind)}
    for name in sorted(set(table) - known):
        raise RecipeError(f"the field {name!r} of {kind.__name__.lower()} is unknown.")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    except TypeError as error:
        raise RecipeError(f"{kind.__name__.lower()}: {error}") from None
