"""The recipe of a training run: every setting that decides its result, in one TOML file."""

from swiftlet_train.recipe.checks import RecipeError
from swiftlet_train.recipe.finetuning import (
    EMBEDDING_METHODS,
    SHORTEST,
    Distillation,
    Finetuning,
    OtherTraining,
    TrainingMethod,
)
from swiftlet_train.recipe.optimisation import Optimisation, Optimiser, Precision
from swiftlet_train.recipe.pretraining import (
    InputFormat,
    KnowledgeTransfer,
    Masking,
    Objective,
    Pretraining,
    SentenceObjective,
    Strategy,
)
from swiftlet_train.recipe.reading import parse_recipe, read_recipe
from swiftlet_train.recipe.recipe import Recipe, TokenizerKind, TokenizerTraining, identifying_settings

__all__ = [
    "EMBEDDING_METHODS",
    "SHORTEST",
    "Distillation",
    "Finetuning",
    "InputFormat",
    "KnowledgeTransfer",
    "Masking",
    "Objective",
    "Optimisation",
    "Optimiser",
    "OtherTraining",
    "Precision",
    "Pretraining",
    "Recipe",
    "RecipeError",
    "SentenceObjective",
    "Strategy",
    "TokenizerKind",
    "TokenizerTraining",
    "TrainingMethod",
    "identifying_settings",
    "parse_recipe",
    "read_recipe",
]
