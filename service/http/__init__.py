"""The HTTP server and its application.

A request passes these modules, from top to bottom:

1. `listener` accepts the connection and `connection` receives the bytes. `read_scheduler` decides when they are read.
2. `request_parser` parses the head and `request_head` validates it.
3. `request_tracker` creates the request's record. `request_guard` checks the API key, the rate limit, the deadline and
   the expected wait. A refused request gets its response here; neither a route nor its body is looked at.
4. `middleware` starts the application with the record as a context variable. It turns exceptions into problem details.
5. `app` routes the request to `task_endpoint`, which reads and validates the body with `bodies` and calls
   `Pipeline.answer`: encode, admit, submit to the dispatcher, decode. The pipeline marks the record of an admitted
   request as accepted and counts it.
6. `middleware` adds headers to the response and has the tracker finish the record for statistics, access log and
   traces. `response_transport` writes the response.

`server` runs it all: the ports, start-up, draining and shutdown.
"""
