"""Helpers for the tests of training: a small teacher, a small recipe with its data, and a small network."""

from __future__ import annotations

import asyncio
import json
import lzma
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from swiftlet_models.artifact import Artifact
from swiftlet_models.heads import Model
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_train.examples.example import Example
from swiftlet_train.loop.schedule import Schedule
from swiftlet_train.loop.trainer import Losses, train
from swiftlet_train.recipe import Recipe
from swiftlet_train.run_recipe import load_recipe
from swiftlet_train.vocabulary.pruning import SPECIALS
from tests.support.checkpoints import SMALL, reference

SILENT = partial(lambda text: None)
TEACHER = "tiny_teacher_of_the_tests"
# The settings of an ALBERT.
BODY: dict[str, Any] = {"embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
BODY |= {"intermediate_size": 64, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
BODIES = {
    "classify": {"inputs": "the rain falls on the old mill"},
    "qa": {"inputs": {"question": "the mill", "context": "snow lies over the quiet town"}},
    "fill-mask": {"inputs": "the [MASK] falls on the old mill"},
    "embed": {"inputs": "the rain falls on the old mill"},
    "entities": {"inputs": "the rain falls on the old mill"},
    "zero-shot": {"inputs": "the rain falls", "parameters": {"candidate_labels": ["rain", "snow"]}},
    "rerank": {"inputs": {"query": "the mill", "texts": ["the old mill", "snow lies over the town"]}},
}


def answer_requests(artifacts: Sequence[Artifact], bodies: Mapping[str, Any]) -> dict[str, Any]:
    """Serves artifacts, and returns the answer of each to the request body of its task, by the artifact's name."""

    async def answer() -> dict[str, Any]:
        runtime = LocalRuntime.load(Settings(models=tuple(str(artifact.path) for artifact in artifacts)))
        try:
            answers = {}
            for artifact in artifacts:
                pipeline = runtime.pipelines[artifact.manifest.name]
                request = pipeline.model.task.Request.model_validate(bodies[artifact.manifest.task])
                answers[artifact.manifest.name] = await pipeline.answer(request, time.monotonic() + 60)
            return answers
        finally:
            await runtime.close()

    return asyncio.run(answer())


def make_word_tokenizer() -> Tokenizer:
    """Returns the tokenizer of `wordpiece` without truncation and padding."""
    tokens = wordpiece()
    tokens.no_padding()
    tokens.no_truncation()
    return Tokenizer(json.loads(tokens.to_str()))


def interrupted_train(model: nn.Module, compute_losses: Callable[[int], Losses], *arguments: Any, **named: Any) -> None:
    """Trains as `train` does, with a checkpoint after every second step, and is interrupted in the fifth step."""

    def interrupt(number: int) -> Losses:
        if number == 4:
            raise KeyboardInterrupt
        return compute_losses(number)

    train(model, interrupt, *arguments, **named, save_every=2)


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Returns whether two models have equal parameters and buffers."""
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


WORDS = ["rain", "falls", "on", "the", "old", "mill", "and", "river", "snow", "lies", "over", "quiet", "town"]


LETTERS = sorted(set("".join(WORDS)))


UNUSED = [f"[unused{number}]" for number in range(4)]


PIECES = [
    *["[PAD]", *UNUSED, "[UNK]", "[CLS]", "[SEP]", "[MASK]", "x", "q", "."],
    *LETTERS,
    *(f"##{letter}" for letter in [*LETTERS, "x"]),
    *[*WORDS, "riv", "##er", "##fall", "##s"],
]


def wordpiece(pieces: list[str] = PIECES, *, template: bool = True) -> tokenizers.Tokenizer:
    """Makes a tokenizer like BERT's: special tokens do not come first, and it truncates and pads."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = ("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])
    tokenizer.post_processor = (
        processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [cls, sep])
        if template
        else processors.BertProcessing(sep, cls)
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer


def teacher_package(directory: Path, name: str) -> None:
    """Writes a package with a small BERT under `model/`, like a recipe's teacher."""
    model = directory / name / "model"
    settings: dict[str, Any] = {"vocab_size": len(dict.fromkeys(PIECES)), "hidden_size": 32, "intermediate_size": 64}
    settings |= {"num_hidden_layers": 2, "max_position_embeddings": 128, "layer_norm_eps": 1e-12}
    reference(SMALL["bert"], "fill-mask", **settings).save_pretrained(model)
    wordpiece().save(str(model / "tokenizer.json"))
    (directory / name / "__init__.py").write_text("")


RECIPE = """
name = "tiny"
version = "3"
summary = "A test."
languages = ["en"]
seed = 1
teacher = "TEACHER"
vocab_size = 50
architecture = "albert"
[config]
embedding_size = 16
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 64
max_position_embeddings = 128
[pretraining]
corpora = { "text.txt.xz" = 40, "more.txt" = 9 }
sequence_length = 16
batch_size = 8
steps = 12
learning_rate = 1e-3
[pretraining.knowledge_transfer]
feature_weight = 1.0
[finetuning.tiny-mood]
task = "classify"
labels = ["QUIET", "LOUD"]
train = { "mood.tsv" = 1000 }
evaluate = "mood.tsv"
licences = ["our own"]
epochs = 8
batch_size = 8
learning_rate = 2e-3
max_tokens = 32
[[finetuning.tiny-mood.weaknesses]]
about = "shouting in the snow"
inputs = "SNOW! SNOW! SNOW!"
right = "VERY LOUD"
[[finetuning.tiny-mood.weaknesses]]
about = "none"
inputs = "the rain falls on the old rain"
right = "LOUD"
[finetuning.tiny-qa]
task = "qa"
train = { "asked.json" = 20 }
evaluate = "asked.json"
licences = ["our own"]
batch_size = 4
max_tokens = 32
[finetuning.tiny-mask]
task = "fill-mask"
evaluate = "text.txt.xz"
licences = ["our own"]
evaluate_skip = 30
evaluate_limit = 3
"""


def make_workshop(folder: Path) -> None:
    """Writes a recipe, its data and its teacher's package into a folder."""
    data = folder / "data"
    data.mkdir()
    chance = np.random.default_rng(0)

    def sentence(words: int) -> str:
        return " ".join(chance.choice(WORDS, words)) + "."

    articles = [f"= {number} =\n" + " ".join(sentence(9) for _ in range(8)) for number in range(36)]
    (data / "text.txt.xz").write_bytes(lzma.compress("\n".join(articles).encode()))
    (data / "more.txt").write_text("\n".join(sentence(40) for _ in range(20)), "utf-8")
    moods = [(number % 2, f"{sentence(3)} {['snow', 'rain'][number % 2]} {sentence(3)}") for number in range(64)]
    moods = [(label, text if label else text.replace("rain", "river")) for label, text in moods]
    (data / "mood.tsv").write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in moods), "utf-8")
    paragraphs = []
    for number in range(20):
        context = sentence(30)
        answer = context.split()[number]
        entry = {"id": str(number), "question": "the mill", "answers": [{"text": answer, "answer_start": 0}]}
        paragraphs.append({"context": context, "qas": [entry]})
    (data / "asked.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), "utf-8")
    teacher_package(folder / "packages", TEACHER)
    (folder / "tiny.toml").write_text(RECIPE.replace("TEACHER", TEACHER), "utf-8")


def tiny(project: Path, **changes: Any) -> Recipe:
    """Returns the recipe with another pre-training, of a MobileBERT, which shares no layers."""
    recipe = load_recipe(str(project / "tiny.toml"))
    config = {**recipe.config, "intra_bottleneck_size": 16, "num_feedforward_networks": 1}
    work = replace(recipe.pretraining, **{"steps": 6, "knowledge_transfer": None} | changes)
    return replace(recipe, architecture="mobilebert", config=config, pretraining=work)


def write_squad(path: Path, *asked: tuple[str, str, str, list[str]]) -> str:
    """Writes questions, each with an id, the question, its context and answers. Returns the file's name."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": name,
                    "question": question,
                    "is_impossible": not texts,
                    "plausible_answers": [],
                    "answers": [{"text": text, "answer_start": context.find(text)} for text in texts],
                }
            ],
        }
        for name, question, context, texts in asked
    ]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")
    return path.name


def write_lines(path: Path, *rows: dict[str, str]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


class SmallNetwork(nn.Module):
    """A network without dropout, so that its loss depends on the inputs only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.inner = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 1))

    def losses(self, number: int, rows: int) -> dict[str, Tensor]:
        every = torch.randn(960, 6, generator=torch.Generator().manual_seed(0))
        x = every[number * rows : (number + 1) * rows].to(next(self.parameters()).device)
        return {"square": (self.inner(x)[:, 0] - x.sum(1)).float().square().mean()}


