"""The HTTP server and its application.

A request passes these modules, from top to bottom:

1. `connections`: `listener` accepts the connection and `connection` receives the bytes. `read_scheduler` decides when
   they are read. `request_parser` parses and validates the head.
2. `gate`: `Gate.begin` finds the route in the `route_table`, and checks the API key, the rate limit, the deadline and
   the expected wait. A refused request gets its response here, and its body is not looked at.
3. `connections`: `connection` receives the body, and has the gate answer the request in an asyncio task.
4. `gate`: `Gate.answer` calls the route. A route that runs a model is a `ModelEndpoint` of `endpoints`: it validates
   the body with `bodies` and calls `Pipeline.answer`, which encodes, submits to the dispatcher and decodes. The routes
   of `dialects` translate the protocols of other servers, and the pages run no model.
5. `gate`: an error becomes problem details, or has the form of the dialect. The gate adds headers to the response and
   finishes the record for statistics, access log and traces. The connection writes the response.

gRPC and `asgi_transport`, for other ASGI servers, call the same gate. `app` makes it, and the FastAPI application that
describes its routes. `swiftlet_serve.server` runs it all: the ports, start-up, draining and shutdown.
"""
