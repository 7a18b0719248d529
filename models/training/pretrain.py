"""Pre-training of a student: masked or replaced words, pairs of texts, and what a teacher knows, if there is one.

Everything made on the way lies in the run's directory, so that a run goes on where it was stopped: the vocabulary,
the corpus as rows of tokens, the checkpoint, the curve of the losses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_serve.models.architectures import albert, bert, mobilebert
from swiftlet_serve.models.architectures.layers import Encoder
from swiftlet_serve.models.heads import Classification, MaskedLM, Model, build
from swiftlet_serve.models.training import start, transfer
from swiftlet_serve.models.training.corpus import corpus, load_teacher, vocabulary
from swiftlet_serve.models.training.draw import Batch, Draw
from swiftlet_serve.models.training.loop import Schedule, train
from swiftlet_serve.models.training.objectives.masked_lm import Masked
from swiftlet_serve.models.training.objectives.replaced_token import (
    Discriminator,
    detection_loss,
    make_generator,
    replace,
)
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, Transfer, settings
from swiftlet_serve.models.training.run import claim
from swiftlet_serve.models.training.start import Sample
from swiftlet_serve.models.training.start_mobilebert import start_mobilebert, start_words
from swiftlet_serve.models.training.vocabulary import SPECIALS

SAMPLED: Final = 64  # rows, about, that the student's start is fitted on
HOLED: Final = 240  # the same, where its head is fitted, too: that reads nothing but holes
Start = Callable[[Model, bert.Encoder, Tensor, Sample], None]
STARTS: Final[Mapping[str, Start]] = {"albert": start.start_albert, "mobilebert": start_mobilebert}


class Student(nn.Module):
    """What is trained: an encoder, its head and, where it is learnt, one for how two texts belong together.

    The head is a masked-LM head. Beside a generator, which puts words in, it tells which they are.
    """

    def __init__(self, model: Model, *, pairs: bool, generator: Model | None = None) -> None:
        super().__init__()
        self.encoder, self.generator = model.encoder, generator
        self.head = model.head if generator is None else Discriminator(model.encoder.config)
        self.sentence = Classification(model.encoder.config, 2) if pairs else None

    @property
    def predictor(self) -> MaskedLM:
        """The head that says which words were hidden."""
        head = self.head if self.generator is None else self.generator.head
        assert isinstance(head, MaskedLM)  # noqa: S101  # tells the type checker
        return head


class Guide(nn.Module):
    """What is imitated. One without a masked-LM head reads no holes."""

    def __init__(self, encoder: Encoder, head: nn.Module | None) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.requires_grad_(requires_grad=False)


def pretrain(
    recipe: Recipe,
    data: Path,
    directory: Path,
    report: Callable[[str], None] = print,
    *,
    body: Model | None = None,
    pieces: Sequence[str] | None = None,
    begin: Model | None = None,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Model, Path]:
    """Trains the student's encoder and its head. Returns them, on the CPU, and the tokenizer's file.

    The recipe's corpora are read from `data`; `directory` keeps the run. `body` is what `recipe.pretraining.transfer`
    names, and guides this one in the teacher's place; `pieces` are those that it reads, by id, where they are not made
    as this one's are. `begin` is what the recipe trained that this one continues.

    Raises:
        RecipeError: the directory holds another run, the guide cannot guide this student, or `begin` is another shape.
    """
    place = device or torch.device("cpu")
    work = recipe.pretraining
    built_on = {name: digest(model) for name, model in (("guide", body), ("continues", begin)) if model is not None}
    claim(directory, facts(recipe) | ({"built_on": built_on} if built_on else {}))
    teacher = load_teacher(recipe.teacher) if recipe.teacher else None
    tokenizer, kept, counts = vocabulary(recipe, data, directory)
    if pieces is not None and list(pieces) != [tokenizer.id_to_token(number) for number in range(len(kept))]:
        raise RecipeError("the model that is to guide reads other pieces: it has another tokenizer.")
    rows = corpus(recipe, tokenizer, data, directory)

    torch.manual_seed(recipe.seed)
    try:
        model = build(recipe.architecture, {**recipe.config, "vocab_size": len(kept)}, "masked_lm")
    except ValueError as error:
        raise RecipeError(f"config: {error}") from None
    if teacher is not None:
        start.cut_vocabulary(teacher, kept)
    draw = Draw(recipe, tokenizer, rows)
    if teacher is not None and begin is None and work.fitted:
        sample = torch.from_numpy(rows[:: max(1, len(rows) // SAMPLED)].astype(np.int64))
        start_of(recipe.architecture)(model, teacher, counts, Sample.of(sample))
    beside = make_generator(recipe.architecture, model.encoder) if work.objective == "replaced" else None
    student = Student(model, pairs=work.sentences != "none", generator=beside)
    start.start_head(student.predictor, counts)
    if begin is not None:
        _load(model, begin)
    guide = None
    if work.transfer is not None:
        guide = _guide(teacher, body)
        _check(student, guide, work.transfer)
        if work.transfer.begin:
            _begin(student, guide, counts, draw)
        guide.to(place)
    depth = len(transfer.layers(student.encoder))
    share = 0.0 if work.transfer is None else work.transfer.below  # of the rate, for layers below

    def lost(batch: Batch, plan: Transfer | None, done: float, seed: int) -> dict[str, Tensor]:
        batch = batch.to(place)
        if student.generator is not None:
            return _detection(student, student.generator, batch, torch.Generator(place).manual_seed(seed))
        now = transfer.phase(plan, done, depth)
        transfer.freeze(student.encoder, 0 if share else now.below)
        return _losses(plan, now, student, batch, guide)

    def loss(number: int) -> dict[str, Tensor]:
        chance = ~(recipe.seed * 1_000_003 + number)  # not that of the draw
        return lost(draw(number), work.transfer, number / (work.steps * work.accumulate), chance)

    def slowed(step: int) -> tuple[float, list[nn.Module]]:
        if not share:
            return 1.0, []
        return share, transfer.below(student.encoder, transfer.phase(work.transfer, step / work.steps, depth).below)

    def held_out() -> dict[str, Tensor]:
        numbers = range(work.held_out // work.batch_rows)
        found = [lost(draw.held_out(number), None, 0, ~number) for number in numbers]
        if work.sentences != "none":
            told = [lost(draw.held_out_pairs(number), None, 0, ~number)["sentences"] for number in numbers]
            found = [losses | {"sentences": loss} for losses, loss in zip(found, told, strict=True)]
        return {f"held_out_{name}": torch.stack([losses[name] for losses in found]).mean() for name in found[0]}

    train(
        student,
        loss,
        Schedule.of(work.steps, work),
        directory,
        seed=recipe.seed,
        device=place,
        report=report,
        progress=progress,
        watch=held_out if work.held_out else None,
        slowed=slowed,
    )
    return Model(student.encoder, student.head), directory / "tokenizer.json"


def facts(recipe: Recipe) -> dict[str, Any]:
    """What decides a pre-training: all of the recipe but its names and what is made of the body."""
    whole = asdict(recipe) | {"pretraining": settings(recipe.pretraining)}
    names = ["seed", "teacher", "vocabulary", "architecture", "config", "pretraining"]
    names += ["tokenizer"] if recipe.tokenizer else []  # so that an older run is still the run of its recipe
    return {name: whole[name] for name in names}


def digest(model: nn.Module) -> str:
    """Tells a model's parameters from any others."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def start_of(architecture: str) -> Start:
    """How a student of an architecture begins as near to a BERT as can be.

    Raises:
        RecipeError: no way is known for this one.
    """
    if architecture not in STARTS:
        raise RecipeError(f"no way is known to begin {architecture!r} as near to a teacher as can be, as asked for.")
    return STARTS[architecture]


