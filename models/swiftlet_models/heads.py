"""The heads, and the model: an encoder with one head on top.

A head maps hidden states to outputs, (N, H) -> (N, O). It reads only the positions in `focus`. The head
`classification` reads one token, `token` reads every token, `masked_lm` reads the masked positions, and `causal_lm` the
tokens before those that it predicts. For the head `embedding`, a position in `focus` stands for its sequence, whose
tokens are pooled, or for itself. Shape letters: see `architectures/layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from swiftlet_models import architectures
from swiftlet_models.architectures.layers import ACTIVATIONS, Encoder
from swiftlet_models.architectures.settings import Settings
from swiftlet_models.artifact import Embedding, Head, Pooling
from swiftlet_models.tensors import Weights


class Classification(nn.Module):
    """One logit per label from the [CLS] position, through a pooler if the architecture has one."""

    def __init__(self, config: Settings, width: int) -> None:
        super().__init__()
        traits, h = config.traits(), config.hidden_size
        self.pooler = nn.Linear(h, h) if traits.pooler else None
        self.act = ACTIVATIONS[traits.pooler] if traits.pooler else None
        self.norm = nn.LayerNorm(h, traits.epsilon) if traits.classifier_norm else nn.Identity()
        self.pools_late = traits.classifier_pooling == "late"
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.output = nn.Linear(h, width)

    def pooled(self, rows: Tensor) -> Tensor:
        """Returns what the outputs are made of."""
        return rows if self.pooler is None or self.act is None else self.norm(self.act(self.pooler(rows)))

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # all heads share one signature
        out: Tensor = self.output(self.dropout(rows if self.pools_late else self.pooled(rows)))
        return out


class TokenOutput(nn.Module):
    """O logits per token. Question answering has two: the start and the end of the answer (BERT, section 4.2)."""

    def __init__(self, config: Settings, width: int) -> None:
        super().__init__()
        traits, h = config.traits(), config.hidden_size
        self.transform: nn.Linear | None = None
        if traits.pooler and traits.classifier_norm:
            self.transform = nn.Linear(h, h)
            self.act, self.norm = ACTIVATIONS[traits.pooler], nn.LayerNorm(h, traits.epsilon)
        self.output = nn.Linear(h, width)

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # all heads share one signature
        if self.transform is not None:
            rows = self.norm(self.act(self.transform(rows)))
        out: Tensor = self.output(rows)
        return out


class MaskedLM(nn.Module):
    """One logit per vocabulary token, computed with the encoder's own word embeddings (BERT's "tied" decoder).

    P is the width before the vocabulary projection. It equals the embedding width E in BERT and ALBERT. In MobileBERT
    P is larger than E, and the head holds the P - E columns that the embedding table lacks.
    """

    def __init__(self, config: Settings) -> None:
        super().__init__()
        traits, p = config.traits(), config.prediction_size
        self.act = ACTIVATIONS[traits.prediction_act]
        self.transform = nn.Linear(config.hidden_size, p)
        self.norm = nn.LayerNorm(p, traits.epsilon)
        missing = p - config.embedding_size
        self.extra = nn.Parameter(torch.empty(config.vocab_size, missing)) if missing else None
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:
        """words: the encoder's word embeddings, (V, E)."""
        x = self.norm(self.act(self.transform(rows)))  # (N, P)
        if self.extra is None:
            return F.linear(x, words, self.bias)
        stored, missing = x[:, : words.shape[1]], x[:, words.shape[1] :]
        out: Tensor = F.linear(stored, words, self.bias) + F.linear(missing, self.extra)
        return out


class CausalLM(nn.Module):
    """One logit per vocabulary token for the next token, computed with the encoder's own word embeddings.

    It is also the masked-LM head of architectures without a map in front of the vocabulary.
    """

    def __init__(self, config: Settings) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:
        """words: the encoder's word embeddings, (V, H)."""
        return F.linear(rows, words, self.bias)


