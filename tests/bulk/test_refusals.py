"""Jobs that cannot begin or go on are refused with one sentence, and nothing is overwritten."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftlet_serve.bulk import plan
from swiftlet_serve.bulk.leases import Leases
from swiftlet_serve.bulk.worker import Worker
from swiftlet_serve.errors import SetupError
from tests.bulk.test_files import write_parquet
from tests.support.artifacts import make_artifact
from tests.support.scoring import content, done, refusal, score, texts, write_csv, write_jsonl


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "in.csv", texts(20))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def begun(source, model, out) -> dict[str, bytes]:
    """The files of a job with two shards."""
    done(source, *model, "--out", out, "--shard-rows", 10)
    return content(out)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--shard-rows", "5"], "shard rows: 10"),
        (["--shard-rows", "10", "--parameter", "top_k=1"], "parameters: {}"),
        (["--shard-rows", "10", "--column", "text=id"], "columns: {'text': 'text'}"),
        (["--shard-rows", "10", "--format", "jsonl"], "output format: 'csv'"),
        (["--shard-rows", "10", "--key", "id"], "key: None"),
        (["--shard-rows", "10", "--engine", "onnx_cpu"], "engine: 'echo'"),
    ],
)
def test_other_setting_is_refused(source, model, out, begun, options, name):
    sentence = refusal(source, *model, "--out", out, *options)

    assert f"The job began with another {name}. Repeat the command that began it" in sentence
    assert content(out) == begun


def test_other_model_of_the_name_is_refused(source, out, tmp_path):
    first, second = (make_artifact(tmp_path / str(number), "classify", tolerance=number) for number in (1, 2))
    done(source, "--model", first.path, "--engine", "echo", "--out", out)

    assert "The model has changed" in refusal(source, "--model", second.path, "--engine", "echo", "--out", out)


def test_changed_input_is_refused(source, model, out, begun):
    source.write_bytes(source.read_bytes().replace(b"text 3", b"text 4"))

    assert f"{source} has changed since the job began." in refusal(source, *model, "--out", out, "--shard-rows", 10)
    assert content(out) == begun


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_input_that_changes_during_the_job_is_refused(model, out, tmp_path, suffix):
    """The time of the change and the size stay the same."""
    source = tmp_path / f"in.{suffix}"
    if suffix == "csv":
        write_csv(source, texts(20))
    else:
        write_jsonl(source, [{"id": key, "text": text} for key, text in texts(20)])
    options = (source, *model, "--out", out, "--shard-rows", 10)
    done(*options)
    manifest = out / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().splitlines(keepends=True)[0])
    status = source.stat()
    source.write_bytes(source.read_bytes().replace(b"text 13", b"text 14"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert f"{source} has changed since the job began." in refusal(*options)
    assert not (out / f"part-00001.{suffix}.tmp").exists()


def test_new_file_in_the_folder_is_refused(model, out, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_csv(folder / "a.csv", texts(3))
    done(folder, *model, "--out", out)
    write_csv(folder / "b.csv", texts(3))

    assert "The input has other files than when the job began." in refusal(folder, *model, "--out", out)


def test_other_schema_in_the_third_file_is_refused_by_name(model, out, tmp_path):
    import pyarrow as pa

    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a", "b", "c"):
        kind = pa.int32() if name == "c" else pa.int64()
        write_parquet(folder / f"{name}.parquet", {"text": ["a"], "n": pa.array([1], kind)})

    sentence = refusal(folder, *model, "--out", out)

    assert f"{folder}/c.parquet has other columns than {folder}/a.parquet. Score them separately." in sentence
    assert not (out / "plan.json").exists()


def test_parquet_with_two_columns_of_a_name_is_refused(model, out, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "in.parquet"
    pq.write_table(pa.table([["a"], ["b"]], names=["text", "text"]), path)

    assert "in.parquet has two columns of the same name. Rename one." in refusal(path, *model, "--out", out)


def test_file_name_that_is_not_utf8_is_refused(model, out, tmp_path):
    (folder := tmp_path / "in").mkdir()
    write_csv(folder / os.fsdecode(b"in-\xff.csv"), texts(1))

    assert "in-\\xff.csv' has a name that is not UTF-8. Rename it." in refusal(folder, *model, "--out", out)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--column", "text=body"], "in.csv has no column 'body'. Its columns are id, text."),
        (["--key", "number"], "in.csv has no column 'number'."),
        (["--answer-column", "text"], "Rename those with --answer-column and --error-column."),
        (["--answer-column", "error"], "Rename those with --answer-column and --error-column."),
    ],
)
def test_column_that_cannot_be_is_refused(source, model, out, options, sentence):
    assert sentence in refusal(source, *model, "--out", out / "deep", *options)
    assert not out.exists()
    out.mkdir()
    assert sentence in refusal(source, *model, "--out", out, *options)
    assert content(out) == {}


def test_worker_that_waits_for_a_refused_one_takes_the_new_file(tmp_path):
    """Its lease would not exclude workers that open the file later."""
    out = tmp_path / "out"
    with Leases(out) as refused, Leases(out) as waiting:
        with refused.hold_plan():
            refused.discard()
        assert not out.exists()
        with waiting.hold_plan(), Leases(out) as later:
            assert waiting.take(0)
            assert not later.take(0)


def test_directory_that_a_refused_command_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    out, opened = tmp_path / "new" / "out", os.open
    with Leases(out) as refused:

        def discard_first(*arguments):
            monkeypatch.undo()
            refused.discard()
            return opened(*arguments)

        monkeypatch.setattr(os, "open", discard_first)
        with Leases(out) as later, later.hold_plan():
            assert later.take(0)
            later.discard()
    assert [*tmp_path.iterdir()] == []


def test_file_that_another_command_makes_meanwhile_stays(out, monkeypatch):
    opened = os.open

    def made_first(*arguments):
        monkeypatch.setattr(os, "open", opened)
        (out / "leases").touch()
        return opened(*arguments)

    monkeypatch.setattr(os, "open", made_first)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, command, argument: argument)  # no lock excludes another
    with pytest.raises(SetupError, match="has no locks"):
        Leases(out)
    assert (out / "leases").exists()


def test_json_lines_need_named_columns_in_other_formats(model, out, tmp_path):
    write_jsonl(tmp_path / "in.jsonl", [{"text": "a"}])

    assert "Name the output's columns with --key and --keep." in refusal(
        tmp_path / "in.jsonl", *model, "--out", out, "--format", "csv"
    )


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["none.csv"], "There is no input at"),
        (["notes.txt"], "The suffix of"),
        (["a.csv", "b.jsonl"], "has another format than the files before it."),
    ],
)
def test_input_that_is_none_is_refused(model, out, tmp_path, names, sentence):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names if names != ["none.csv"] else []:
        (folder / name).write_text("text\na\n")

    assert sentence in refusal(folder if len(names) > 1 else folder / names[0], *model, "--out", out)


def test_directory_with_other_files_is_refused(source, model, out):
    out.mkdir()
    (out / "mine.txt").write_text("keep")

    assert "holds other files. Score into a new or empty directory." in refusal(source, *model, "--out", out)
    assert content(out) == {"mine.txt": b"keep"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda line: b"{}\n", "has an invalid line"),
        (lambda line: b"\n", "has an invalid line"),
        (lambda line: line.replace(b'"shard": 0', b'"shard": 9'), "has an invalid line"),
        (lambda line: line.replace(b'"rows": 10', b'"rows": 11'), "has a wrong line for the shard 0"),
        (lambda line: line.replace(b'"shard": 0', b'"shard": 1'), "has a wrong line for the shard 1"),
        (lambda line: line.replace(b'"plan": "', b'"plan": "f'), "has a line of another job"),
        (lambda line: line + line.replace(b'"bad_rows": 0', b'"bad_rows": 1'), "has two lines for the shard 0"),
    ],
)
def test_wrong_manifest_is_refused(source, model, out, begun, change, sentence):
    manifest = out / "manifest.jsonl"
    first, second = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(change(first) + second)

    assert sentence in refusal(source, *model, "--out", out, "--shard-rows", 10)
    assert sentence in refusal("--verify", "--out", out)


def test_missing_output_file_is_refused(source, model, out, begun):
    (out / "part-00001.csv").unlink()

    sentence = refusal(source, *model, "--out", out, "--shard-rows", 10)

    assert "part-00001.csv is missing or has another size" in sentence
    assert "remove the line of the shard 1 to score it again" in sentence


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is not a valid plan"),
        (b"{}", "is not a valid plan"),
        (json.dumps({"version": plan.VERSION + 1}).encode(), "written by another version"),
    ],
)
def test_wrong_plan_is_refused(source, model, out, begun, data, sentence):
    (out / "plan.json").write_bytes(data)

    assert sentence in refusal(source, *model, "--out", out, "--shard-rows", 10)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EINVAL, None])
def test_file_system_without_locks_is_refused(source, model, out, monkeypatch, number):
    def no_locks(file: int, command: int, argument: bytes) -> bytes:
        if number is not None:
            raise OSError(number, os.strerror(number))
        return argument

    monkeypatch.setattr(fcntl, "fcntl", no_locks)

    assert f"The file system of {out} has no locks" in refusal(source, *model, "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("package", "arguments", "purpose"),
    [("pyarrow", ["--format", "parquet"], "The format parquet"), ("fsspec", [], "A URL as input")],
)
def test_missing_package_is_named_with_its_extra(source, model, out, monkeypatch, package, arguments, purpose):
    monkeypatch.delitem(sys.modules, "swiftlet_serve.bulk.formats.parquet", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    given = source if arguments else f"file://{source}"

    sentence = refusal(given, *model, "--out", out, *arguments)

    assert f"{purpose} needs the package '{package}'. Run: pip install fsspec==" in sentence


def test_input_and_model_are_needed(out):
    for arguments in (["in.csv"], ["--model", "m"]):
        result = score(*arguments, "--out", out)
        assert (result.exit_code, "INPUT and --model are needed" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "option", ["--delimiter=ab", "--delimiter=é", '--delimiter="', "--column=text", "--parameter==1"]
)
def test_malformed_option_is_a_usage_error(source, model, out, option):
    assert score(source, *model, "--out", out, option).exit_code == 2


def test_unreadable_input_and_output_are_named(source, model, tmp_path):
    (tmp_path / "file").write_text("")

    assert "cannot be created: Not a directory." in refusal(source, *model, "--out", tmp_path / "file" / "out")


def test_output_within_the_input_is_refused(model, tmp_path):
    write_csv(tmp_path / "in.csv", texts(3))

    assert "lies in the input folder." in refusal(tmp_path, *model, "--out", tmp_path / "out")


def test_input_that_cannot_be_opened_is_named(source, model, out, monkeypatch):
    path_open = Path.open

    def refused(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == source:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return path_open(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", refused)

    assert f"{source} cannot be read: Permission denied." in refusal(source, *model, "--out", out)


def test_interrupted_command_says_how_to_go_on(source, model, out, monkeypatch):
    def interrupted(self: Worker) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "run", interrupted)

    result = score(source, *model, "--out", out)

    assert result.exit_code == 130
    assert "start the command again to go on" in result.stderr
