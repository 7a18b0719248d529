"""Prometheus's protobuf format, which alone carries native histograms.

Source: https://github.com/prometheus/client_model/blob/master/io/prometheus/client/metrics.proto. Prometheus asks for
it where native histograms are enabled. A native histogram has buckets whose bounds grow by a constant factor, and only
those that hold a value are sent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.samples import Exemplar, Sample

from swiftlet_serve.service.telemetry.histogram import SCHEMA

MEDIA_TYPE: Final = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
TYPES: Final = {"counter": 0, "gauge": 1, "histogram": 4}  # all that Swiftlet has
VARINT, DOUBLE, BYTES = 0, 1, 2  # wire types

NativeBuckets = Mapping[int, int]
"""Counts by the index of the bucket: bucket i ends at 2 ** (i / 2 ** SCHEMA), inclusively."""


def encode(families: Iterable[Metric], native: Mapping[str, Mapping[tuple[str, ...], NativeBuckets]]) -> bytes:
    """Returns metrics as delimited messages of the type MetricFamily.

    Args:
        families: counters, gauges and histograms.
        native: the native buckets of histograms, by name, and then by the values of their labels.
    """
    out = bytearray()
    for family in families:
        message = _message(family, native.get(family.name, {}))
        out += _varint(len(message)) + message
    return bytes(out)


def _message(family: Metric, native: Mapping[tuple[str, ...], NativeBuckets]) -> bytes:
    is_counter = family.type == "counter"
    parts = [
        _text(1, f"{family.name}_total" if is_counter else family.name),
        _text(2, family.documentation),
        _number(3, TYPES[family.type]),
    ]
    if family.type == "histogram":
        parts += [_field(4, metric) for metric in _histograms(family.samples, native)]
    else:
        kind = 3 if is_counter else 2
        parts += [_field(4, _labels(each.labels) + _field(kind, _double(1, each.value))) for each in family.samples]
    return b"".join(parts)


def _histograms(samples: Iterable[Sample], native: Mapping[tuple[str, ...], NativeBuckets]) -> Iterator[bytes]:
    """Yields a message for each histogram. Its samples are the buckets, the count and the sum, in this order."""
    buckets: list[bytes] = []
    count = 0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"])
            exemplar = b"" if sample.exemplar is None else _field(3, _exemplar(sample.exemplar))
            buckets.append(_field(3, _number(1, int(sample.value)) + _double(2, bound) + exemplar))
        elif sample.name.endswith("_count"):
            count = int(sample.value)
        else:
            content = [_number(1, count), _double(2, sample.value), *buckets]
            own = native.get(tuple(sample.labels.values()))
            if own is not None:
                content += _native(own)
            yield _labels(sample.labels) + _field(7, b"".join(content))
            buckets = []


def _native(buckets: NativeBuckets) -> Iterator[bytes]:
    """Yields the fields of native buckets: spans of adjacent buckets, and the differences between their counts."""
    yield _number(5, _zigzag(SCHEMA))
    yield _double(6, 0.0)  # zero_threshold
    yield _number(7, 0)  # zero_count
    filled = sorted(index for index, count in buckets.items() if count)
    if not filled:
        yield _field(12, _number(1, 0) + _number(2, 0))  # an empty span says that the histogram is native
    end = 0
    for first, length in _runs(filled):
        yield _field(12, _number(1, _zigzag(first - end)) + _number(2, length))
        end = first + length
    before = 0
    for index in filled:
        yield _number(13, _zigzag(buckets[index] - before))
        before = buckets[index]


def _runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """Yields the first index and the length of each run of adjacent indices."""
    start = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield indices[start], at - start
            start = at


def _labels(labels: Mapping[str, str]) -> bytes:
    return b"".join([_field(1, _text(1, name) + _text(2, value)) for name, value in labels.items() if name != "le"])


def _exemplar(exemplar: Exemplar) -> bytes:
    seconds, rest = divmod(float(exemplar.timestamp or 0.0), 1)
    time = _number(1, int(seconds)) + _number(2, int(rest * 1e9))
    return _labels(exemplar.labels) + _double(2, exemplar.value) + _field(3, time)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value)


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | DOUBLE) + struct.pack("<d", value)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
