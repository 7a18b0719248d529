"""The table of a fine-tuning, and the tables of its teacher and of its model's known failures."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from swiftlet_models.artifact import NAME
from swiftlet_models.relations import find_entailment
from swiftlet_models.weakness import Weakness
from swiftlet_train.recipe.checks import RecipeError
from swiftlet_train.recipe.optimisation import Optimisation

SHORTEST: Final = 4  # words of an unlabelled sentence
LEAST_TOKENS: Final = 8  # of a sequence

TrainingMethod = Literal[
    "classification", "span", "masked_lm", "inference", "relevance", "entities", "embedding", "contrastive"
]
"""The training of a task: labels of texts, answers in contexts, pre-training only, hypotheses about texts, texts for
queries, labels of tokens, the vectors of a teacher, or vectors that are close for texts that belong together."""
METHODS: Final[Mapping[str, Sequence[TrainingMethod]]] = {
    "classify": ("classification",),
    "embed": ("embedding",),
    "entities": ("entities",),
    "fill-mask": ("masked_lm",),
    "qa": ("span",),
    "rerank": ("relevance", "contrastive"),
    "zero-shot": ("inference", "contrastive"),
}
"""The methods for each task that recipes can train, the default one first."""
EMBEDDING_METHODS: Final[Collection[TrainingMethod]] = ("embedding", "contrastive")
"""The methods whose model makes vectors."""


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
    init_from_model: str = field(default="", kw_only=True)
    """Initialises the student from this model of the same task and hidden size: a bundled model, or the directory of an
    artifact. Its vocabulary contains the student's. Its architecture may be another."""
    task_teacher: str = field(default="", kw_only=True)
    """Another teacher: an installed package, or the directory of a checkpoint. It reads texts with its own tokenizer.
    Its predictions replace the predictions of the recipe's teacher, or join them (`recipe_teacher_share`)."""
    task_teacher_run: str = field(default="", kw_only=True)
    """The name of the task teacher's run, which recipes with the same teacher, task and examples share; by default each
    has its own."""
    task_teacher_epochs: int = field(default=1, kw_only=True)
    """The passes of the task teacher over the training files."""
    task_teacher_learning_rate: float = field(default=3e-5, kw_only=True)
    """The highest learning rate of the task teacher."""
    task_teacher_batch_size: int = field(default=0, kw_only=True)
    """The examples in a batch of the task teacher; by default as many as in a batch of the student."""
    recipe_teacher_share: float = field(default=0.0, kw_only=True)
    """The share of the recipe's teacher in the mean of both teachers' probabilities; 0 leaves it out (entities with a
    task teacher only)."""
    teacher_engine: str = field(default="", kw_only=True)
    """The engine that computes the predictions in int8, such as `native`, which is several times as fast as PyTorch; by
    default PyTorch, in the precision of the training."""
    character_ngrams: int = field(default=0, kw_only=True)
    """The maximum length of character n-grams; 0 for none. If it is set, a logistic regression on these n-grams
    teaches: alone, or beside the recipe's teacher if there is one. The student then learns the mean prediction. Each
    text's prediction comes from a regression that did not see the text."""

    @property
    def has_network(self) -> bool:
        """Whether a setting needs a teacher that is a network."""
        return bool(self.task_teacher or self.teacher_engine or self.init_from_teacher or self.init_from_model)

    def __post_init__(self) -> None:
        if not (0 <= self.hard_label_weight <= 1 and 1 <= self.temperature < math.inf):
            raise RecipeError("hard_label_weight must be between 0 and 1, and temperature at least 1.")
        if self.task_teacher_run and not NAME.fullmatch(self.task_teacher_run):
            raise RecipeError("task_teacher_run must be a name of lower-case letters, digits and the characters . _ -.")
        for name in ("teacher_epochs", "task_teacher_epochs"):
            if getattr(self, name) < 1:
                raise RecipeError(f"{name} must be at least 1.")
        for name in ("teacher_learning_rate", "task_teacher_learning_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise RecipeError(f"{name} must be above 0.")
        share = self.recipe_teacher_share
        if not 0 <= share < 1 or (share and not self.task_teacher):
            raise RecipeError("recipe_teacher_share must be at least 0 and below 1, and needs a task_teacher.")
        for name in ("task_teacher_batch_size", "character_ngrams"):
            if getattr(self, name) < 0:
                raise RecipeError(f"{name} must be at least 0.")
        if self.init_from_teacher and self.init_from_model:
            raise RecipeError("set init_from_teacher or init_from_model, but not both.")


@dataclass(frozen=True)
class OtherTraining:
    """A further training of a task. It has the task's labelled examples and teachers. Each field that is set replaces
    the field of the task's own table."""

    seed: int | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    unlabelled: Mapping[str, int] | None = None
    transferred_questions: int | None = None
    kept_unanswered: float | None = None

    def changes(self) -> dict[str, Any]:
        """Returns the fields that are set."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


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
    """The artifact of this recipe whose training this one continues. It has the same task, method and labels, unless
    both make vectors, and continues no other itself."""
    averaged_with_init: bool = field(default=False, kw_only=True)
    """The artifact gets the mean of this training's parameters and of those of `init_from`, where it started
    (Wortsman et al. 2021, arXiv:2109.01903)."""
    distillation: Distillation | None = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    """The seed for the order of the examples; by default the recipe's."""
    averaged_with: tuple[OtherTraining, ...] = field(default=(), kw_only=True)
    """Further trainings of the task, each with the fields that differ: `seed`, `epochs`, `learning_rate`, `unlabelled`,
    `transferred_questions` or `kept_unanswered`. All start from the same parameters, and the artifact gets the mean of
    their results (Wortsman et al. 2022, arXiv:2203.05482)."""
    steps_after_averaging: int = field(default=0, kw_only=True)
    """Steps of the averaged model on examples of the last training, at a tenth of its learning rate. They correct the
    probabilities: the mean of models for qa finds an answer too often."""
    also_evaluate: tuple[str, ...] = field(default=(), kw_only=True)
    """Further evaluation files, under the data folder."""
    unanswerable_questions: int = field(default=0, kw_only=True)
    """Questions to repeat with a context that does not answer them (question answering only)."""
    asked_again: int = field(default=0, kw_only=True)
    """Repeats each question with this many neighbouring contexts, most of them of the same article. Only
    the teacher answers (question answering with a task teacher only)."""
    asked_of_parts: int = field(default=0, kw_only=True)
    """How often each question is repeated with a random half of the sentences of its context, which may hold the answer
    or not. Only the teacher answers (question answering with a task teacher only)."""
    transferred_questions: int = field(default=0, kw_only=True)
    """Questions of the training files to pair with paragraphs of the running texts in `unlabelled`. A paragraph's names
    replace those of its question. Only the teacher answers (question answering with a task teacher only)."""
    kept_unanswered: float = field(default=1.0, kw_only=True)
    """The fraction to keep of the unlabelled windows where the teacher finds no answer (question answering with a
    task teacher only). Windows are parts of contexts that a model reads at once."""
    unlabelled: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """Files of running text under the data folder, each with the number of its sentences that only the teacher labels.
    Question answering with a task teacher takes questions in SQuAD's format, or makes one for each paragraph of a
    text."""
    labelled_repeats: int = field(default=1, kw_only=True)
    """How often each labelled example occurs in an epoch, beside the unlabelled ones, which occur once."""
    corrupted: float = field(default=0.0, kw_only=True)
    """The fraction of the sentences in `unlabelled` to corrupt: words are moved, left out, inserted, exchanged or
    inflected. A file with fewer sentences than its number is then read several times."""
    longest_unlabelled: int = field(default=60, kw_only=True)
    """The maximum number of words of a sentence in `unlabelled`. Longer ones are left out."""
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
        if not 0 < self.learning_rate < math.inf or self.max_tokens < LEAST_TOKENS:
            raise RecipeError(f"learning_rate must be above 0, and max_tokens at least {LEAST_TOKENS}.")
        if self.evaluate_skip < 0 or (self.evaluate_limit is not None and self.evaluate_limit < 1):
            raise RecipeError("evaluate_skip must be at least 0, and evaluate_limit at least 1.")
        if len(set(self.labels)) < len(self.labels):
            raise RecipeError("two labels are equal.")
        if (self.averaged_with or self.seed is not None) and self.method in ("masked_lm", *EMBEDDING_METHODS):
            raise RecipeError(f"seed and averaged_with need a task like classify, qa or entities, not {self.task}.")
        if self.method in ("classification", "entities") and not self.labels:
            raise RecipeError(f"the task {self.task} needs labels.")
        if self.distillation is not None and len(self.labels) == 1:
            raise RecipeError("distillation needs at least two labels.")  # of one, every softmax is 1
        if self.method == "masked_lm" and self.distillation is not None:
            raise RecipeError(f"the task {self.task} is not fine-tuned, so it cannot have a distillation table.")
        count = self.unanswerable_questions
        if count < 0 or (count and self.method != "span"):
            raise RecipeError("unanswerable_questions must be at least 0, and needs a task like qa.")
        if self.method == "contrastive" and (self.labels or self.distillation is not None):
            raise RecipeError("the method contrastive takes no labels and no distillation.")
        if self.method == "embedding":
            if not self.unlabelled or self.train or self.labels or self.distillation is not None:
                raise RecipeError("a task like embed needs unlabelled, and takes no train, labels or distillation.")
        elif self.unlabelled and not self._can_label():
            raise RecipeError(
                "unlabelled needs a task like classify or entities with a distillation table, or qa with task_teacher."
            )
        has_sentences = bool(self.unlabelled) and self.method in ("classification", "embedding")
        if not 0 <= self.corrupted <= 1 or (self.corrupted and not has_sentences):
            raise RecipeError("corrupted must be between 0 and 1, and needs unlabelled sentences.")
        repeats = self.labelled_repeats
        if repeats < 1 or (repeats > 1 and not has_sentences):
            raise RecipeError("labelled_repeats must be at least 1, and needs unlabelled sentences.")
        if self.longest_unlabelled < SHORTEST:
            raise RecipeError(f"longest_unlabelled must be at least {SHORTEST}.")
        for weakness in self.weaknesses:
            if bool(weakness.texts) != (self.task == "embed"):
                raise RecipeError("a weakness has texts if the task is embed, and only then.")
            if weakness.texts and not (isinstance(weakness.inputs, str) and weakness.right in weakness.texts):
                raise RecipeError("a weakness with texts has a text as its inputs, and the right one among the texts.")
        if self.negatives < 0:
            raise RecipeError("negatives must be at least 0.")
        if self.method == "inference" and (find_entailment(self.labels) is None or len(self.labels) < 2):
            raise RecipeError("a task like zero-shot needs a label that begins with 'entail', and another one.")
        has_task_teacher = self.distillation is not None and self.distillation.task_teacher
        has_engine = self.distillation is not None and self.distillation.teacher_engine
        if has_engine and self.method == "span" and not has_task_teacher:
            raise RecipeError("teacher_engine needs a task like classify or zero-shot, or a task_teacher.")
        for name in ("asked_again", "asked_of_parts", "transferred_questions"):
            times = getattr(self, name)
            if times < 0 or (times and not (self.method == "span" and has_task_teacher)):
                raise RecipeError(f"{name} must be at least 0, and needs a task like qa with a task_teacher.")
        kept = self.kept_unanswered
        if not 0 <= kept <= 1 or (kept < 1 and not (self.method == "span" and has_task_teacher)):
            raise RecipeError(
                "kept_unanswered must be between 0 and 1, and below 1 needs a task like qa with a task_teacher."
            )
        if self.transferred_questions and all(file.endswith(".json") for file in self.unlabelled):
            raise RecipeError("transferred_questions needs a running text in unlabelled.")
        plan = self.distillation
        if self.init_from and plan is not None and (plan.init_from_teacher or plan.init_from_model):
            raise RecipeError("set init_from, init_from_teacher or init_from_model, but only one of them.")
        has_ngrams = self.distillation is not None and self.distillation.character_ngrams
        if has_ngrams and (self.method != "classification" or self.unlabelled):
            raise RecipeError("character_ngrams need a task like classify, and no unlabelled.")
        if plan is not None and plan.recipe_teacher_share and self.method != "entities":
            raise RecipeError("recipe_teacher_share needs a task like entities.")
        if (self.method == "entities") != bool(self.entity_kinds):
            raise RecipeError("a task like entities needs entity_kinds, and no other task has any.")
        if self.method == "relevance" and (len(self.labels) != 1 or self.distillation is not None):
            raise RecipeError("a task like rerank needs one label, and no distillation table.")
        if len({Path(file).name for file in self.also_evaluate}) < len(self.also_evaluate):
            raise RecipeError("also_evaluate must be a list of files with different names.")
        if self.seed is not None and self.seed < 0:
            raise RecipeError("seed must be at least 0.")
        if self.averaged_with_init and not self.init_from:
            raise RecipeError("averaged_with_init needs init_from.")
        if self.steps_after_averaging < 0 or (self.steps_after_averaging and not self.averaged_with):
            raise RecipeError("steps_after_averaging must be at least 0, and needs averaged_with.")
        trainings = self.trainings()  # checks the values of each
        if any(training in trainings[:number] for number, training in enumerate(trainings)):
            raise RecipeError("averaged_with holds a training that equals another one: set another seed.")

    def trainings(self) -> list[Finetuning]:
        """Returns the trainings whose parameters are averaged, this one first."""
        first = self
        if self.averaged_with or self.averaged_with_init:
            first = replace(self, averaged_with=(), averaged_with_init=False, steps_after_averaging=0)
        return [first, *(replace(first, **variant.changes()) for variant in self.averaged_with)]

    def _can_label(self) -> bool:
        """Returns whether a teacher labels texts that have no labels."""
        if self.distillation is None:
            return False
        return self.method in ("classification", "entities") or (
            self.method == "span" and bool(self.distillation.task_teacher)
        )
