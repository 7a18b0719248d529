"""Fine-tuning of a pre-trained encoder on one task (Devlin et al. 2018, arXiv:1810.04805, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from models import datasets
from models.datasets import Question
from models.heads import Model, build
from models.tokenizer import Encoding, Tokenizer
from models.training.loop import Schedule, train
from models.training.pretrain import facts
from models.training.recipe import Finetuning, Recipe, settings
from models.training.run import claim

STRIDE: Final = 128  # tokens that neighbouring windows of a context share
SORTED: Final = 50  # batches among which rows of a length are brought together

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Example:
    """A row and what the head should say of it: a label, or the positions where the answer starts and ends."""

    encoding: Encoding
    target: tuple[int, ...]
    context: range = range(0)  # for qa, the positions an answer may take


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
    """The body's encoder with a new head, trained on the task that the recipe calls `name`; on the CPU."""
    work = recipe.finetuning[name]
    claim(directory, {"body": facts(recipe), "finetuning": _facts(work)})
    torch.manual_seed(recipe.seed)
    config = {**recipe.config, "vocab_size": tokenizer.vocab_size}
    model = build(recipe.architecture, config, work.task, len(work.labels))
    model.encoder.load_state_dict(body.encoder.state_dict())
    examples = [example for file, most in work.train.items() for example in _read(work, data / file, most, tokenizer)]
    batches = [
        batch for epoch in range(work.epochs) for batch in _batches(examples, work.batch_rows, recipe.seed + epoch)
    ]
    task_loss = _answer_loss if work.task == "qa" else _label_loss

    def loss(number: int) -> dict[str, Tensor]:
        return {"loss": task_loss(model, [examples[i] for i in batches[number % len(batches)]])}

    steps = -(-len(batches) // work.accumulate)  # the last step is filled up with the first batches
    schedule = Schedule.of(steps, work)
    train(model, loss, schedule, directory, seed=recipe.seed, device=device, report=report, progress=progress)
    return model


def _facts(work: Finetuning) -> dict[str, Any]:
    """What decides a fine-tuning: all but what it is measured on and what its card says."""
    aside = {"evaluate", "skip", "limit", "licences"}
    return {name: value for name, value in settings(work).items() if name not in aside}


def _read(work: Finetuning, path: Path, most: int, tokenizer: Tokenizer) -> list[Example]:
    """At most `most` examples of a file, evenly spread over it."""
    if work.task == "classify":
        texts = _spread(datasets.labelled(path), most)
        encodings = tokenizer.encode([text.text for text in texts], work.max_tokens)
        return [Example(encoding, (text.label,)) for encoding, text in zip(encodings, texts, strict=True)]
    questions = _spread(datasets.questions(path), most)
    return [example for question in questions for example in _windows(question, tokenizer, work.max_tokens)]


def _spread(items: Sequence[T], most: int) -> list[T]:
    return [items[i] for i in np.linspace(0, len(items) - 1, min(most, len(items))).astype(int)]


def _windows(question: Question, tokenizer: Tokenizer, max_tokens: int) -> list[Example]:
    """One example for each window of the context; [CLS] is the answer where a window does not hold it."""
    asked, context = tokenizer.read([question.question, question.context])
    room = tokenizer.room(asked, max_tokens)
    if room <= 1:
        return []
    span = _span(question)
    examples = []
    for window in tokenizer.windows(asked, context, 0, room, min(STRIDE, room // 2)):
        places = range(window.first, window.first + len(window.tokens))
        target = (0, 0)
        if span is not None:
            start = int(np.searchsorted(window.tokens[:, 1], span[0], side="right"))
            end = int(np.searchsorted(window.tokens[:, 0], span[1], side="left")) - 1
            inside = len(window.tokens) and window.tokens[0, 0] <= span[0] and span[1] <= window.tokens[-1, 1]
            if inside and start <= end:
                target = (window.first + start, window.first + end)
        examples.append(Example(window, target, places))
    return examples


def _span(question: Question) -> tuple[int, int] | None:
    """Where the first answer stands in the context, in code points; None where it does not."""
    if not question.answers:
        return None
    text, start = question.answers[0], question.starts[0]
    if not question.context.startswith(text, start):
        start = question.context.find(text)
    return (start, start + len(text)) if text and start >= 0 else None


def _batches(examples: Sequence[Example], rows: int, seed: int) -> list[list[int]]:
    """Every example once, in random batches of rows of like length."""
    chance = np.random.default_rng(seed)
    order = chance.permutation(len(examples))
    batches = []
    for at in range(0, len(order), rows * SORTED):
        near = sorted(order[at : at + rows * SORTED].tolist(), key=lambda i: len(examples[i].encoding.input_ids))
        batches += [near[start : start + rows] for start in range(0, len(near), rows)]
    return [batches[i] for i in chance.permutation(len(batches))]


def _label_loss(model: Model, examples: Sequence[Example]) -> Tensor:
    ids, types, lengths = _pad(examples, _device(model))
    first = torch.arange(len(examples), device=ids.device) * ids.shape[1]
    targets = torch.tensor([example.target[0] for example in examples], device=ids.device)
    return nn.functional.cross_entropy(model(ids, types, lengths, first).float(), targets)


def _answer_loss(model: Model, examples: Sequence[Example]) -> Tensor:
    """The mean cross entropy of start and end among [CLS] and the context, as answers are chosen from when served."""
    ids, types, lengths = _pad(examples, _device(model))
    logits = model(ids, types, lengths, torch.arange(ids.numel(), device=ids.device)).float().view(*ids.shape, 2)
    allowed = torch.zeros(ids.shape, dtype=torch.bool)
    allowed[:, 0] = True
    for row, example in enumerate(examples):
        allowed[row, example.context.start : example.context.stop] = True
    logits = logits.masked_fill(~allowed.to(ids.device)[:, :, None], torch.finfo(logits.dtype).min)
    targets = torch.tensor([example.target for example in examples], device=ids.device)  # (B, 2)
    return nn.functional.cross_entropy(logits, targets)


def _device(model: Model) -> torch.device:
    return next(model.parameters()).device


def _pad(examples: Sequence[Example], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """input_ids and token_type_ids (B, S), lengths (B,)."""

    def stack(rows: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)

    encodings = [example.encoding for example in examples]
    return (
        stack([torch.from_numpy(encoding.input_ids) for encoding in encodings]),
        stack([torch.from_numpy(encoding.token_type_ids) for encoding in encodings]),
        torch.tensor([len(encoding.input_ids) for encoding in encodings], device=device),
    )
