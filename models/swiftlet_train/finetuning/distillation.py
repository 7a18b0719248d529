"""The teacher of a fine-tuning: the recipe's teacher or a task teacher, fine-tuned on the same examples.

The recipe's teacher has the student's vocabulary, and a task teacher its own. The logits for each example are computed
once and kept in the teacher's directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from swiftlet_models.heads import Classification, Model
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.batches import collate, make_batches
from swiftlet_train.examples.example import Example, hash_examples
from swiftlet_train.finetuning.logits import Logits, split_logits, task_logits
from swiftlet_train.finetuning.task_training import (
    FinetunedTeacher,
    Run,
    add_head,
    finetuning_settings,
    train_on_examples,
)
from swiftlet_train.initialisation import find_initialiser
from swiftlet_train.initialisation.fitting import Sample, fit
from swiftlet_train.loop.run_directory import claim_directory, locked, write_array_atomically
from swiftlet_train.recipe import Distillation, Finetuning, Recipe, RecipeError
from swiftlet_train.teachers.encoders import load_teacher, load_teacher_tokenizer, prune_embeddings

STUDENT_FIELDS: Final = (
    "asked_again",
    "asked_of_parts",
    "corrupted",
    "init_from",
    "kept_unanswered",
    "labelled_repeats",
    "longest_unlabelled",
    "seed",
    "transferred_questions",
)
SAMPLE_TOKENS: Final = 20_000  # about, for initialising a student
PART: Final = 20_000  # examples whose logits are computed, and kept if the run is interrupted, at a time


@dataclass(frozen=True)
class TaskTeacher:
    """The fine-tuning of a teacher. It does not depend on the student, so recipes may share a teacher's directory."""

    recipe: Recipe
    work: Finetuning
    """The teacher's own settings."""
    checkpoint: str
    """The package or directory that it starts from."""
    kept: list[int] | None
    """The teacher's id of each of the student's pieces; None if it reads texts with its own tokenizer."""
    tokenizer: Tokenizer
    examples: Sequence[Example]
    run: Run
    engine: str
    """The engine for the predictions; PyTorch if empty."""

    @classmethod
    def prepare(
        cls, recipe: Recipe, work: Finetuning, tokenizer: Tokenizer, examples: Sequence[Example], run: Run
    ) -> TaskTeacher:
        """Claims the directory of the recipe's teacher, the folder `teacher` of the run's.

        Raises:
            RecipeError: the directory holds another run, or the teacher lacks some of the student's pieces.
        """
        kept = find_kept_pieces(recipe, tokenizer)
        plan = _plan(work)
        work = replace(work, epochs=plan.teacher_epochs, learning_rate=plan.teacher_learning_rate)
        return cls._claim(run.directory / "teacher", recipe, work, recipe.teacher, kept, tokenizer, examples, run)

    @classmethod
    def prepare_other(
        cls, recipe: Recipe, work: Finetuning, tokenizer: Tokenizer, examples: Sequence[Example], run: Run
    ) -> TaskTeacher:
        """Claims the directory of a task teacher: a shared run's, or the folder `task_teacher` of this run's.

        `examples` are those of the task, encoded by `tokenizer`, which is the teacher's own.

        Raises:
            RecipeError: the directory holds another run.
        """
        plan = _plan(work)
        work = replace(
            work,
            epochs=plan.task_teacher_epochs,
            learning_rate=plan.task_teacher_learning_rate,
            batch_size=plan.task_teacher_batch_size or work.batch_size,
        )
        directory = run.directory / "task_teacher"
        if plan.task_teacher_run and run.teachers is not None:
            directory = run.teachers / plan.task_teacher_run
        return cls._claim(directory, recipe, work, plan.task_teacher, None, tokenizer, examples, run)

    @classmethod
    def _claim(
        cls,
        directory: Path,
        recipe: Recipe,
        work: Finetuning,
        checkpoint: str,
        kept: list[int] | None,
        tokenizer: Tokenizer,
        examples: Sequence[Example],
        run: Run,
    ) -> TaskTeacher:
        name = "task teacher" if kept is None else "teacher"
        engine = _plan(work).teacher_engine
        teacher_run = replace(run, directory=directory, report=lambda text: run.report(f"{name}: {text}"))
        own = {name: getattr(Finetuning, name) for name in STUDENT_FIELDS}
        work = replace(work, distillation=None, unlabelled={}, **own)
        claim_directory(
            teacher_run.directory,
            {
                "teacher": checkpoint,
                "vocabulary": hashlib.sha256(json.dumps(kept).encode()).hexdigest(),
                "seed": recipe.seed,
                "finetuning": finetuning_settings(work),
                "examples": hash_examples(examples),
            },
        )
        return cls(recipe, work, checkpoint, kept, tokenizer, examples, teacher_run, engine)

    def load(self) -> Model:
        """Returns the fine-tuned teacher, and trains it first if necessary.

        Raises:
            RecipeError: the teacher's maximum length is too small.
        """
        model = make_task_teacher(self.recipe, self.work, self.kept, self.checkpoint)
        train_on_examples(model, self.examples, None, self.work, self.recipe.seed, self.run)
        return model

    def predict(self, file_name: str, examples: Sequence[Example]) -> list[Logits]:
        """Returns the teacher's logits for each example, from the file if it exists.

        Raises:
            RecipeError: the recipe names an engine, and this run cannot use one.
        """
        if not examples:
            return []
        run, path = self.run, self.run.directory / f"{self.engine}{'-' if self.engine else ''}{file_name}"
        parts = {start: path.with_suffix(f".{start}.npy") for start in range(0, len(examples), PART)}
        if not path.is_file():
            with locked(run.directory):
                model = self.load()
                run.report(f"computing the logits of {len(examples)} examples")
                for start, part in parts.items():
                    if not part.is_file():
                        logits = self._compute_logits(model, examples[start : start + PART])
                        write_array_atomically(part, np.concatenate(logits))
                write_array_atomically(path, np.concatenate([np.load(part) for part in parts.values()]))
        for part in parts.values():
            part.unlink(missing_ok=True)
        ends = np.cumsum([len(example.encoding.focus) for example in examples])
        return np.split(np.load(path), ends[:-1])

    def _compute_logits(self, model: Model, examples: Sequence[Example]) -> list[Logits]:
        run = self.run
        if not self.engine:
            with torch.autocast(run.device.type, torch.bfloat16, enabled=self.work.precision == "bf16"):
                return compute_logits(model, examples, self.work.batch_size, run.device)
        if run.predict is None:
            raise RecipeError("teacher_engine cannot be used here: leave it out.")
        architecture = load_teacher(self.checkpoint).architecture
        teacher = FinetunedTeacher(self.work.task, architecture, model.eval(), self.tokenizer, self.work.labels)
        return run.predict(self.engine, run.directory / "artifact", teacher, examples, run.progress)

    def predict_unlabelled(self, examples: Sequence[Example]) -> list[Logits]:
        """Returns the teacher's logits for unlabelled examples. The file's name depends on the examples."""
        return self.predict(f"unlabelled-{hash_examples(examples)[:16]}.npy", examples)


