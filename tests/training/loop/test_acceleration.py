"""Training without padding, with compiled layers and with attention in bf16: the same losses and gradients."""

from __future__ import annotations

import re
from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import torch

from swiftlet_models.encodings import Encoding
from swiftlet_models.heads import Model
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.losses import label_loss
from swiftlet_train.loop import acceleration
from swiftlet_train.loop.acceleration import TokenCounter, accelerated
from swiftlet_train.loop.cpu_acceleration import Bf16Attention, dropout
from swiftlet_train.loop.gpu_acceleration import Packing, can_be_packed, compiled, packed
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import train
from swiftlet_train.pretraining.knowledge_transfer import record_attention
from tests.support.checkpoints import relative_error
from tests.support.networks import NETWORKS, VOCABULARY, network
from tests.support.tiers import first
from tests.support.training import SILENT

CPU = torch.device("cpu")
LENGTHS = (9, 1, 33, 2, 40)
CLASSIFIERS = sorted({architecture for architecture, _ in NETWORKS})


def examples() -> list[Example]:
    draw = np.random.default_rng(0)
    encodings = [
        Encoding(draw.integers(5, VOCABULARY, length), np.zeros(length, np.int64), np.array([0])) for length in LENGTHS
    ]
    return [Example(encoding, (number % 2,)) for number, encoding in enumerate(encodings)]


def gradients(model: Model) -> dict[str, torch.Tensor]:
    model.zero_grad()
    label_loss(task_logits(model, examples()), examples()).backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def classifier(architecture: str) -> Model:
    return network(architecture, next(task for name, task in NETWORKS if name == architecture)).eval()


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    largest = max(float(one.abs().max()) for one in expected.values())
    assert all(float((found[name] - expected[name]).abs().max()) <= 1e-5 * largest for name in expected)


@pytest.mark.parametrize("architecture", first(["albert", "bert", "mobilebert", "roberta"], "albert", "mobilebert"))
def test_layers_without_padding_have_the_same_gradients(architecture, monkeypatch):
    model = deepcopy(network(architecture, "classify")).eval()
    expected, attended = gradients(model), []
    attend = Packing.attend
    monkeypatch.setattr(Packing, "attend", lambda *args: attended.append(args[1].shape) or attend(*args))
    assert can_be_packed(model.encoder)
    with packed(model.encoder):
        found = gradients(model)

    assert {shape[:2] for shape in attended} == {(1, sum(LENGTHS))}  # nothing is padded
    assert_same(found, expected)
    attended.clear()
    assert_same(gradients(model), expected)
    assert not attended


@pytest.mark.parametrize(
    "architecture", first([name for name in CLASSIFIERS if name != "deberta_v2"], "bert", "gpt2", "modernbert", "mpnet")
)
def test_attention_in_bf16_is_as_exact_as_autocast(architecture, monkeypatch):
    """Also with padding, a position bias and a causal mask."""
    encoder, attended = deepcopy(classifier(architecture).encoder), []
    attend = Bf16Attention.attend
    monkeypatch.setattr(Bf16Attention, "attend", lambda *args: attended.append(args[1].dtype) or attend(*args))
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]  # (B, S)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, VOCABULARY, mask.shape, generator=draw)
    weights = torch.randn(encoder.config.hidden_size, generator=draw)

    def gradients() -> dict[str, torch.Tensor]:
        encoder.zero_grad()
        (encoder(ids, torch.zeros_like(ids), mask).float() @ weights)[mask].square().mean().backward()
        return {name: one.grad.clone() for name, one in encoder.named_parameters() if one.grad is not None}

    exact = gradients()
    with torch.autocast("cpu", torch.bfloat16):
        autocast = gradients()
        with accelerated(encoder, CPU, bf16=True):
            found = gradients()
    assert attended == [torch.bfloat16] * len(encoder.applied_layers())
    norm = sum(float(one.square().sum()) for one in exact.values()) ** 0.5

    def error(others: dict[str, torch.Tensor]) -> float:
        return sum(float((others[name] - one).square().sum()) for name, one in exact.items()) ** 0.5 / norm

    assert error(found) <= 1.5 * error(autocast) <= 0.03
    assert_same(gradients(), exact)
    assert len(attended) == len(encoder.applied_layers())


@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (64, 1000)])
def test_dropout_keeps_the_mean(shape):
    torch.manual_seed(1)
    x = torch.ones(shape, requires_grad=True)
    found = dropout(x, 0.1)
    found.backward(torch.full(shape, 2.0))
    torch.manual_seed(1)
    again = dropout(x, 0.1)

    assert set(found.detach().unique().tolist()) <= {0.0, float(torch.tensor(1.0) / 0.9)}
    assert torch.equal(x.grad, 2 * found)
    assert torch.equal(again, found)
    if x.numel() > 1000:
        assert abs(float((found == 0).float().mean()) - 0.1) < 0.005
        assert not torch.equal(dropout(x, 0.1), found)


