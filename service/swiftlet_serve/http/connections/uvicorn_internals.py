"""The parts of uvicorn that are not its documented interface.

Documented, and imported where it is used, is `uvicorn.Config`. Everything else is imported here and nowhere else:

- `RequestResponseCycle` runs the application for one request: it is the ASGI `receive` and `send`, and it writes the
  response. `AsgiExchange` passes it a scope and a transport, feeds it the body, and reads its state.
- `FlowControl` pauses and resumes a transport.
- `Lifespan` sends the application its start-up and shutdown events.

`USED` lists every attribute that the service touches, `FINGERPRINTS` the source that was read when it was written.
`tests/http/test_uvicorn_internals.py` fails if uvicorn's source changes, or if the service uses anything else.
"""

from __future__ import annotations

from typing import Final

from uvicorn.lifespan.on import LifespanOn as Lifespan
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

__all__ = ["FINGERPRINTS", "USED", "FlowControl", "Lifespan", "RequestResponseCycle"]

USED: Final[dict[str, frozenset[str]]] = {
    "cycle": frozenset(
        {
            "body",
            "disconnected",
            "keep_alive",
            "message_event",
            "more_body",
            "response_complete",
            "response_started",
            "run_asgi",
        }
    ),
    "flow": frozenset({"drain", "pause_reading", "pause_writing", "resume_reading", "resume_writing", "write_paused"}),
    "lifespan": frozenset({"should_exit", "shutdown", "startup"}),
}
"""The attributes in use, by the name of the variable or attribute that holds the object."""

FINGERPRINTS: Final = {
    FlowControl: "126debcdaa894c83",
    Lifespan: "7feeee872a28668b",
    RequestResponseCycle: "e67d470d435dcc1c",
}
"""The first 16 hexadecimal digits of the SHA-256 of each class's source, in uvicorn 0.54.0."""
