"""Fine-tuning of a pre-trained encoder on one task (Devlin et al. 2018, arXiv:1810.04805, section 4).

It learns from the labels and, where the recipe says so, from a teacher that was fine-tuned on the same examples before
(Hinton et al. 2015, arXiv:1503.02531). What the teacher says to each of them is computed once and kept in its folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftlet_serve.models.architectures import bert
from swiftlet_serve.models.heads import Classification, Model, TokenOutput, build
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.corpus import load_teacher, package_model
from swiftlet_serve.models.training.examples import UNKNOWN, Example, batches, digest, pad, read, unlabelled
from swiftlet_serve.models.training.loop import Schedule, begun, train
from swiftlet_serve.models.training.pretrain import Start, facts, start_of
from swiftlet_serve.models.training.recipe import HEADS, Finetuning, Recipe, RecipeError, settings
from swiftlet_serve.models.training.run import claim, write
from swiftlet_serve.models.training.start import Sample, cut_vocabulary, fit

SAMPLED: Final = 20_000  # tokens, about, that a student's start is fitted on
NEVER: Final = torch.finfo(torch.float32).min  # the logit of what cannot be chosen

Logits = NDArray[np.float32]
"""What a teacher says to one example: (F, O), of the F positions that are read of it."""


@dataclass(frozen=True)
class Place:
    """Where a training runs, where its state is kept, and who is told of it."""

    directory: Path
    device: torch.device
    report: Callable[[str], None]
    progress: Callable[[int, int], None] | None


def finetune(
    recipe: Recipe,
    name: str,
    body: Model,
    tokenizer: Tokenizer,
    data: Path,
    directory: Path,
    report: Callable[[str], None] = print,
    *,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """The body's encoder with a new head, trained on the task that the recipe calls `name`; on the CPU.

    Where the recipe wants a teacher, that is fine-tuned first, in the folder `teacher` of the directory.

    Raises:
        RecipeError: a directory holds another run, or the teacher cannot read what the student reads.
    """
    work = recipe.finetuning[name]
    claim(directory, {"body": facts(recipe), "finetuning": _facts(work)})
    place = Place(directory, device or torch.device("cpu"), report, progress)
    examples, said = read(work, data, tokenizer), None
    config = {**recipe.config, "vocab_size": tokenizer.vocab_size}
    model = _start(recipe, work, recipe.architecture, config, body.encoder)
    if work.distillation is not None:
        teaching = _teaching(recipe, work, tokenizer, examples, place)
        said = _ask_teacher(teaching, "logits.npy", examples)
        if work.distillation.begin and not begun(directory):
            _begin(start_of(recipe.architecture), model, _taught(teaching), examples, recipe.seed)
        if work.unlabelled:
            more = unlabelled(work, data, tokenizer)
            file = f"unlabelled-{digest(more)[:16]}.npy"  # of these texts, and beside the teacher that said it
            said += _ask_teacher(teaching, file, more)
            examples = [*examples, *more]
    _learn(model, examples, said, work, recipe.seed, place)
    return model


def _facts(work: Finetuning) -> dict[str, Any]:
    """What decides a fine-tuning: all but what it is measured on and what its card says."""
    aside = {"evaluate", "skip", "limit", "licences", "also", "weaknesses"}
    return {name: value for name, value in settings(work).items() if name not in aside}


def _start(recipe: Recipe, work: Finetuning, architecture: str, config: Mapping[str, Any], encoder: nn.Module) -> Model:
    """A trained encoder with a head that knows nothing yet."""
    torch.manual_seed(recipe.seed)
    model = build(architecture, config, HEADS[work.task], len(work.labels) or 2)  # qa has two outputs: start and end
    model.encoder.load_state_dict(encoder.state_dict())
    return model


def _learn(
    model: Model,
    examples: Sequence[Example],
    said: Sequence[Logits] | None,
    work: Finetuning,
    seed: int,
    place: Place,
) -> None:
    """Trains a model on examples, and on what a teacher said to each of them, if one did."""
    drawn = [batch for epoch in range(work.epochs) for batch in batches(examples, work.batch_rows, seed + epoch)]

    def loss(number: int) -> dict[str, Tensor]:
        numbers = drawn[number % len(drawn)]
        chosen = [examples[i] for i in numbers]
        logits = task_logits(model, chosen)
        known, plan = label_loss(logits, chosen), work.distillation
        if said is None or plan is None:
            return {"loss": known}
        taught = soft_loss(logits, stack([said[i] for i in numbers]).to(logits.device), plan.temperature)
        return {"labels": plan.hard * known, "teacher": (1 - plan.hard) * taught}

    steps = -(-len(drawn) // work.accumulate)  # the last step is filled up with the first batches
    train(
        model,
        loss,
        Schedule.of(steps, work),
        place.directory,
        seed=seed,
        device=place.device,
        report=place.report,
        progress=place.progress,
    )


# --- The teacher


@dataclass(frozen=True)
class Teaching:
    """How a teacher is fine-tuned, on what, and where."""

    recipe: Recipe
    work: Finetuning
    kept: list[int]  # of its pieces
    examples: Sequence[Example]
    place: Place


def _teaching(
    recipe: Recipe, work: Finetuning, tokenizer: Tokenizer, examples: Sequence[Example], place: Place
) -> Teaching:
    """The fine-tuning of the recipe's teacher on all examples.

    Nothing of the student decides it, so that a teacher's folder may be copied to another recipe's run.
    """
    assert work.distillation is not None  # noqa: S101  # tells the type checker
    plan = work.distillation
    place = replace(place, directory=place.directory / "teacher", report=partial(_say, place.report))
    theirs = replace(work, epochs=plan.epochs, learning_rate=plan.learning_rate, distillation=None, unlabelled={})
    kept = _kept(recipe, tokenizer)
    claim(
        place.directory,
        {
            "teacher": recipe.teacher,
            "vocabulary": hashlib.sha256(json.dumps(kept).encode()).hexdigest(),
            "seed": recipe.seed,
            "finetuning": _facts(theirs),
            "examples": digest(examples),
        },
    )
    return Teaching(recipe, theirs, kept, examples, place)


def _ask_teacher(teaching: Teaching, file: str, asked: Sequence[Example]) -> list[Logits]:
    """What the teacher says to each that it is asked, once it was fine-tuned; kept in a file beside it."""
    place = teaching.place
    path = place.directory / file
    if not path.is_file():
        model = _taught(teaching)
        place.report(f"answers {len(asked)} examples")
        with torch.autocast(place.device.type, torch.bfloat16, enabled=teaching.work.precision == "bf16"):
            said = np.concatenate(answers(model, asked, teaching.work.batch_rows, place.device))
        write(path, lambda file: np.save(file, said))
    ends = np.cumsum([len(example.encoding.focus) for example in asked])
    return np.split(np.load(path), ends[:-1])


def _taught(teaching: Teaching) -> Model:
    """The teacher, fine-tuned; at once if it was before."""
    model = _teacher(teaching.recipe, teaching.work, teaching.kept)
    _learn(model, teaching.examples, None, teaching.work, teaching.recipe.seed, teaching.place)
    return model


@torch.no_grad()
def _begin(start: Start, model: Model, teacher: Model, examples: Sequence[Example], seed: int) -> None:
    """Starts a student as near to a fine-tuned teacher as its shape allows, on a sample of the task's examples."""
    assert isinstance(teacher.encoder, bert.Encoder)  # noqa: S101  # there are no other teachers
    ids = np.concatenate([example.encoding.input_ids for example in examples])
    counts = torch.from_numpy(np.bincount(ids, minlength=teacher.encoder.embeddings.word.num_embeddings)).float()
    order = np.random.default_rng(seed).permutation(len(examples))
    tokens = np.cumsum([len(examples[i].encoding.input_ids) for i in order])
    chosen = [examples[i] for i in order[: 1 + int(np.searchsorted(tokens, SAMPLED))]]
    input_ids, types, lengths = pad(chosen, torch.device("cpu"))
    sample = Sample(input_ids, types, torch.arange(input_ids.shape[1]) < lengths[:, None])
    start(model, teacher.encoder, counts, sample)
    ours, theirs = model.head, teacher.head
    if isinstance(ours, Classification) and ours.pooler is None:  # the teacher has one
        said = task_logits(teacher, chosen)
        fit(ours.output, model.encoder(sample.input_ids, sample.token_type_ids, sample.mask)[:, 0], said)
    else:
        ours.load_state_dict(theirs.state_dict())


