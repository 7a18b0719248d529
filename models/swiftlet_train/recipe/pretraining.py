"""The table of a pre-training, and the table of its teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from swiftlet_train.recipe.checks import RecipeError, check_choice
from swiftlet_train.recipe.conflicts import find_conflict
from swiftlet_train.recipe.optimisation import Optimisation

Strategy = Literal["auxiliary", "joint", "progressive"]
Masking = Literal["tokens", "whole_words", "ngrams"]
SentenceObjective = Literal["none", "sentence_order", "next_sentence"]
Objective = Literal["masked_lm", "replaced_token", "causal_lm"]
InputFormat = Literal["blocks", "segment_pairs", "sentence_pairs", "full_sentences", "document_sentences"]


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
        check_choice("strategy", self.strategy, Strategy)
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
        if not 0 < self.learning_rate < math.inf or min(self.corpora.values(), default=1) < 1:
            raise RecipeError("learning_rate must be above 0, and the number of sequences of each corpus at least 1.")
        check_choice("masking", self.masking, Masking)
        check_choice("sentence_objective", self.sentence_objective, SentenceObjective)
        if not 0 < self.mask_probability < 1:
            raise RecipeError(f"mask_probability must be between 0 and 1, not {self.mask_probability!r}.")
        held_out = self.held_out_sequences
        if held_out < 0 or held_out % self.batch_size:
            raise RecipeError("held_out_sequences must be a multiple of batch_size.")
        check_choice("objective", self.objective, Objective)
        check_choice("input_format", self.input_format, InputFormat)
        conflict = find_conflict(self)
        if conflict is not None:
            raise RecipeError(conflict)
