"""Pre-training of a model on a corpus, optionally with a teacher.

The run's directory holds the vocabulary, the encoded corpus, the checkpoint and the learning curve, so that an
interrupted run resumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftlet_models.architectures.layers import Encoder
from swiftlet_models.heads import CausalLM, MaskedLM, Model, build
from swiftlet_train.initialisation import find_initialiser
from swiftlet_train.initialisation.fitting import Sample
from swiftlet_train.initialisation.mobilebert import initialise_mobilebert, initialise_wide_head
from swiftlet_train.initialisation.standard_layers import initialise_bias, initialise_masked_lm_head
from swiftlet_train.loop.run_directory import claim_directory
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import Losses, train
from swiftlet_train.pretraining import knowledge_transfer
from swiftlet_train.pretraining.batch_sampler import Batch, BatchSampler
from swiftlet_train.pretraining.corpus import (
    TOKENIZER_FILE,
    Vocabulary,
    load_documents,
    prepare_sequences,
    prepare_vocabulary,
)
from swiftlet_train.pretraining.losses import causal_lm_losses, masked_lm_losses, replaced_token_losses
from swiftlet_train.pretraining.networks import Student, Teacher, check_teacher, make_teacher
from swiftlet_train.pretraining.objectives.replaced_token import make_generator
from swiftlet_train.recipe import KnowledgeTransfer, Recipe, RecipeError, identifying_settings
from swiftlet_train.teachers.encoders import load_teacher, prune_embeddings

ENCODER_SAMPLE: Final = 64  # sequences, about, for initialising an encoder
HEAD_SAMPLE: Final = 240  # sequences, about, if the head is initialised as well, which reads masked positions only


def pretrain(
    recipe: Recipe,
    data: Path,
    directory: Path,
    report: Callable[[str], None] = print,
    *,
    teacher_model: Model | None = None,
    teacher_pieces: Sequence[str] | None = None,
    initial_model: Model | None = None,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
    snapshots: Collection[int] = (),
) -> tuple[Model, Path]:
    """Pre-trains an encoder and its head. Returns them, on the CPU, and the path of the tokenizer's file.

    Reads the recipe's corpora from `data` and keeps the state of the run in `directory`. `teacher_model` is the teacher
    that `knowledge_transfer` names, and `teacher_pieces` its vocabulary by id, if that might differ from the student's.
    `initial_model` is the model of the recipe that this one continues. After each number of steps in `snapshots`, the
    directory gets a copy of the parameters.

    Raises:
        RecipeError: the directory holds another run, or the teacher or the initial model does not fit the student.
    """
    device = device or torch.device("cpu")
    work, plan = recipe.pretraining, recipe.pretraining.knowledge_transfer
    models = {"teacher_model": teacher_model, "initial_model": initial_model}
    digests = {name: hash_parameters(model) for name, model in models.items() if model is not None}
    claim_directory(directory, run_settings(recipe) | ({"models": digests} if digests else {}))
    vocabulary = prepare_vocabulary(recipe, data, directory)
    if teacher_pieces is not None and list(teacher_pieces) != _pieces(vocabulary):
        raise RecipeError("the teacher_model has another vocabulary than this recipe.")
    sequences = prepare_sequences(recipe, vocabulary.tokenizer, data, directory)
    student, teacher_encoder = _make_student(recipe, vocabulary, sequences, initial_model)
    sampler = BatchSampler(recipe, vocabulary.tokenizer, sequences, load_documents(directory))
    teacher = None
    if plan is not None:
        teacher = make_teacher(teacher_encoder, teacher_model)
        check_teacher(student, teacher, plan)
        if plan.init_from_teacher:
            _initialise_from_teacher(student, teacher, vocabulary.counts, sampler)
        teacher.to(device)
    depth = len(student.encoder.applied_layers())
    lr_scale = 0.0 if plan is None else plan.lower_layers_lr_scale

    def batch_losses(batch: Batch, plan: KnowledgeTransfer | None, done: float, seed: int) -> Losses:
        batch = batch.to(device)
        if student.generator is not None:
            chance = torch.Generator(device).manual_seed(seed)
            return replaced_token_losses(student, student.generator, batch, chance)
        if work.objective == "causal_lm":
            return causal_lm_losses(student, batch)
        phase = knowledge_transfer.find_phase(plan, done, depth)
        knowledge_transfer.freeze_lower_modules(student.encoder, 0 if lr_scale else phase.lower_layers)
        return masked_lm_losses(plan, phase, student, batch, teacher)

    def training_losses(number: int) -> Losses:
        seed = ~(recipe.seed * 1_000_003 + number)  # differs from the sampler's seed
        done = number / (work.steps * work.gradient_accumulation_steps)
        return batch_losses(sampler(number), plan, done, seed)

    def held_out_losses() -> Losses:
        numbers = range(work.held_out_sequences // work.batch_size)
        held_out = [batch_losses(sampler.held_out(number), None, 0, ~number) for number in numbers]
        if work.sentence_objective != "none":
            pairs = [batch_losses(sampler.held_out_pairs(number), None, 0, ~number) for number in numbers]
            held_out = [losses | {"sentences": own["sentences"]} for losses, own in zip(held_out, pairs, strict=True)]
        return {f"held_out_{name}": torch.stack([losses[name] for losses in held_out]).mean() for name in held_out[0]}

    def scale_learning_rate(step: int) -> tuple[float, list[nn.Module]]:
        if not lr_scale:
            return 1.0, []
        phase = knowledge_transfer.find_phase(plan, step / work.steps, depth)
        return lr_scale, knowledge_transfer.lower_modules(student.encoder, phase.lower_layers)

    train(
        student,
        training_losses,
        Schedule.from_recipe(work.steps, work),
        directory,
        seed=recipe.seed,
        device=device,
        report=report,
        progress=progress,
        evaluate=held_out_losses if work.held_out_sequences else None,
        scale_learning_rate=scale_learning_rate,
        snapshots=snapshots,
    )
    return Model(student.encoder, student.head), directory / TOKENIZER_FILE


def run_settings(recipe: Recipe) -> dict[str, Any]:
    """Returns the settings that decide a pre-training: no names, and nothing of the fine-tuning."""
    settings = asdict(recipe) | {"pretraining": identifying_settings(recipe.pretraining)}
    names = ["seed", "teacher", "vocab_size", "architecture", "config", "pretraining"]
    names += ["tokenizer"] if recipe.tokenizer else []
    names += ["min_character_count"] if recipe.min_character_count > 1 else []
    return {name: settings[name] for name in names}


def hash_parameters(model: nn.Module) -> str:
    """Returns a SHA-256 of a model's parameters and their names."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _pieces(vocabulary: Vocabulary) -> list[str | None]:
    return [vocabulary.tokenizer.id_to_token(number) for number in range(len(vocabulary.kept))]


