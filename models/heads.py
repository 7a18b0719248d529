"""The heads, and the model: an encoder with one head on top.

Every head maps rows of hidden states to numbers, (N, H) -> (N, O), and sees only the rows that are read: [CLS] for
classification, the masks for masked language modelling, every token for question answering. Shape letters: see
`architectures/layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_serve.models import architectures
from swiftlet_serve.models.architectures.layers import ACTIVATIONS, Config, Encoder
from swiftlet_serve.models.artifact import Task


class Classification(nn.Module):
    """One logit per label from the [CLS] row, through a tanh pooler where the architecture has one."""

    def __init__(self, config: Config, labels: int) -> None:
        super().__init__()
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size) if config.pooler else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = nn.Linear(config.hidden_size, labels)

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # every head is called alike
        if self.pooler is not None:
            rows = torch.tanh(self.pooler(rows))
        out: Tensor = self.output(self.dropout(rows))
        return out


class QuestionAnswering(nn.Module):
    """A start and an end logit for every row (BERT, section 4.2)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.output = nn.Linear(config.hidden_size, 2)

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # every head is called alike
        out: Tensor = self.output(rows)
        return out


class MaskedLM(nn.Module):
    """One logit for every word of the vocabulary, against the input's own word table (BERT's "tied" decoder).

    P, the width before the vocabulary, is E where the table is as wide as that (BERT, ALBERT); where it is wider
    (MobileBERT), the P - E columns the table lacks are parameters of the head.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        p = config.prediction_size
        self.act = ACTIVATIONS[config.hidden_act]
        self.transform = nn.Linear(config.hidden_size, p)
        self.norm = nn.LayerNorm(p, config.layer_norm_eps)
        missing = p - config.embedding_size
        self.extra = nn.Parameter(torch.empty(config.vocab_size, missing)) if missing else None
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:
        """words: the encoder's word table, (V, E)."""
        x = self.norm(self.act(self.transform(rows)))  # (N, P)
        if self.extra is None:
            return F.linear(x, words, self.bias)
        known, unknown = x[:, : words.shape[1]], x[:, words.shape[1] :]
        out: Tensor = F.linear(known, words, self.bias) + F.linear(unknown, self.extra)
        return out


class Model(nn.Module):
    """An encoder and a head: what an artifact holds."""

    def __init__(self, encoder: Encoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, lengths: Tensor, focus: Tensor) -> Tensor:
        """Runs B rows and reads N positions of them.

        input_ids and token_type_ids are (B, S), padded at the end with any ids; lengths (B,) counts each row's real
        tokens; focus (N,) holds positions b * S + s. Returns (N, O).
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        mask = positions[None, :] < lengths[:, None]  # (B, S)
        hidden = self.encoder(input_ids, token_type_ids, mask)  # (B, S, H)
        rows = hidden.flatten(0, 1)[focus]  # (N, H)
        out: Tensor = self.head(rows, self.encoder.embeddings.word.weight)
        return out


def build(architecture: str, config: Mapping[str, Any], task: Task, labels: int = 0) -> Model:
    """A model with untrained weights (normal, 0.02, as BERT's).

    Raises:
        ValueError: no such architecture, or a configuration it does not know.
    """
    module = architectures.load(architecture)
    try:
        settings = module.Config(**config)
    except TypeError as error:
        raise ValueError(f"{architecture}: {error}") from None
    encoder = module.Encoder(settings)
    head: nn.Module
    match task:
        case "classify":
            head = Classification(settings, labels)
        case "qa":
            head = QuestionAnswering(settings)
        case "fill-mask":
            head = MaskedLM(settings)
    model = Model(encoder, head)
    model.apply(_initialise)
    return model


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    match module:
        case nn.Linear():
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        case nn.Embedding():
            nn.init.normal_(module.weight, std=0.02)
        case MaskedLM() if module.extra is not None:
            nn.init.normal_(module.extra, std=0.02)
