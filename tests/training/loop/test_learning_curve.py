"""The learning curve of a run, and its plot."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from swiftlet_serve.cli.main import main
from swiftlet_train.loop.learning_curve import CurvePoint, read_curve, write_curve

POINTS = [
    CurvePoint(20, 1e-3, {"features": 1.25}, 3.5),
    CurvePoint(40, 5e-4, {"features": 1.0, "mlm": 7.125}, 7.0, 2e9),
]


def test_read_curve_returns_the_written_points(tmp_path):
    write_curve(tmp_path / "losses.csv", POINTS)

    assert read_curve(tmp_path / "losses.csv") == POINTS
    assert (tmp_path / "losses.csv").read_text() == (
        "step,learning_rate,features,mlm,seconds,flops\n20,0.001,1.25,,3.5,0\n40,0.0005,1,7.125,7.0,2e+09\n"
    )


def test_read_curve_returns_no_points_without_a_file_or_a_header(tmp_path):
    (tmp_path / "old.csv").write_text("20,7.1446,1.3444\n40,6.9505,1.1029\n")

    assert read_curve(tmp_path / "nowhere.csv") == read_curve(tmp_path / "old.csv") == []


def test_plot_draws_one_curve_per_run(tmp_path, monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    drawn = []
    real = axes.Axes.plot

    def plot(self, x, y, **options):
        drawn.append((options["label"], x, y))
        return real(self, x, y, **options)

    monkeypatch.setattr(axes.Axes, "plot", plot)
    for name, points in (("one", POINTS), ("other", POINTS[:1])):
        (tmp_path / name).mkdir()
        write_curve(tmp_path / name / "losses.csv", points)
    one, other, out = str(tmp_path / "one"), str(tmp_path / "other/losses.csv"), str(tmp_path / "out.png")
    result = CliRunner().invoke(main, ["plot", one, other, "--out", out])

    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [(one, [20, 40], [1.25, 1]), (other, [20], [1.25]), (one, [40], [7.125])]


def test_plot_shows_the_given_losses_and_axis(tmp_path, monkeypatch):
    axes = pytest.importorskip("matplotlib.axes")
    drawn = []
    monkeypatch.setattr(axes.Axes, "plot", lambda self, x, y, **_: drawn.append((self.get_title(), x, y)))
    write_curve(tmp_path / "losses.csv", POINTS)
    arguments = ["plot", str(tmp_path), "--out", str(tmp_path / "out.png"), "--against", "flops"]
    result = CliRunner().invoke(main, [*arguments, "--loss", "mlm"])
    rejected = CliRunner().invoke(main, [*arguments, "--loss", "nothing"])

    assert result.exit_code == 0
    assert [(x, y) for _, x, y in drawn] == [([2e9], [7.125])]
    assert "no run has a loss 'nothing': the losses are features, mlm." in rejected.output


def test_plot_rejects_a_run_without_losses(tmp_path):
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(main, ["plot", str(tmp_path)])

    assert result.exit_code == 1
    assert f"{tmp_path} has no losses to plot." in result.output
