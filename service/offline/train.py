"""A recipe is followed: pre-training once, then for each of its tasks fine-tuning and the release of an artifact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import swiftlet_serve.models.training
from swiftlet_serve.models.artifact import TOKENIZER, Artifact, Manifest, open_artifact
from swiftlet_serve.models.heads import Model
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.models.training.curve import NAME as CURVE
from swiftlet_serve.models.training.curve import read_curve
from swiftlet_serve.models.training.finetune import finetune
from swiftlet_serve.models.training.loop import find_device
from swiftlet_serve.models.training.pretrain import pretrain
from swiftlet_serve.models.training.recipe import Finetuning, Recipe, RecipeError, Transfer, read_recipe
from swiftlet_serve.service import tasks
from swiftlet_serve.service.engines.torch import load_network
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.loading import locate
from swiftlet_serve.service.offline.environment import processor
from swiftlet_serve.service.offline.evaluate import Progress
from swiftlet_serve.service.offline.release import Draft, Measure, release

RECIPES: Final = Path(swiftlet_serve.models.training.__file__).parent / "recipes"

T = TypeVar("T")


def follow(
    recipe_name: str,
    only: Sequence[str],
    data: Path,
    runs: Path,
    out: Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
    device: str = "cpu",
) -> list[Artifact]:
    """Makes the artifacts of a recipe, or those of them in `only`, under `out`; their state lies under `runs`.

    A recipe that was stopped goes on where it was, on the same device or another. One that another recipe's body
    guides begins with that recipe's pre-training.

    Raises:
        ArtifactError: a model that is to guide is damaged.
        DeviceError: there is no such device.
        SetupError: there is no such recipe, it makes no such artifact, or a file it needs is not there.
        ReleaseError: an artifact is not good enough.
    """
    recipe, place = _recipe(recipe_name), find_device(device)
    for name in only:
        if name not in recipe.finetuning:
            raise SetupError(f"This recipe makes {', '.join(recipe.finetuning) or 'no artifacts'}, but no {name!r}.")
    check_files("recipe", _files(recipe, only or tuple(recipe.finetuning)), data)
    body, tokenizer_file = train_body(recipe, data, runs, report, progress, device)
    tokenizer = Tokenizer.load(tokenizer_file)
    made = []
    for name in only or recipe.finetuning:
        work = recipe.finetuning[name]
        say = partial(say_of, report, name)
        model = (
            body
            if work.task == "fill-mask"
            else finetune(
                recipe, name, body, tokenizer, data, runs / recipe.name / name, say, device=place, progress=progress
            )
        )
        card = _card(recipe, work) | {"compute": {"machine": processor(), "stages": _spent(recipe, name, runs)}}
        draft = Draft(model, tokenizer, _manifest(recipe, name, model, tokenizer), card)
        measure = Measure(data / work.evaluate, work.limit, work.skip)
        also = [data / file for file in work.also]
        made.append(
            release(draft, out / name, measure, also=also, weaknesses=work.weaknesses, report=say, progress=progress)
        )
    return made


def train_body(
    recipe: Recipe,
    data: Path,
    runs: Path,
    report: Callable[[str], None],
    progress: Progress | None,
    device: str,
    ends: Sequence[str] = (),
) -> tuple[Model, Path]:
    """Pre-trains the recipe's body, and before it those of other recipes that it continues or that guide it.

    `ends` are the recipes for which that is done.

    Raises:
        DeviceError: there is no such device.
        SetupError: there is no such recipe, it needs this one in turn, or it has other words.
    """
    place, bodies = find_device(device), []
    plan, pieces = recipe.pretraining.transfer or Transfer(), None
    for part, name in (("guide", plan.recipe), ("be continued", recipe.pretraining.continues)):
        body = None
        if name:
            other = _recipe(name)
            if other.name in {recipe.name, *ends}:
                raise SetupError(f"The recipe {other.name!r} cannot {part}: it needs itself for that.")
            if not other.same_pieces(recipe):
                raise SetupError(f"The recipe {other.name!r} cannot {part}: its vocabulary is made of something else.")
            say = partial(say_of, report, other.name)
            body, _ = train_body(other, data, runs, say, progress, device, (*ends, recipe.name))
        bodies.append(body)
    guide, begin = bodies
    if plan.model:
        guide, pieces = _model(plan.model)
    return pretrain(
        *(recipe, data, runs / recipe.name, report),
        body=guide,
        pieces=pieces,
        begin=begin,
        device=place,
        progress=progress,
    )


def _model(name: str) -> tuple[Model, list[str]]:
    """The network of an embedded model, or of an artifact in a directory of that name, and the pieces that it reads.

    Raises:
        SetupError: there is no such model.
        ArtifactError: it is damaged.
    """
    (path,) = locate([name])
    artifact = open_artifact(path)
    return load_network(artifact), Tokenizer.load(artifact.file(TOKENIZER)).tokens


def say_of(report: Callable[[str], None], name: str, text: str) -> None:
    """Tells whom a text is about."""
    report(f"{name}: {text}")


def _recipe(name: str) -> Recipe:
    return find("recipe", name, RECIPES, read_recipe)


def find(kind: str, name: str, folder: Path, read: Callable[[Path], T]) -> T:
    """What stands in a file, or in the one of that name that comes with the package, in `folder`.

    Raises:
        SetupError: there is no such file, or it makes no sense.
    """
    shipped = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise SetupError(f"There is no {kind} {name!r}: it is no file, and the shipped ones are {', '.join(shipped)}.")
    try:
        return read(path)
    except RecipeError as error:
        raise SetupError(f"{path.name}: {error}") from None


def check_files(kind: str, files: Iterable[str], data: Path) -> None:
    """Raises SetupError if one of the files is not in the data folder."""
    for file in files:
        if not (data / file).is_file():
            raise SetupError(f"This {kind} needs the file {file}, which is not in {data}.")


def _files(recipe: Recipe, names: Sequence[str]) -> list[str]:
    """What is read of the data folder, some of it only after hours."""
    works = [recipe.finetuning[name] for name in names]
    read = (file for work in works for file in (*work.train, *work.unlabelled, work.evaluate, *work.also))
    return [*recipe.pretraining.corpora, *read]


def _manifest(recipe: Recipe, name: str, model: Model, tokenizer: Tokenizer) -> Manifest:
    work = recipe.finetuning[name]
    definition = tasks.load(work.task)
    return Manifest(
        name=name,
        version=recipe.version,
        architecture=recipe.architecture,
        task=work.task,
        head=definition.HEAD,
        precision="int8",
        max_tokens=model.encoder.config.max_position_embeddings,
        vocab_size=tokenizer.vocab_size,
        width=tasks.head_width(definition.OUTPUTS, len(work.labels), tokenizer.vocab_size),
        labels=work.labels,
        problem="single_label" if work.task == "classify" else None,
        tolerance=1.0,
        config={**recipe.config, "vocab_size": tokenizer.vocab_size},
        source={"recipe": recipe.name, "seed": recipe.seed, **_pieces(recipe)},
    )


def _pieces(recipe: Recipe) -> dict[str, str]:
    """Whose the pieces are."""
    return {"tokenizer": recipe.tokenizer.kind} if recipe.tokenizer is not None else {"teacher": recipe.teacher}


def _spent(recipe: Recipe, name: str, runs: Path) -> dict[str, Any]:
    """What each stage took, those of recipes that this one builds on included; `name` is the task's, or none."""
    plan, spent = recipe.pretraining.transfer or Transfer(), dict[str, Any]()
    for other in filter(None, (recipe.pretraining.continues, plan.recipe)):
        spent |= _spent(_recipe(other), "", runs)
    stages = {recipe.name: runs / recipe.name}
    if name:
        stages |= {f"{name}'s teacher": runs / recipe.name / name / "teacher", name: runs / recipe.name / name}
    for stage, directory in stages.items():
        if points := read_curve(directory / CURVE):
            last = points[-1]
            spent[stage] = {"steps": last.step, "hours": round(last.seconds / 3600, 2), "tflop": last.flops // 1e12}
    return spent


def _card(recipe: Recipe, work: Finetuning) -> dict[str, Any]:
    plan, taught = recipe.pretraining.transfer or Transfer(), {}
    if work.distillation is not None:
        taught = {"taught_by": f"{recipe.teacher}, fine-tuned on the same labelled examples"}
    elif work.task == "fill-mask" and plan.guided:
        taught = {"taught_by": plan.model or f"the body of the recipe {plan.recipe}"}
    return {
        "summary": recipe.summary,
        "trained_on": sorted({*recipe.pretraining.corpora, *work.train, *work.unlabelled}),
        "licences": list(work.licences),
        "pretraining": asdict(recipe.pretraining),
        "finetuning": {name: value for name, value in asdict(work).items() if name != "weaknesses"},  # shown apart
    } | taught
