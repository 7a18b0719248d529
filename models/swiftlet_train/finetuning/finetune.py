"""Fine-tuning of a pre-trained model on one task (Devlin et al. 2018, arXiv:1810.04805, section 4).

If the recipe asks for distillation, the model also learns from a teacher that was fine-tuned on the same examples
(Hinton et al. 2015, arXiv:1503.02531).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from swiftlet_models.datasets import DatasetError
from swiftlet_models.heads import Model
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.entities import read_entities
from swiftlet_train.examples.example import Example, hash_examples
from swiftlet_train.examples.inference import read_inferences
from swiftlet_train.examples.questions import read_questions
from swiftlet_train.examples.relevance import read_relevance
from swiftlet_train.examples.texts import read_labelled_texts, read_unlabelled_texts
from swiftlet_train.finetuning.averaging import average
from swiftlet_train.finetuning.contrastive import train_on_pairs
from swiftlet_train.finetuning.distillation import TaskTeacher, initialise_from_finetuned
from swiftlet_train.finetuning.entity_teacher import TaggedChunk, read_tagged_chunks
from swiftlet_train.finetuning.logits import Logits, mean_predictions
from swiftlet_train.finetuning.ngram_teacher import predict_by_ngrams
from swiftlet_train.finetuning.question_teacher import (
    AskedWindow,
    find_kept_windows,
    read_asked_windows,
)
from swiftlet_train.finetuning.sentence_vectors import train_on_vectors
from swiftlet_train.finetuning.task_training import (
    Predict,
    Run,
    add_head,
    averaged_directory,
    finetuning_settings,
    train_on_examples,
    training_directory,
)
from swiftlet_train.loop.checkpoint import has_checkpoint
from swiftlet_train.loop.run_directory import claim_directory
from swiftlet_train.pretraining.pretrain import hash_parameters, run_settings
from swiftlet_train.recipe import Finetuning, Recipe, TrainingMethod
from swiftlet_train.teachers.encoders import load_own_tokenizer

READERS: Final[Mapping[TrainingMethod, Callable[[Finetuning, Path, Tokenizer], list[Example]]]] = {
    "classification": read_labelled_texts,
    "span": read_questions,
    "inference": read_inferences,
    "relevance": read_relevance,
    "entities": read_entities,
}
"""The readers of the training files, by the method of training."""
RATE_AFTER_AVERAGING: Final = 0.1  # of the last training's learning rate


def finetune(
    recipe: Recipe,
    name: str,
    pretrained: Model,
    tokenizer: Tokenizer,
    data: Path,
    directory: Path,
    report: Callable[[str], None] = print,
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
    predict: Predict | None = None,
    teachers: Path | None = None,
    initial_model: Model | None = None,
) -> Model:
    """Fine-tunes the pre-trained encoder with a new head on the task of the artifact `name`. Returns it on the CPU.

    `pretrained` is the model of another artifact if the task continues its training. `initial_model` is the model that
    `init_from_model` names.

    A teacher, if the recipe asks for one, is fine-tuned first, in the folder `teacher` of the directory, and a task
    teacher in `task_teacher`, or in the folder `teachers` if the recipe names its run. The predictions of a teacher of
    n-grams are kept in the directory itself. The student learns from the task teacher if there is one, and from the
    mean of two teachers' predictions if the recipe asks for both.

    If the task is trained several times, each further training has a folder of the directory. The model gets the mean
    of their parameters, with those where they started if the recipe says so, and is trained for a few more steps if it
    asks for these.

    Raises:
        RecipeError: a directory holds another run, the teacher cannot read the student's input, or a label is too rare
            for a teacher of n-grams.
    """
    work = recipe.finetuning[name]
    run = Run(directory, device or torch.device("cpu"), report, progress, predict, teachers)
    models, trainings = [], work.trainings()
    examples: list[Example]
    logits: list[Logits] | None
    for number, training in enumerate(trainings, start=1):
        own = run if number == 1 else _run_within(run, training_directory(directory, number), f"training {number}")
        examples, logits = [], None  # frees the previous training's, which can take gigabytes
        model, examples, logits = _train(
            recipe, training, pretrained, initial_model, tokenizer, data, own, teachers_run=run
        )
        models.append(model)
    model = average([*models, pretrained] if work.averaged_with_init else models)
    if work.steps_after_averaging:
        own = _run_within(run, averaged_directory(directory, len(models)), "after averaging")
        _train_average(model, examples, logits, trainings[-1], work.steps_after_averaging, recipe.seed, own)
    return model


def _run_within(run: Run, directory: Path, name: str) -> Run:
    """Returns the run of a part of a task's training, with its name before its reports."""
    return replace(run, directory=directory, report=lambda text: run.report(f"{name}: {text}"))


def _train_average(
    model: Model,
    examples: list[Example],
    logits: list[Logits] | None,
    work: Finetuning,
    steps: int,
    seed: int,
    run: Run,
) -> None:
    """Trains an averaged model for a few steps, on random examples and at a low learning rate."""
    settings = {"steps": steps, "mean": hash_parameters(model), "examples": hash_examples(examples)}
    claim_directory(run.directory, settings)
    count = steps * work.batch_size * work.gradient_accumulation_steps
    chosen = np.random.default_rng(seed).permutation(len(examples))[:count]
    work = replace(work, epochs=1, learning_rate=work.learning_rate * RATE_AFTER_AVERAGING)
    theirs = logits and [logits[i] for i in chosen]
    train_on_examples(model, [examples[i] for i in chosen], theirs, work, seed, run)


