"""A job of bulk scoring: opens the model and the input, plans, and runs workers until all shards are finished."""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, cast

from swiftlet_models.artifact import MANIFEST as ARTIFACT_MANIFEST
from swiftlet_serve.bulk import plan as planning
from swiftlet_serve.bulk.budget import Budget
from swiftlet_serve.bulk.durable import TEMPORARY, replace_file
from swiftlet_serve.bulk.leases import Leases
from swiftlet_serve.bulk.manifest import Manifest
from swiftlet_serve.bulk.plan import JobSettings, Plan
from swiftlet_serve.bulk.requests import RequestMaker
from swiftlet_serve.bulk.scorer import Scorer
from swiftlet_serve.bulk.sources import Source, find, format_of
from swiftlet_serve.bulk.worker import Worker
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import OpenModel, load_model, locate_one, open_model

PLAN_NAME: Final = "plan.json"

Progress = Callable[[int, int], None]
"""Called with the number of finished rows and their total."""


@dataclass(frozen=True)
class Options:
    """The options of the command, under their names."""

    input: str
    model: str
    out: Path
    engine: str
    cores: int  # threads that run batches, of all workers together
    task: str | None = None  # None: the model's own task
    columns: Mapping[str, str] | None = None  # columns of the input by the fields of the task's inputs
    parameters: Mapping[str, Any] | None = None
    key: str | None = None
    keep: Sequence[str] | None = None
    answer_column: str = "answer"
    error_column: str = "error"
    input_format: str | None = None
    output_format: str | None = None
    delimiter: str = ","
    shard_rows: int = planning.SHARD_ROWS
    max_bad: str = "1%"
    workers: int = 1

    @property
    def budget(self) -> Budget:
        return Budget.parse(self.max_bad)


@dataclass(frozen=True)
class Opened:
    """A job whose model, parameters and input have been found."""

    model: OpenModel
    maker: RequestMaker
    settings: JobSettings
    sources: Sequence[Source]


@dataclass(frozen=True)
class Summary:
    """The rows of a finished job."""

    rows: int
    bad_rows: int
    cut_rows: int  # rows whose texts have more tokens than the model reads
    earlier: int  # rows that were finished before this call


def open_job(options: Options) -> Opened:
    """Opens the model and finds the input.

    Raises:
        ArtifactError: the model is not a valid artifact.
        SetupError: the model, its task, the parameters, the columns or the input are not as the options say.
    """
    path = locate_one(options.model)
    model = open_model(path, options.engine)
    if options.task is not None:
        model = model.for_task(options.task)
    maker = RequestMaker(model.task, options.columns or {}, options.parameters or {})
    if Path(options.input).is_dir() and options.out.resolve().is_relative_to(Path(options.input).resolve()):
        raise SetupError(f"{options.out} lies in the input folder. Choose a directory outside it.")
    sources = find(options.input)
    input_format = options.input_format or format_of(sources)
    settings = JobSettings(
        task=model.task_name,
        model=model.manifest.name,
        model_sha256=hashlib.sha256((path / ARTIFACT_MANIFEST).read_bytes()).hexdigest(),
        engine=options.engine,
        parameters=dict(options.parameters or {}),
        columns=maker.columns,
        key=options.key,
        keep=None if options.keep is None else list(options.keep),
        answer_column=options.answer_column,
        error_column=options.error_column,
        input_format=input_format,
        output_format=options.output_format or input_format,
        delimiter=options.delimiter,
        shard_rows=options.shard_rows,
    )
    return Opened(model, maker, settings, sources)


def run(options: Options, note: Callable[[str], None], progress: Progress) -> Summary:
    """Runs a job to its end, or goes on with one that was interrupted.

    Args:
        options: the options of the command.
        note: writes a line to the user.
        progress: shows the progress of the job.

    Raises:
        ArtifactError, SetupError: the job cannot begin, go on or end. The message says why.
    """
    job = open_job(options)
    with Leases(options.out) as leases:
        plan = _plan(options.out, job, leases, note)
        manifest = Manifest(options.out, plan)
        earlier = manifest.rows
        again = f", {earlier:,} of them finished" if earlier else ""
        note(f"{plan.rows:,} rows in {len(plan.shards):,} shards{again}")
        options.budget.check(manifest.bad_rows, plan.rows, {})
        if options.workers > 1:
            _run_processes(options, manifest, plan, progress)
        elif not manifest.complete:
            _work(options, job, plan, manifest, leases, lambda rows: progress(manifest.rows + rows, plan.rows))
        manifest.sort(leases)
    return Summary(manifest.rows, manifest.bad_rows, manifest.cut_rows, earlier)


