"""The words that name models: bundled names, directories, names of the hub, options and TOML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.model_source import ModelSource, model_name, parse
from swiftlet_serve.settings import Settings, split_models


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("albert-qa", ModelSource("albert-qa")),
        ("./mine", ModelSource("./mine")),
        ("./mine:task=qa", ModelSource("./mine", None, {"task": "qa"})),
        ("./mine:task=qa,name=mine-2", ModelSource("./mine", None, {"task": "qa", "name": "mine-2"})),
        ("C:/x/mine:pooling=mean", ModelSource("C:/x/mine", None, {"pooling": "mean"})),
        ("org/name", ModelSource("org/name")),
        ("org/name@main", ModelSource("org/name", "main")),
        ("org/name@v1.0:precision=fp32", ModelSource("org/name", "v1.0", {"precision": "fp32"})),
        ("./odd@name", ModelSource("./odd@name")),
        ("a:b", ModelSource("a:b")),
    ],
)
def test_words_name_models(word: str, expected: ModelSource) -> None:
    assert parse([word]) == [expected]


def test_a_path_may_look_like_options(tmp_path: Path) -> None:
    path = tmp_path / "x:task=qa"
    path.mkdir()
    assert parse([str(path)]) == [ModelSource(str(path))]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (
            "./mine:size=3",
            "'size' is not an option of a model. The options are task, name, pooling, precision, adapter.",
        ),
        ("./mine:task=", "The option task of a model has no value."),
        ("./mine:task=translate", "There is no task 'translate'. The tasks are classify, embed,"),
        ("./mine:name=A b", "'A b' is not a valid name"),
        ("./mine:precision=int4", "one of fp32, bf16, int8, not 'int4'"),
        ("./mine:adapter=apart", "The option adapter of a model is merged, not 'apart'."),
        ("./mine:task=qa,task=classify", "has an option twice"),
        ("", "The name of a model is empty"),
        ("gone.toml", "gone.toml cannot be read: No such file or directory."),
    ],
)
def test_wrong_words_are_refused(word: str, reason: str) -> None:
    with pytest.raises(SetupError) as error:
        parse([word])
    assert reason in str(error.value)


def test_a_file_lists_models(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    file = tmp_path / "models.toml"
    file.write_text(
        '\ufeff[[models]]\nsource = "mine"\ntask = "qa"\n[[models]]\nsource = "org/name@1f2e"\nname = "hub"\n', "utf-8"
    )
    assert parse([str(file), "albert-qa"]) == [
        ModelSource(str(tmp_path / "mine"), None, {"task": "qa"}),
        ModelSource("org/name", "1f2e", {"name": "hub"}),
        ModelSource("albert-qa"),
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "must hold tables [[models]], each with a source"),
        ("models = 3", "must hold tables"),
        ("[[models]]\nsource = 'a'\n[other]", "holds other keys or tables than [[models]]"),
        ("[[models]]\ntask = 'qa'", "the model 1 has no source"),
        ("[[models]]\nsource = 'a'\n[[models]]\nsource = 3", "source of the model 2 is not a text. Write it in quotes"),
        ("models = [3]", "the model 1 is not a table"),
        ("[[models]]\nsource = 'a'\nsize = '3'", "'size' is not an option of a model"),
        ("[[", "is not valid TOML"),
        ("a = " + "[" * 5000, "is not valid TOML"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "models.toml").write_text(content, "utf-8")
    with pytest.raises(SetupError) as error:
        parse([str(tmp_path / "models.toml")])
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("BAAI/bge-small-en-v1.5", "bge-small-en-v1.5"),
        ("./Tiny_BERT", "tiny_bert"),
        ("./Tiny_BERT/", "tiny_bert"),
        ("/models/-x-.", "x"),
        ("/hub/models--BAAI--bge-small/snapshots/5c38ec7c405ec4b44b94cc5a9bb96e735b38267a", "bge-small"),
        ("/hub/models--gpt2/snapshots/5c38ec7", "gpt2"),
        ("snapshots/5c38ec7", "5c38ec7"),
        ("/models/서울", "model"),
        (f"/models/{'a' * 63}-b", "a" * 63),
    ],
)
def test_names_come_from_sources(source: str, name: str) -> None:
    assert model_name(source.rstrip("/")) == name


def test_the_current_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Mine").mkdir()
    monkeypatch.chdir(tmp_path / "Mine")
    assert model_name(".") == "mine"


def test_lists_are_split_between_models() -> None:
    words = "albert-qa, ./a:task=qa,name=b,org/c@d:pooling=mean ,, ./e"
    expected = ["albert-qa", "./a:task=qa,name=b", "org/c@d:pooling=mean", "./e"]
    assert split_models(words) == expected
    assert Settings(models=words).models == tuple(expected)  # type: ignore[arg-type]