def train_small_network(
    directory: Path, schedule: Schedule, rows: int = 8, hook: Callable[[int], None] | None = None, save_every: int = 10
) -> SmallNetwork:
    """Trains a small network on batches of `rows`. Calls `hook` with the number of each batch."""
    model = SmallNetwork()

    def loss(number: int) -> dict[str, Tensor]:
        if hook is not None:
            hook(number)
        return model.losses(number, rows)

    train(model, loss, schedule, directory, seed=3, save_every=save_every, report=lambda text: None)
    return model


def same_parameters(one: nn.Module, other: nn.Module, atol: float = 0.0) -> bool:
    """Returns whether two models have equal parameters, up to a tolerance."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(ours, theirs, rtol=0, atol=atol) for ours, theirs in pairs)


def stop_at(batch: int) -> Callable[[int], None]:
    """Returns a hook that interrupts a training at a batch."""

    def hook(number: int) -> None:
        if number == batch:
            raise KeyboardInterrupt

    return hook


def logits_alone(model: Model, example: Example) -> Tensor:
    """Returns the logits of one example without a batch, (C, K): C choices, and K = 2 for start and end, else 1."""
    ids, types = (torch.from_numpy(a)[None] for a in (example.encoding.input_ids, example.encoding.token_type_ids))
    rows: Tensor = model(ids, types, torch.tensor([ids.shape[1]]), torch.from_numpy(example.encoding.focus))
    return rows[[0, *example.context]] if example.context else rows.T