def _make_student(
    recipe: Recipe, vocabulary: Vocabulary, sequences: NDArray[np.uint16], initial_model: Model | None
) -> tuple[Student, Encoder | None]:
    """Makes the initialised student. Also returns the encoder of the recipe's teacher, or None."""
    work = recipe.pretraining
    teacher = load_teacher(recipe.teacher) if recipe.teacher else None
    torch.manual_seed(recipe.seed)
    try:
        config = {**recipe.config, "vocab_size": len(vocabulary.kept)}
        model = build(recipe.architecture, config, "causal_lm" if work.objective == "causal_lm" else "masked_lm")
    except ValueError as error:
        raise RecipeError(f"config: {error}") from None
    _check_attention(recipe, model.encoder)
    if teacher is not None:
        prune_embeddings(teacher.encoder, vocabulary.kept)
        if initial_model is None and work.init_from_teacher:
            initialise = find_initialiser(recipe.architecture, model.encoder.config.traits())
            taken = sequences[:: max(1, len(sequences) // ENCODER_SAMPLE)].astype(np.int64)
            sample = Sample.from_sequences(torch.from_numpy(taken))
            initialise(model, teacher.encoder, vocabulary.counts, sample)
    generator = make_generator(recipe.architecture, model.encoder) if work.objective == "replaced_token" else None
    student = Student(model, pairs=work.sentence_objective != "none", generator=generator)
    if isinstance(student.head, CausalLM):
        initialise_bias(student.head, vocabulary.counts)
    else:
        initialise_masked_lm_head(student.masked_lm_head, vocabulary.counts)
    if initial_model is not None:
        _load_initial_model(model, initial_model)
    return student, None if teacher is None else teacher.encoder


def _check_attention(recipe: Recipe, encoder: Encoder) -> None:
    """Checks that a token sees what the objective lets it see.

    Raises:
        RecipeError: it sees more or less.
    """
    causal = encoder.config.traits().causal
    if causal and recipe.pretraining.objective != "causal_lm":
        raise RecipeError(f"the tokens of {recipe.architecture} see only earlier ones: set objective = 'causal_lm'.")
    if not causal and recipe.pretraining.objective == "causal_lm":
        raise RecipeError(f"the objective causal_lm needs a causal network such as gpt2, not {recipe.architecture}.")


def _load_initial_model(model: Model, initial_model: Model) -> None:
    try:
        model.load_state_dict(initial_model.state_dict())
    except RuntimeError:
        raise RecipeError("init_from_recipe needs a recipe with the same architecture and config.") from None


@torch.no_grad()
def _initialise_from_teacher(student: Student, teacher: Teacher, counts: Tensor, sampler: BatchSampler) -> None:
    """Initialises a student with bottlenecks from a teacher with factorised embeddings, on masked sequences.

    Neurons that the teacher lacks keep their values.
    """
    encoder, head, our_head = teacher.encoder, teacher.head, student.masked_lm_head
    has_bottleneck = student.encoder.config.traits().embedding.projection == "words"
    is_factorised = encoder.config.traits().embedding.projection == "sum"
    sizes = [(network.config.hidden_size, network.config.embedding_size) for network in (student.encoder, encoder)]
    is_supported = has_bottleneck and is_factorised and our_head.extra is not None
    if not (is_supported and sizes[0] == sizes[1] and isinstance(head, MaskedLM)):
        raise RecipeError(
            "knowledge_transfer.init_from_teacher needs a student with bottlenecks, such as a MobileBERT, and a "
            "teacher with factorised embeddings, such as an ALBERT, of the same hidden_size and embedding_size."
        )
    batches = [sampler(number) for number in range(-(-HEAD_SAMPLE // sampler.work.batch_size))]
    sample = Sample.from_sequences(torch.cat([batch.input_ids for batch in batches]))
    initialise_mobilebert(Model(student.encoder, our_head), encoder, counts, sample)
    masked = torch.cat([batch.focus + number * batch.original_ids.numel() for number, batch in enumerate(batches)])
    read = sample.input_ids, sample.token_type_ids, sample.is_token
    inputs, source_inputs = (reader(*read).flatten(0, 1)[masked] for reader in (student.encoder, encoder))
    initialise_wide_head(our_head, head, encoder.embeddings.word.weight, inputs, source_inputs)
