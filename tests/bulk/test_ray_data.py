"""The callable class for Ray Data, without Ray."""

from __future__ import annotations

import pytest

from swiftlet_serve.errors import SetupError
from tests.bulk.test_files import read_parquet, write_parquet
from tests.support.scoring import done, texts


@pytest.fixture
def scorer_class():
    from swiftlet_serve.bulk.ray_data import BatchScorer

    return BatchScorer


def table(count: int = 30):
    import pyarrow as pa

    keys, values = zip(*texts(count), strict=True)
    return pa.table({"id": list(keys), "text": [*values[:-2], " ", None], "n": pa.array(range(count), pa.int16())})


def test_batches_have_the_rows_of_the_command(scorer_class, models, tmp_path):
    import pyarrow as pa

    rows = table()
    write_parquet(tmp_path / "in.parquet", {name: rows[name] for name in rows.column_names})
    done(
        tmp_path / "in.parquet",
        "--model",
        models / "tiny-classify",
        "--engine",
        "echo",
        "--out",
        tmp_path / "out",
        "--max-bad",
        2,
    )
    scorer = scorer_class(str(models / "tiny-classify"), engine="echo")

    found = pa.concat_tables([scorer(rows.slice(start, 7)) for start in range(0, 30, 7)])

    assert found.combine_chunks() == read_parquet(tmp_path / "out").combine_chunks()
    assert found["error"].to_pylist() == [None] * 28 + ["empty_input", "missing_value"]


def test_options_are_those_of_the_command(scorer_class, models):
    model = str(models / "tiny-classify")
    scorer = scorer_class(
        model,
        engine="echo",
        columns={"text": "id"},
        parameters={"top_k": 1},
        answer_column="a",
        error_column="e",
        cores=2,
    )

    found = scorer(table())

    assert found.column_names == ["id", "text", "n", "a", "e"]
    assert found["a"][0].as_py().count("label") == 1
    with pytest.raises(SetupError, match="The parameter top_k is invalid"):
        scorer_class(model, engine="echo", parameters={"top_k": 0})


def test_dataset_with_wrong_columns_is_refused(scorer_class, models):
    scorer = scorer_class(str(models / "tiny-classify"), engine="echo")
    rows = table()

    with pytest.raises(SetupError, match="no column 'text'"):
        scorer(rows.drop_columns(["text"]))
    with pytest.raises(SetupError, match="of the name of the answer or the error"):
        scorer(rows.append_column("error", rows["id"]))
