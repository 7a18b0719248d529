"""The recipe of a training run: every setting that decides its result, in one TOML file."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

from swiftlet_serve.models.artifact import LANGUAGE, NAME
from swiftlet_serve.models.errors import ModelError
from swiftlet_serve.models.training.conflicts import find_conflict

MAX_VOCAB_SIZE: Final = 1 << 16  # token ids are stored as uint16
SHORTEST: Final = 4  # words of an unlabelled sentence
ENTAILMENT: Final = "entail"  # the beginning, in any case, of the label of hypotheses that follow from a text

Optimiser = Literal["adamw", "lamb"]
Precision = Literal["fp32", "bf16"]
Strategy = Literal["auxiliary", "joint", "progressive"]
Masking = Literal["tokens", "whole_words", "ngrams"]
SentenceObjective = Literal["none", "sentence_order", "next_sentence"]
Objective = Literal["masked_lm", "replaced_token", "causal_lm"]
InputFormat = Literal["blocks", "segment_pairs", "sentence_pairs", "full_sentences", "document_sentences"]
TokenizerKind = Literal["wordpiece", "unigram"]
TrainingMethod = Literal[
    "classification", "span", "masked_lm", "inference", "relevance", "entities", "embedding", "contrastive"
]
"""The training of a task: labels of texts, answers in contexts, pre-training only, hypotheses about texts, texts for
queries, labels of tokens, the vectors of a teacher, or vectors that are close for texts that belong together."""
EMBEDDING_METHODS: Final[Collection[TrainingMethod]] = ("embedding", "contrastive")
"""The methods whose model makes vectors."""


class RecipeError(ModelError):
    """Raised when a recipe is invalid or cannot be run. The message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """The optimiser and how it steps."""

    optimiser: Optimiser = "adamw"
    gradient_accumulation_steps: int = 1
    """Batches per optimiser step."""
    precision: Precision = "fp32"
    """bf16 applies to matrix products, by autocast. The parameters stay in fp32."""

    def __post_init__(self) -> None:
        _check_choice("optimiser", self.optimiser, Optimiser)
        _check_choice("precision", self.precision, Precision)
        if type(self.gradient_accumulation_steps) is not int or self.gradient_accumulation_steps < 1:
            raise RecipeError(
                f"gradient_accumulation_steps must be an integer of at least 1, not "
                f"{self.gradient_accumulation_steps!r}."
            )


@dataclass(frozen=True)
class KnowledgeTransfer:
    """Pre-training with a teacher (Sun et al. 2020, arXiv:2004.02984, section 3).

    The teacher is the recipe's own, unless `teacher_recipe` or `teacher_model` names another.
    """

    teacher_recipe: str = ""
    """The recipe whose pre-trained model is the teacher."""
    strategy: Strategy = "auxiliary"
    transfer_fraction: float = 0.5
    """The fraction of the steps that `joint` and `progressive` spend on transfer before they train on words."""
    feature_weight: float = 0.0
    attention_weight: float = 0.0
    hard_label_weight: float = 1.0
    """The weight of the masked words in the prediction loss. The rest is the weight of the teacher's predictions."""
    init_from_teacher: bool = field(default=False, kw_only=True)
    """Initialises the student from this teacher."""
    teacher_model: str = field(default="", kw_only=True)
    """The artifact that is the teacher: the name of a bundled model, or a directory."""
    mean_weight: float = field(default=0.0, kw_only=True)
    """The weight of the features' means. The paper's code uses 100 for features, 5000 for means, 5 for variances and 1
    for attention."""
    variance_weight: float = field(default=0.0, kw_only=True)
    lower_layers_lr_scale: float = field(default=0.0, kw_only=True)
    """The learning rate that `progressive` leaves to the layers below the one in training, as a fraction. The paper
    uses a small one."""

    def __post_init__(self) -> None:
        _check_choice("strategy", self.strategy, Strategy)
        if self.teacher_recipe and self.teacher_model:
            raise RecipeError("set teacher_recipe or teacher_model, but not both.")
        if self.init_from_teacher and not self.has_own_teacher:
            raise RecipeError("knowledge_transfer.init_from_teacher needs a teacher_recipe or a teacher_model.")
        weights = self.feature_weight, self.attention_weight, self.mean_weight, self.variance_weight
        if not (0 < self.transfer_fraction < 1 and 0 <= self.hard_label_weight <= 1 and min(weights) >= 0):
            raise RecipeError(
                "transfer_fraction and hard_label_weight must be between 0 and 1, and no weight may be negative."
            )
        scale = self.lower_layers_lr_scale
        if not 0 <= scale <= 1 or (scale and self.strategy != "progressive"):
            raise RecipeError("lower_layers_lr_scale must be between 0 and 1, and needs the strategy progressive.")
        if self.strategy != "auxiliary" and not any(weights):
            raise RecipeError(f"the strategy {self.strategy} needs a weight above 0: nothing would be transferred.")

    @property
    def has_own_teacher(self) -> bool:
        """Whether the teacher is another model than the recipe's teacher."""
        return bool(self.teacher_recipe or self.teacher_model)


