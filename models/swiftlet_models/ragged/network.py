"""A folded network in torch, over a ragged batch.

It has the layers of `swiftlet_models.graphs.ragged`: query, residual, key and value are one product, and the last
layer computes only the N positions that the head reads. A network that pools, or attends causally or with a position
bias, computes all T tokens in every layer.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from swiftlet_models.architectures.layers import ACTIVATIONS
from swiftlet_models.folding import Array, Folded, Product
from swiftlet_models.ragged import in_torch
from swiftlet_models.ragged.attention import attend, attend_with_bias
from swiftlet_models.ragged.feed_forward import FeedForward
from swiftlet_models.ragged.in_torch import Kernels
from swiftlet_models.ragged.layout import Layout
from swiftlet_models.ragged.products import MakeProduct, Multiply, in_floats


class Network:
    """A folded network on a device."""

    def __init__(
        self,
        folded: Folded,
        device: torch.device,
        dtype: torch.dtype,
        make_product: MakeProduct = in_floats,
        kernels: Kernels = in_torch,
    ) -> None:
        """Puts a network on a device.

        Args:
            folded: the network.
            device: where it computes.
            dtype: of its activations.
            make_product: how its products are computed. That of a classifier's or a token head's output is in floats.
            kernels: what it computes between its products and attentions.
        """
        self.folded = folded
        self.traits = folded.traits
        self.outputs = folded.outputs
        self.kernels = kernels
        self._device, self.dtype = device, dtype
        self._words = self._tensor(np.asarray(folded.words))
        self._vectors = {name: self._tensor(vector) for name, vector in folded.vectors.items()}
        products = dict(folded.products)
        self._feed_forward: dict[str, FeedForward] = {}
        for name in {f"layers.{i}." for i in folded.order}:
            query, key_value = (products[name + part] for part in ("query_residual", "key_value"))
            products[name + "all"] = Product(
                np.concatenate([query.weight, key_value.weight]), np.concatenate([query.bias, key_value.bias])
            )
            if make_product is in_floats and (fused := FeedForward.of(folded, name, self._tensor)) is not None:
                self._feed_forward[name] = fused
                products = {key: part for key, part in products.items() if not fused.holds(key.removeprefix(name))}
        inner = folded.traits.activation
        self._products: dict[str, Multiply] = {
            name: make_product(product, device, dtype, inner if name.endswith(".inner") else None)
            for name, product in products.items()
        }
        if "head.output" in folded.vectors:
            output = Product(folded.vectors["head.output"], folded.vectors["head.output_bias"])
            self._products["head.output"] = in_floats(output, device, dtype)
        traits = folded.traits
        self.reads_all = folded.pooling != "cls" or traits.causal or traits.position_bias is not None
        self.has_static_shapes = traits.position_bias is None
        """Whether all shapes follow from the sizes of the layout. A position bias needs the longest length."""

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(np.asarray(array, np.float32)).to(self._device, self.dtype)

    def __call__(self, at: Layout) -> Tensor:
        """Returns the outputs at the N positions in focus, (N, O)."""
        x = self._embeddings(at)
        *before_last, last = self.folded.order
        for i in (*before_last, last) if self.reads_all else before_last:
            x = self._layer(i, x, at)
        if not self.reads_all:
            x = self._last_layer(last, x, at)
        if self.traits.norm_position == "before":
            x = self._layer_norm("final_norm", x)
        if self.folded.pooling != "cls":
            x = self._pooled(x, at)
        elif self.reads_all:
            x = x[at.focus]
        return self._head(x)

    def _embeddings(self, at: Layout) -> Tensor:
        traits, kernels, vectors = self.traits.embedding, self.kernels, self._vectors
        x, ids = self._words, at.input_ids
        if traits.window > 1:
            x = kernels.window(x, ids, at.before, at.after)  # (T, 3 E)
        elif traits.projection == "words":
            x = x[ids]
        if traits.projection == "words":
            x = self._products["embeddings.projection"](x)
        types = (at.token_type_ids, vectors["embeddings.token_type"]) if traits.token_types else None
        norm = self._norm("embeddings.norm") if traits.norm == "layer_norm" else None
        row_ids = None if traits.projection == "words" else ids
        x = kernels.add_embeddings(x, row_ids, at.positions, vectors["embeddings.position"], types, norm)
        return self._products["embeddings.projection"](x) if traits.projection == "sum" else x

    def _layer(self, i: int, x: Tensor, at: Layout) -> Tensor:
        """A layer that computes all T tokens."""
        name, width = f"layers.{i}.", self.folded.inner
        entered, x = x, self._preceding_norm(f"{name}attention_norm", x)
        parts = torch.split(self._products[name + "all"](x), width, 1)  # query, residual with a bottleneck, key, value
        query, key, value = (self._by_head(part) for part in (parts[0], parts[-2], parts[-1]))
        if self.traits.position_bias is None:
            heads = self.kernels.attend(query, key, value, at.ends, at.longest, causal=self.traits.causal)
        else:
            table = self._vectors["position_bias"]
            heads = attend_with_bias(query, key, value, at.ends, at.longest, table, causal=self.traits.causal)
        return self._after_attention(name, heads.flatten(1), parts[1] if self.traits.bottleneck else entered, entered)

    def _last_layer(self, i: int, x: Tensor, at: Layout) -> Tensor:
        """A layer that computes the N positions in focus."""
        name, width = f"layers.{i}.", self.folded.inner
        entered, x = x, self._preceding_norm(f"{name}attention_norm", x)
        key, value = map(self._by_head, torch.split(self._products[name + "key_value"](x), width, 1))
        entered, x = entered[at.focus], x[at.focus]
        parts = torch.split(self._products[name + "query_residual"](x), width, 1)
        heads = attend(self._by_head(parts[0]), key, value, at.focus_ends, at.ends, at.longest)
        return self._after_attention(name, heads.flatten(1), parts[1] if self.traits.bottleneck else entered, entered)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.traits.heads, -1)

    def _after_attention(self, name: str, attended: Tensor, residual: Tensor, entered: Tensor) -> Tensor:
        """The part of a layer after attention. `entered` are the hidden states that entered the layer."""
        if (layer := self._feed_forward.get(name)) is not None:
            return self.kernels.feed_forward(layer, attended, residual, entered)
        y = self._add_and_norm(name + "output", attended, residual)
        for j in range(len(self.traits.feed_forward)):
            network = f"{name}feed_forward.{j}."
            x = self._products[network + "inner"](self._preceding_norm(network + "norm", y))
            y = self._add_and_norm(network + "outer", x, y)
        return self._add_and_norm(name + "leave", y, entered) if self.traits.bottleneck else y

    def _add_and_norm(self, name: str, x: Tensor, residual: Tensor) -> Tensor:
        """A product, the residual and the norm that follows, unless the norms precede."""
        x = self._products[name](x)
        gain = self._vectors.get(name + ".gain")
        if gain is not None:
            return torch.addcmul(x, residual, gain)
        if self.traits.norm_position == "before":
            return x + residual
        return self._layer_norm(name + ".norm", x, residual)

    def _preceding_norm(self, name: str, x: Tensor) -> Tensor:
        return self._layer_norm(name, x) if self.traits.norm_position == "before" else x

    def _layer_norm(self, name: str, x: Tensor, residual: Tensor | None = None) -> Tensor:
        return self.kernels.layer_norm(x, residual, *self._norm(name))

    def _norm(self, name: str) -> tuple[Tensor, Tensor, float]:
        return self._vectors[name + ".weight"], self._vectors[name + ".bias"], self.folded.epsilon

    def _pooled(self, x: Tensor, at: Layout) -> Tensor:
        """The mean or the maximum of the tokens of each position's sequence, (N, H)."""
        how = "max" if self.folded.pooling == "max" else "mean"
        # `unsafe` skips a check that would wait for the device.
        pooled = torch.segment_reduce(x.float(), how, offsets=at.ends.long(), unsafe=True)
        return pooled[at.owner].to(x.dtype)

    def _head(self, x: Tensor) -> Tensor:
        folded = self.folded
        act = ACTIVATIONS[folded.head_activation] if folded.head_activation else None
        if "head.transform" in self._products and act is not None:
            x = self._layer_norm("head.norm", act(self._products["head.transform"](x)))
        if "head.pooler" in self._products and act is not None:
            x = act(self._products["head.pooler"](x))
        for name in ("head.decoder", "head.output"):
            if name in self._products:
                x = self._products[name](x)
        return ACTIVATIONS[folded.dense](x) if folded.dense else x
