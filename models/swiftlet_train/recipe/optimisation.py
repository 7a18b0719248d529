"""The settings of an optimiser, which pre-training and fine-tuning share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swiftlet_train.recipe.checks import RecipeError, check_choice

Optimiser = Literal["adamw", "lamb"]
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """The optimiser and how it steps."""

    optimiser: Optimiser = "adamw"
    gradient_accumulation_steps: int = 1
    """Batches per optimiser step."""
    precision: Precision = "fp32"
    """bf16 applies to matrix products, by autocast. The parameters stay in fp32."""

    def __post_init__(self) -> None:
        check_choice("optimiser", self.optimiser, Optimiser)
        check_choice("precision", self.precision, Precision)
        if self.gradient_accumulation_steps < 1:
            raise RecipeError(
                f"gradient_accumulation_steps must be at least 1, not {self.gradient_accumulation_steps!r}."
            )