def test_dropout_is_replaced_while_a_network_trains():
    module = torch.nn.Dropout(0.5)
    with accelerated(torch.nn.Sequential(module), CPU, bf16=False):
        torch.manual_seed(1)
        trained = module(torch.ones(100))
        torch.manual_seed(1)
        assert torch.equal(trained, dropout(torch.ones(100), 0.5))
        assert torch.equal(module.eval()(torch.ones(100)), torch.ones(100))
    assert "forward" not in vars(module)


def test_networks_with_other_attention_keep_their_padding():
    found = {architecture: can_be_packed(classifier(architecture).encoder) for architecture in CLASSIFIERS}

    padded = {architecture for architecture, can in found.items() if not can}
    assert padded == {"deberta_v2", "gpt2", "modernbert", "mpnet"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("packs", "backend"), [(False, "aot_eager"), (True, "eager")])
def test_compiled_layers_have_the_same_gradients(packs, backend):
    model = deepcopy(network("bert", "classify")).eval()
    expected = gradients(model)
    with packed(model.encoder) if packs else nullcontext(), compiled(model, backend=backend):
        assert_same(gradients(model), expected)
        assert model.encoder.applied_layers()[0]._compiled_call_impl is not None
    assert model.encoder.applied_layers()[0]._compiled_call_impl is None


@pytest.mark.exhaustive
def test_compiled_layers_notice_hooks():
    """A knowledge transfer records attention in some steps only."""
    encoder = deepcopy(network("bert", "classify")).eval().encoder
    ids, types, mask = torch.ones(2, 7).long(), torch.zeros(2, 7).long(), torch.ones(2, 7).bool()
    with record_attention(encoder, mask) as expected:
        encoder(ids, types, mask)
    with compiled(encoder, backend="eager"):
        encoder(ids, types, mask)
        with record_attention(encoder, mask) as found:
            encoder(ids, types, mask)
        assert len(found) == len(encoder.applied_layers())
        assert all(relative_error(*pair) <= 1e-5 for pair in zip(found, expected, strict=True))
        encoder(ids, types, mask)
        assert len(found) == len(encoder.applied_layers())


def test_tokens_of_training_steps_are_counted():
    model = deepcopy(network("bert", "classify")).eval()
    counter = TokenCounter(model)
    task_logits(model, examples())
    task_logits(model, examples())
    with torch.no_grad():
        task_logits(model, examples())

    assert counter.take() == 2 * sum(LENGTHS)
    assert counter.take() == 0
    counter.close()
    task_logits(model, examples())
    assert counter.take() == 0


def test_training_reports_tokens_and_a_share_of_the_peak(tmp_path, monkeypatch):
    """With the means of a GPU, on the CPU."""
    monkeypatch.setattr("swiftlet_train.loop.trainer.measured_peak", lambda _: 1e9)
    monkeypatch.setattr(acceleration, "compiled", lambda model: given.append(model) or nullcontext())

    class Cuda:
        """The CPU under another name."""

        type = "cuda"

    model, reports, given = deepcopy(network("bert", "classify")), [], []
    before = {name: one.clone() for name, one in model.state_dict().items()}
    monkeypatch.setattr(model, "to", lambda _: model)
    monkeypatch.setattr("torch.autocast", lambda *_, **__: torch.amp.autocast_mode.autocast("cpu", torch.bfloat16))

    def losses(_number):
        return {"labels": label_loss(task_logits(model, examples()), examples())}

    schedule = Schedule(41, 1e-4, precision="bf16")
    train(model, losses, schedule, tmp_path, seed=1, device=Cuda(), report=reports.append)  # type: ignore[arg-type]

    assert all(re.search(r"GFLOP/s, [\d,]+ tokens/s, \d+% of the peak\)$", line) for line in reports)
    assert len(reports) == 3
    assert len(given) == 1
    assert any(not torch.equal(before[name], one) for name, one in model.state_dict().items())
    assert "forward" not in vars(model.encoder)
    assert "features" not in vars(model.encoder)


def test_training_on_the_cpu_is_not_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(acceleration, "compiled", None)
    model = deepcopy(network("bert", "classify"))
    train(
        model,
        lambda _: {"labels": label_loss(task_logits(model, examples()), examples())},
        Schedule(1, 1e-4),
        tmp_path,
        seed=1,
        report=SILENT,
    )
