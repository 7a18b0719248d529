"""Pipes where files are meant: they are refused before a read that would never end, or copied from the shell."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from swiftlet_models.checkpoint_card import languages
from swiftlet_models.datasets import DatasetError, documents
from swiftlet_models.pair_prompts import is_qwen3_reranker
from swiftlet_serve.cli.main import main
from swiftlet_serve.cli.options import DataFile
from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.gate import tls
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.inference.model_source import parse
from swiftlet_serve.migration.endpoint import read_key
from swiftlet_serve.repository.store import DirectoryStore, RepositoryError
from swiftlet_serve.workers.signature import public_key, signing_key
from swiftlet_train.recipe.checks import RecipeError
from swiftlet_train.recipe.reading import read_recipe
from swiftlet_train.study import read_study

READERS = {
    "API keys": ApiKeys.read,
    "certificate": lambda pipe: tls.load_context(pipe, None),
    "private key": signing_key,
    "public key": public_key,
    "list of models": lambda pipe: parse([str(pipe)]),
    "key of an endpoint": lambda pipe: read_key(pipe, ""),
    "state of a repository": lambda pipe: DirectoryStore(pipe.parent).desired(),
}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nobody writes to."""
    for name in ("desired.json", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    return tmp_path / "pipe.toml"


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_settings_name_regular_files(read: Callable[[Path], object], pipe: Path) -> None:
    with pytest.raises((SetupError, RepositoryError), match=r"(is not|[Gg]ive) a regular file"):
        read(pipe)


@pytest.mark.parametrize("name", ["t.txt", "t.tsv", "t.json", "t.jsonl.gz", "t.xz", "t.tar.xz", "recipe", "study"])
def test_data_and_recipes_are_regular_files(name: str, tmp_path: Path) -> None:
    """Also in a folder of data, whose files no command checks when it starts."""
    os.mkfifo(pipe := tmp_path / name)
    read = {"recipe": read_recipe, "study": read_study}.get(name, lambda file: list(documents(file)))
    with pytest.raises((DatasetError, RecipeError), match=f"cannot be read: {name} is not a regular file"):
        read(pipe)


def test_a_model_card_that_is_a_pipe_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "README.md")
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    assert (languages(tmp_path), is_qwen3_reranker(tmp_path)) == ((), False)


@pytest.mark.parametrize("command", ["evaluate model", "check --public-key", "certify model --data"])
def test_commands_read_regular_files(command: str, pipe: Path) -> None:
    result = CliRunner().invoke(main, [*command.split(), str(pipe)])
    assert result.exit_code == 2
    assert f"{str(pipe)!r} is not a regular file." in result.output


def test_a_pipe_of_the_shell_can_be_read_twice() -> None:
    """As that of `<(zcat file)`."""

    @click.command()
    @click.argument("file", type=DataFile)
    def command(file: Path) -> None:
        click.echo(f"{file.read_text()} {file.read_text()} {file}")

    reads, writes = os.pipe()
    os.write(writes, b"text")
    os.close(writes)
    assert command.make_context("command", [f"/dev/fd/{reads}"], resilient_parsing=True).params  # to complete a word
    first, second, copy = CliRunner().invoke(command, [f"/dev/fd/{reads}"]).output.split()
    os.close(reads)
    assert (first, second, Path(copy).exists()) == ("text", "text", False)


def test_a_pipe_that_does_not_fit_the_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    reads, writes = os.pipe()
    result = CliRunner().invoke(main, ["evaluate", "model", f"/dev/fd/{reads}"])
    os.close(reads), os.close(writes)
    assert (result.exit_code, "temporary file: No space left on device." in result.output) == (2, True)


def test_a_key_is_not_copied_from_a_pipe(artifact_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "copyfileobj", lambda *_: pytest.fail("It was copied."))
    reads, writes = os.pipe()
    result = CliRunner().invoke(main, ["certify", str(artifact_dir / "tiny-qa"), "--sign-key", f"/dev/fd/{reads}"])
    os.close(reads), os.close(writes)
    assert (result.exit_code, "is not a regular file" in result.output) == (1, True)
