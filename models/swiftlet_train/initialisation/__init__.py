"""Initialises a student from a teacher. The traits of the student's architecture select the method."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.architectures.traits import Traits
from swiftlet_models.heads import Model
from swiftlet_train.initialisation.fitting import Sample
from swiftlet_train.initialisation.mobilebert import initialise_mobilebert
from swiftlet_train.initialisation.standard_layers import initialise_factorised
from swiftlet_train.recipe import RecipeError

Initialiser = Callable[[Model, Encoder, Tensor, Sample], None]
"""Initialises a student from a teacher; takes the word counts (V,) and a sample as well."""


def find_initialiser(architecture: str, traits: Traits) -> Initialiser:
    """Returns the method that initialises a student with these traits.

    Raises:
        RecipeError: no method fits them.
    """
    if traits.attention_of or traits.feed_forward_of:  # the methods copy whole layers
        raise RecipeError(
            f"{architecture} with shared_parameters = attention or feed_forward cannot be initialised from a teacher: "
            "set init_from_teacher = false."
        )
    if traits.embedding.projection == "sum" and traits.bottleneck is None:
        return initialise_factorised
    if traits.embedding.projection == "words" and traits.embedding.window == 3:
        return initialise_mobilebert
    raise RecipeError(f"{architecture} cannot be initialised from a teacher: set init_from_teacher = false.")