class Vectors(nn.Module):
    """The outputs of an embedding model, side by side.

    They are the hidden states, through a dense layer if the model has one (Dense of sentence-transformers) and the
    layers with ReLU in front of it, one weight for a sparse vector, and the vector of a token.
    """

    def __init__(self, config: Settings, width: int, embedding: Embedding) -> None:
        super().__init__()
        self.pooling: Pooling = embedding.pooling
        several, h = embedding.multi_vector, config.hidden_size
        own = width - (embedding.sparse is not None) - (several.width if several else 0)
        self.vector = embedding.vector
        widths = (h, *embedding.hidden_widths)
        self.hidden = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.output = nn.Linear(widths[-1], own) if embedding.vector and embedding.dense else None
        self.act = ACTIVATIONS.get(embedding.dense or "", nn.Identity())
        self.reads_unit = embedding.dense == "unit"
        self.terms = nn.Linear(h, 1) if embedding.sparse else None
        self.vectors = nn.Linear(h, several.width) if several else None

    def forward(self, rows: Tensor, words: Tensor) -> Tensor:  # noqa: ARG002  # all heads share one signature
        vectors = F.normalize(rows) if self.reads_unit else rows
        for layer in self.hidden:
            vectors = F.relu(layer(vectors))
        parts = [rows if self.output is None else self.act(self.output(vectors))] if self.vector else []
        parts += [layer(rows) for layer in (self.terms, self.vectors) if layer is not None]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """Returns the mean or the maximum over the tokens of each sequence, (B, S, H) -> (B, H). mask is (B, S)."""
    padding = ~mask[:, :, None]
    if pooling == "max":
        return hidden.masked_fill(padding, -torch.inf).amax(1)
    return hidden.masked_fill(padding, 0).sum(1) / mask.sum(1)[:, None]


class Model(nn.Module):
    """An encoder with a head: the network of an artifact."""

    def __init__(self, encoder: Encoder, head: nn.Module, *, pools_outputs: bool = False) -> None:
        """With `pools_outputs`, a position in focus stands for the largest outputs of its sequence's tokens."""
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.pooling: Pooling | Literal["late"] = "cls"
        self.pools_outputs = pools_outputs
        if isinstance(head, Vectors):
            self.pooling = head.pooling
        if isinstance(head, Classification):
            self.pooling = encoder.config.traits().classifier_pooling

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, lengths: Tensor, focus: Tensor) -> Tensor:
        """Runs B sequences and returns the outputs at N positions, (N, O).

        input_ids and token_type_ids are (B, S), padded at the end with any ids. lengths (B,) counts the real tokens of
        each sequence. focus (N,) holds positions b * S + s.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        mask = positions[None, :] < lengths[:, None]  # (B, S)
        hidden = self.encoder(input_ids, token_type_ids, mask)  # (B, S, H)
        if self.pools_outputs:
            outputs: Tensor = self.head(hidden, self.encoder.embeddings.word.weight)  # (B, S, O)
            return pool(outputs, mask, "max")[focus // input_ids.shape[1]]
        if isinstance(self.head, Classification) and self.pooling == "late":
            hidden = self.head.pooled(hidden)
        if self.pooling in ("cls", "last"):
            rows = hidden.flatten(0, 1)[focus]  # (N, H)
        else:
            rows = pool(hidden, mask, self.pooling)[focus // input_ids.shape[1]]  # (N, H)
        out: Tensor = self.head(rows, self.encoder.embeddings.word.weight)
        return out


def build(
    architecture: str, config: Mapping[str, Any], head: Head, width: int = 0, embedding: Embedding | None = None
) -> Model:
    """Builds a model with untrained weights (normal, 0.02, as BERT's).

    `width` is the number of outputs per position. The heads `masked_lm` and `causal_lm` ignore it: their width is the
    vocabulary size. `embedding` describes the head `embedding`, which needs it.

    Raises:
        ValueError: the architecture is unknown, or the configuration has an unknown setting.
    """
    module = architectures.load(architecture)
    try:
        settings = module.Config(**config)
    except TypeError as error:
        raise ValueError(f"{architecture}: {error}") from None
    encoder = module.Encoder(settings)
    layers: nn.Module
    match head:
        case "classification":
            layers = Classification(settings, width)
        case "token":
            layers = TokenOutput(settings, width)
        case "masked_lm":
            layers = MaskedLM(settings) if settings.traits().prediction_map else CausalLM(settings)
        case "causal_lm":
            layers = CausalLM(settings)
        case "embedding":
            if embedding is None:
                raise ValueError("the head embedding needs its pooling")
            layers = MaskedLM(settings) if embedding.by_vocabulary else Vectors(settings, width, embedding)
    model = Model(encoder, layers, pools_outputs=embedding is not None and embedding.by_vocabulary)
    model.apply(_initialise)
    return model


def fill(model: Model, weights: Weights) -> Model:
    """Copies parameters into a network, and returns it, ready to run. What the weights lack stays as it is.

    Raises:
        RuntimeError: a parameter has another shape.
        WeightsError: a parameter cannot be read.
    """
    tensors = {name: torch.from_numpy(np.asarray(weight)) for name, weight in weights.items()}
    model.load_state_dict(tensors, strict=False)
    return model.eval()


def weights_of(model: Model) -> Weights:
    """Returns the parameters of a network, which share its memory on a CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}


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
