"""A recipe as a whole, and the settings that identify its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final, Literal

from swiftlet_models.artifact import LANGUAGE, NAME
from swiftlet_train.recipe.checks import RecipeError, check_choice
from swiftlet_train.recipe.finetuning import EMBEDDING_METHODS, Distillation, Finetuning
from swiftlet_train.recipe.pretraining import KnowledgeTransfer, Pretraining

MAX_VOCAB_SIZE: Final = 1 << 16  # token ids are stored as uint16

TokenizerKind = Literal["wordpiece", "unigram"]


@dataclass(frozen=True)
class TokenizerTraining:
    """The tokenizer that is trained on the corpora. A recipe without a teacher needs one."""

    kind: TokenizerKind
    lowercase: bool = True
    strip_accents: bool = True
    character_coverage: float = 1.0
    """The fraction of the text that the characters in the vocabulary cover."""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, TokenizerKind)
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
    """A trained encoder with layers like BERT's: an installed package with a checkpoint in its folder `model`, or the
    directory of a checkpoint."""
    tokenizer: TokenizerTraining | None = None
    min_character_count: int = 1
    """Keeps a character if at least this many tokens of the documents that decide the vocabulary have it. Words
    with rarer characters become `[UNK]`. Needs a teacher."""
    languages: tuple[str, ...] = ()
    """The languages of the data, as BCP 47 tags such as `en`."""

    def __post_init__(self) -> None:
        for name in (self.name, *self.finetuning):
            if not NAME.fullmatch(name):
                raise RecipeError(f"{name!r} is no name: use lower-case letters, digits and the characters . _ -.")
        if self.seed < 0:
            raise RecipeError(f"seed must be at least 0, not {self.seed!r}.")
        if not 0 < self.vocab_size < MAX_VOCAB_SIZE:
            raise RecipeError(f"vocab_size must be above 0 and below {MAX_VOCAB_SIZE}, not {self.vocab_size!r}.")
        if bool(self.teacher) == (self.tokenizer is not None):
            raise RecipeError("a recipe needs either a teacher or a [tokenizer] table.")
        if self.min_character_count < 1:
            raise RecipeError(f"min_character_count must be at least 1, not {self.min_character_count!r}.")
        if self.tokenizer is not None and self.min_character_count > 1:
            raise RecipeError("min_character_count needs a teacher: set character_coverage in [tokenizer] instead.")
        if not all(LANGUAGE.fullmatch(language) for language in self.languages):
            raise RecipeError('languages must be a list of BCP 47 tags, such as ["en"].')
        plan = self.pretraining.knowledge_transfer
        if not self.teacher and plan is not None and not plan.has_own_teacher:
            raise RecipeError("knowledge_transfer needs a teacher, a teacher_recipe or a teacher_model.")
        plans = [work.distillation for work in self.finetuning.values() if work.distillation is not None]
        if not self.teacher and not all(plan.character_ngrams and not plan.has_network for plan in plans):
            raise RecipeError("distillation needs a teacher, and this recipe names none.")
        if not self.teacher and any(work.method == "embedding" for work in self.finetuning.values()):
            raise RecipeError("a task like embed needs a teacher, and this recipe names none.")
        for name, work in self.finetuning.items():
            if work.init_from and not self._can_continue(work):
                raise RecipeError(
                    f"{name} cannot continue {work.init_from!r}: name an artifact of this recipe with the same task, "
                    "method and labels (or both make vectors), which continues no other itself."
                )
        objective = self.pretraining.objective
        for name, work in self.finetuning.items():
            if objective != "masked_lm" and work.method == "masked_lm":
                raise RecipeError(f"the objective {objective} trains no masked-LM head, which {name} needs.")

    def _can_continue(self, work: Finetuning) -> bool:
        """Returns whether the network of the artifact that a fine-tuning continues has the same outputs."""
        before = self.finetuning.get(work.init_from)
        if before is None or before.init_from or work.method == "masked_lm":
            return False
        if work.method in EMBEDDING_METHODS:
            return before.method in EMBEDDING_METHODS
        return (before.method, before.task, before.labels) == (work.method, work.task, work.labels)

    def has_same_vocabulary(self, other: Recipe) -> bool:
        """Returns whether the other recipe builds the same vocabulary."""

        def settings(recipe: Recipe) -> tuple[Any, ...]:
            sizes = recipe.vocab_size, recipe.min_character_count
            return recipe.teacher, recipe.tokenizer, sizes, list(recipe.pretraining.corpora)

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
    settings = {name: value for name, value in asdict(work).items() if name not in optional or value != optional[name]}
    tables = {name: getattr(work, name) for name in settings}
    nested = {
        name: identifying_settings(table)
        for name, table in tables.items()
        if isinstance(table, KnowledgeTransfer | Distillation)
    }
    return settings | nested
