"""CSV is divided between rows, and each row is read as Python reads the whole file."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swiftlet_serve.bulk.formats import csv as csv_format
from swiftlet_serve.bulk.lines import MAX_RECORD_BYTES
from swiftlet_serve.bulk.records import Header, Layout
from swiftlet_serve.errors import SetupError

FIELDS = st.text(st.sampled_from('ab,"\n\r é\x85\u2028🎬'), max_size=6)
LAYOUT = Layout(["a", "b"], "answer", "error", ",")


def divided(data: bytes, shard_rows: int, layout: Layout = LAYOUT) -> list[list]:
    """Returns the rows of each piece, each with its values and its error."""
    stream, found = io.BytesIO(data), []
    pieces = list(csv_format.split(stream, "in.csv", layout.delimiter, shard_rows))
    stream.seek(0)
    header = csv_format.header(stream, "in.csv", layout.delimiter)
    for piece in pieces:
        chunks = list(csv_format.read(stream, "in.csv", layout, piece, header, ["a"]))
        records = [record for chunk in chunks for record in chunk.records]
        assert len(records) == piece.rows
        found.append(records)
    return found


@given(
    rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=12),
    end=st.sampled_from(["\n", "\r\n"]),
    all_quoted=st.booleans(),
    shard_rows=st.integers(1, 5),
)
@example(rows=[("a\n", '"'), ("", "")], end="\n", all_quoted=False, shard_rows=1)
def test_pieces_have_the_rows_that_were_written(rows, end, all_quoted, shard_rows):
    text = io.StringIO(newline="")
    quoting = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
    # RFC 4180 has a quoted field for every line end, which Python writes only for those of its own.
    rows = [tuple(field.replace("\r", "\r\n") if not all_quoted else field for field in row) for row in rows]
    csv.writer(text, lineterminator=end if all_quoted else "\r\n", quoting=quoting).writerows([("a", "b"), *rows])

    found = divided(text.getvalue().encode(), shard_rows)

    assert [tuple(record.values.values()) for piece in found for record in piece] == rows
    assert [record.error for piece in found for record in piece] == [None] * len(rows)
    assert [len(piece) for piece in found[:-1]] == [shard_rows] * len(found[:-1])


@given(
    data=st.binary(max_size=60) | st.text(st.sampled_from('a,"\n\r\0'), max_size=40).map(str.encode),
    rows=st.integers(1, 4),
)
def test_any_bytes_are_divided_or_refused(data, rows):
    """A file gives the same rows in pieces as in one."""
    try:
        (whole,) = divided(b"a,b\n" + data, 1000) or [[]]
    except SetupError:
        with pytest.raises(SetupError, match="never closed"):
            divided(b"a,b\n" + data, rows)
    else:
        assert [record for piece in divided(b"a,b\n" + data, rows) for record in piece] == whole


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (b"1,x", None),
        (b'1,"x', "never closed"),
        (b'1,"x"y', "invalid_csv"),
        (b"1\r2,x", "invalid_csv"),
        (b"1", "wrong_field_count"),
        (b"1,x,y", "wrong_field_count"),
        (b"1,\xff", "invalid_utf8"),
        (b"1,x\0y", "nul_byte"),
    ],
)
def test_bad_row_has_a_code(row, error):
    data = b"a,b\n0,w\n" + row + b"\n2,z\n"
    if error == "never closed":
        with pytest.raises(SetupError, match=r"in\.csv has a quote that is never closed, in the row at byte 8"):
            divided(data, 10)
        return

    ((first, bad, last),) = divided(data, 10)

    assert (first.error, bad.error, last.error) == (None, error, None)
    assert last.values == {"a": "2", "b": "z"}


def test_bytes_that_are_not_text_come_out_as_they_went_in():
    ((record,),) = divided(b"a,b\n1,\xff\0\n", 10)

    assert record.values["b"].encode("utf-8", "surrogateescape") == b"\xff\0"


def test_blank_lines_are_no_rows():
    assert [len(piece) for piece in divided(b"a,b\n\n1,x\n\r\n\n2,y\n\n", 1)] == [1, 1]


def test_byte_order_mark_is_not_part_of_the_header():
    stream = io.BytesIO(b'\xef\xbb\xbf"a",b\n1,x\n')

    assert csv_format.header(stream, "in.csv", ",") == Header(["a", "b"])


def test_row_without_end_is_refused():
    data = b"a,b\n1," + b"x" * MAX_RECORD_BYTES + b"\n"

    with pytest.raises(SetupError, match=f"more than {MAX_RECORD_BYTES} bytes, which begins at byte 4"):
        divided(data, 10)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "has no header"),
        (b"a\xff,b\n", "has no header"),
        (b'"a"b,c\r\n', "has no header"),
        (b"a,a\n", "two columns of the same name"),
        (b"a,b\r1,x\r2,y\r", "lines that end with CR alone. Write it with LF or CRLF"),
        (b'a,b\r1,"x\n"\r', "lines that end with CR alone"),
    ],
)
def test_header_must_name_columns(data, sentence):
    with pytest.raises(SetupError, match=sentence):
        csv_format.header(io.BytesIO(data), "in.csv", ",")


def test_other_delimiter_divides_fields():
    layout = Layout(["a", "b"], "answer", "error", "\t")

    ((record,),) = divided(b"a\tb\n1,2\t3\n", 10, layout)

    assert record.values == {"a": "1,2", "b": "3"}