@dataclass(frozen=True)
class Pretraining(Optimisation):
    """Pre-training by an objective on words, with optional further objectives."""

    corpora: Mapping[str, int]
    """Files under the data folder, each with the number of sequences to take from it."""
    sequence_length: int
    """Tokens per sequence."""
    batch_size: int
    """Sequences per forward pass."""
    steps: int
    learning_rate: float
    masking: Masking = field(default="tokens", kw_only=True)
    """The unit that is masked as a whole."""
    sentence_objective: SentenceObjective = field(default="none", kw_only=True)
    knowledge_transfer: KnowledgeTransfer | None = field(default=None, kw_only=True)
    mask_probability: float = field(default=0.15, kw_only=True)
    held_out_sequences: int = field(default=0, kw_only=True)
    """Sequences that are excluded from training and used to measure the loss."""
    objective: Objective = field(default="masked_lm", kw_only=True)
    init_from_recipe: str = field(default="", kw_only=True)
    """The recipe whose pre-trained model this pre-training continues."""
    init_from_teacher: bool = field(default=True, kw_only=True)
    """Initialises the student from the recipe's teacher; random weights otherwise."""
    input_format: InputFormat = field(default="blocks", kw_only=True)
    """The texts of a sequence: `blocks` are cut from a document anywhere, the others consist of whole sentences."""
    static_masking: bool = field(default=False, kw_only=True)
    """Repeats ten masks of each sequence, by epoch; by default, each mask is new."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_size, self.sequence_length, self.steps + 1) < 1:
            raise RecipeError("batch_size and sequence_length must be at least 1, and steps at least 0.")
        _check_choice("masking", self.masking, Masking)
        _check_choice("sentence_objective", self.sentence_objective, SentenceObjective)
        if not 0 < self.mask_probability < 1:
            raise RecipeError(f"mask_probability must be between 0 and 1, not {self.mask_probability!r}.")
        held_out = self.held_out_sequences
        if type(held_out) is not int or held_out < 0 or held_out % self.batch_size:
            raise RecipeError("held_out_sequences must be a multiple of batch_size.")
        _check_choice("objective", self.objective, Objective)
        _check_choice("input_format", self.input_format, InputFormat)
        if type(self.static_masking) is not bool:
            raise RecipeError(f"static_masking must be true or false, not {self.static_masking!r}.")
        conflict = find_conflict(self)
        if conflict is not None:
            raise RecipeError(conflict)


@dataclass(frozen=True)
class Distillation:
    """Fine-tuning with a teacher (Hinton et al. 2015, arXiv:1503.02531).

    The teacher is the recipe's teacher, fine-tuned first on the same examples, or one that a field below names.
    """

    hard_label_weight: float = 0.5
    """The weight of the labels in the loss. The rest is the weight of the teacher's predictions."""
    temperature: float = 2.0
    """Softens the teacher's predictions; 1 leaves them unchanged."""
    teacher_epochs: int = 1
    teacher_learning_rate: float = 5e-5
    init_from_teacher: bool = field(default=False, kw_only=True)
    """Initialises the student from the fine-tuned teacher, not from the recipe's pre-trained model."""
    task_teacher: str = field(default="", kw_only=True)
    """Another teacher, whose predictions take the place of those of the recipe's teacher: an installed package, or the
    directory of a checkpoint. It reads the texts with a tokenizer of its own."""
    task_teacher_run: str = field(default="", kw_only=True)
    """The name of the task teacher's run, which recipes with the same teacher, task and examples share; by default each
    has its own."""
    task_teacher_epochs: int = field(default=1, kw_only=True)
    """The passes of the task teacher over the training files."""
    task_teacher_learning_rate: float = field(default=3e-5, kw_only=True)
    """The highest learning rate of the task teacher."""
    teacher_engine: str = field(default="", kw_only=True)
    """The engine that computes the predictions in int8, such as `native`, which is several times as fast as PyTorch; by
    default PyTorch, in the precision of the training."""
    character_ngrams: int = field(default=0, kw_only=True)
    """The longest n-grams of a logistic regression on characters that takes the place of any other teacher; 0 for none.
    Each text's predictions come from a regression that did not see the text."""

    def __post_init__(self) -> None:
        if not (0 <= self.hard_label_weight <= 1 and 1 <= self.temperature < math.inf):
            raise RecipeError("hard_label_weight must be between 0 and 1, and temperature at least 1.")
        if self.task_teacher_run and not NAME.fullmatch(self.task_teacher_run):
            raise RecipeError("task_teacher_run must be a name of lower-case letters, digits and the characters . _ -.")
        for name in ("teacher_epochs", "task_teacher_epochs"):
            epochs = getattr(self, name)
            if type(epochs) is not int or epochs < 1:
                raise RecipeError(f"{name} must be an integer of at least 1.")
        for name in ("teacher_learning_rate", "task_teacher_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecipeError(f"{name} must be above 0.")
        if type(self.character_ngrams) is not int or self.character_ngrams < 0:
            raise RecipeError("character_ngrams must be an integer of at least 0.")
        if self.character_ngrams and (self.task_teacher or self.teacher_engine or self.init_from_teacher):
            raise RecipeError("character_ngrams take no task_teacher, teacher_engine or init_from_teacher.")


@dataclass(frozen=True)
class Weakness:
    """A known failure of the model, with an example."""

    about: str
    """A short description."""
    inputs: str | Mapping[str, str]
    """The inputs of a request."""
    right: str
    """The correct label, answer or word."""


@dataclass(frozen=True)
class Finetuning(Optimisation):
    """The training of one task, and its evaluation at the end.

    A task with the method `masked_lm` is not fine-tuned, because pre-training has the same objective.
    """

    task: str
    evaluate: str
    """The evaluation file, under the data folder."""
    licences: tuple[str, ...]
    """The licences of the training data."""
    train: Mapping[str, int] = field(default_factory=dict)
    """Files under the data folder, each with the number of examples to take from it."""
    evaluate_skip: int = 0
    """Examples to skip at the start of the evaluation file."""
    evaluate_limit: int | None = None
    """The maximum number of examples to evaluate; all by default."""
    epochs: int = 1
    batch_size: int = 32
    """Examples per forward pass."""
    learning_rate: float = 1e-4
    max_tokens: int = 512
    labels: tuple[str, ...] = ()
    method: TrainingMethod = field(kw_only=True)
    """How the task is trained; by default the task's own way. With `contrastive`, models for `rerank` and `zero-shot`
    make vectors."""
    init_from: str = field(default="", kw_only=True)
    """The artifact of this recipe whose training this one continues."""
    distillation: Distillation | None = field(default=None, kw_only=True)
    also_evaluate: tuple[str, ...] = field(default=(), kw_only=True)
    """Further evaluation files, under the data folder."""
    unanswerable_questions: int = field(default=0, kw_only=True)
    """Questions to repeat with a context that does not answer them (question answering only)."""
    asked_again: int = field(default=0, kw_only=True)
    """Other contexts of the same article that each question is asked of. Only the teacher answers (question answering
    with a task teacher only)."""
    unlabelled: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Files under the data folder, each with the number of sentences that only the teacher labels."""
    labelled_repeats: int = field(default=1, kw_only=True)
    """How often each labelled example occurs in an epoch, beside the unlabelled ones, which occur once."""
    corrupted: float = field(default=0.0, kw_only=True)
    """The fraction of those sentences whose words are moved, left out, inserted, exchanged or inflected."""
    longest_unlabelled: int = field(default=60, kw_only=True)
    """The words that a sentence of those files has at most."""
    negatives: int = field(default=1, kw_only=True)
    """For each text with a named label, the number of wrong labels that become hypotheses (zero-shot). For each query,
    the number of texts that do not answer it (rerank)."""
    entity_kinds: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The kinds of entities in the training files, each with its kind in the labels; an empty text if its tokens get no
    label (entities only). Spans of other kinds are no entities."""
    weaknesses: tuple[Weakness, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch_size, self.epochs, *self.train.values(), *self.unlabelled.values()) < 1:
            raise RecipeError("batch_size, epochs and the number of examples of each file must be at least 1.")
        if self.method == "masked_lm" and self.distillation is not None:
            raise RecipeError(f"the task {self.task} is not fine-tuned, so it cannot have a distillation table.")
        count = self.unanswerable_questions
        if type(count) is not int or count < 0 or (count and self.method != "span"):
            raise RecipeError("unanswerable_questions must be an integer of at least 0, and needs a task like qa.")
        if self.method == "contrastive" and (self.labels or self.distillation is not None):
            raise RecipeError("the method contrastive takes no labels and no distillation.")
        if self.method == "embedding":
            if not self.unlabelled or self.train or self.labels or self.distillation is not None:
                raise RecipeError("a task like embed needs unlabelled, and takes no train, labels or distillation.")
        elif self.unlabelled and (self.method != "classification" or self.distillation is None):
            raise RecipeError("unlabelled needs a task like classify, and a distillation table.")
        if not 0 <= self.corrupted <= 1 or (self.corrupted and not self.unlabelled):
            raise RecipeError("corrupted must be between 0 and 1, and needs unlabelled.")
        repeats = self.labelled_repeats
        if type(repeats) is not int or repeats < 1 or (repeats > 1 and not self.unlabelled):
            raise RecipeError("labelled_repeats must be an integer of at least 1, and needs unlabelled.")
        if type(self.longest_unlabelled) is not int or self.longest_unlabelled < SHORTEST:
            raise RecipeError(f"longest_unlabelled must be an integer of at least {SHORTEST}.")
        if type(self.negatives) is not int or self.negatives < 0:
            raise RecipeError("negatives must be an integer of at least 0.")
        if self.method == "inference" and not any(label.lower().startswith(ENTAILMENT) for label in self.labels):
            raise RecipeError("a task like zero-shot needs a label that begins with 'entail'.")
        has_task_teacher = self.distillation is not None and self.distillation.task_teacher
        if has_task_teacher and self.method not in ("classification", "inference", "span"):
            raise RecipeError("task_teacher needs a task like classify, qa or zero-shot.")
        has_engine = self.distillation is not None and self.distillation.teacher_engine
        if has_engine and self.method == "span" and not has_task_teacher:
            raise RecipeError("teacher_engine needs a task like classify or zero-shot, or a task_teacher.")
        again = self.asked_again
        if type(again) is not int or again < 0 or (again and not (self.method == "span" and has_task_teacher)):
            raise RecipeError(
                "asked_again must be an integer of at least 0, and needs a task like qa with a task_teacher."
            )
        has_ngrams = self.distillation is not None and self.distillation.character_ngrams
        if has_ngrams and (self.method != "classification" or self.unlabelled):
            raise RecipeError("character_ngrams need a task like classify, and no unlabelled.")
        if (self.method == "entities") != bool(self.entity_kinds):
            raise RecipeError("a task like entities needs entity_kinds, and no other task has any.")
        if self.method == "entities" and self.distillation is not None:
            raise RecipeError("a task like entities takes no distillation table.")
        if self.method == "relevance" and (len(self.labels) != 1 or self.distillation is not None):
            raise RecipeError("a task like rerank needs one label, and no distillation table.")
        files = self.also_evaluate
        if not isinstance(files, tuple) or len({Path(file).name for file in files}) < len(files):
            raise RecipeError("also_evaluate must be a list of files with different names.")


@dataclass(frozen=True)
class TokenizerTraining:
    """The tokenizer that is trained on the corpora. A recipe without a teacher needs one."""

    kind: TokenizerKind
    lowercase: bool = True
    strip_accents: bool = True
    character_coverage: float = 1.0
    """The fraction of the text that the characters in the vocabulary cover."""

    def __post_init__(self) -> None:
        _check_choice("kind", self.kind, TokenizerKind)
        if not 0 < self.character_coverage <= 1:
            raise RecipeError(f"character_coverage must be above 0 and at most 1, not {self.character_coverage!r}.")


@dataclass(frozen=True)
class Recipe:
    """One architecture and its tasks, with a teacher or with a tokenizer of its own."""

    name: str
    version: str
    """The version of the artifacts."""
    summary: str
    """A sentence for the artifacts' cards."""
    seed: int
    vocab_size: int
    architecture: str
    config: Mapping[str, Any]
    pretraining: Pretraining
    finetuning: Mapping[str, Finetuning]
    """The task of each artifact, by the artifact's name."""
    teacher: str = ""
    """An installed package that holds a BERT checkpoint in its folder `model`."""
    tokenizer: TokenizerTraining | None = None
    languages: tuple[str, ...] = ()
    """The languages of the data, as BCP 47 tags such as `en`."""

    def __post_init__(self) -> None:
        if not 0 < self.vocab_size < MAX_VOCAB_SIZE:
            raise RecipeError(f"vocab_size must be above 0 and below {MAX_VOCAB_SIZE}, not {self.vocab_size!r}.")
        if bool(self.teacher) == (self.tokenizer is not None):
            raise RecipeError("a recipe needs either a teacher or a [tokenizer] table.")
        if not isinstance(self.languages, tuple) or not all(_is_language(one) for one in self.languages):
            raise RecipeError('languages must be a list of BCP 47 tags, such as ["en"].')
        plan = self.pretraining.knowledge_transfer
        if not self.teacher and plan is not None and not plan.has_own_teacher:
            raise RecipeError("knowledge_transfer needs a teacher, a teacher_recipe or a teacher_model.")
        plans = [work.distillation for work in self.finetuning.values() if work.distillation is not None]
        if not self.teacher and not all(plan.character_ngrams for plan in plans):
            raise RecipeError("distillation needs a teacher, and this recipe names none.")
        if not self.teacher and any(work.method == "embedding" for work in self.finetuning.values()):
            raise RecipeError("a task like embed needs a teacher, and this recipe names none.")
        for name, work in self.finetuning.items():
            if work.init_from and not self._can_continue(work):
                raise RecipeError(
                    f"{name} cannot continue {work.init_from!r}: name an artifact of this recipe with the same kind of "
                    "network, which continues no other itself."
                )
        objective = self.pretraining.objective
        for name, work in self.finetuning.items():
            if objective != "masked_lm" and work.method == "masked_lm":
                raise RecipeError(f"the objective {objective} trains no masked-LM head, which {name} needs.")

    def _can_continue(self, work: Finetuning) -> bool:
        """Returns whether the artifact that a fine-tuning continues makes vectors as it does."""
        before = self.finetuning.get(work.init_from)
        return (
            before is not None
            and not before.init_from
            and work.method in EMBEDDING_METHODS
            and before.method in EMBEDDING_METHODS
        )

    def has_same_vocabulary(self, other: Recipe) -> bool:
        """Returns whether the other recipe builds the same vocabulary."""

        def settings(recipe: Recipe) -> tuple[Any, ...]:
            return recipe.teacher, recipe.tokenizer, recipe.vocab_size, list(recipe.pretraining.corpora)

        return settings(self) == settings(other)


def identifying_settings(work: Pretraining | Finetuning | KnowledgeTransfer | Distillation) -> dict[str, Any]:
    """Returns the settings that identify a run.

    A keyword-only field counts only if it differs from its default. A new field can therefore be added without
    invalidating existing runs.
    """
    optional = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(work)
        if field.kw_only
    }
    found = {name: value for name, value in asdict(work).items() if name not in optional or value != optional[name]}
    tables = {name: getattr(work, name) for name in found}
    nested = {
        name: identifying_settings(table)
        for name, table in tables.items()
        if isinstance(table, KnowledgeTransfer | Distillation)
    }
    return found | nested