def _say(report: Callable[[str], None], text: str) -> None:
    report(f"teacher: {text}")


def _kept(recipe: Recipe, tokenizer: Tokenizer) -> list[int]:
    """The teacher's id of each piece of the student's, so that both read the same tokens."""
    whole = tokenizers.Tokenizer.from_file(str(package_model(recipe.teacher) / "tokenizer.json"))
    kept = [number for piece in tokenizer.tokens if (number := whole.token_to_id(piece)) is not None]
    if len(kept) < tokenizer.vocab_size:
        raise RecipeError("the teacher does not know all pieces of the student's vocabulary.")
    return kept


def _teacher(recipe: Recipe, work: Finetuning, kept: Sequence[int]) -> Model:
    encoder = load_teacher(recipe.teacher)
    if encoder.config.max_position_embeddings < work.max_tokens:
        raise RecipeError(f"the teacher reads at most {encoder.config.max_position_embeddings} tokens.")
    cut_vocabulary(encoder, kept)
    return _start(recipe, work, "bert", vars(encoder.config) | {"vocab_size": len(kept)}, encoder)


@torch.no_grad()
def answers(model: Model, examples: Sequence[Example], rows: int, device: torch.device) -> list[Logits]:
    """What the model says to each example. It is left on the CPU."""
    model.to(device).eval()
    said: dict[int, Logits] = {}
    for numbers in batches(examples, rows, seed=0):
        chosen = [examples[i] for i in numbers]
        for i, logits in zip(numbers, task_logits(model, chosen).cpu().numpy(), strict=True):
            said[i] = np.atleast_2d(logits)[: len(examples[i].encoding.focus)]
    model.cpu()
    return [said[i] for i in range(len(examples))]


