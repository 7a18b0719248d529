"""The losses of a pre-training batch."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftlet_models.heads import Model
from swiftlet_train.loop.trainer import Losses
from swiftlet_train.pretraining import knowledge_transfer
from swiftlet_train.pretraining.batch_sampler import Batch
from swiftlet_train.pretraining.knowledge_transfer import Phase
from swiftlet_train.pretraining.networks import Student, Teacher
from swiftlet_train.pretraining.objectives.masked_lm import Masked
from swiftlet_train.pretraining.objectives.replaced_token import detection_loss, replace_tokens
from swiftlet_train.recipe import KnowledgeTransfer
from swiftlet_train.vocabulary.pruning import SPECIALS


@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of a network for a batch."""

    features: list[Tensor]
    """The features (B, S, H) of the embeddings and of every layer."""
    attention: list[Tensor]
    """The attention log-probabilities (B, A, S, S) of every layer, or an empty list."""
    logits: Tensor | None
    """The predictions at the positions in `focus` (N, V), or None."""


def masked_lm_losses(
    plan: KnowledgeTransfer | None, phase: Phase, student: Student, batch: Batch, teacher: Teacher | None
) -> Losses:
    """Returns the losses of masked language modelling, the sentence objective and knowledge transfer."""
    plan = plan or KnowledgeTransfer()
    transfers_attention = bool(phase.layers) and plan.attention_weight > 0
    uses_predictions = phase.predicts_words and plan.hard_label_weight < 1
    ours = _run(student, batch, batch.input_ids, attention=transfers_attention, predicts=phase.predicts_words)
    theirs = None
    if teacher is not None and (phase.layers or uses_predictions):
        ids = batch.original_ids if teacher.head is None else batch.input_ids
        with torch.no_grad():
            theirs = _run(teacher, batch, ids, attention=transfers_attention, predicts=phase.predicts_words)
    losses: Losses = {}
    if ours.logits is not None:
        soft = None if theirs is None else theirs.logits
        losses["mlm"] = knowledge_transfer.prediction_loss(ours.logits, soft, batch.targets, plan.hard_label_weight)
        losses |= _sentence_loss(student, ours.features[-1], batch)
    if teacher is None or theirs is None or not phase.layers:
        return losses
    where = batch.is_token
    if teacher.head is None:  # it read the original tokens, so the masked positions differ
        where = where & (batch.input_ids == batch.original_ids)
    return losses | _transfer_losses(plan, phase, ours, theirs, where)


def replaced_token_losses(student: Student, generator: Model, batch: Batch, chance: torch.Generator) -> Losses:
    """Returns the losses of replaced-token detection and the sentence objective. `chance` samples the replacements."""
    logits = generator(batch.input_ids, batch.token_type_ids, batch.is_token.sum(1), batch.focus).float()
    masked = Masked(batch.input_ids, batch.focus, batch.targets)
    replaced = replace_tokens(masked, logits, batch.is_token, first_word_id=len(SPECIALS), generator=chance)
    hidden = student.encoder(replaced.input_ids, batch.token_type_ids, batch.is_token)
    detected = student.head(hidden.flatten(0, 1)[replaced.focus], student.encoder.embeddings.word.weight)
    losses = {
        "generator": F.cross_entropy(logits, batch.targets),
        "detection": detection_loss(detected, replaced),
    }
    return losses | _sentence_loss(student, hidden, batch)


def causal_lm_losses(student: Student, batch: Batch) -> Losses:
    """Returns the loss of causal language modelling."""
    logits = _run(student, batch, batch.input_ids, attention=False, predicts=True).logits
    assert logits is not None  # noqa: S101  # for the type checker
    return {"clm": F.cross_entropy(logits, batch.targets)}


def _run(network: Student | Teacher, batch: Batch, ids: Tensor, *, attention: bool, predicts: bool) -> Outputs:
    with ExitStack() as stack:
        recording = knowledge_transfer.record_attention(network.encoder, batch.is_token)
        recorded = stack.enter_context(recording) if attention else []
        features = network.encoder.features(ids, batch.token_type_ids, batch.is_token)
    if not predicts or network.head is None:
        return Outputs(features, recorded, None)
    masked = features[-1].flatten(0, 1)[batch.focus]
    return Outputs(features, recorded, network.head(masked, network.encoder.embeddings.word.weight).float())


def _transfer_losses(plan: KnowledgeTransfer, phase: Phase, ours: Outputs, theirs: Outputs, where: Tensor) -> Losses:
    losses: Losses = {}
    if plan.feature_weight:
        error = knowledge_transfer.feature_loss(ours.features, theirs.features, where, phase.layers)
        losses["features"] = plan.feature_weight * error
    if plan.mean_weight or plan.variance_weight:
        means, variances = knowledge_transfer.moment_losses(ours.features, theirs.features, where, phase.layers)
        losses |= {"means": plan.mean_weight * means, "variances": plan.variance_weight * variances}
    if plan.attention_weight > 0:
        error = knowledge_transfer.attention_loss(ours.attention, theirs.attention, where, phase.layers)
        losses["attention"] = plan.attention_weight * error
    return losses


def _sentence_loss(student: Student, hidden: Tensor, batch: Batch) -> Losses:
    if student.sentence is None or batch.labels is None:
        return {}
    logits = student.sentence(hidden[:, 0], hidden).float()
    return {"sentences": F.cross_entropy(logits, batch.labels)}
