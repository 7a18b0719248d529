"""Adapters as peft writes them, with random weights: the answers of peft, and one server that asks each by HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
import transformers

from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.offline import probe
from swiftlet_serve.offline.evaluate import respond
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from tests.support.processes import Response, ask, serving
from tests.support.sentence_checkpoints import save_transformer

peft: Any = pytest.importorskip("peft")

TEXTS: Final = ["A warm film.", "the the THE film", "서울의 봄은 짧다.", "long words " * 60]
LORA: Final = {
    "first": {"r": 4, "lora_alpha": 12, "target_modules": ["query", "value"]},
    "second": {"r": 6, "lora_alpha": 6, "use_rslora": True, "target_modules": "all-linear"},
}
PARITY: Final = 1e-5
NEAR: Final = 0.02  # of bf16, in probabilities


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """A directory with a base and two adapters of it, and what transformers and peft answer."""
    directory = tmp_path_factory.mktemp("adapters")
    base = save_transformer(directory / "base", labels=3, hidden_size=64)  # the native engine needs heads of 16
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")

    def answers(model: Any) -> np.ndarray:
        with torch.no_grad():
            return np.asarray(model.eval()(**inputs).logits.softmax(-1))

    found = {"base": answers(transformers.AutoModelForSequenceClassification.from_pretrained(base))}
    for seed, (name, settings) in enumerate(LORA.items()):
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base)
        adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", **settings))
        torch.manual_seed(seed)
        for own, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.15 if "lora_" in own else 0.5)
        adapted.save_pretrained(directory / name)
        found[name] = answers(adapted)
    return directory, found


def scores(response: Any) -> np.ndarray:
    of = [{one["label"]: one["score"] for one in each} for each in response]
    return np.array([[one[label] for label in sorted(one)] for one in of])


def test_answers_are_those_of_peft(
    expected: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MAX_WORK", 10e6)  # a few of the built-in texts
    directory, answers = expected
    said: list[str] = []
    for number, name in enumerate(("first", "second", "second")):
        artifact, _ = import_checkpoint(
            str(directory / name),
            None,
            tmp_path / str(number),
            precision="fp32",
            max_loss=0.5,
            adapter_form="merged" if number == 2 else None,
            report=said.append,
        )
        (response,) = respond(load_model(artifact.path, "onnx_cpu"), [{"inputs": TEXTS}])
        assert np.abs(scores(response) - answers[name]).max() <= PARITY
    assert np.abs(answers["first"] - answers["second"]).max() > 10 * NEAR
    assert [line for line in said if "is merged" in line] == ["the adapter is merged into its base: this was asked for"]
    with pytest.raises(SetupError, match="Only an adapter"):
        import_checkpoint(
            str(directory / "base"), None, tmp_path, max_loss=1, adapter_form="merged", report=said.append
        )


@pytest.mark.exhaustive  # three imports, each in a process of its own
@pytest.mark.skipif(_kernel_selection.best() is None, reason="no kernel is compiled for this CPU")
def test_one_server_answers_for_a_base_and_its_adapters(
    expected: tuple[Path, dict[str, np.ndarray]], artifact_dir: Path, tmp_path: Path
) -> None:
    directory, answers = expected
    settings = ("--engine", "native", "--cores", "1", "--models", "", "--model-cache", str(tmp_path))
    with serving(artifact_dir, *settings, *(f"{directory / name}:precision=bf16" for name in answers)) as server:

        async def replies() -> list[Response]:
            bodies = [{"model": name, "inputs": TEXTS} for name in answers]
            alone = [ask(server.port, "/classify", json.dumps(body).encode()) for body in bodies]
            lone = {"requests": [{"task": "classify", "inputs": TEXTS[3], "model": name} for name in answers]}
            asked = await asyncio.gather(*alone, ask(server.port, "/models", None))
            return [*asked, await ask(server.port, "/batch", json.dumps(lone).encode())]

        *responses, models, together = asyncio.run(replies())
        server.stop()
        assert server.wait() == 0
    for (name, answer), response in zip(answers.items(), responses, strict=True):
        assert response.status == 200
        assert np.abs(scores(json.loads(response.body)) - answer).max() <= NEAR, name
    # One network was loaded, whose trunk has the base once and two adapters.
    titles = {model["name"]: model["runtime"] for model in json.loads(models.body)}
    assert titles.keys() == answers.keys()
    assert all(title.endswith("3 heads on one trunk in 3 forms") for title in titles.values()), titles
    # The requests for all three ran in one call, and have the bits that each has in another.
    assert 'desc="sequences=3' in together.headers["server-timing"], together.headers
    found = json.loads(together.body)["answers"]
    assert [one[0] for one in found] == [json.loads(response.body)[3] for response in responses]