# --- The losses: choices lie along dimension 1, labels (B, O) or the positions of start and end (B, S, 2)


def task_logits(model: Model, examples: Sequence[Example]) -> Tensor:
    """What the model says: (B, O) of labels, or (B, S, 2) of the positions where an answer may start and end.

    Those are [CLS] and the context, as answers are chosen from when served.
    """
    device = next(model.parameters()).device
    ids, types, lengths = pad(examples, device)
    if isinstance(model.head, TokenOutput):
        rows: Tensor = model(ids, types, lengths, torch.arange(ids.numel(), device=device)).float()
        allowed = torch.zeros(ids.shape, dtype=torch.bool)
        allowed[:, 0] = True
        for row, example in enumerate(examples):
            allowed[row, example.context.start : example.context.stop] = True
        return rows.view(*ids.shape, 2).masked_fill(~allowed.to(device)[:, :, None], NEVER)
    first = torch.arange(len(examples), device=device) * ids.shape[1]
    out: Tensor = model(ids, types, lengths, first).float()
    return out


def label_loss(logits: Tensor, examples: Sequence[Example]) -> Tensor:
    """The mean cross entropy of what is right; for qa, of start and end. An example without a label loses nothing."""
    targets = torch.tensor([example.target for example in examples], device=logits.device)  # (B, 1) or (B, 2)
    losses = F.cross_entropy(logits, targets.squeeze(1), ignore_index=UNKNOWN, reduction="sum")  # labels have no dim. 1
    return losses / targets.numel()


def soft_loss(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The mean KL divergence from the teacher's softened choice, times T²; for qa, of start and end.

    T² keeps the gradient's size whatever the temperature (Hinton et al. 2015, section 2).
    """
    ours, theirs = ((x / temperature).log_softmax(1) for x in (logits, teacher))
    divergence: Tensor = F.kl_div(ours, theirs, reduction="none", log_target=True).sum(1)
    return temperature**2 * divergence.mean()


def stack(said: Sequence[Logits]) -> Tensor:
    """What was said to a batch's examples, in the shape of `task_logits`."""
    rows = [torch.from_numpy(one) for one in said]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=NEVER).squeeze(1)
