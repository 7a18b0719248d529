"""The start of a MobileBERT: each of its layers as near to one of a BERT or ALBERT as a bottleneck allows.

Everything is a linear regression on a sample of texts, one layer after the other: each is fitted to what the
teacher's layer makes, from what the student's layers before it really give it, so that it makes up for their errors.
NoNorm keeps all of it linear but for the neurons. Without a layer of the teacher's to begin with, a network that cannot
normalise hardly learns in the time that a CPU gives it.

Shape letters: see `architectures/layers.py`; N are the real tokens of the sample's rows (R, S), C is the width inside a
layer.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from swiftlet_serve.models.architectures import albert, bert, mobilebert
from swiftlet_serve.models.architectures.layers import attend, padding_bias
from swiftlet_serve.models.heads import MaskedLM, Model
from swiftlet_serve.models.training.start import Sample, fit, principal_directions, regress
from swiftlet_serve.models.training.transfer import layers, twin

SourceLayer = albert.Layer | bert.Layer
FITTED: Final = 3  # times that two parts of the masked-LM head are fitted in turn
LEAST: Final = 0.05  # what is kept of the stream, per dimension: it is divided by


@torch.no_grad()
def start_mobilebert(student: Model, teacher: albert.Encoder | bert.Encoder, counts: Tensor, sample: Sample) -> None:
    """Starts a MobileBERT whose stream is as wide as the teacher's.

    counts (V,) weighs the words; an ALBERT's are taken as they are, and are to be as wide as the student's. Layers are
    only started where they are MobileBERT's own, with bottlenecks no wider than the stream and without norms, and as
    many heads as its.
    """
    encoder = student.encoder
    assert isinstance(encoder, mobilebert.Encoder)  # noqa: S101  # tells the type checker
    config = encoder.config
    assert isinstance(config, mobilebert.Config)  # noqa: S101  # the same
    read = sample.input_ids, sample.token_type_ids, sample.mask
    known = teacher.features(*read)
    start_embeddings(encoder.embeddings, teacher.embeddings, counts, sample, known[0])
    sources = layers(teacher)
    heads = {layer.heads for layer in layers(encoder) + sources}
    own = config.shared_key_query and config.normalization_type == "no_norm" and config.inner_size <= config.hidden_size
    if len(heads) > 1 or not own:
        return
    stream, depth = encoder.embeddings(*read), len(encoder.layers)
    bias = padding_bias(sample.mask, stream.dtype)
    for number, layer in enumerate(encoder.layers, start=1):
        after = twin(number, depth, len(sources))
        source = sources[after - 1]
        assert isinstance(layer, mobilebert.Layer)  # noqa: S101  # tells the type checker
        assert isinstance(source, SourceLayer)  # noqa: S101  # the same
        start_layer(layer, source, stream, known[after - 1], known[after], sample.mask)
        stream = layer(stream, bias)


def start_embeddings(
    target: mobilebert.Embeddings,
    source: albert.Embeddings | bert.Embeddings,
    counts: Tensor,
    sample: Sample,
    known: Tensor,
) -> None:
    """Starts the embeddings so that the sample gives nearly what the teacher's give of it, (R, S, H).

    NoNorm cannot normalise, so the teacher's norm is replaced by its mean effect.
    """
    assert target.projection is not None  # noqa: S101  # tells the type checker
    places = slice(sample.mask.shape[1])
    typical = source.word.weight + source.position.weight[places].mean(0) + source.token_type.weight[0]
    scale = source.norm.weight / (typical.std(1) * counts / counts.sum()).sum()
    position = source.position.weight[: target.position.num_embeddings] * scale
    token_type = source.token_type.weight * scale
    if isinstance(source, albert.Embeddings):
        target.word.weight.copy_(source.word.weight)
        position, token_type = (table @ source.projection.weight.T for table in (position, token_type))
    else:
        basis = principal_directions(source.word.weight, counts, target.word.embedding_dim)  # (H, E)
        target.word.weight.copy_(source.word.weight @ basis)
    target.position.weight[: len(position)] = position
    target.token_type.weight.copy_(token_type)
    words = target.window(target.word(sample.input_ids) * sample.mask[:, :, None])
    beside = target.position.weight[places] + target.token_type(sample.token_type_ids)
    fit(target.projection, words[sample.mask], (known - beside)[sample.mask])


def start_layer(
    layer: mobilebert.Layer, source: SourceLayer, stream: Tensor, entering: Tensor, leaving: Tensor, mask: Tensor
) -> None:
    """Starts a layer that reads the stream (R, S, H) as the source, which makes `leaving` of `entering`.

    mask (R, S) is true on real tokens.
    """
    assert layer.enter is not None  # noqa: S101  # tells the type checker
    assert layer.leave is not None  # noqa: S101  # the same
    assert layer.leave_norm is not None  # noqa: S101  # the same
    bias = padding_bias(mask, stream.dtype)
    parts = source.query(entering), source.key(entering), source.value(entering)
    given = attend(*parts, source.heads, bias)
    query, key, value = (part[mask] for part in parts)
    start_attention(layer, source, stream[mask], (query, key, value), given[mask])
    between = source.attention_norm(entering + source.output(given))[mask]  # (N, H): what its neurons read
    made, s = leaving[mask], stream[mask]

    # Inside, the layer holds the directions in which both of them differ most.
    basis = common_directions(between, made, layer.output.out_features)  # (H, C)
    inner = (between - between.mean(0)) @ basis
    key_query = stream if layer.enter_attention is None else layer.enter_attention(stream)
    found = attend(layer.query(key_query), layer.key(key_query), layer.value(stream), layer.heads, bias)[mask]
    weight, constant = regress(torch.cat([s, found], 1), inner)
    layer.enter.dense.weight.copy_(weight[: s.shape[1]].T)
    layer.enter.dense.bias.zero_()
    layer.output.weight.copy_(weight[s.shape[1] :].T)
    layer.output.bias.copy_(constant)
    x = layer.enter(s) + layer.output(found)
    x = start_feed_forward(layer, source, x, between, (made - made.mean(0)) @ basis)

    # What leaves is a map of the inside, and of each dimension of the stream a share.
    keep = kept_share(x, s, made).clamp(min=LEAST)
    fit(layer.leave, x, made / keep - s)
    layer.leave_norm.weight.copy_(keep)
    layer.leave_norm.bias.zero_()


def start_attention(
    layer: mobilebert.Layer, source: SourceLayer, s: Tensor, parts: tuple[Tensor, Tensor, Tensor], given: Tensor
) -> None:
    """Starts what attends: of each head the directions that say most, and for keys and queries those they share.

    s is the stream; parts are the source's queries, keys and values, and given is what it attends to, (N, H) each.
    """
    assert layer.enter_attention is not None  # noqa: S101  # tells the type checker
    heads, width = source.heads, layer.query.out_features // source.heads
    query, key, value = parts
    outputs = source.output.weight.chunk(heads, dim=1)  # (H, D) each
    pairs = zip(query.chunk(heads, 1), key.chunk(heads, 1), strict=True)
    narrowed = [narrow_pair(q, k, width) for q, k in pairs]
    queries, keys = (torch.cat(parts, 1) for parts in zip(*narrowed, strict=True))  # (N, C) each
    values = torch.cat(
        [
            v @ narrow_value(z, output, width)
            for v, z, output in zip(value.chunk(heads, 1), given.chunk(heads, 1), outputs, strict=True)
        ],
        dim=1,
    )
    weight, _ = regress(s, torch.cat([queries, keys], 1))
    spread = root(covariance(s))
    directions, _, _ = torch.linalg.svd(spread @ weight, full_matrices=False)
    shared = inverse(spread) @ directions[:, : layer.query.in_features]  # (H, C)
    layer.enter_attention.dense.weight.copy_(shared.T)
    layer.enter_attention.dense.bias.copy_(-s.mean(0) @ shared)
    read = layer.enter_attention(s)
    fit(layer.query, read, queries)
    fit(layer.key, read, keys)
    fit(layer.value, s, values)


def start_feed_forward(
    layer: mobilebert.Layer, source: SourceLayer, x: Tensor, between: Tensor, wanted: Tensor
) -> Tensor:
    """Starts the feed-forward networks, one after the other, with the teacher's neurons that say most.

    x (N, C) enters the first; the last should give `wanted` (N, C). Returns what it gives. `between` (N, H) is what the
    teacher's neurons read.
    """
    heights = source.ffn_in(between)
    said = source.act(heights).square().mean(0) * source.ffn_out.weight.square().sum(0)
    blocks = [block for block in (*layer.ffns, layer.last_ffn) if isinstance(block, mobilebert.FeedForward)]
    order = said.argsort(descending=True)
    for number, block in enumerate(blocks):
        kept = order[number :: len(blocks)][: block.dense_in.out_features]
        weight, bias = regress(x, heights[:, kept])
        block.dense_in.weight[: len(kept)] = weight.T  # where there is more room, the rest is left as it was drawn
        block.dense_in.bias[: len(kept)] = bias
        neurons = block.act(block.dense_in(x))
        fit(block.dense_out, neurons, wanted - x)
        x = x + block.dense_out(neurons)
    return x


@torch.no_grad()
def start_words(head: MaskedLM, source: MaskedLM, words: Tensor, stream: Tensor, known: Tensor) -> None:
    """Starts what predicts words as an ALBERT's, whose word table (V, E) the student shares.

    stream and known (N, H) are what the student's and the source's head read of the same tokens. The table's E columns
    say what they say to the source. What they miss, since ReLU is not GELU, is said through the columns that are the
    student's alone: they read the negative halves and the large values of the same directions.
    """
    assert head.extra is not None  # noqa: S101  # tells the type checker
    width = words.shape[1]
    inner = source.transform(known)  # (N, E)
    weight, bias = regress(stream, inner)
    parts = [(weight, bias), (-weight, -bias), (weight, bias - inner.std(0))]
    for number in range(head.transform.out_features // width):
        rows = slice(number * width, (number + 1) * width)
        head.transform.weight[rows] = parts[number % len(parts)][0].T
        head.transform.bias[rows] = parts[number % len(parts)][1]
    wanted, given = source.norm(source.act(inner)), head.norm(head.act(head.transform(stream)))
    own, rest = given[:, :width], given[:, width:]
    beside = torch.zeros_like(wanted)
    for _ in range(FITTED):  # either is fitted to what the other leaves
        scale = ((wanted - beside) * own).mean(0) / own.square().mean(0)
        weight, bias = regress(rest, wanted - own * scale)
        beside = rest @ weight + bias
    head.norm.weight[:width] = scale
    head.norm.bias[:width] = bias
    head.extra.copy_(words @ weight.T)
    head.bias.copy_(source.bias)


def narrow_pair(query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Of a head's queries and keys (N, D) those (N, width) whose products, once scaled, are nearest to theirs.

    What is the same for all keys does not count: a softmax does not see it.
    """
    key = key - key.mean(0)
    q, k = root(query.T @ query / len(query)), root(key.T @ key / len(key))
    left, size, right = torch.linalg.svd(q @ k)
    scale = size[:width].sqrt() * (width / query.shape[1]) ** 0.25  # scores are divided by the root of the width
    return query @ inverse(q) @ left[:, :width] * scale, key @ inverse(k) @ right[:width].T * scale


