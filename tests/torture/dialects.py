"""The torture case of the dialects: hostile requests in every one, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Final

import grpc
import uvloop

from loadtest.server_process import ServerProcess, serving
from swiftlet_serve.http_client import Client, ConnectionLost, Response, request_bytes
from tests.support.grpc_server import FAULTS, damage, damaged_sources
from tests.support.grpc_server import Client as GrpcClient
from tests.support.hostile import CANARY, Attack
from tests.support.hostile_dialects import attacks, models
from tests.torture.outcome import Outcome, scaled

PATIENCE_S: Final = 60.0
WAVE: Final = 16  # requests that arrive at once
GRPC_SHARE: Final = 5  # one request in so many is a call


def hostile_dialects(_: Path, scale: float) -> list[Outcome]:
    """Sends attacks in every dialect. Every request gets an answer or an error of its client's, without its text."""
    count = scaled(100_000, scale, 300)
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(models(Path(directory)), "echo", "--log-level", "debug", "--grpc-port", "0") as server,
    ):
        complaints = uvloop.run(_attack(server, count))
        alive = server.process.poll() is None
        status = server.stop()
        echoes = len(CANARY.findall(server.logged()))
    shown = "; ".join(f"{text}: {times}" for text, times in complaints.items()) or "0 x 5xx, 0 echoes, 0 lost"
    crashed = not alive or status != 0
    return [
        Outcome("hostile dialects", count, shown, "0 x 5xx, 0 echoes, 0 lost", not complaints.total()),
        Outcome("hostile dialects: crashes", count, str(int(crashed)), "0", not crashed),
        Outcome("hostile dialects: echoes in the log", count, str(echoes), "0", not echoes),
    ]


async def _attack(server: ServerProcess, count: int) -> Counter[str]:
    complaints: Counter[str] = Counter()
    client, calls = Client(server.url), GrpcClient(str(server.grpc_address))
    pick, sources = random.Random(count), damaged_sources()

    async def send(attack: Attack) -> None:
        request = request_bytes(attack.path, attack.body, attack.headers, attack.method)
        try:
            response = await asyncio.wait_for(client.send(request), PATIENCE_S)
        except ConnectionLost:
            complaints["no response"] += 1
            return
        if (found := _complaint(attack, response)) is not None:
            complaints[found] += 1

    async def call(message: bytes) -> None:
        code = await calls.call("ModelInfer", message, timeout=PATIENCE_S).code()
        if code not in (grpc.StatusCode.OK, *FAULTS):
            complaints[str(code)] += 1

    by_grpc = count // GRPC_SHARE
    flood = attacks(seed=count, count=count - by_grpc)
    while wave := list(islice(flood, WAVE)):
        await asyncio.gather(*map(send, wave))
    for _ in range(by_grpc // WAVE):
        await asyncio.gather(*(call(damage(pick.choice(sources), pick)) for _ in range(WAVE)))
    client.close()
    await calls.channel.close()
    return complaints


def _complaint(attack: Attack, response: Response) -> str | None:
    """Returns what is wrong with the response to an attack; None if it is correct. Contains no text of the attack."""
    if response.status >= 500:
        return f"status {response.status}"
    if response.status == 200:
        return None
    head = " ".join([response.reason, *response.headers.values()])
    if attack.canary in (head + response.body.decode()).lower():
        return f"an echo with status {response.status}"
    try:
        error = json.loads(response.body)
    except ValueError:
        return f"status {response.status} without JSON"
    has_error = isinstance(error, dict) and error.keys() & {"code", "detail", "error", "message"}
    return None if has_error else f"status {response.status} without an error"
