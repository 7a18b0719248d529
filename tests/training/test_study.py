"""Studies: their variants, their results, and the errors of invalid ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

from swiftlet_serve.cli.main import main
from swiftlet_train.downstream import score_checkpoints
from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.recipe import RecipeError
from swiftlet_train.run_study import STUDIES
from swiftlet_train.study import read_study
from tests.support.training import SILENT

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


DOWNSTREAM = """
name = "moods"
question = "Does another seed matter?"
[downstream]
checkpoints = [0, 0.5, 1.0]
seeds = [1, 2]
[variants.masked.pretraining]
input_format = "full_sentences"
[variants.causal]
architecture = "gpt2"
[variants.causal.pretraining]
objective = "causal_lm"
steps = 8
[recipe]
seed = 1
vocab_size = 90
architecture = "bert"
[recipe.tokenizer]
kind = "wordpiece"
[recipe.pretraining]
corpora = { "text.txt.xz" = 40 }
sequence_length = 16
batch_size = 4
steps = 4
learning_rate = 1e-3
held_out_sequences = 4
[recipe.finetuning.mood]
task = "classify"
labels = ["QUIET", "LOUD"]
train = { "mood.tsv" = 16 }
evaluate = "mood.tsv"
licences = ["our own"]
batch_size = 8
max_tokens = 32
[variants.masked.config]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 16
max_position_embeddings = 32
[variants.causal.config]
n_embd = 16
n_layer = 1
n_head = 2
n_positions = 32
"""


def test_study_command_compares_checkpoints_by_a_task(project, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "moods.toml").write_text(DOWNSTREAM, "utf-8")
    arguments = ["study", str(tmp_path / "moods.toml"), "--data", str(project / "data"), "--out", str(tmp_path)]
    arguments += ["--runs", str(tmp_path / "runs")]
    result, again = (CliRunner().invoke(main, arguments) for _ in range(2))
    head, _, *rows = result.stdout.splitlines()[:8]
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]

    assert result.exit_code == 0, result.output
    assert head.startswith("| variant | M parameters | steps | TFLOP | held-out | task | accuracy | 95 % interval |")
    assert [[row[0], row[2]] for row in cells] == [
        *(["masked", step] for step in ("0", "2", "4")),
        *(["causal", step] for step in ("0", "4", "8")),
    ]
    for row in cells:
        each = [float(score) for score in row[8].split(",")]
        accuracy = float(row[6].removesuffix(" %"))
        low, high = map(float, row[7].split(" to "))
        assert len(each) == 2
        assert accuracy == pytest.approx(sum(each) / 2, abs=0.1)
        assert all(0 <= score <= 100 for score in each)
        assert 0 <= low <= accuracy <= high <= 100
        assert high - low > 15  # of 16 texts, however many fine-tunings read them
    assert again.stdout == result.stdout
    assert "step 4/4" not in again.stderr  # completed runs are not repeated
    assert "<svg" in (tmp_path / "moods.svg").read_text("utf-8")
    places = [tmp_path / "runs/moods" / name / "tokenizer.json" for name in ("masked", "causal")]
    assert places[0].read_bytes() == places[1].read_bytes()

    study = read_study(tmp_path / "moods.toml")
    found = score_checkpoints(
        study, study.downstream, project / "data", tmp_path / "runs/moods", SILENT, torch.device("cpu")
    )
    (*_, last) = read_curve(tmp_path / "runs/moods/causal/losses.csv")
    assert cells[2][4] == f"mlm {found[2].losses['mlm']:.3f}"  # after the last step, and not before
    assert [bool(one.losses) for one in found] == [False, False, True] * 2
    assert found[5].losses["clm"] == last.losses["held_out_clm"]
    assert [one.step for one in found] == [0, 2, 4, 0, 4, 8]
    assert [one.operations for one in found if one.variant == "causal"] == [0, last.flops / 2, last.flops]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("checkpoints = [0, 0.5, 1.0]", "checkpoints = [1.0, 0.5]"), "checkpoints must be between 0 and 1"),
        (("checkpoints = [0, 0.5, 1.0]", "checkpoints = [0.5, 1.5]"), "between 0 and 1"),
        (("seeds = [1, 2]", "seeds = [1, 1]"), "seeds must be different numbers"),
        (("seeds = [1, 2]", "seed = 1"), "downstream must have the fields checkpoints and seeds"),
        (("[downstream]\ncheckpoints = [0, 0.5, 1.0]\nseeds = [1, 2]\n", ""), "if, and only if, its recipe has tasks"),
    ],
    ids=lambda change: str(change)[:40],
)
def test_read_study_rejects_an_invalid_downstream_table(tmp_path, change, message):
    assert change[0] in DOWNSTREAM
    (tmp_path / "moods.toml").write_text(DOWNSTREAM.replace(*change), "utf-8")
    with pytest.raises(RecipeError, match=message):
        read_study(tmp_path / "moods.toml")


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
    if study.downstream is None:
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    else:
        assert "<svg" in path.with_suffix(".svg").read_text("utf-8")
