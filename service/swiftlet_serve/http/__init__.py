"""The HTTP server and its application.

A request passes these modules, from top to bottom:

1. `connections`: `listener` accepts the connection and `connection` receives the bytes. `read_scheduler` decides when
   they are read. `request_parser` parses the head and `request_head` validates it.
2. `gate`: `request_tracker` creates the request's record. `request_guard` finds the route in the `route_table`, and
   checks the API key, the rate limit, the deadline and the expected wait. A refused request gets its response here, and
   its body is not looked at.
3. `connections`: `exchange` runs the request. `gate.task_routes` finds the endpoint of an ordinary request to a model.
   The ASGI application runs all others: `gate.middleware`, the routes of `app`, and the same endpoints.
4. `endpoints`: `task_endpoint` validates the body with `bodies` and calls `Pipeline.answer`: encode, admit, submit to
   the dispatcher, decode. The pipeline marks the record of an admitted request as accepted and counts it.
   `dialect_parts.dialect_endpoint` does the same for the routes of `dialects`, which translate the protocols of other
   servers.
5. An error becomes problem details, or has the form of the dialect. The tracker adds headers to the response and
   finishes the record for statistics, access log and traces. The connection writes the response.

`service.server` runs it all: the ports, start-up, draining and shutdown.
"""
