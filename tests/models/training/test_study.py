"""Studies: their variants, their results, and the errors of invalid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from swiftlet_serve.models.training.learning_curve import read_curve
from swiftlet_serve.models.training.study import read_study
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.offline.study import STUDIES

STUDY = """
name = "depth"
question = "Do two layers learn more than one?"
[variants.one.config]
num_hidden_layers = 1
[variants.two.pretraining]
corpora = { "more.txt" = 40 }
mask_probability = 0.3
[recipe]
"""


@pytest.fixture
def study_file(project, tmp_path):
    recipe, _, _ = (project / "tiny.toml").read_text("utf-8").partition("[finetuning")
    recipe = recipe.replace("[pretraining]", "[recipe.pretraining]\nheld_out_sequences = 8").replace(
        "[config]", "[recipe.config]"
    )
    recipe = recipe.replace("[pretraining.knowledge_transfer]", "[recipe.pretraining.knowledge_transfer]")
    lines = [line for line in recipe.splitlines() if not line.startswith(("name", "version", "summary"))]
    (tmp_path / "depth.toml").write_text(STUDY + "\n".join(lines), "utf-8")
    return tmp_path / "depth.toml"


def test_read_study_merges_variants_into_the_recipe(study_file):
    variants = read_study(study_file).variants
    one, two = variants["one"], variants["two"]

    assert (one.config["num_hidden_layers"], two.config["num_hidden_layers"]) == (1, 2)
    assert one.pretraining.corpora == {"text.txt.xz": 40, "more.txt": 9}
    assert two.pretraining.corpora == {"more.txt": 40}
    assert replace(two.pretraining, corpora=one.pretraining.corpora, mask_probability=0.15) == one.pretraining


def test_study_command_prints_a_table_and_writes_a_plot(project, study_file, tmp_path):
    pytest.importorskip("matplotlib")
    arguments = ["study", str(study_file), "--data", str(project / "data"), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    again = CliRunner().invoke(main, [*arguments, "--out", str(tmp_path / "out")])
    head, _, *rows = result.stdout.splitlines()[:4]

    assert result.exit_code == 0
    assert head == "| variant | M parameters | steps | TFLOP | held-out mlm |"
    for row, name in zip(rows, ("one", "two"), strict=True):
        (*_, point) = read_curve(tmp_path / "runs/depth" / name / "losses.csv")
        assert row.startswith(f"| {name} | 0.0")
        assert row.endswith(f"| 12 | 0 | {point.losses['held_out_mlm']:.3f} |")
    assert (tmp_path / "out/depth.png").read_bytes().startswith(b"\x89PNG")
    assert again.stdout == result.stdout
    assert "step" in result.stderr
    assert "step" not in again.stderr  # completed runs are not repeated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("held_out_sequences = 8", "held_out_sequences = 0"), "the variant 'one' needs held_out_sequences"),
        (("question = ", "questions = "), "a study must have the fields name, question"),
        (("num_hidden_layers = 1", "num_hidden_layers ="), "not valid TOML"),
        (('"more.txt" = 40', '"none.txt" = 40'), "needs the file none.txt"),
    ],
)
def test_study_command_rejects_an_invalid_study(project, study_file, tmp_path, change, message):
    text = study_file.read_text("utf-8")
    assert change[0] in text
    study_file.write_text(text.replace(*change), "utf-8")
    result = CliRunner().invoke(
        main, ["study", str(study_file), "--data", str(project / "data"), "--runs", str(tmp_path)]
    )

    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_study_command_rejects_an_unknown_study():
    result = CliRunner().invoke(main, ["study", "nothing"])

    assert result.exit_code == 1
    assert "There is no study 'nothing'" in result.output


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_studies_have_results(path):
    study = read_study(path)
    answer = path.with_suffix(".md").read_text("utf-8")

    assert study.name == path.stem
    assert study.question in answer
    for name in study.variants:
        assert f"| {name} |" in answer
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
