"""How far each layer of a network moves the hidden states (ALBERT, Lan et al. 2019, arXiv:1909.11942, figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from swiftlet_models.artifact import TOKENIZER, Artifact, open_artifact
from swiftlet_models.encodings import Encoding, TextTooLong
from swiftlet_models.heads import Model
from swiftlet_models.regular_file import check_regular
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.engines.torch import load_network
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.offline import pictures
from swiftlet_train.study import join_rows

STUDY: Final = "distances"  # the name of the study that compares artifacts


@dataclass(frozen=True)
class Distance:
    """The distance between the input and the output of one layer, as the mean over all tokens."""

    l2: float
    degrees: float
    """The angle between the two vectors, from 0 to 180."""


Measured = tuple[str, Sequence[Distance]]
"""The name of a model, and the distances of its layers."""


def run_distances(artifacts: Sequence[str], texts: Path, out: Path) -> tuple[str, Path]:
    """Measures artifacts on texts, one a line. Returns the table of results and the path of the plot under `out`.

    Raises:
        SetupError, ModelError: an artifact or the texts cannot be read, or a text is too long for a model.
    """
    lines = _read_texts(texts)
    measured = []
    for artifact in map(open_artifact, locate(artifacts)):
        name, layers = artifact.manifest.name, layer_distances(load_network(artifact), _encode(artifact, lines))
        if not layers:
            raise SetupError(f"{name} has no layers to measure.")
        measured.append((name, layers))
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{STUDY}.svg"
    plot_distances(measured, path)
    return format_distances(measured), path


@torch.inference_mode()
def layer_distances(model: Model, encodings: Sequence[Encoding]) -> list[Distance]:
    """Returns the distances of each layer of a network, in the order of their application."""
    measured = []
    for encoding in encodings:
        ids, types = (torch.from_numpy(row)[None] for row in (encoding.input_ids, encoding.token_type_ids))
        states = torch.cat(model.encoder.features(ids, types, torch.ones_like(ids, dtype=torch.bool))).double()
        before, after = states[:-1], states[1:]  # (L, S, H)
        cosine = F.cosine_similarity(before, after, dim=2).clamp(-1, 1)
        measured.append(torch.stack([(after - before).norm(dim=2), cosine.arccos().rad2deg()]))  # (2, L, S)
    return [Distance(*layer) for layer in torch.cat(measured, 2).mean(2).T.tolist()]


def format_distances(measured: Sequence[Measured]) -> str:
    """Returns a Markdown table with a row for each layer of each model."""
    rows = [["model", "layer", "L2 distance", "angle (degrees)"], ["---", "---:", "---:", "---:"]]
    for name, layers in measured:
        rows += [[name, str(i), f"{layer.l2:.2f}", f"{layer.degrees:.1f}"] for i, layer in enumerate(layers, 1)]
    return join_rows(rows)


def plot_distances(measured: Sequence[Measured], out: Path) -> None:
    """Writes an SVG with a panel for each distance and a curve for each model."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    for axes, (kind, title) in zip(
        figure.subplots(1, 2), (("l2", "L2 distance"), ("degrees", "angle (degrees)")), strict=True
    ):
        for name, layers in measured:
            axes.plot(range(1, len(layers) + 1), [getattr(layer, kind) for layer in layers], label=name, marker=".")
        axes.set(title=title, xlabel="layer", ylim=(0, None))
        axes.legend()
    pictures.save(figure, out)


def _read_texts(path: Path) -> list[str]:
    try:
        check_regular(path)
        lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError):
        raise SetupError(f"{path} is not a readable file in UTF-8.") from None
    if not lines:
        raise SetupError(f"{path} holds no text.")
    return lines


def _encode(artifact: Artifact, texts: Sequence[str]) -> list[Encoding]:
    manifest = artifact.manifest
    tokenizer = Tokenizer.load(artifact.file(TOKENIZER), manifest.reading)
    try:
        return tokenizer.encode(texts, manifest.max_tokens, truncate=False)
    except TextTooLong as error:
        raise SetupError(
            f"Text {error.index + 1} has {error.tokens} tokens, but {manifest.name} reads at most "
            f"{manifest.max_tokens}. Shorten it."
        ) from None
