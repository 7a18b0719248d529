"""Readers of data files: every published format, and the errors for other formats."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import tarfile
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from swiftlet_models import datasets
from swiftlet_models.datasets import (
    DatasetError,
    Inference,
    Labelled,
    Named,
    Question,
    Unlabelled,
    documents,
    labelled,
    questions,
    unlabelled,
)
from tests.support.paths import DATA

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data folder ../shared/data is not there")


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


def test_labelled_reads_sst2(tmp_path):
    file = write(tmp_path / "dev.tsv", 'label\tsentence\n1\ta "warm, funny film\n0\tno\n')

    assert labelled(file) == [Labelled('a "warm, funny film', 1), Labelled("no", 0)]


def test_labelled_reads_nsmc(tmp_path):
    file = write(tmp_path / "test.tsv", "id\tdocument\tlabel\n9\t아름다운 영화\t1\n8\t\t0\n")

    assert labelled(file) == [Labelled("아름다운 영화", 1), Labelled("", 0)]


def test_labelled_reads_cola(tmp_path):
    file = write(tmp_path / "dev.tsv", "gj04\t1\t\tThe rain fell.\ngj04\t0\t*\tThe fell rain\tmore\n")

    assert labelled(file) == [Labelled("The rain fell.", 1), Labelled("The fell rain", 0)]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t7\t8\t"A, it said\tB'),  # MRPC
        ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", '0\t1\t2\t"A, it said\tB\t1'),  # QQP
        ("index\tquestion\tsentence\tlabel", '0\t"A, it said\tB\tno'),  # QNLI
        ("index\tsentence1\tsentence2\tlabel", '0\t"A, it said\tB\tno'),  # RTE, WNLI
        ("index\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label", '0\t(A)\t"A, it said\tB\tyes\tno'),  # MNLI
        ("text\ttext_pair\tlabel", '"A, it said\tB\tno'),
    ],
)
def test_labelled_reads_pairs(tmp_path, header, row):
    file = write(tmp_path / "dev.tsv", f"{header}\n{row}\n")

    (example,) = labelled(file, ("yes", "no"))
    assert example == Labelled('"A, it said', 1, "B")
    assert example.texts == ('"A, it said', "B")


def test_labelled_reads_a_question_beside_a_text_as_a_text(tmp_path):
    file = write(tmp_path / "dev.tsv", "question\ttext\tlabel\nwho?\tone\t1\n")

    assert labelled(file) == [Labelled("one", 1)]
    lines = write(tmp_path / "dev.jsonl", '{"premise": "one", "label": 1}\n{"sentence2": "two", "label": 1}\n')
    with pytest.raises(DatasetError, match=r"line 2: it has no text\. Expected"):
        labelled(lines)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_labelled_accepts_both_line_endings(tmp_path, end):
    file = tmp_path / "dev.tsv"
    file.write_bytes(end.join(["sentence\tlabel", "one\t1", "two\t0"]).encode())

    assert labelled(file) == [Labelled("one", 1), Labelled("two", 0)]


def test_labelled_reads_long_text(tmp_path):
    (example,) = labelled(write(tmp_path / "dev.tsv", "label\tsentence\n1\t" + "so " * 100_000))

    assert len(example.text) == 300_000


def test_labelled_accepts_empty_file(tmp_path):
    assert labelled(write(tmp_path / "dev.tsv", "")) == []
    assert labelled(write(tmp_path / "dev.tsv", "label\tsentence\n")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"label\twords\n1\tfine\n",
            "none of the 2 columns of the first line is named text. Expected lines of JSON",
        ),
        (b"label\tsentence\n1\tfine\n1\n", "line 3: it does not have 2 columns like the header, but 1"),
        (b"label\tsentence\ngood\tfine\n", "line 2: its label is no number from 0"),
        (b"label\tsentence\n-1\tfine\n", "line 2: its label is no number from 0"),
        (b"label\tsentence\n0.5\tfine\n", "line 2: its label is no number from 0"),
        (b"gj04\t1\t\tfine\nsentence\n", "line 2: it has no text"),
        (b'{"data": []}\n', "line 1: it has no text"),
        (b"label\tsentence\n" + b"9" * 5000 + b"\tfine\n", "line 2: its label is no number from 0"),
        (b"label\tsentence\n1\t\xff\xfe\n", "is not UTF-8 text"),
    ],
)
def test_labelled_rejects_other_formats(tmp_path, content, message):
    file = tmp_path / "dev.tsv"
    file.write_bytes(content)

    with pytest.raises(DatasetError) as refused:
        labelled(file)
    assert str(refused.value).startswith("dev.tsv")
    assert message in str(refused.value)


def squad(*entries: dict, context: str = "Rome was not built in a day.") -> str:
    return json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": entries}]}]})


def test_unlabelled_reads_texts_with_questions_or_without(tmp_path):
    for name, content in {
        "a.csv": 'query,text,label\nwho?,"She, of course.",\n,No,\n,  ,\n',
        "a.jsonl": '{"context": "She, of course.", "question": "who?"}\n{"text": "No", "label": null}\n',
    }.items():
        (tmp_path / name).write_text(content, "utf-8")
        assert unlabelled(tmp_path / name) == [Unlabelled("She, of course.", "who?"), Unlabelled("No")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("label,text\n1,a\n", "line 2: it has a label"),
        ('{"text": "a", "score": 0}', "line 1: it has a label"),
        ('{"text": "a", "question": 1}', "line 1: its question is not a text"),
        ("words\na\n", "none of the 1 columns of the first line is named text"),
    ],
)
def test_unlabelled_rejects_other_formats(tmp_path, content, message):
    (tmp_path / "data.csv").write_text(content, "utf-8")
    with pytest.raises(DatasetError, match=message):
        unlabelled(tmp_path / "data.csv")


def test_questions_reads_squad_1(tmp_path):
    answers = [{"text": "Rome", "answer_start": 0}, {"text": "a day", "answer_start": 22}]
    file = write(tmp_path / "dev.json", squad({"id": "7", "question": "What?", "answers": answers}))

    expected = Question("7", "What?", "Rome was not built in a day.", ("Rome", "a day"), (0, 22))
    assert questions(file) == [expected]


def test_questions_reads_unanswerable_questions_of_squad_2(tmp_path):
    plausible = [{"text": "Rome", "answer_start": 0}]
    entry = {"id": 8, "question": "Who?", "answers": [], "is_impossible": True, "plausible_answers": plausible}
    (question,) = questions(write(tmp_path / "dev.json", squad(entry)))

    assert question == Question("8", "Who?", "Rome was not built in a day.", (), ())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "label\tsentence\n1\tfine\n",
        "[]",
        "{}",
        '{"data": 5}',
        '{"data": "words"}',
        '{"data": [{"paragraphs": [{"context": "c"}]}]}',
        squad({"id": "7", "question": "What?"}),
        squad({"id": "7", "question": "What?", "answers": None}),
        squad({"id": "7", "question": "What?", "answers": ["Rome"]}),
        squad({"id": "7", "question": "What?", "answers": [{"text": "Rome"}]}),
        squad({"id": "7", "question": 5, "answers": []}),
        squad({"id": "7", "question": "What?", "answers": [{"text": 5, "answer_start": 0}]}),
        squad({"id": "7", "question": "What?", "answers": [{"text": "Rome", "answer_start": "0"}]}),
        squad({"id": "7", "question": "What?", "answers": []}, context=None),
        "[" * 100_000,
    ],
    ids=lambda content: content[:60],
)
def test_questions_rejects_other_formats(tmp_path, content):
    with pytest.raises(DatasetError, match=r"^dev\.json is not in SQuAD's format"):
        questions(write(tmp_path / "dev.json", content))


ARTICLES = """ = Rain =