def read_plan(directory: Path) -> Plan | None:
    """Returns the plan of a directory, or None if it has no plan.

    Raises:
        SetupError: it is invalid.
    """
    try:
        data = (directory / PLAN_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return planning.parse(data)


def _work(
    options: Options, job: Opened, plan: Plan, manifest: Manifest, leases: Leases, on_rows: Callable[[int], None]
) -> None:
    """Runs one worker in this process."""
    model = load_model(job.model.artifact.path, options.engine, task=job.model.task_name)
    scorer = Scorer(model, job.maker, options.cores)
    try:
        Worker(options.out, plan, manifest, leases, scorer, options.budget, on_rows).run()
    finally:
        scorer.close()
        model.engine.close()


def _plan(directory: Path, job: Opened, leases: Leases, note: Callable[[str], None]) -> Plan:
    """Returns the plan of the directory, which the first worker makes while the others wait for it."""
    with leases.hold_plan():
        plan = read_plan(directory)
        if plan is not None:
            planning.check_same(plan, job.settings, job.sources)
            return plan
        try:
            return _new_plan(directory, job, note)
        except BaseException:
            leases.discard()
            raise


def _new_plan(directory: Path, job: Opened, note: Callable[[str], None]) -> Plan:
    """Makes the plan of a directory, and writes it."""
    own = {"leases", PLAN_NAME + TEMPORARY}
    if any(file.name not in own for file in directory.iterdir()):
        raise SetupError(f"{directory} holds other files. Score into a new or empty directory.")
    note(f"reading {len(job.sources)} input files" if len(job.sources) > 1 else "reading the input")
    plan = planning.make(job.settings, job.sources)
    try:
        replace_file(directory / PLAN_NAME, plan.as_json())
    except OSError as error:
        raise SetupError(f"The plan cannot be written to {directory}: {error.strerror}.") from None
    return plan


def _run_processes(options: Options, manifest: Manifest, plan: Plan, progress: Progress) -> None:
    """Runs workers in processes of their own, with a share of the cores each.

    Raises:
        SetupError: a worker has failed, or all have ended before the job.
    """
    context = multiprocessing.get_context("spawn")
    share = replace(options, workers=1, cores=max(1, options.cores // options.workers))
    processes, rows = {}, dict[Connection, int]()
    for _ in range(options.workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_child, args=(share, sender), daemon=True)
        process.start()
        sender.close()
        processes[receiver], rows[receiver] = process, 0
    try:
        while rows:
            for receiver in cast(list[Connection], wait(list(rows))):
                try:
                    message = receiver.recv()
                except EOFError:  # the process has ended, or was killed: its leases have ended too
                    del rows[receiver]
                    continue
                if isinstance(message, str):
                    raise SetupError(message)
                rows[receiver] = message
                manifest.refresh()
                progress(min(manifest.rows + sum(rows.values()), plan.rows), plan.rows)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join()
    manifest.refresh()
    if not manifest.complete:
        raise SetupError("All workers have ended before the job. Start the command again to go on.")


def _run_child(options: Options, sender: Connection) -> None:
    """Runs a worker, and sends the rows of its unfinished shard, or the reason why it fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this one

    def send(message: int | str) -> None:
        try:
            sender.send(message)
        except OSError:  # the parent process is gone
            raise SystemExit(1) from None

    try:
        job = open_job(options)
        with Leases(options.out) as leases:
            plan = _plan(options.out, job, leases, lambda _: None)
            manifest = Manifest(options.out, plan)
            if not manifest.complete:
                _work(options, job, plan, manifest, leases, send)
    except Exception as error:
        send(str(error) if isinstance(error, SetupError) else f"A worker has failed: {type(error).__name__}.")
        raise SystemExit(1) from None
