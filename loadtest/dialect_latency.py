"""Measures what the protocols of other servers add to a request: one request in each, in turn, to one server.

    python -m loadtest.dialect_latency [ROUNDS]

The engine `echo` does nothing, so that the rest is small. A round sends the same text once in every protocol, in a
random order, over kept connections. The difference to Swiftlet's own route in the same round is free of what changes
from round to round. Then Triton's own clients ask in turn; they need `uv`.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import grpc
import numpy as np
import uvloop

from loadtest.server_process import serving
from swiftlet_serve.benchmark.measure import Interval
from swiftlet_serve.grpc import open_inference_pb2 as pb
from swiftlet_serve.http_client import Client, Connection, request_bytes

TEXT = "A warm, funny and clever film."
MANY = 64
WARM_UP_ROUNDS = 200
OWN = "Swiftlet"
INFER = "/v2/models/classify/infer"
MODEL = "albert-sst2"

Send = Callable[[], Awaitable[None]]


def http(connection: Connection, path: str, body: object, headers: Mapping[str, str] | None = None) -> Send:
    """Returns a function that sends this request. It raises SystemExit if the answer is an error."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = request_bytes(path, encoded, headers)

    async def send() -> None:
        response = await connection.send(request)
        if response.status != 200:
            raise SystemExit(f"{path} was answered with {response.status}.")

    return send


def tensor(texts: list[str]) -> dict[str, object]:
    return {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}


def pack(texts: list[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(len(item).to_bytes(4, "little") + item for item in encoded)


def binary(connection: Connection, texts: list[str]) -> Send:
    packed = pack(texts)
    described = tensor(texts) | {"parameters": {"binary_data_size": len(packed)}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return http(connection, INFER, head + packed, headers)


def over_grpc(channel: grpc.aio.Channel, texts: list[str]) -> Send:
    message = pb.ModelInferRequest(model_name="classify", raw_input_contents=[pack(texts)])
    message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    call = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request_serializer=pb.ModelInferRequest.SerializeToString,
        response_deserializer=pb.ModelInferResponse.FromString,
    )

    async def send() -> None:
        await call(message)

    return send


def senders(connection: Connection, channel: grpc.aio.Channel) -> dict[str, dict[str, Send]]:
    """Returns the requests to compare. The first of each table is the base."""
    many = [TEXT] * MANY
    return {
        "One text": {
            OWN: http(connection, "/classify", {"inputs": TEXT}),
            "Swiftlet, the same again": http(connection, "/classify", {"inputs": TEXT}),
            "Open Inference Protocol, JSON": http(connection, INFER, {"inputs": [tensor([TEXT]) | {"data": [TEXT]}]}),
            "Open Inference Protocol, binary": binary(connection, [TEXT]),
            "Open Inference Protocol, gRPC (client: grpc.aio)": over_grpc(channel, [TEXT]),
            "KServe v1": http(connection, "/v1/models/classify:predict", {"instances": [TEXT]}),
            "TEI": http(connection, "/predict", {"inputs": TEXT}),
            "Hugging Face, /models": http(connection, f"/models/{MODEL}", {"inputs": TEXT}),
            "vLLM": http(connection, "/classify", {"input": TEXT}),
            "SGLang": http(connection, "/v1/classify", {"input": TEXT}),
        },
        f"{MANY} texts": {
            "Open Inference Protocol, JSON": http(connection, INFER, {"inputs": [tensor(many) | {"data": many}]}),
            "Open Inference Protocol, binary": binary(connection, many),
            "Open Inference Protocol, gRPC (client: grpc.aio)": over_grpc(channel, many),
            OWN: http(connection, "/classify", {"inputs": many}),
        },
    }


async def measure(send: Mapping[str, Send], rounds: int) -> dict[str, list[float]]:
    """Returns the latencies of each request in microseconds, one for each round."""
    took: dict[str, list[float]] = {name: [] for name in send}
    order = list(send)
    shuffle = random.Random(1).shuffle
    for round_number in range(WARM_UP_ROUNDS + rounds):
        shuffle(order)
        for name in order:
            started = time.perf_counter()
            await send[name]()
            if round_number >= WARM_UP_ROUNDS:
                took[name].append(1e6 * (time.perf_counter() - started))
    return took


def table(title: str, took: Mapping[str, list[float]]) -> str:
    base = next(iter(took))
    lines = [f"| {title} | p50, µs | p99, µs | more than {base}, median of the differences (95 % interval) |"]
    lines.append("|---|---|---|---|")
    for name, own in took.items():
        more = Interval.of([own_s - first for own_s, first in zip(own, took[base], strict=True)])
        difference = "" if name == base else f"{more.value:+.0f} ({more.low:+.0f} to {more.high:+.0f})"
        lines.append(f"| {name} | {statistics.median(own):.0f} | {np.percentile(own, 99):.0f} | {difference} |")
    return "\n".join(lines)


async def run(url: str, address: str, rounds: int) -> None:
    connection = await Client(url).connect()
    async with grpc.aio.insecure_channel(address) as channel:
        for title, requests in senders(connection, channel).items():
            print(table(title, await measure(requests, rounds)) + "\n")
    connection.close()


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    with serving([MODEL], "echo", "--grpc-port", "0") as server:
        if server.grpc_address is None:
            raise SystemExit("The server has no gRPC port.")
        uvloop.run(run(server.url, server.grpc_address, rounds))
        clients = Path(__file__).with_name("triton_latency.py")
        command = ["uv", "run", "--quiet", "--no-project", str(clients), f"127.0.0.1:{server.port}"]
        subprocess.run([*command, server.grpc_address, str(rounds)], check=True)


if __name__ == "__main__":
    main()