def _plan(work: Finetuning) -> Distillation:
    assert work.distillation is not None  # noqa: S101  # for the type checker
    return work.distillation


def find_kept_pieces(recipe: Recipe, tokenizer: Tokenizer) -> list[int]:
    """Returns the teacher's id of each piece of the student.

    Raises:
        RecipeError: the teacher lacks a piece.
    """
    teacher = load_teacher_tokenizer(recipe.teacher)
    kept = [number for piece in tokenizer.tokens if (number := teacher.token_to_id(piece)) is not None]
    if len(kept) < tokenizer.vocab_size:
        raise RecipeError("the teacher's vocabulary lacks some of the student's pieces.")
    return kept


def make_task_teacher(
    recipe: Recipe, work: Finetuning, kept: Sequence[int] | None, checkpoint: str | None = None
) -> Model:
    """Makes a teacher with an untrained head.

    It has the student's vocabulary, or its own if `kept` is None. It starts from the package or directory `checkpoint`,
    by default from the recipe's teacher.

    Raises:
        RecipeError: the teacher's maximum length is too small.
    """
    teacher = load_teacher(checkpoint or recipe.teacher)
    longest = teacher.encoder.max_tokens
    if longest < work.max_tokens:
        raise RecipeError(f"the teacher reads at most {longest} tokens: lower max_tokens.")
    config: dict[str, Any] = dict(vars(teacher.encoder.config))
    if kept is not None:
        prune_embeddings(teacher.encoder, kept)
        config["vocab_size"] = len(kept)
    return add_head(recipe, work, teacher.architecture, config, teacher.encoder)


@torch.no_grad()
def compute_logits(model: Model, examples: Sequence[Example], batch_size: int, device: torch.device) -> list[Logits]:
    """Returns the model's logits for each example. Leaves the model on the CPU."""
    model.to(device).eval()
    logits: dict[int, Logits] = {}
    for numbers in make_batches(examples, batch_size, seed=0):
        batch = [examples[i] for i in numbers]
        for i, rows in zip(numbers, split_logits(task_logits(model, batch), batch), strict=True):
            logits[i] = np.atleast_2d(rows.cpu().numpy())[: len(examples[i].encoding.focus)]
    model.cpu()
    return [logits[i] for i in range(len(examples))]


@torch.no_grad()
def initialise_from_finetuned(student: Model, recipe: Recipe, source: Model, examples: Sequence[Example]) -> None:
    """Initialises a student from a model of the task, such as its teacher, on a sample of the task's examples.

    Raises:
        RecipeError: the student's architecture has no such method, or none for this model.
    """
    own, copied = student.encoder.config, source.encoder.config
    initialise = find_initialiser(recipe.architecture, own.traits())
    traits, own_embedding = copied.traits(), own.traits().embedding
    is_standard = traits.bottleneck is None and len(traits.feed_forward) == 1
    both_factorised = traits.embedding.projection != "none" and own_embedding.projection == "sum"
    if own.hidden_size != copied.hidden_size or not is_standard or both_factorised:
        raise RecipeError(
            "the student starts from a BERT of the same hidden size only, or, if it is a MobileBERT, from an ALBERT."
        )
    ids = np.concatenate([example.encoding.input_ids for example in examples])
    vocab_size = source.encoder.embeddings.word.num_embeddings
    counts = torch.from_numpy(np.bincount(ids, minlength=vocab_size)).float()
    order = np.random.default_rng(recipe.seed).permutation(len(examples))
    tokens = np.cumsum([len(examples[i].encoding.input_ids) for i in order])
    chosen = [examples[i] for i in order[: 1 + int(np.searchsorted(tokens, SAMPLE_TOKENS))]]
    input_ids, types, lengths = collate(chosen, torch.device("cpu"))
    sample = Sample(input_ids, types, torch.arange(input_ids.shape[1]) < lengths[:, None])
    initialise(student, source.encoder, counts, sample)
    head = student.head
    if isinstance(head, Classification) and head.pooler is None:  # the source may have a pooler
        hidden = student.encoder(sample.input_ids, sample.token_type_ids, sample.is_token)
        fit(head.output, hidden[:, 0], task_logits(source, chosen))
    else:
        head.load_state_dict(source.head.state_dict())