Rain falls .
It falls on roofs .

 = Empty =
 = Snow =
Snow is white .
"""


def test_documents_splits_articles_at_titles(tmp_path):
    found = list(documents(write(tmp_path / "wiki.txt", ARTICLES)))

    assert found == ["Rain falls .\nIt falls on roofs .", "Snow is white ."]


def test_documents_splits_lines_without_titles(tmp_path):
    assert list(documents(write(tmp_path / "lines.txt", "one\n\n  two  \r\nthree"))) == ["one", "two", "three"]


def test_documents_reads_table(tmp_path):
    file = write(tmp_path / "train.tsv", "id\tdocument\tlabel\n9\t아름다운 영화\t1\n8\t \t0\n7\tno = good\t0\n")

    assert list(documents(file)) == ["아름다운 영화", "no = good"]
    with pytest.raises(DatasetError, match="line 1: it has no text"):
        list(documents(write(tmp_path / "other.tsv", "one\ntwo\n")))


def test_documents_reads_compressed_text(tmp_path):
    file = tmp_path / "wiki.txt.xz"
    file.write_bytes(lzma.compress(b" = Rain =\nRain falls .\n"))

    assert list(documents(file)) == ["Rain falls ."]


def archive(path: Path, **members: bytes) -> Path:
    with tarfile.open(path, "w:xz") as made:
        made.addfile(_folder("set"))
        for name, content in members.items():
            entry = tarfile.TarInfo(f"set/{name.replace('_', '.')}")
            entry.size = len(content)
            made.addfile(entry, io.BytesIO(content))
    return path


def _folder(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    return entry


def test_documents_reads_last_column_of_archived_tables(tmp_path):
    file = archive(tmp_path / "imdb.tar.xz", train_tsv=b"1\ta film<br />by two\n0\tno\n", README_md=b"read\tme\n")

    assert list(documents(file)) == ["a film by two", "no"]


@pytest.mark.parametrize("name", ["wiki.txt", "wiki.txt.xz", "imdb.tar.xz"])
def test_documents_rejects_other_formats(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00 no text at all")

    with pytest.raises(DatasetError, match=f"^{name} "):
        list(documents(tmp_path / name))


def test_documents_rejects_truncated_file(tmp_path):
    (tmp_path / "wiki.txt.xz").write_bytes(lzma.compress(b"Rain falls .\n" * 1000)[:-20])

    with pytest.raises(DatasetError, match=r"^wiki\.txt\.xz "):
        list(documents(tmp_path / "wiki.txt.xz"))


@needs_data
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("sst2/dev.tsv", 872),
        ("sst2/train.tsv", 67_349),
        ("cola/in_domain_dev.tsv", 527),
        ("cola/in_domain_train.tsv", 8551),
    ],
)
def test_labelled_reads_whole_datasets(name, count):
    examples = labelled(DATA / name)

    assert len(examples) == count
    assert {example.label for example in examples} == {0, 1}
    assert all(example.text.strip() and "\t" not in example.text for example in examples)


@needs_data
def test_labelled_reads_whole_nsmc():
    examples = labelled(DATA / "nsmc/test.tsv")

    assert 22_000 < len(examples) < 24_000
    assert {example.label for example in examples} == {0, 1}
    assert sum("가" <= character <= "힣" for example in examples[:100] for character in example.text) > 1000


@needs_data
@pytest.mark.parametrize(
    ("name", "count", "impossible"),
    [
        ("squad/squad-v1.1.eval.json", 1792, False),
        ("squad/squad-v2.0.eval.json", 3688, True),
        ("qa/qamr.dev.json", None, False),
        ("qa/covidqa.json", 1146, False),
    ],
)
def test_questions_reads_whole_datasets(name, count, impossible):
    found = questions(DATA / name)

    assert count in (None, len(found))
    assert any(not question.answers for question in found) == impossible
    placed = [
        question.context.startswith(answer, start)
        for question in found
        for answer, start in zip(question.answers, question.starts, strict=True)
    ]
    assert sum(placed) >= 0.85 * len(placed)


@needs_data
@pytest.mark.parametrize(
    "name", ["enwiki2015_cap8k.txt.xz", "kowiki_100MB.txt.xz", "gutenberg_120M.txt.xz", "imdb.tar.xz"]
)
def test_documents_reads_corpora(name):
    found = list(islice(documents(DATA / "corpora" / name), 5))

    assert len(found) == 5
    assert all(len(text) > 20 for text in found)
    assert not any(line.startswith("= ") for text in found for line in text.split("\n"))


def write_lines(path: Path, *rows: Any) -> Path:
    path.write_bytes(gzip.compress("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()))
    return path


def test_inferences_reads_pairs(tmp_path):
    row = {"premise": "It rains.\u2028Still.", "hypothesis": "비가 온다.", "label": "entailment"}
    path = write_lines(tmp_path / "nli.jsonl.gz", row)

    assert datasets.inferences(path) == [Inference(row["premise"], "비가 온다.", "entailment")]


def test_inferences_reads_the_file_of_glue(tmp_path):
    file = write(
        tmp_path / "dev.tsv", "pairID\tsentence1\tsentence2\tlabel1\tgold_label\n1\ta\tb\tneutral\tentailment\n"
    )

    assert datasets.inferences(file) == [Inference("a", "b", "entailment")]


def test_inferences_rejects_other_formats(tmp_path):
    path = write_lines(tmp_path / "labels.jsonl.gz", {"text": "It rains.", "label": "weather"})

    with pytest.raises(DatasetError, match=r"^labels\.jsonl\.gz: line 1: it has no premise"):
        datasets.inferences(path)


def test_named_leaves_out_texts_without_a_single_label(tmp_path):
    rows = [{"text": str(i), "label": label} for i, label in enumerate(["calm", ["calm"], ["calm", "joy"], []])]
    path = write_lines(tmp_path / "moods.jsonl.gz", *rows)

    assert datasets.named(path) == [Named("0", "calm"), Named("1", "calm")]


def test_articles_reads_titles(tmp_path):
    path = tmp_path / "articles.txt"
    path.write_text("before\n= One =\na\n\nb\n= Two =\n= Three =\nc\n", "utf-8")

    assert list(datasets.articles(path)) == [("", "before"), ("One", "a\nb"), ("Three", "c")]


def test_documents_reads_the_texts_of_lines_of_json(tmp_path):
    rows = [{"premise": "one", "hypothesis": "two", "label": "x"}, {"premise": "one", "hypothesis": " "}, {"text": "3"}]

    assert list(documents(write_lines(tmp_path / "nli.jsonl.gz", *rows))) == ["one", "two", "3"]


def test_documents_reads_questions_and_contexts_once(tmp_path):
    asked = [{"id": name, "question": "What?", "answers": []} for name in "ab"]

    assert list(documents(write(tmp_path / "asked.json", squad(*asked)))) == ["What?", "Rome was not built in a day."]


@pytest.mark.parametrize(
    "content", [b"no JSON", b"[1]", b"\xff", b"[" * 100_000], ids=["text", "list", "bytes", "deep"]
)
def test_documents_rejects_other_lines_of_json(tmp_path, content):
    (tmp_path / "nli.jsonl").write_bytes(content)

    with pytest.raises(DatasetError, match=r"^nli\.jsonl(: line 1 is not an object of JSON| is not UTF-8 text)"):
        list(documents(tmp_path / "nli.jsonl"))


REVIEWS = [("a good, warm film", "good"), ('it says "no"', "bad"), ("two\nlines", "neither")]
NAMES = ("bad", "good", "neither")


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def table(rows: list[tuple[str, str]], separator: str) -> str:
    return "".join(f"{label}{separator}{quoted(text)}\n" for text, label in [("text", "label"), *rows])


def lines(rows: list[tuple[str, Any]], name: str = "text") -> str:
    return "".join(json.dumps({name: text, "label": label}) + "\n" for text, label in rows)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", table(REVIEWS, ",")),
        ("a.csv", table(REVIEWS, ";")),
        ("a.csv", table(REVIEWS, "\t")),
        ("a.txt", table(REVIEWS, ",")),
        ("a.csv", table(REVIEWS, ",").replace("label", " Label").replace("text", "Sentence")),
        ("a.jsonl", lines(REVIEWS)),
        ("a.jsonl", lines([(text, NAMES.index(label)) for text, label in REVIEWS])),
        ("a.jsonl", lines([(text, [label.upper()]) for text, label in REVIEWS], "sentence")),
        ("a", "\n\n" + lines(REVIEWS)),
    ],
)
def test_labelled_reads_every_format_that_people_have(tmp_path, name, content, end, encoding):
    for file in (tmp_path / name, tmp_path / f"{name}.gz"):
        encoded = content.replace("\n", end).encode(encoding)
        file.write_bytes(gzip.compress(encoded) if file.suffix == ".gz" else encoded)
        found = labelled(file, NAMES)

        assert [one.label for one in found] == [1, 0, 2]
        assert [one.text.replace("\r", "") for one in found] == [text for text, _ in REVIEWS]


@pytest.mark.parametrize("label", ["good", "GOOD", " Good ", "1"])
def test_labelled_reads_names_and_numbers_of_tab_separated_texts(tmp_path, label):
    file = write(tmp_path / "a.tsv", f'\ufefflabel\tsentence\n{label}\ta "warm film\n\n')

    assert labelled(file, NAMES) == [Labelled('a "warm film', 1)]


def test_label_that_differs_in_capitals_only_is_read_exactly(tmp_path):
    file = write(tmp_path / "a.tsv", "label\ttext\nus\tone\nUS\ttwo\n")

    assert [one.label for one in labelled(file, ("US", "us"))] == [1, 0]
    with pytest.raises(DatasetError, match="its label is none of"):
        labelled(write(tmp_path / "b.tsv", "label\ttext\nUs\tone\n"), ("US", "us"))


def test_labels_that_are_numbers_are_names_and_only_numbers_of_json_are_indices(tmp_path):
    stars = ("1", "2", "3")
    text, number = write(tmp_path / "a.jsonl", lines([("x", "1")])), write(tmp_path / "b.jsonl", lines([("x", 1)]))

    assert labelled(write(tmp_path / "a.tsv", "label\ttext\n1\tx\n3\tx\n"), stars) == [
        Labelled("x", 0),
        Labelled("x", 2),
    ]
    assert (labelled(text, stars)[0].label, labelled(number, stars)[0].label) == (0, 1)
    with pytest.raises(DatasetError, match="its label is none of 1, 2, 3"):
        labelled(write(tmp_path / "b.tsv", "label\ttext\n0\tx\n"), stars)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "label,text\nsecret,private\n",
            "line 2: its label is none of bad, good, neither, and no number from 0",
        ),
        ("a.csv", "label,text\n3,private\n", "line 2: its label is none of"),
        ("a.csv", 'label,text\n1,"two\nlines"\nsecret,private\n', "line 4: its label is none of"),
        ("a.csv", "label,text\n1,private, too\n", "line 2: it does not have 2 columns like the header, but 3"),
        ("a.csv", 'label,text\n1,"private\n', "line 2 cannot be read as comma-separated text: unexpected end of data"),
        ("a.csv", "1,private\n", "it has no text"),
        ("a.tsv", "label\ttext\n1\tprivate\tmore\n", "line 2: it does not have 2 columns like the header, but 3"),
        ("a.jsonl", '{"label": 1, "text": "x"}\nprivate\n', "line 2 is not an object of JSON"),
        ("a.jsonl", '{"label": true, "text": "private"}\n', "line 1: its label is none of"),
        ("a.jsonl", '{"label": ["good", "bad"], "text": "private"}\n', "line 1: its label is none of"),
        ("a.jsonl", '{"label": null, "text": "private"}\n', "line 1: it has no label"),
        ("a.jsonl", '{"label": 1, "text": 5}\n', "line 1: its text is not a text"),
        ("a.jsonl", '{"label": 1, "body": "private"}\n', "line 1: it has no text. Expected lines of JSON, or a table"),
    ],
)
def test_labelled_errors_name_the_line_and_quote_nothing(tmp_path, name, content, message):
    with pytest.raises(DatasetError) as refused:
        labelled(write(tmp_path / name, content), NAMES)

    assert message in str(refused.value)
    assert "private" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_error_of_a_model_with_many_labels_shows_ten(tmp_path):
    names = [f"intent_{number}" for number in range(150)]
    with pytest.raises(DatasetError, match="intent_9 and 140 more, and no number from 0 to 149"):
        labelled(write(tmp_path / "a.tsv", "label\ttext\nother\tx\n"), names)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_all_readers_accept_a_byte_order_mark(tmp_path, mark):
    def file(name: str, content: str) -> Path:
        return write(tmp_path / name, mark + content)

    pair = datasets.Similar("one", "two", 3.5)
    for name, content in (
        ("a.csv", "one,two,3.5\n"),
        ("b.csv", "sentence1,sentence2,score\none,two,3.5\n"),
        ("c.csv", "first,second,similarity\none,two,3.5\n"),
        ("a.tsv", "genre\tscore\tsentence1\tsentence2\nx\t3.5\tone\ttwo\n"),
        ("a.jsonl", '{"sentence1": "one", "sentence2": "two", "label": 3.5}\n'),
    ):
        assert datasets.similar(file(name, content)) == [pair]
    assert datasets.named(file("n.csv", "text,label\none,calm\n")) == [Named("one", "calm")]
    assert datasets.inferences(file("i.tsv", "premise\thypothesis\tlabel\na\tb\tneutral\n")) == [
        Inference("a", "b", "neutral")
    ]
    ranks = datasets.ranked(file("r.csv", "query,text,label\nq,one,1\nq,two,0\n"))
    assert ranks == [datasets.Candidates("q", ("one", "two"), (True, False))]
    assert questions(file("q.json", squad({"id": "7", "question": "What?", "answers": []})))[0].question == "What?"
    assert datasets.tagged(file("t.conll", "Rome B-LOC\nis O\n"))[0].spans == ((0, 4, "LOC"),)
    assert list(documents(file("d.txt", "= One =\ntext\n"))) == ["text"]
    assert list(documents(file("d.csv", "label,text\ncalm,one\n"))) == ["one"]


@pytest.mark.parametrize("label", ["0", "2", "-1"])
def test_relations_are_named(tmp_path, label):
    """A number means another relation in another data set, and would count as a relation that the model lacks."""
    for name, content in (
        ("a.tsv", f"premise\thypothesis\tlabel\na\tb\t{label}\n"),
        ("a.jsonl", f'{{"premise": "a", "hypothesis": "b", "label": {label}}}\n'),
    ):
        with pytest.raises(DatasetError, match="its label is a number and not a name such as entailment"):
            datasets.inferences(write(tmp_path / name, content))


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(DatasetError, match=r"^a\.csv cannot be read: No such file or directory"):
        labelled(tmp_path / "a.csv")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"{}" * 99)[:-9])
    with pytest.raises(DatasetError, match=r"^b\.jsonl\.gz cannot be read: EOFError"):
        labelled(tmp_path / "b.jsonl.gz")


def test_readers_raise_no_other_error(tmp_path):
    """Random files of the characters that formats give a meaning to."""
    chance = random.Random(5)
    parts = [
        *'\t,;\n"{}[]:1 \0\ufeff\u2028',
        "\r\n",
        "label",
        "text",
        "query",
        "good",
        '{"label":1,"text":"x"}',
        "B-X",
        "NaN",
    ]
    for _ in range(100):
        file = tmp_path / chance.choice(["a.csv", "a.tsv", "a.jsonl", "a.txt", "a.json"])
        content = "".join(chance.choice(parts) for _ in range(chance.randint(0, 25)))
        file.write_bytes(content.encode(chance.choice(["utf-8", "utf-16"])))
        for name in ("labelled", "similar", "named", "inferences", "ranked", "tagged", "questions", "documents"):
            with suppress(DatasetError):
                list(getattr(datasets, name)(file))
