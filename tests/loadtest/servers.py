"""Small HTTP servers that stand in for the measured server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


class BacklogServer(ThreadingHTTPServer):
    request_queue_size = 128  # the callers of a closed loop connect at once, and again for each request


@contextmanager
def answering(handler: type[QuietHandler]) -> Iterator[str]:
    """Runs a server in a thread. Yields its URL."""
    with BacklogServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def http10_server(body: bytes) -> Iterator[tuple[str, list[str]]]:
    """Runs a server that has /v1/classify only, speaks HTTP/1.0, and closes each connection after its response.

    Yields its URL, and the paths of the requests so far.
    """
    paths: list[str] = []

    class Handler(QuietHandler):
        def parse_request(self) -> bool:
            understood = super().parse_request()
            paths.append(self.path)
            return understood

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if self.path == "/v1/classify" else 404)
            self.end_headers()
            self.wfile.write(body)

    with answering(Handler) as url:
        yield f"{url}/v1", paths
