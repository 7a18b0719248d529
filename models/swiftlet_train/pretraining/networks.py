"""The networks of a pre-training: the student and its teacher."""

from __future__ import annotations

from torch import nn

from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.heads import Classification, MaskedLM, Model
from swiftlet_train.pretraining.objectives.replaced_token import Discriminator
from swiftlet_train.recipe import KnowledgeTransfer, RecipeError


class Student(nn.Module):
    """The trained network: an encoder, its head and, if the recipe has a sentence objective, a head for that.

    The head is a masked-LM or a causal-LM head, or a discriminator if there is a generator.
    """

    def __init__(self, model: Model, *, pairs: bool, generator: Model | None = None) -> None:
        super().__init__()
        self.encoder, self.generator = model.encoder, generator
        self.head = model.head if generator is None else Discriminator(model.encoder.config)
        self.sentence = Classification(model.encoder.config, 2) if pairs else None

    @property
    def masked_lm_head(self) -> MaskedLM:
        """The head that predicts masked words: the student's own or the generator's."""
        head = self.head if self.generator is None else self.generator.head
        assert isinstance(head, MaskedLM)  # noqa: S101  # for the type checker
        return head


class Teacher(nn.Module):
    """The frozen teacher of a knowledge transfer. A teacher without a masked-LM head reads unmasked sequences."""

    def __init__(self, encoder: Encoder, head: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.requires_grad_(requires_grad=False)


def make_teacher(encoder: Encoder | None, model: Model | None) -> Teacher:
    """Makes the teacher of a knowledge transfer from a pre-trained model or from the recipe's teacher.

    Raises:
        RecipeError: there is neither.
    """
    if model is not None:
        return Teacher(model.encoder, model.head if isinstance(model.head, MaskedLM) else None)
    if encoder is None:
        raise RecipeError("knowledge_transfer needs a teacher: this recipe has none of its own.")
    return Teacher(encoder, None)


def check_teacher(student: Student, teacher: Teacher, plan: KnowledgeTransfer) -> None:
    """Checks that the student can learn from the teacher as the plan says.

    Raises:
        RecipeError: their shapes differ, or the teacher cannot predict words.
    """
    ours, theirs = student.encoder.applied_layers(), teacher.encoder.applied_layers()
    if len(student.encoder.embeddings.word.weight) != len(teacher.encoder.embeddings.word.weight):
        raise RecipeError("the vocabulary of the teacher has another size than the student's.")
    if plan.feature_weight and student.encoder.config.hidden_size != teacher.encoder.config.hidden_size:
        raise RecipeError("feature_weight needs a teacher with the student's hidden_size.")
    if plan.attention_weight and ours[0].heads != theirs[0].heads:
        raise RecipeError("attention_weight needs a teacher with the student's num_attention_heads.")
    if plan.hard_label_weight < 1 and teacher.head is None:
        raise RecipeError("the teacher predicts no words: set hard_label_weight = 1, or use another teacher.")
    traits = student.encoder.config.traits()
    shares = len(set(ours)) < len(ours) or traits.attention_of or traits.feed_forward_of
    if plan.strategy == "progressive" and shares:
        raise RecipeError("the strategy progressive cannot train shared layers one after another.")
