"""Bad messages: each gets the status of the client's fault, without its text."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import InvalidRequest, Unprocessable
from swiftlet_serve.grpc import messages
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.inference.local_runtime import LocalRuntime
from tests.support.apps import SECRET, make_runtime
from tests.support.grpc_server import FAULTS, columns, damage, damaged_sources, request, serving, valid_request

DAMAGES = 600


@pytest.fixture(scope="module")
def runtime(artifact_dir) -> LocalRuntime:
    return make_runtime(artifact_dir, grpc_port=0)


def changed(change: Callable[[pb.ModelInferRequest], object], *, packed: bool = False) -> pb.ModelInferRequest:
    message = valid_request(packed=packed)
    change(message)
    return message


def tensor(datatype: str, shape: list[int], **contents: Any) -> Callable[[pb.ModelInferRequest], object]:
    """Returns a change that adds an input, whose name is that of a parameter."""
    return lambda message: message.inputs.add(
        name="top_k", datatype=datatype, shape=shape, contents=pb.InferTensorContents(**contents)
    )


def parameter(name: str, **value: Any) -> Callable[[pb.ModelInferRequest], object]:
    return lambda message: message.parameters[name].CopyFrom(pb.InferParameter(**value))


def shape(*sizes: int) -> Callable[[pb.ModelInferRequest], None]:
    def change(message: pb.ModelInferRequest) -> None:
        message.inputs[0].shape[:] = sizes

    return change


def packed(*values: bytes) -> Callable[[pb.ModelInferRequest], None]:
    def change(message: pb.ModelInferRequest) -> None:
        message.raw_input_contents[:] = values

    return change


BAD: dict[str, tuple[pb.ModelInferRequest | bytes, str]] = {
    "no message": (b"\xff" * 9, "bad_framing"),
    "empty": (b"", "unknown_model"),
    "a name that is not UTF-8": (b"\n\x01\xff", "bad_framing"),
    "no inputs": (pb.ModelInferRequest(model_name="classify"), "validation_failed"),
    "65 inputs": (request("classify", {str(i): [SECRET] for i in range(65)}), "validation_failed"),
    "2**31 elements": (changed(shape(2**31)), "validation_failed"),
    "2**62 elements": (changed(shape(2**31, 2**31)), "validation_failed"),
    "a negative size": (changed(shape(-2)), "validation_failed"),
    "nine dimensions": (changed(shape(2, *[1] * 8)), "validation_failed"),
    "no shape": (changed(shape()), "validation_failed"),
    "an unknown datatype": (changed(tensor(SECRET, [1], int_contents=[1])), "bad_framing"),
    "an unknown datatype without values": (changed(tensor(SECRET, [1])), "validation_failed"),
    "values of another datatype": (changed(tensor("FP32", [1], int_contents=[1])), "bad_framing"),
    "values in two fields": (changed(tensor("INT32", [1], int_contents=[1], bytes_contents=[b"a"])), "bad_framing"),
    "a half without raw contents": (changed(tensor("FP16", [1])), "validation_failed"),
    "a parameter of two values": (changed(tensor("INT32", [2], int_contents=[1, 2])), "validation_failed"),
    "text that is not UTF-8": (changed(tensor("BYTES", [1], bytes_contents=[b"\xff"])), "invalid_utf8"),
    "packed text that is not UTF-8": (changed(packed(b"\1\0\0\0\xff"), packed=True), "invalid_utf8"),
    "a length that lies": (changed(packed(b"\xff\xff\xff\x7fa"), packed=True), "bad_framing"),
    "half a length": (changed(packed(b"\1\0"), packed=True), "bad_framing"),
    "no packed text": (changed(packed(b""), packed=True), "validation_failed"),
    "too many packed inputs": (changed(packed(b"", b""), packed=True), "bad_framing"),
    "packed and plain": (changed(lambda message: message.raw_input_contents.append(b"")), "bad_framing"),
    "an unknown parameter": (changed(parameter(SECRET, int64_param=1)), "validation_failed"),
    "a parameter of another type": (changed(parameter("top_k", string_param=SECRET)), "validation_failed"),
    "a parameter too large": (changed(parameter("top_k", uint64_param=2**64 - 1)), "validation_failed"),
    "a list that is not JSON": (changed(parameter("top_k", string_param=f"[{SECRET}")), "validation_failed"),
    "an unknown output": (changed(lambda message: message.outputs.add(name=SECRET)), "validation_failed"),
    "a blank text": (request("classify", {"text": [" "]}), "empty_input"),
    "a missing input": (request("qa", {"question": [SECRET]}), "validation_failed"),
}


@pytest.mark.parametrize("name", BAD)
async def test_bad_message_is_refused(name, runtime, caplog):
    message, code = BAD[name]

    async with serving(make_runtime_like(runtime)) as (_, client):
        error = await client.fail("ModelInfer", message)
    assert error.code() in FAULTS
    assert error.trailing_metadata()["error-code"] == code
    assert SECRET not in f"{error.details()}{error.trailing_metadata()}{caplog.text}"


def make_runtime_like(runtime: LocalRuntime) -> LocalRuntime:
    """Returns a runtime over the same artifacts, since a runtime opens once."""
    return LocalRuntime.load(runtime.settings)


PIECES = {
    "input": b"\x2a\x00",
    "input with a tag of three bytes": b"\xaa\x80\x00\x00",
    "output": b"\x32\x00",
    "packed value": b"\x3a\x01*",
    "parameter": b"\x22\x00",
    "unknown number": b"\x50\xff\x01",
    "unknown fixed number": b"\x51" + bytes(8),
    "unknown short number": b"\x55" + bytes(4),
}


@pytest.mark.parametrize("parent", ["", "input", "output"])
@pytest.mark.parametrize("piece", PIECES)
def test_message_with_too_many_fields_is_refused_before_it_is_parsed(piece, parent, monkeypatch):
    monkeypatch.setattr(messages, "MAX_FIELDS", 99)

    def parse(fields: int) -> pb.ModelInferRequest:
        data = PIECES[piece] * (fields - bool(parent))
        if parent:
            data = PIECES[parent][:1] + bytes([len(data) & 127 | 128, len(data) >> 7]) + data
        return messages.parse(pb.ModelInferRequest, data)

    if not (parent and piece.startswith(("packed", "input", "output"))):
        parse(99)
    monkeypatch.setattr(pb.ModelInferRequest, "ParseFromString", None)  # it is not called
    with pytest.raises(Unprocessable) as raised:
        parse(100)
    assert raised.value.field_errors[0].code == "too_many_items"


async def test_call_with_too_many_fields_is_refused(artifact_dir):
    async with serving(make_runtime(artifact_dir, 1 << 20, grpc_port=0)) as (_, client):
        error = await client.fail("ModelInfer", b"\x2a\x00" * 500_000)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.trailing_metadata()["error-code"] == "validation_failed"


def test_values_of_tensors_are_no_fields():
    message = valid_request()
    message.inputs[0].contents.bytes_contents[:] = [b"a"] * (2 * messages.MAX_FIELDS)

    assert messages.parse(pb.ModelInferRequest, message.SerializeToString()) == message


@given(st.lists(st.sampled_from([*PIECES.values(), b"\x2a\x04", b"\x2b", b"\xff"]) | st.binary(max_size=9)))
def test_any_bytes_are_a_message_or_refused(pieces):
    with suppress(InvalidRequest, Unprocessable):
        messages.parse(pb.ModelInferRequest, b"".join(pieces) * 99)


async def test_parameter_without_a_value_is_left_out(runtime):
    message = changed(lambda message: message.parameters["nothing"].SetInParent())

    async with serving(make_runtime_like(runtime)) as (_, client):
        result = await client.call("ModelInfer", message)
    assert [len(row) for row in columns(result)["label"]] == [2, 2]


async def test_no_damaged_message_fails_in_the_server(runtime, caplog):
    pick = random.Random(7)
    damaged = [damage(pick.choice(damaged_sources()), pick) for _ in range(DAMAGES)]

    async def ask(client: Any, message: bytes) -> grpc.StatusCode:
        call = client.call("ModelInfer", message)
        code = await call.code()
        assert SECRET not in f"{await call.details()}{await call.trailing_metadata()}"
        return code

    live = make_runtime_like(runtime)
    async with serving(live) as (_, client):
        codes = [await ask(client, message) for message in damaged]
    assert set(codes) <= {grpc.StatusCode.OK, *FAULTS}
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT} <= set(codes)
    assert SECRET not in caplog.text
    assert live.stats.models["tiny-classify"].in_flight == 0
