"""A port: what all of its responses have in common."""

from __future__ import annotations

import asyncio

import pytest

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.connections.listener import Listener, bind
from swiftlet_serve.http.connections.port import Port
from tests.http.connections.test_pipelines import REQUESTS
from tests.support.apps import make_runtime
from tests.support.fakes import PATIENCE_S


@pytest.mark.parametrize("origins", ["", "https://page.example"])
async def test_every_response_forbids_sniffing(origins, artifact_dir):
    """Those of pages and tasks, of errors, of requests that are no HTTP, and of preflights."""
    preflight = b"OPTIONS /classify HTTP/1.1\r\nHost: a\r\nOrigin: https://page.example\r\n"
    preflight += b"Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
    from_page = REQUESTS["422"].replace(b"\r\n\r\n", b"\r\nOrigin: https://page.example\r\n\r\n", 1)
    pages = [
        b"GET %b HTTP/1.0\r\n\r\n" % path for path in (b"/", b"/models", b"/openapi.json", b"/metrics", b"/v1/models")
    ]

    runtime = make_runtime(artifact_dir, cors_origins=origins)
    app = create_app(runtime)
    await runtime.open()
    listener = Listener(bind("127.0.0.1", 0))
    port = Port(app.gate, listener, runtime.settings)
    await port.serve()
    for request in (*REQUESTS.values(), *pages, preflight, from_page):
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            head = (await reader.readuntil(b"\r\n\r\n")).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = head or await reader.readuntil(b"\r\n\r\n")
        assert head.lower().count(b"x-content-type-options: nosniff\r\n") == 1, head
        writer.close()
    await port.close()
    await runtime.close()
