"""No text of a request appears in logs, errors, metrics or traces."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.support.engines import TEST_ENGINES
from tests.support.processes import ask, serving

CANARY = "xyzzyplugh"
BODIES = {
    "text": json.dumps({"inputs": f"a film about {CANARY}"}).encode(),
    "not JSON": f'{{"inputs": {CANARY}'.encode(),
    "field": json.dumps({CANARY: "x", "inputs": "y"}).encode(),
    "type": json.dumps({"inputs": {CANARY: CANARY}}).encode(),
    "model": json.dumps({"inputs": "x", "model": CANARY}).encode(),
    "parameter": json.dumps({"inputs": "x", "parameters": {"function_to_apply": CANARY}}).encode(),
}
REQUESTS = [
    *((("/classify", body), {}) for body in BODIES.values()),
    ((f"/{CANARY}?{CANARY}={CANARY}", None), {}),
    (("/classify", BODIES["text"]), {"method": CANARY.upper()}),
    (("/classify", BODIES["text"]), {"headers": [f"Authorization: Bearer {CANARY}", f"Cookie: {CANARY}"]}),
    (("/classify", BODIES["text"]), {"headers": [f"Content-Type: {CANARY}", f"X-Request-Id: {CANARY} {CANARY}"]}),
    (("/classify", BODIES["text"]), {"headers": [f"traceparent: 00-{CANARY}", f"X-Request-Timeout-Ms: {CANARY}"]}),
    (("/classify", BODIES["text"]), {"headers": ["X-Request-Timeout-Ms: 1"]}),
]


@pytest.mark.parametrize("kind", ["text", "json"])
async def test_telemetry_never_contains_text_of_a_request(kind, artifact_dir, tmp_path):
    """The log level is debug, the access log is on, the engine fails at times, and a collector receives traces."""
    (tmp_path / "tiny-classify").symlink_to(artifact_dir / "tiny-classify", target_is_directory=True)
    exported: list[bytes] = []

    async def collect(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
        exported.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    collector = await asyncio.start_server(collect, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{collector.sockets[0].getsockname()[1]}/v1/traces"
    options = ("--engine", "switchable", "--models", str(tmp_path / "tiny-classify"), "--log-level", "debug")
    options += ("--access-log", "true", "--log-format", kind, "--traces-endpoint", endpoint)
    with serving(artifact_dir, *options, code=TEST_ENGINES) as server:
        responses = b""
        for broken in (False, True):
            if broken:
                (tmp_path / "broken").touch()
            for args, kwargs in REQUESTS:
                response = await ask(server.port, *args, **kwargs)
                responses += response.body + repr(response.headers).encode()
        responses += (await ask(server.port, "/metrics", None)).body
        server.stop()
        await asyncio.to_thread(server.wait)
    collector.close()
    responses, log = responses.decode(), server.stderr
    traces = b"".join(exported).decode("latin-1")

    assert "engine failed on one sequence" in log
    assert "POST" in log
    assert "infer" in traces
    for output in (responses, log, traces):
        assert CANARY not in output.lower()
    if kind == "json":
        lines = [json.loads(line) for line in log.splitlines()]
        assert {"time", "level", "logger"} <= set.intersection(*map(set, lines))
