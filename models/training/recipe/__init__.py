"""The recipe of a training run: every setting that decides its result, in one TOML file."""

from swiftlet_serve.models.training.recipe.checks import RecipeError
from swiftlet_serve.models.training.recipe.finetuning import (
    EMBEDDING_METHODS,
    SHORTEST,
    Distillation,
    Finetuning,
    OtherTraining,
    TrainingMethod,
    Weakness,
)
from swiftlet_serve.models.training.recipe.optimisation import Optimisation, Optimiser, Precision
from swiftlet_serve.models.training.recipe.pretraining import (
    InputFormat,
    KnowledgeTransfer,
    Masking,
    Objective,
    Pretraining,
    SentenceObjective,
    Strategy,
)
from swiftlet_serve.models.training.recipe.reading import parse_recipe, read_recipe
from swiftlet_serve.models.training.recipe.recipe import Recipe, TokenizerKind, TokenizerTraining, identifying_settings

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
    "Weakness",
    "identifying_settings",
    "parse_recipe",
    "read_recipe",
]