def _train(
    recipe: Recipe,
    work: Finetuning,
    pretrained: Model,
    initial_model: Model | None,
    tokenizer: Tokenizer,
    data: Path,
    run: Run,
    teachers_run: Run,
) -> tuple[Model, list[Example], list[Logits] | None]:
    """Returns the model of one training, with its examples and the teacher's predictions for these.

    The directory of `teachers_run` has the teachers, which all trainings share.
    """
    settings = {"pretraining": run_settings(recipe), "finetuning": finetuning_settings(work)}
    named = {work.init_from: pretrained, "init_from_model": initial_model}
    if parents := {name: hash_parameters(parent) for name, parent in named.items() if name and parent is not None}:
        settings["models"] = parents
    claim_directory(run.directory, settings)
    config = {**recipe.config, "vocab_size": tokenizer.vocab_size}
    model = add_head(recipe, work, recipe.architecture, config, pretrained.encoder)
    if work.init_from:
        model.head.load_state_dict(pretrained.head.state_dict())
    if work.method == "embedding":
        train_on_vectors(model, recipe, work, tokenizer, data, run)
        return model, [], None
    if work.method == "contrastive":
        train_on_pairs(model, recipe, work, tokenizer, data, run)
        return model, [], None
    examples, logits = read_examples(work, data, tokenizer), None
    plan = work.distillation
    if plan is not None and plan.character_ngrams:
        logits = predict_by_ngrams(work, plan.character_ngrams, data, teachers_run)
    if plan is not None and recipe.teacher:
        started = has_checkpoint(run.directory)
        examples, theirs = _ask_teacher(
            recipe, work, None if started else model, initial_model, tokenizer, examples, data, teachers_run
        )
        logits = theirs if logits is None else mean_predictions(logits, theirs)
    claim_directory(run.directory, {"examples": hash_examples(examples)}, "examples.json")
    train_on_examples(model, examples, logits, work, recipe.seed if work.seed is None else work.seed, run)
    return model, examples, logits


def _ask_teacher(
    recipe: Recipe,
    work: Finetuning,
    untrained: Model | None,
    initial_model: Model | None,
    tokenizer: Tokenizer,
    examples: list[Example],
    data: Path,
    run: Run,
) -> tuple[list[Example], list[Logits]]:
    """Returns the student's examples with the teacher's predictions.

    `examples` are those of the training files, as the student reads them. If the recipe says so, the untrained student
    is initialised from a teacher.
    """
    plan = work.distillation
    assert plan is not None  # noqa: S101  # for the type checker
    recipe_teacher = TaskTeacher.prepare(recipe, work, tokenizer, examples, run)
    if untrained is not None and (plan.init_from_teacher or initial_model is not None):
        initialise_from_finetuned(untrained, recipe, initial_model or recipe_teacher.load(), examples)
    teacher, read, taught = recipe_teacher, tokenizer, examples
    if plan.task_teacher:
        read = load_own_tokenizer(plan.task_teacher)
        taught = read_examples(work, data, read)
        teacher = TaskTeacher.prepare_other(recipe, work, read, taught, run)
    if work.method == "entities":
        chunks = read_tagged_chunks(work, data, tokenizer, read)
        students, logits = [chunk.student for chunk in chunks], _predict_aligned(teacher, chunks)
        if plan.recipe_teacher_share:
            logits = mean_predictions(recipe_teacher.predict_unlabelled(students), logits, plan.recipe_teacher_share)
        return students, logits
    if plan.task_teacher and work.method == "span":
        windows = read_asked_windows(work, data, tokenizer, read)
        logits = _predict_aligned(teacher, windows)
        kept = find_kept_windows(windows, logits, work.kept_unanswered, recipe.seed)
        return [windows[i].student for i in kept], [logits[i] for i in kept]
    logits = teacher.predict("logits.npy", taught)
    if work.unlabelled and work.method == "classification":
        more = read_unlabelled_texts(work, data, tokenizer)
        texts = more if read is tokenizer else read_unlabelled_texts(work, data, read)
        examples = [*examples * work.labelled_repeats, *more]
        logits = [*logits * work.labelled_repeats, *teacher.predict_unlabelled(texts)]
    return examples, logits


def _predict_aligned(teacher: TaskTeacher, pairs: Sequence[TaggedChunk | AskedWindow]) -> list[Logits]:
    """Returns the teacher's predictions at the student's positions.

    Raises:
        DatasetError: there are no texts, because each is too long for the teacher.
    """
    if not pairs:
        raise DatasetError("The task teacher can read none of the training texts.")
    theirs = teacher.predict_unlabelled([pair.teacher for pair in pairs])
    return [pair.align(logits) for pair, logits in zip(pairs, theirs, strict=True)]


def read_examples(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the training files of a task.

    Raises:
        DatasetError: a file is not in the task's format, or none holds an example.
        RecipeError: the labels do not fit the files.
    """
    examples = READERS[work.method](work, data, tokenizer)
    if not examples:
        raise DatasetError("The training files hold no example.")
    return examples
