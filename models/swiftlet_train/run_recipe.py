"""Runs a recipe: pre-trains a model, fine-tunes it for each task, and releases the artifacts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from swiftlet_models.artifact import TOKENIZER, Artifact, Manifest, open_artifact
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.heads import Model, weights_of
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import engines, plugins, tasks
from swiftlet_serve.engines.torch import load_network
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.environment import processor
from swiftlet_serve.offline.evaluate import Measure, Progress
from swiftlet_serve.offline.release import release
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.task_training import MEAN, averaged_directory, training_directory
from swiftlet_train.loop.learning_curve import LOSSES_FILE, read_curve
from swiftlet_train.loop.trainer import find_device
from swiftlet_train.prediction import predict
from swiftlet_train.pretraining.pretrain import pretrain
from swiftlet_train.recipe import (
    EMBEDDING_METHODS,
    Distillation,
    Finetuning,
    KnowledgeTransfer,
    Recipe,
    RecipeError,
    read_recipe,
)
from swiftlet_train.teachers.encoders import find_checkpoint, prune_embeddings

RECIPES: Final = Path(__file__).parent / "recipes"
TEACHERS: Final = "task-teachers"  # the subfolder of the runs for shared runs of task teachers

T = TypeVar("T")


def run_recipe(
    recipe_name: str,
    only: Sequence[str],
    data: Path,
    runs: Path,
    out: Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
    device: str = "cpu",
) -> list[Artifact]:
    """Makes the artifacts of a recipe under `out`: those named in `only`, or all.

    The state of the runs is kept under `runs`, and an interrupted recipe resumes from there, on any device. Recipes
    that this one builds on run first.

    Raises:
        ArtifactError: a teacher model is damaged.
        DeviceError: the device is not available.
        SetupError: the recipe, an artifact in `only` or a data file is missing, or the recipe is invalid.
        ReleaseError: an artifact is not accurate enough.
    """
    recipe, torch_device = load_recipe(recipe_name), find_device(device)
    for name in only:
        if name not in recipe.finetuning:
            raise SetupError(f"This recipe makes {', '.join(recipe.finetuning) or 'no artifacts'}, but no {name!r}.")
    check_files("recipe", data_files(recipe, only or tuple(recipe.finetuning)), data)
    _check_teachers(recipe, only or tuple(recipe.finetuning))
    pretrained, tokenizer_file = pretrain_recipe(recipe, data, runs, report, progress, device)
    tokenizer = Tokenizer.load(tokenizer_file)
    artifacts = []
    for name in only or recipe.finetuning:
        work = recipe.finetuning[name]
        report_task = partial(report_with_prefix, report, name)
        model = pretrained
        for stage in _stages(recipe, name) if work.method != "masked_lm" else ():
            report_stage = partial(report_with_prefix, report, stage)
            model = finetune(
                *(recipe, stage, model, tokenizer, data, runs / recipe.name / stage, report_stage),
                device=torch_device,
                progress=progress,
                predict=predict,
                teachers=runs / TEACHERS,
                initial_model=_load_initial_model(recipe.finetuning[stage], tokenizer),
            )
        card = _card(recipe, name) | {"compute": {"machine": processor(), "stages": _compute(recipe, name, runs)}}
        draft = Draft(weights_of(model), tokenizer, _manifest(recipe, name, model, tokenizer), card)
        artifacts.append(
            release(
                draft,
                out / name,
                Measure(data / work.evaluate, work.evaluate_limit, work.evaluate_skip),
                also=[data / file for file in work.also_evaluate],
                weaknesses=work.weaknesses,
                report=report_task,
                progress=progress,
            )
        )
    return artifacts


def pretrain_recipe(
    recipe: Recipe,
    data: Path,
    runs: Path,
    report: Callable[[str], None],
    progress: Progress | None,
    device: str,
    dependents: Sequence[str] = (),
    snapshots: Collection[int] = (),
) -> tuple[Model, Path]:
    """Pre-trains a recipe's model. First pre-trains the recipes that it continues or learns from.

    `dependents` are the recipes that need this one. `snapshots` are numbers of steps whose parameters are kept.
    Returns the model and the path of the tokenizer's file.

    Raises:
        DeviceError: the device is not available.
        SetupError: a recipe is missing, needs itself, or has another vocabulary.
    """
    torch_device, plan = find_device(device), recipe.pretraining.knowledge_transfer or KnowledgeTransfer()
    models: dict[str, Model] = {}
    sources = {"teacher_recipe": plan.teacher_recipe, "init_from_recipe": recipe.pretraining.init_from_recipe}
    for role, name in sources.items():
        if name:
            parent = load_recipe(name)
            if parent.name in {recipe.name, *dependents}:
                raise SetupError(f"The {role} {parent.name!r} cannot be used: it needs this recipe itself.")
            if not parent.has_same_vocabulary(recipe):
                raise SetupError(f"The {role} {parent.name!r} cannot be used: it has another vocabulary.")
            report_other = partial(report_with_prefix, report, parent.name)
            models[role], _ = pretrain_recipe(
                parent, data, runs, report_other, progress, device, (*dependents, recipe.name)
            )
    teacher, pieces = models.get("teacher_recipe"), None
    if plan.teacher_model:
        teacher, pieces = _load_teacher_model(plan.teacher_model)
    return pretrain(
        *(recipe, data, runs / recipe.name, report),
        teacher_model=teacher,
        teacher_pieces=pieces,
        initial_model=models.get("init_from_recipe"),
        device=torch_device,
        progress=progress,
        snapshots=snapshots,
    )


def _load_teacher_model(name: str) -> tuple[Model, list[str]]:
    """Loads the network and the vocabulary of an artifact: a bundled model, or a directory.

    Raises:
        SetupError: there is no such artifact.
        ArtifactError: it is damaged.
    """
    artifact, pieces = _open_model(name)
    return load_network(artifact), pieces


def _load_initial_model(work: Finetuning, tokenizer: Tokenizer) -> Model | None:
    """Loads the network of `init_from_model` with the student's vocabulary, or returns None if the task names none.

    Raises:
        SetupError: there is no such artifact, it has another task or other labels, or it lacks a token of the student.
        ArtifactError: it is damaged.
    """
    name = (work.distillation or Distillation()).init_from_model
    if not name:
        return None
    artifact, pieces = _open_model(name)
    manifest = artifact.manifest
    if (manifest.task, manifest.labels) != (work.task, work.labels) or not set(tokenizer.tokens) <= set(pieces):
        raise SetupError(f"The init_from_model {name!r} cannot be used: its task or labels differ, or it lacks tokens.")
    numbers = {piece: number for number, piece in enumerate(pieces)}
    model = load_network(artifact)
    prune_embeddings(model.encoder, [numbers[piece] for piece in tokenizer.tokens])
    return model


def _open_model(name: str) -> tuple[Artifact, list[str]]:
    """Opens a bundled model, or the artifact in a directory, and returns it with its vocabulary."""
    (path,) = locate([name])
    artifact = open_artifact(path)
    return artifact, Tokenizer.load(artifact.file(TOKENIZER)).tokens


def report_with_prefix(report: Callable[[str], None], name: str, text: str) -> None:
    """Reports a text, preceded by the name of the recipe, artifact or variant."""
    report(f"{name}: {text}")


def load_recipe(name: str) -> Recipe:
    """Reads a recipe: a TOML file, or one of the shipped recipes by name.

    Raises:
        SetupError: there is no such recipe, or it is invalid.
    """
    return read_named("recipe", name, RECIPES, read_recipe)


def read_named(kind: str, name: str, folder: Path, read: Callable[[Path], T]) -> T:
    """Reads a file: by its path, or the shipped file of this name in `folder`.

    Raises:
        SetupError: there is no such file, or its content is invalid.
    """
    shipped = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = shipped.get(name, Path(name))
    if not path.is_file():
        raise SetupError(f"There is no {kind} {name!r}. Name a file, or one of the shipped ones: {', '.join(shipped)}.")
    try:
        return read(path)
    except RecipeError as error:
        raise SetupError(f"{path.name}: {error}") from None


def check_files(kind: str, files: Iterable[str], data: Path) -> None:
    """Raises SetupError if one of the files is missing from the data folder."""
    for file in files:
        if not (data / file).is_file():
            raise SetupError(f"This {kind} needs the file {file}, which is not in {data}.")


def _stages(recipe: Recipe, name: str) -> tuple[str, ...]:
    """Returns the fine-tunings that make an artifact, the first one first."""
    before = recipe.finetuning[name].init_from
    return (before, name) if before else (name,)


def _trainings(recipe: Recipe, name: str) -> list[Finetuning]:
    """Returns all trainings that make an artifact, in the order of its stages."""
    return [training for stage in _stages(recipe, name) for training in recipe.finetuning[stage].trainings()]


def _check_teachers(recipe: Recipe, names: Sequence[str]) -> None:
    """Checks that the task teachers and their engines exist, because they are used after hours of training.

    Raises:
        SetupError: a teacher is missing, or there is no such engine.
    """
    for stage in dict.fromkeys(stage for name in names for stage in _stages(recipe, name)):
        plan = recipe.finetuning[stage].distillation or Distillation()
        try:
            if plan.task_teacher:
                find_checkpoint(plan.task_teacher)
            if plan.init_from_model:
                locate([plan.init_from_model])
        except ConversionError as error:
            raise SetupError(f"{stage}: {error}") from None
        if plan.teacher_engine:
            plugins.load(engines, plan.teacher_engine)


def data_files(recipe: Recipe, names: Sequence[str]) -> list[str]:
    """Returns all data files of a recipe, which are checked before hours of training."""
    works = [work for name in names for work in _trainings(recipe, name)]
    files = (file for work in works for file in (*work.train, *work.unlabelled, work.evaluate, *work.also_evaluate))
    return [*recipe.pretraining.corpora, *files]


def _manifest(recipe: Recipe, name: str, model: Model, tokenizer: Tokenizer) -> Manifest:
    work = recipe.finetuning[name]
    definition = tasks.load(work.task)
    head, outputs = definition.HEAD, definition.OUTPUTS
    if work.method in EMBEDDING_METHODS:
        head, outputs = "embedding", "hidden"
    vocabulary = {"teacher": Path(recipe.teacher).name}
    if recipe.tokenizer is not None:
        vocabulary = {"tokenizer": recipe.tokenizer.kind}
    return Manifest(
        name=name,
        version=recipe.version,
        architecture=recipe.architecture,
        task=work.task,
        head=head,
        precision="int8",
        max_tokens=model.encoder.max_tokens,
        vocab_size=tokenizer.vocab_size,
        width=tasks.head_width(outputs, len(work.labels), tokenizer.vocab_size, model.encoder.config.hidden_size),
        labels=work.labels,
        problem="single_label" if work.labels else None,
        tolerance=1.0,
        config={**recipe.config, "vocab_size": tokenizer.vocab_size},
        source={"recipe": recipe.name, "seed": recipe.seed, **vocabulary},
        embedding=MEAN if work.method in EMBEDDING_METHODS else None,
        languages=recipe.languages,
    )


def _compute(recipe: Recipe, name: str, runs: Path) -> dict[str, Any]:
    """Returns the compute of each stage, including the recipes that this one builds on.

    `name` is the artifact's, or empty for the pre-training only.
    """
    plan, compute = recipe.pretraining.knowledge_transfer or KnowledgeTransfer(), dict[str, Any]()
    for parent in filter(None, (recipe.pretraining.init_from_recipe, plan.teacher_recipe)):
        compute |= _compute(load_recipe(parent), "", runs)
    stages = {recipe.name: runs / recipe.name}
    for stage in _stages(recipe, name) if name else ():
        run = runs / recipe.name / stage
        shared = (recipe.finetuning[stage].distillation or Distillation()).task_teacher_run
        task_teacher = runs / TEACHERS / shared if shared else run / "task_teacher"
        stages[f"{stage}'s teacher"] = run / "teacher"
        if task_teacher not in stages.values():  # two stages may share one
            stages[f"{stage}'s task teacher"] = task_teacher
        count = len(recipe.finetuning[stage].trainings())
        for number in range(1, count + 1):
            stages[f"{stage}, training {number}" if number > 1 else stage] = training_directory(run, number)
        if recipe.finetuning[stage].steps_after_averaging:
            stages[f"{stage}, after averaging"] = averaged_directory(run, count)
    for stage, directory in stages.items():
        if points := read_curve(directory / LOSSES_FILE):
            last = points[-1]
            compute[stage] = {"steps": last.step, "hours": round(last.seconds / 3600, 2), "tflop": last.flops // 1e12}
    return compute


def _card(recipe: Recipe, name: str) -> dict[str, Any]:
    plan, teacher = recipe.pretraining.knowledge_transfer or KnowledgeTransfer(), {}
    work = recipe.finetuning[name]
    works = _trainings(recipe, name)
    files = {*recipe.pretraining.corpora, *(file for work in works for file in (*work.train, *work.unlabelled))}
    if any(work.distillation is not None for work in works):
        teachers = dict.fromkeys(teacher for work in works for teacher in _teachers(recipe, work))
        teacher = {"taught_by": ", and ".join(teachers)}
    elif work.method == "embedding":
        teacher = {"taught_by": f"{recipe.teacher}, whose vectors it imitates"}
    elif work.method == "masked_lm" and plan.has_own_teacher:
        teacher = {"taught_by": plan.teacher_model or f"the pre-trained model of the recipe {plan.teacher_recipe}"}
    pretraining = asdict(recipe.pretraining)
    if not recipe.teacher:
        del pretraining["init_from_teacher"]  # has no effect
    elsewhere = {"weaknesses", "method"}  # in other parts of the artifact
    return {
        "summary": recipe.summary,
        "trained_on": sorted(files),
        "licences": list(dict.fromkeys(licence for work in works for licence in work.licences)),
        "pretraining": pretraining,
        "finetuning": {name: value for name, value in asdict(work).items() if name not in elsewhere},
    } | teacher


def _teachers(recipe: Recipe, work: Finetuning) -> Iterator[str]:
    """Yields a description of each teacher whose predictions a task learns."""
    plan = work.distillation
    if plan is None:
        return
    has_recipe_teacher = not plan.task_teacher or plan.recipe_teacher_share
    for checkpoint in filter(None, (plan.task_teacher, recipe.teacher if has_recipe_teacher else "")):
        yield f"{Path(checkpoint).name}, fine-tuned on the same labelled examples"
    if plan.character_ngrams:
        yield "logistic regression on the characters of the same labelled examples"
