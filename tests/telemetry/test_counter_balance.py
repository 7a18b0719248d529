"""Counters balance: accepted = answered + failed + cancelled + in flight, at every scrape."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.support.engines import TEST_ENGINES
from tests.support.fakes import PATIENCE_S
from tests.support.metrics import ACCEPTED, FINISHED, IN_FLIGHT, MODELS, REFUSED, imbalance, scrape, total
from tests.support.processes import read_response, request, serving


class LoadClient:
    """Sends valid, late, malformed and aborted requests, and counts the responses."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.sent = 0
        self.aborted = 0

    async def send_one(self) -> None:
        kind = self._random.choice(["good", "good", "good", "late", "malformed", "aborted", "unknown route"])
        text = {"inputs": "xyzzyplugh" * self._random.randrange(1, 5)}
        headers = ["X-Request-Timeout-Ms: 3"] if kind == "late" else []
        body = b"{" if kind == "malformed" else json.dumps(text).encode()
        self.sent += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request("/nowhere" if kind == "unknown route" else "/classify", body, headers))
            if kind == "aborted":
                self.aborted += 1
                await asyncio.sleep(self._random.random() / 50)
                writer.transport.abort()
                return
            self.statuses[(await asyncio.wait_for(read_response(reader), PATIENCE_S)).status] += 1
            writer.close()

    async def run(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self.send_one()


async def test_counters_balance_at_every_scrape_under_load_and_faults(artifact_dir, tmp_path):
    """Clients disconnect, send malformed requests and set short deadlines. The engine fails, is slow and is killed."""
    for name in MODELS:
        (tmp_path / name).symlink_to(artifact_dir / name, target_is_directory=True)
    (tmp_path / "slow").write_text("0.002")

    models = ",".join(str(tmp_path / name) for name in MODELS)
    options = ("--engine", "switchable", "--models", models, "--cores", "2", "--admin-port", "0")
    with serving(artifact_dir, *options, "--spare-engine", "true", code=TEST_ENGINES) as server:
        stopped, clients = asyncio.Event(), [LoadClient(server.port, seed) for seed in range(12)]
        running = [asyncio.ensure_future(client.run(stopped)) for client in clients]
        imbalances, max_in_flight = [], 0.0
        for number in range(60):
            series = await scrape(server.admin_port)
            imbalances.append(imbalance(series))
            max_in_flight = max(max_in_flight, total(series, IN_FLIGHT))
            if number == 20:
                (tmp_path / "broken").touch()
            if number == 24:
                (tmp_path / "broken").unlink()
            if number == 40:
                for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
                    for pid in children.read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
            await asyncio.sleep(0.03)
        stopped.set()
        await asyncio.gather(*running)
        async with asyncio.timeout(PATIENCE_S):
            while total(series := await scrape(server.admin_port), IN_FLIGHT):
                await asyncio.sleep(0.05)

    balanced = dict.fromkeys(MODELS, 0)
    assert all(found == balanced for found in imbalances)
    assert imbalance(series) == balanced
    assert max_in_flight > 1
    statuses = sum((client.statuses for client in clients), Counter())
    refused = {code: total(series, REFUSED, reason=code) for code in ("invalid_json", "unknown_route")}
    answered = total(series, FINISHED, outcome="answered")
    assert 50 < statuses[200] <= answered <= statuses[200] + sum(client.aborted for client in clients)
    assert total(series, FINISHED, outcome="cancelled") > 0
    assert total(series, FINISHED, outcome="failed") > 0
    assert refused["invalid_json"] == statuses[400] > 0
    assert refused["unknown_route"] == statuses[404] > 0
    assert total(series, "swiftlet_deadline_exceeded_total") == statuses[504]
    assert total(series, "swiftlet_engine_restarts_total") > 0
    # Only requests that were aborted before the server read them may be missing.
    counted = total(series, ACCEPTED) + total(series, REFUSED)
    assert sum(statuses.values()) <= counted <= sum(client.sent for client in clients)