def narrow_value(given: Tensor, output: Tensor, width: int) -> Tensor:
    """The directions (D, width) of a head's values that say most, given (N, D), in what the output (H, D) makes.

    Their size is shared between the values and the output, so that neither learns faster than the other.
    """
    spread = root(covariance(given))
    _, size, right = torch.linalg.svd(output @ spread, full_matrices=False)
    found: Tensor = inverse(spread) @ right[:width].T * size[:width].sqrt()
    return found


def common_directions(one: Tensor, other: Tensor, count: int) -> Tensor:
    """The directions (H, count) that hold most of what varies in both (N, H)."""
    spreads = [covariance(x) for x in (one, other)]
    _, directions = torch.linalg.eigh(sum(spread / spread.trace() for spread in spreads))
    found: Tensor = directions[:, -count:]
    return found


def kept_share(x: Tensor, stream: Tensor, made: Tensor) -> Tensor:
    """How much of each dimension (H,) of the stream (N, H) is in what is made (N, H), beside a map of x (N, C)."""

    def rest(y: Tensor) -> Tensor:
        weight, bias = regress(x, y)
        return y - x @ weight - bias

    ours, theirs = rest(stream), rest(made)
    return (ours * theirs).mean(0) / ours.square().mean(0)


def covariance(x: Tensor) -> Tensor:
    """(D, D) of rows (N, D)."""
    centred = x - x.mean(0)
    return centred.T @ centred / len(x)


def root(matrix: Tensor) -> Tensor:
    """The square root of a covariance, which is kept invertible."""
    sizes, directions = torch.linalg.eigh(matrix)
    found: Tensor = (directions * sizes.clamp(min=1e-4 * float(sizes.max())).sqrt()) @ directions.T
    return found


def inverse(matrix: Tensor) -> Tensor:
    """The inverse of such a root."""
    found: Tensor = torch.linalg.inv(matrix)
    return found