def read_recipe(path: Path, methods: Mapping[str, Sequence[TrainingMethod]]) -> Recipe:
    """Reads a recipe from a TOML file. `methods` holds the training methods of each task, the default one first.

    Raises:
        RecipeError: the file is not valid TOML, a field is missing or unknown, or a value is invalid.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # not UTF-8, or not TOML
        raise RecipeError(f"not valid TOML: {error}") from None
    return parse_recipe(document, methods)


def parse_recipe(document: Mapping[str, Any], methods: Mapping[str, Sequence[TrainingMethod]]) -> Recipe:
    """Builds a recipe from a parsed TOML document. `methods` holds the training methods of each task, the default one
    first.

    Raises:
        RecipeError: a field is missing or unknown, or a value is invalid.
    """
    finetuning = {name: _parse_finetuning(table, methods) for name, table in document.get("finetuning", {}).items()}
    pretraining = _parse_pretraining(document.get("pretraining", {}))
    if "tokenizer" in document:
        document = {**document, "tokenizer": _build(TokenizerTraining, "tokenizer", document["tokenizer"])}
    recipe: Recipe = _build(Recipe, "recipe", {**document, "pretraining": pretraining, "finetuning": finetuning})
    return recipe


def _parse_pretraining(table: Any) -> Any:
    if isinstance(table, Mapping) and "knowledge_transfer" in table:
        plan = _build(KnowledgeTransfer, "knowledge_transfer", table["knowledge_transfer"])
        table = {**table, "knowledge_transfer": plan}
    return _build(Pretraining, "pretraining", table)


def _parse_finetuning(table: Any, methods: Mapping[str, Sequence[TrainingMethod]]) -> Any:
    if isinstance(table, Mapping) and "task" in table:
        if table["task"] not in methods:
            raise RecipeError(f"task must be one of {', '.join(sorted(methods))}, not {table['task']!r}.")
        known = methods[table["task"]]
        method = table.get("method", known[0])
        if method not in known:
            raise RecipeError(f"method must be one of {', '.join(known)} for this task, not {method!r}.")
        table = {**table, "method": method}
    if isinstance(table, Mapping) and "distillation" in table:
        table = {**table, "distillation": _build(Distillation, "distillation", table["distillation"])}
    if isinstance(table, Mapping) and isinstance(table.get("weaknesses"), list):
        table = {**table, "weaknesses": tuple(_build(Weakness, "weaknesses", one) for one in table["weaknesses"])}
    return _build(Finetuning, "finetuning", table)


def _is_language(tag: object) -> bool:
    return isinstance(tag, str) and LANGUAGE.fullmatch(tag) is not None


def _check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise RecipeError(f"{name} must be one of {', '.join(get_args(choices))}, not {value!r}.")


def _build(kind: type[Any], name: str, table: Mapping[str, Any]) -> Any:
    if not isinstance(table, Mapping):
        raise RecipeError(f"{name} must be a table, not {table!r}.")
    known = {field.name for field in fields(kind)}
    for key in sorted(set(table) - known):
        raise RecipeError(f"unknown field {key!r} in {name}.")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    except TypeError as error:
        raise RecipeError(f"{name}: {error}") from None
