"""Files of every format: rows come out in order with their columns, and bad rows with a code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.scoring import done, read_csv, read_jsonl, refusal, score, texts, write_csv, write_jsonl

ROWS = 40


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def write_parquet(path: Path, columns: dict[str, Any], schema: Any = None, **options: Any) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns, schema), path, **options)
    return path


def read_parquet(out: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(path) for path in sorted(out.glob("part-*.parquet"))])


def write(path: Path, rows: list[list[str]]) -> Path:
    """Writes ids and texts in the format of the suffix."""
    if path.suffix == ".csv":
        return write_csv(path, rows)
    if path.suffix == ".jsonl":
        return write_jsonl(path, [{"id": key, "text": text} for key, text in rows])
    keys, values = zip(*rows, strict=True)
    return write_parquet(path, {"id": list(keys), "text": list(values)}, row_group_size=7)


def read(out: Path, name: str) -> list[dict[str, Any]]:
    """Returns the rows of the output, with the answers parsed."""
    if name == "jsonl":
        return read_jsonl(out)
    rows = read_csv(out) if name == "csv" else read_parquet(out).to_pylist()
    return [
        {**row, "answer": json.loads(row["answer"]) if row["answer"] else None, "error": row["error"] or None}
        for row in rows
    ]


@pytest.mark.parametrize("to", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("given", ["csv", "jsonl", "parquet"])
def test_formats_have_the_same_answers(model, tmp_path, out, given, to):
    rows = [*texts(ROWS), ["last", " "]]
    source = write(tmp_path / f"in.{given}", rows)
    reference = write(tmp_path / "reference.jsonl", rows)
    done(reference, *model, "--out", tmp_path / "expected", "--max-bad", 1)

    done(
        source,
        *model,
        "--out",
        out,
        "--format",
        to,
        "--keep",
        "id",
        "--keep",
        "text",
        "--max-bad",
        1,
        "--shard-rows",
        9,
    )

    assert read(out, to) == read_jsonl(tmp_path / "expected")
    assert read(out, to)[-1] == {"id": "last", "text": " ", "answer": None, "error": "empty_input"}


def test_parquet_keeps_types(model, tmp_path, out):
    import pyarrow as pa

    when = pa.array([1, 2, None], pa.timestamp("ns"))
    tags = pa.array([["a"], [], None], pa.list_(pa.string()))
    source = write_parquet(tmp_path / "in.parquet", {"text": ["a", "b", "c"], "when": when, "tags": tags})

    done(source, *model, "--out", out, "--key", "when", "--keep", "tags")

    found = read_parquet(out)
    assert found.schema.names == ["when", "tags", "answer", "error"]
    assert found["when"].combine_chunks() == when
    assert found["tags"].combine_chunks() == tags
    assert found["error"].null_count == 3


def test_types_without_json_become_texts(model, tmp_path, out):
    import pyarrow as pa

    columns = {"text": ["a"], "when": pa.array([0], pa.timestamp("s")), "raw": [b"\xff"], "x": [float("nan")]}
    source = write_parquet(tmp_path / "in.parquet", columns)

    done(source, *model, "--out", out, "--format", "jsonl")

    (row,) = read_jsonl(out)
    assert (row["when"], row["raw"], row["x"]) == ("1970-01-01T00:00:00", "_w==", None)


def test_numbers_without_json_differ_from_missing_ones_in_csv(model, tmp_path, out):
    numbers = [float("nan"), float("inf"), float("-inf"), None, 0.5]
    source = write_parquet(tmp_path / "in.parquet", {"text": ["a"] * 5, "x": numbers})

    done(source, *model, "--out", out, "--key", "x", "--format", "csv")

    assert [row["x"] for row in read_csv(out)] == ["NaN", "inf", "-inf", "", "0.5"]


def test_parquet_rows_are_bad_as_in_other_formats(model, tmp_path, out):
    import pyarrow as pa

    raw = pa.array([b"a", b"\xff", None, b"nul \0"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())  # pyarrow does not check it
    source = write_parquet(tmp_path / "in.parquet", {"text": text, "n": [1, 2, 3, 4]})

    done(source, *model, "--out", out, "--key", "n", "--max-bad", 2)

    assert read_parquet(out)["error"].to_pylist() == [None, "invalid_utf8", "missing_value", None]
    done(source, *model, "--out", tmp_path / "number", "--key", "n", "--max-bad", 4, "--column", "text=n")
    assert read_parquet(tmp_path / "number")["error"].to_pylist() == ["wrong_type"] * 4


def test_damaged_parquet_is_refused(model, tmp_path, out):
    source = write_parquet(
        tmp_path / "in.parquet", {"text": ["a", "b"] * 500}, use_dictionary=False, compression="gzip"
    )
    data = bytearray(source.read_bytes())
    data[30:60] = bytes(30)
    source.write_bytes(data)
    (tmp_path / "other.parquet").write_bytes(b"PAR1 it is not")

    assert refusal(source, *model, "--out", out).endswith("in.parquet has a damaged row group 0.")
    assert "cannot be read as Parquet" in refusal(tmp_path / "other.parquet", *model, "--out", tmp_path / "other")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"id": 1, "text": "a"}', None),
        ('{"id": 1}', "missing_value"),
        ('{"id": 1, "text": null}', "missing_value"),
        ('{"id": 1, "text": 3}', "wrong_type"),
        ('{"id": 1, "text": ""}', "empty_input"),
        ('{"id": 1, "text": "a"', "invalid_json"),
        ('{"id": 1, "text": "\\ud800"}', "invalid_json"),
        ('{"id": 1, "text": "a", "x": NaN}', "invalid_json"),
        ('{"id": 1e400, "text": "a"}', "invalid_json"),
        ('{"id": 1, "text": "a", "x": [{"y": -1e400}]}', "invalid_json"),
        ('["a"]', "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ('{"id": 1, "text": "a\0"}', "nul_byte"),
        ('{"id": 1, "text": "a\udcff"}', "invalid_utf8"),
        ('{"id": 1, "text": "a", "answer": 2}', "column_conflict"),
    ],
)
def test_bad_line_of_json_has_a_code(model, tmp_path, out, line, error):
    lines = ['{"id": 0, "text": "a"}', "", line, '{"id": 2, "text": "b"}']
    (tmp_path / "in.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))

    done(tmp_path / "in.jsonl", *model, "--out", out, "--max-bad", 1)

    found = read_jsonl(out)
    assert [row["error"] for row in found] == [None, error, None]
    assert [row.get("id") for row in found][0::2] == [0, 2]
    assert (found[1]["answer"] is None) == (error is not None)


def test_bad_rows_of_csv_come_out_as_they_went_in(model, tmp_path, out):
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,\xff\n2,a\0b\n3\n4,\n5,a\n")

    done(tmp_path / "in.csv", *model, "--out", out, "--max-bad", 4)

    found = read_csv(out)
    assert [row["error"] for row in found] == ["invalid_utf8", "nul_byte", "wrong_field_count", "empty_input", ""]
    assert [row["id"] for row in found] == ["1", "2", "3", "4", "5"]
    assert b"1,\xff,,invalid_utf8\r\n2,a\0b,,nul_byte" in (out / "part-00000.csv").read_bytes()


def test_bytes_that_are_not_text_are_replaced_in_other_formats(model, tmp_path, out):
    (tmp_path / "in.csv").write_bytes(b"id,text\n1,\xff\n")

    for name in ("jsonl", "parquet"):
        done(tmp_path / "in.csv", *model, "--out", out / name, "--max-bad", 1, "--format", name)
        assert read(out / name, name)[0]["text"] == "\ufffd"


@pytest.mark.parametrize(("budget", "passes"), [("2", False), ("3", True), ("7%", False), ("7.5%", True)])
def test_budget_of_bad_rows(model, tmp_path, out, budget, passes):
    rows = [[key, "" if number in (3, 20, 39) else text] for number, (key, text) in enumerate(texts(ROWS))]
    source = write_csv(tmp_path / "in.csv", rows)
    options = (source, *model, "--out", out, "--shard-rows", 10)

    if passes:
        assert "40 rows, 40 of them now" in (result := done(*options, "--max-bad", budget).stdout)
        assert "3 bad" in result
    else:
        sentence = refusal(*options, "--max-bad", budget)
        assert f"3 of 40 rows are bad, more than --max-bad {budget} allows: empty_input (3)." in sentence
        assert "30 of them finished" in done(*options, "--max-bad", "3").stderr


def test_rows_that_were_cut_are_counted(model, tmp_path, out):
    rows = [[str(number), "a " * (100 if number in (3, 20) else 5)] for number in range(ROWS)]
    options = (write_csv(tmp_path / "in.csv", rows), *model, "--shard-rows", 10)

    assert "; 0 bad, 2 cut to the model's limit of tokens." in done(*options, "--out", out).stdout
    counts = [json.loads(line)["cut_rows"] for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert counts == [1, 0, 1, 0]
    assert "(2)" in refusal(*options, "--out", tmp_path / "other", "--parameter", "truncation=false", "--max-bad", "1")


@pytest.mark.parametrize("budget", ["-1", "many", "101%", "1.5", "nan%", "%"])
def test_budget_is_a_number_or_a_share(model, tmp_path, budget):
    result = score("in.csv", *model, "--out", tmp_path / "out", f"--max-bad={budget}")

    assert result.exit_code == 2
    assert "is neither a number of rows nor a share such as 1%" in result.stderr


def test_folder_and_pattern_name_files_in_order(model, tmp_path, out):
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(["b.csv", "a.csv", "deep/c.csv"]):
        write_csv(folder / name, [[str(number), "a"]])
    for name in ("_SUCCESS", ".a.csv", "_temporary.csv", "notes.txt"):
        (folder / name).write_text("no")

    done(folder, *model, "--out", out)
    done(f"{folder}/*.csv", *model, "--out", tmp_path / "pattern")

    assert [row["id"] for row in read_csv(out)] == ["1", "0", "2"]
    assert [row["id"] for row in read_csv(tmp_path / "pattern")] == ["1", "0"]


def test_url_is_read_through_fsspec(model, tmp_path, out):
    import fsspec

    memory = fsspec.filesystem("memory")
    for number in range(2):
        memory.pipe(f"/bulk/{number}.csv", f"id,text\n{number},a\n".encode())
    memory.pipe("/bulk/_SUCCESS", b"")

    for number, url in enumerate(["memory://bulk", "memory://bulk/*.csv", "memory://bulk/1.csv"]):
        done(url, *model, "--out", out / str(number))

    assert [[row["id"] for row in read_csv(out / str(number))] for number in range(3)] == [
        ["0", "1"],
        ["0", "1"],
        ["1"],
    ]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("memory://none", "There is no input at"), ("no://where", "cannot be read: Protocol not known: no")],
)
def test_url_without_files_is_refused(model, out, url, sentence):
    assert sentence in refusal(url, *model, "--out", out)


def test_empty_file_has_no_rows(model, tmp_path, out):
    write_csv(tmp_path / "in.csv", [])

    assert done(tmp_path / "in.csv", *model, "--out", out).stdout.startswith("0 rows; 0 bad.")
    assert "0 files with 0 rows" in done("--verify", "--out", out).stdout


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_verify_finds_a_flipped_byte(model, tmp_path, out, suffix):
    write(tmp_path / f"in.{suffix}", texts(ROWS))
    done(tmp_path / f"in.{suffix}", *model, "--out", out, "--shard-rows", 14)
    assert "As they were written: 3 files with 40 rows." in done("--verify", "--out", out).stdout
    path = out / f"part-00001.{suffix}"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.unlink(out / f"part-00002.{suffix}")

    result = score("--verify", "--out", out)

    assert result.exit_code == 1
    assert f"part-00001.{suffix} has other bytes than when it was written." in result.stderr
    assert f"part-00002.{suffix} cannot be read: No such file or directory." in result.stderr


def test_verify_names_unfinished_files(model, tmp_path, out):
    write_csv(tmp_path / "in.csv", texts(ROWS))
    done(tmp_path / "in.csv", *model, "--out", out, "--shard-rows", 20)
    manifest = out / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().splitlines(keepends=True)[0])

    result = score("--verify", "--out", out)

    assert (result.exit_code, "part-00001.csv is not finished." in result.stderr) == (1, True)
    assert "no plan" in refusal("--verify", "--out", tmp_path)


def test_dry_run_writes_nothing(model, tmp_path, out):
    write_csv(tmp_path / "in.csv", [*texts(300), ["x", " "]])

    found = done(tmp_path / "in.csv", *model, "--out", out, "--dry-run", "--shard-rows", 30).stdout

    assert "rows    301 in 11 shards\n" in found
    assert "bad     0.33 % of the sample: empty_input (1)" in found
    assert "rows    301 in 1 shard\n" in done(tmp_path / "in.csv", *model, "--out", out, "--dry-run").stdout
    assert not out.exists()
    done(tmp_path / "in.csv", *model, "--out", out)
    actual = (out / "part-00000.csv").stat().st_size
    assert f"output  about {actual / 1e6:.3g} MB" in found