@torch.no_grad()
def _begin(student: Student, guide: Guide, counts: Tensor, draw: Draw) -> None:
    """Starts a MobileBERT as near to the ALBERT that guides it as its shape allows, on rows with holes.

    Neurons for which the guide has none stay as the teacher's start left them.
    """
    encoder, head = guide.encoder, guide.head
    ours = student.predictor
    fits = isinstance(student.encoder, mobilebert.Encoder) and isinstance(encoder, albert.Encoder)
    widths = [(one.config.hidden_size, one.config.embedding_size) for one in (student.encoder, encoder)]
    if not (fits and widths[0] == widths[1] and isinstance(head, MaskedLM) and ours.extra is not None):
        raise RecipeError("to begin as its guide, the student is a MobileBERT, as wide as the ALBERT that guides it.")
    assert isinstance(encoder, albert.Encoder)  # noqa: S101  # tells the type checker
    batches = [draw(number) for number in range(-(-HOLED // draw.work.batch_rows))]
    sample = Sample.of(torch.cat([batch.input_ids for batch in batches]))
    start_mobilebert(Model(student.encoder, ours), encoder, counts, sample)
    holes = torch.cat([batch.focus + number * batch.whole.numel() for number, batch in enumerate(batches)])
    read = sample.input_ids, sample.token_type_ids, sample.mask
    stream, known = (reader(*read).flatten(0, 1)[holes] for reader in (student.encoder, encoder))
    start_words(ours, head, encoder.embeddings.word.weight, stream, known)


def _load(model: Model, begin: Model) -> None:
    try:
        model.load_state_dict(begin.state_dict())
    except RuntimeError:
        raise RecipeError("a body is continued by a recipe of the same architecture and shape.") from None


def _guide(teacher: Encoder | None, body: Model | None) -> Guide:
    if body is not None:
        return Guide(body.encoder, body.head if isinstance(body.head, MaskedLM) else None)
    if teacher is None:
        raise RecipeError("without a teacher, the body of another recipe has to guide.")
    return Guide(teacher, None)


def _check(student: Student, guide: Guide, plan: Transfer) -> None:
    """Refuses a guide that cannot be imitated, before hours are spent."""
    ours, theirs = transfer.layers(student.encoder), transfer.layers(guide.encoder)
    if len(student.encoder.embeddings.word.weight) != len(guide.encoder.embeddings.word.weight):
        raise RecipeError("the guide has a vocabulary of another size.")
    if plan.feature_weight and student.encoder.config.hidden_size != guide.encoder.config.hidden_size:
        raise RecipeError("feature maps are imitated by a student of the guide's hidden_size.")
    if plan.attention_weight and ours[0].heads != theirs[0].heads:
        raise RecipeError("attention is imitated by a student of as many heads as the guide has.")
    if plan.hard < 1 and guide.head is None:
        raise RecipeError("the guide predicts no words: hard must be 1, or the guide a body that fills masks.")
    if plan.strategy == "progressive" and len(set(ours)) < len(ours):
        raise RecipeError("layers that are shared cannot be trained one after another.")


@dataclass(frozen=True, eq=False)
class Reading:
    """What a model makes of a batch."""

    features: list[Tensor]  # (B, S, H), of the embeddings and of every layer
    attention: list[Tensor]  # (B, A, S, S), of every layer, as log-probabilities; empty if not asked for
    logits: Tensor | None  # (N, V), of the holes; None if not asked for


def _read(reader: Student | Guide, batch: Batch, ids: Tensor, *, attention: bool, predicts: bool) -> Reading:
    with ExitStack() as stack:
        found = stack.enter_context(transfer.attentions(reader.encoder, batch.real)) if attention else []
        features = reader.encoder.features(ids, batch.token_type_ids, batch.real)
    if not predicts or reader.head is None:
        return Reading(features, found, None)
    holes = features[-1].flatten(0, 1)[batch.focus]
    return Reading(features, found, reader.head(holes, reader.encoder.embeddings.word.weight).float())


def _losses(
    plan: Transfer | None, now: transfer.Phase, student: Student, batch: Batch, guide: Guide | None
) -> dict[str, Tensor]:
    """What a batch loses, by name."""
    plan = plan or Transfer()
    imitated, looks = now.imitated, bool(now.imitated) and plan.attention_weight > 0
    ours = _read(student, batch, batch.input_ids, attention=looks, predicts=now.predicts)
    theirs = None
    if guide is not None and (imitated or (now.predicts and plan.hard < 1)):
        ids = batch.whole if guide.head is None else batch.input_ids
        with torch.no_grad():
            theirs = _read(guide, batch, ids, attention=looks, predicts=now.predicts)
    losses = {}
    if ours.logits is not None:
        soft = None if theirs is None else theirs.logits
        losses["mlm"] = transfer.prediction_loss(ours.logits, soft, batch.targets, plan.hard)
        losses |= _sentences(student, ours.features[-1], batch)
    if guide is None or theirs is None or not imitated:
        return losses
    where = batch.real
    if guide.head is None:  # it read no holes
        where = where & (batch.input_ids == batch.whole)
    if plan.feature_weight:
        error = transfer.feature_loss(ours.features, theirs.features, where, imitated)
        losses["features"] = plan.feature_weight * error
    if plan.mean_weight or plan.variance_weight:
        means, variances = transfer.moment_losses(ours.features, theirs.features, where, imitated)
        losses |= {"means": plan.mean_weight * means, "variances": plan.variance_weight * variances}
    if looks:
        error = transfer.attention_loss(ours.attention, theirs.attention, where, imitated)
        losses["attention"] = plan.attention_weight * error
    return losses


def _sentences(student: Student, hidden: Tensor, batch: Batch) -> dict[str, Tensor]:
    if student.sentence is None or batch.labels is None:
        return {}
    said = student.sentence(hidden[:, 0], hidden).float()
    return {"sentences": F.cross_entropy(said, batch.labels)}


def _detection(student: Student, generator: Model, batch: Batch, chance: torch.Generator) -> dict[str, Tensor]:
    """What a batch loses whose holes the generator fills, by name."""
    said = generator(batch.input_ids, batch.token_type_ids, batch.real.sum(1), batch.focus).float()
    holes = Masked(batch.input_ids, batch.focus, batch.targets)
    filled = replace(holes, said, batch.real, special=len(SPECIALS), generator=chance)
    hidden = student.encoder(filled.input_ids, batch.token_type_ids, batch.real)
    told = student.head(hidden.flatten(0, 1)[filled.focus], student.encoder.embeddings.word.weight)
    losses = {"generator": F.cross_entropy(said, batch.targets), "detection": detection_loss(told, filled)}
    return losses | _sentences(student, hidden, batch)
