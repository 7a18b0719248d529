"""The cache of imported models: by content, whole or not at all, one process at a time, bounded."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftlet_models.artifact import MANIFEST, open_artifact
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference import model_cache
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.inference.model_cache import Make, ModelCache, default_directory
from swiftlet_serve.inference.model_source import parse
from tests.support.artifacts import VOCABULARY
from tests.support.checkpoints import SMALL, reference

FILL = f"""
import sys
from swiftlet_serve.inference.model_cache import ModelCache
from swiftlet_serve.inference.model_source import parse
def make(source, revision, entry, lock):
    (entry / source.name).mkdir(parents=True)
    (entry / source.name / {MANIFEST!r}).touch()
print(ModelCache(sys.argv[1], make).fetch(*parse(sys.argv[2:])))
"""
SERVE = "import sys; from swiftlet_serve.inference.loading import locate; print(*locate(sys.argv[2:], sys.argv[1]))"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT classifier in the format of transformers."""
    directory = tmp_path_factory.mktemp("checkpoints") / "Tiny"
    reference(SMALL["bert"], "classify", num_hidden_layers=1).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    return directory


@pytest.fixture(scope="module")
def filled(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the checkpoint, which another process has imported."""
    cache = tmp_path_factory.mktemp("cache")
    subprocess.run([sys.executable, "-c", SERVE, str(cache), str(checkpoint)], check=True, stdout=subprocess.DEVNULL)
    return cache


def fetch(word: object, cache: Path, make: Make) -> Path:
    """Does what `locate` does with a checkpoint, with something else in place of an import."""
    (source,) = parse([str(word)])
    return ModelCache(str(cache), make).fetch(source)


def fail(*_: object) -> None:
    raise SetupError("no")


def make(cache: Path, key: str, name: str, size: int, used: float) -> Path:
    """Writes what looks like an entry."""
    path = cache / key / name
    path.mkdir(parents=True)
    (path / MANIFEST).write_bytes(b" " * size)
    os.utime(path.parent, (used, used))
    return path


def test_a_checkpoint_is_imported_once(checkpoint: Path, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_content", lambda _: pytest.fail("It was read twice."))
    path = fetch(checkpoint, filled, fail)

    assert path.is_relative_to(filled)
    artifact = open_artifact(path)
    assert artifact.manifest.name == "tiny"
    assert artifact.manifest.task == "classify"
    assert artifact.manifest.source == {"directory": "Tiny"}
    assert [entry.path for entry in ModelCache(str(filled)).entries()] == [path]


def test_the_state_of_a_training_is_not_read(checkpoint: Path, filled: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "Tiny")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        (copy / name).write_text("moments", "utf-8")
    assert fetch(copy, filled, fail) == fetch(checkpoint, filled, fail)


@pytest.mark.parametrize("change", ["option", "content", "file", "conversion"])
def test_another_checkpoint_has_another_entry(
    checkpoint: Path, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    made: list[Path] = []
    copy = tmp_path / "Tiny"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "checkpoint-9").mkdir()
    (copy / "checkpoint-9" / "optimizer.pt").touch()  # nothing reads it
    word = str(copy)
    if change == "option":
        word += ":name=other"
    elif change == "content":
        with (copy / "model.safetensors").open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"\x01")
    elif change == "file":
        (copy / "1_Pooling").mkdir()
        (copy / "1_Pooling" / "config.json").write_text("{}", "utf-8")
    else:
        monkeypatch.setattr(model_cache, "CONVERSION", 999)
    path = fetch(word, filled, lambda _, __, entry, ___: made.append(make(*_parts(entry), 1, 1.0)))

    assert made == [path]
    model_cache.shutil.rmtree(path.parent)


def _parts(entry: Path) -> tuple[Path, str, str]:
    return entry.parent, entry.name, entry.name.rpartition("-")[0]


def test_a_damaged_entry_is_made_again(checkpoint: Path, tmp_path: Path) -> None:
    """A killed import leaves its temporary folder, and no manifest."""
    made: list[Path] = []

    def write(source: object, revision: object, entry: Path, lock: int) -> None:
        assert not entry.exists() or not list(entry.glob(f"*/{MANIFEST}"))
        made.append(make(*_parts(entry), 1, 1.0))

    path = fetch(checkpoint, tmp_path, write)
    (path / MANIFEST).unlink()
    (path / MANIFEST).with_name("weights.safetensors").touch()
    path.rename(path.parent / ".release-x")
    assert fetch(checkpoint, tmp_path, write) == path
    assert made == [path, path]


def test_a_failed_import_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"no head for this task: .* fits :task=classify\.") as caught:
        locate([f"{checkpoint}:task=qa"], str(tmp_path))
    assert "swiftlet import" not in str(caught.value)
    assert not list(tmp_path.glob("*/*"))
    assert ModelCache(str(tmp_path)).entries() == []


def test_processes_that_start_together_import_once(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path), str(checkpoint)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate() for process in processes]

    assert {process.returncode for process in processes} == {0}
    assert len({out for out, _ in outputs}) == 1
    assert sum("rounding to int8" in progress for _, progress in outputs) == 1


def test_others_wait_for_the_import_of_a_killed_server(checkpoint: Path, tmp_path: Path) -> None:
    """It holds the lock."""
    (tmp_path / "wait").write_text(f"#!/bin/sh\nread line < {tmp_path / 'pipe'}\n", "utf-8")
    (tmp_path / "wait").chmod(0o700)
    os.mkfifo(tmp_path / "pipe")
    program = f"import sys; sys.executable = {str(tmp_path / 'wait')!r}; {SERVE}"
    server = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "cache"), str(checkpoint)])
    pipe = (tmp_path / "pipe").open("w")  # waits for the import
    server.kill()
    server.wait()
    (lock,) = (tmp_path / "cache").glob(f"*{model_cache.LOCK}")
    with lock.open() as held:
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        pipe.close()
        fcntl.flock(held, fcntl.LOCK_SH)


def test_a_full_disk_is_told(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("swiftlet_serve.offline.stage.save_weights", fail)
    result = CliRunner().invoke(main, ["import", str(checkpoint), "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "Error: The artifact cannot be written: No space left on device. Make room, or" in result.output
    assert not [*tmp_path.iterdir()]


def test_the_models_that_were_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "LIMIT_BYTES", 250)
    for i, name in enumerate(("oldest", "old", "new")):
        make(tmp_path, f"{name}-0", name, 100, float(i))
    cache = ModelCache(str(tmp_path))
    cache._trim()
    assert [entry.path.name for entry in cache.entries()] == ["new", "old"]


@pytest.mark.parametrize("call", ["open", "unlink"])
def test_what_another_user_has_left_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Locks are readable by their owner only, and in a directory as /tmp only the owner removes a file."""
    monkeypatch.setattr(model_cache, "LIMIT_BYTES", 150)
    make(tmp_path, "theirs-0", "theirs", 100, 0.0)
    for name in ("theirs-0", "failed-0"):
        (tmp_path / f"{name}{model_cache.LOCK}").touch()
    make(tmp_path, "ours-0", "ours", 100, 1.0)
    before = getattr(os, call)

    def refuse(path: Path, *arguments: int, **options: object) -> object:
        if str(path).endswith(model_cache.LOCK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return before(path, *arguments, **options)

    monkeypatch.setattr(os, call, refuse)
    cache = ModelCache(str(tmp_path))
    cache._trim()
    assert not cache.remove(cache.entries()[0])
    assert len([*tmp_path.glob(f"*{model_cache.LOCK}")]) == (2 if call == "open" else 3)


@contextmanager
def reader(cache: Path) -> Iterator[None]:
    """Runs the block as a user who may not write a cache: another one, or the owner of a cache without its rights."""
    for path in (cache, *cache.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        cache.chmod(0o755)
        for path in cache.rglob("*/"):
            path.chmod(0o755)


def test_a_user_who_only_reads_a_cache_serves_of_it(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as temporary:  # pytest's own is for one user
        Path(temporary).chmod(0o755)
        cache, own = Path(temporary, "cache"), Path(shutil.copytree(checkpoint, Path(temporary, "Tiny")))
        path = serve(own, cache)
        (lock,) = cache.glob(f"*{model_cache.LOCK}")

        with reader(cache):
            assert fetch(own, cache, fail) == path
        (entry,) = ModelCache(str(cache)).entries()
        assert not ModelCache(str(cache)).remove(entry)
        os.close(model_cache._held.pop(lock))

        lock.chmod(0)  # earlier versions kept locks for their owners
        with reader(cache):
            assert fetch(own, cache, fail) == path
        assert "is served without a lock" in caplog.text

        path.parent.chmod(0)
        refusal = r"is another user's, .* chmod -R a\+rX .*, or set model_cache"
        with pytest.raises(SetupError, match=refusal), reader(cache):
            fetch(own, cache, fail)
        (own / "model.safetensors").chmod(0o644)  # is read again, since its hash is in the cache
        cache.chmod(0)
        with pytest.raises(SetupError, match="cannot be written"), reader(cache):
            fetch(own, cache, fail)
        lock.chmod(0o600)
        assert ModelCache(str(cache)).remove(entry)


def test_a_model_in_use_is_not_removed(checkpoint: Path, filled: Path) -> None:
    program = f"{SERVE}; input()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(filled), str(checkpoint)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    cache = ModelCache(str(filled))
    (entry,) = cache.entries()
    assert entry.path == path
    assert not cache.remove(entry)
    process.communicate("\n")
    assert path.exists()


def serve(checkpoint: Path, cache: Path) -> Path:
    """Does what a process that serves a checkpoint does, up to the release of its locks."""
    path = fetch(checkpoint, cache, lambda _, __, entry, ___: make(*_parts(entry), 1, 1.0))
    while model_cache._held:
        os.close(model_cache._held.popitem()[1])
    return path


def test_nothing_stays_of_an_entry_that_is_removed(checkpoint: Path, tmp_path: Path) -> None:
    """Also nothing of a failed import, once another one succeeds."""
    cache = ModelCache(str(tmp_path))
    with pytest.raises(SetupError):
        fetch(f"{checkpoint}:task=qa", tmp_path, fail)
    model_cache._held.clear()
    serve(checkpoint, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock", ".state"]
    (entry,) = cache.entries()
    assert cache.remove(entry)
    assert [*tmp_path.iterdir()] == []


def test_no_note_of_a_killed_process_stays_or_counts(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote a file with the number of the process. It can be that of another container's process."""
    path = serve(checkpoint, tmp_path)
    (note,) = tmp_path.glob(f"*{model_cache.STATE}")
    digest = note.read_text("ascii")
    note.write_text(digest[:7], "ascii")  # its writer was killed, or writes
    killed = [tmp_path / f"{'0' * 24}.{suffix}" for suffix in ("1", "state")]
    for file in killed:
        file.touch()
    (tmp_path / "notes.1").touch()  # another program's
    assert (serve(checkpoint, tmp_path), note.read_text("ascii")) == (path, digest)
    serve(Path(f"{checkpoint}:name=other"), tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.suffix not in ("", ".lock", ".state")] == ["notes.1"]
    assert not any(file.exists() for file in killed)
    assert note.exists()


@pytest.mark.parametrize("at", range(1, 4))
def test_an_entry_that_is_removed_meanwhile_is_made_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Another process removes it just before this one takes a lock. A lock on a file that is gone locks nobody out."""
    path = serve(checkpoint, tmp_path)
    cache, flock, calls = ModelCache(str(tmp_path)), fcntl.flock, []

    def lock(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == at:
            monkeypatch.setattr(fcntl, "flock", flock)
            for entry in cache.entries():
                cache.remove(entry)
            monkeypatch.setattr(fcntl, "flock", lock)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    found = fetch(checkpoint, tmp_path, lambda _, __, entry, ___: make(*_parts(entry), 1, 1.0))
    monkeypatch.setattr(fcntl, "flock", flock)
    assert (found, (found / MANIFEST).exists()) == (path, True)
    (entry,) = cache.entries()
    assert not cache.remove(entry)  # this process has a lock that counts
    os.close(model_cache._held.popitem()[1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SetupError, match="Set model_cache to a directory that can, or to none"):
        ModelCache(str(tmp_path / "cache"))


def test_a_file_is_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="The cache of imported models cannot be written: File exists"):
        ModelCache(str(tmp_path / "file"))


def test_a_user_without_a_home_directory_is_told() -> None:
    with pytest.raises(SetupError, match=r"no home directory\. Set model_cache"):
        ModelCache("~nobody-of-this-name/cache")


def test_a_temporary_cache_ends_with_its_process(checkpoint: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", FILL, "none", str(checkpoint)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    assert Path(made.stdout.strip()).is_absolute()
    assert not Path(made.stdout.strip()).parents[1].exists()


def test_the_command_lists_and_removes(tmp_path: Path) -> None:
    for i, name in enumerate(("old", "new")):
        make(tmp_path, f"{name}-0", name, 2_000_000, float(i))
    listed = CliRunner().invoke(main, ["cache", "--model-cache", str(tmp_path)])
    assert [line.split("  ")[0] for line in listed.stdout.splitlines()] == ["new", "old"]
    assert "old  2.0 MB, used " in listed.stdout
    wrong = CliRunner().invoke(main, ["cache", "older", "--clear", "--model-cache", str(tmp_path)])
    assert (wrong.exit_code, "The cache has no model older." in wrong.stderr) == (1, True)
    cleared = CliRunner().invoke(main, ["cache", "old", "--clear", "--model-cache", str(tmp_path)])
    assert cleared.stdout.startswith("removed old  2.0 MB")
    assert [entry.path.name for entry in ModelCache(str(tmp_path)).entries()] == ["new"]


def test_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_directory() == Path("/cache/swiftlet/models")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert default_directory() == Path("/home/somebody/.cache/swiftlet/models")


def test_artifacts_have_no_options(artifact_dir: Path) -> None:
    with pytest.raises(SetupError, match="is an artifact, so it has no options"):
        locate([f"{artifact_dir / 'tiny-qa'}:task=qa"])
    assert parse(["a:task=qa"])
