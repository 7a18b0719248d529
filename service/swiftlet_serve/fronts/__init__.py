"""Several HTTP processes on one port, over one admission, one queue and one pool of engine processes.

    client ─▶ front process 1 ─┐
    client ─▶ front process 2 ─┼─ socket pairs ─▶ coordinator ─▶ dispatcher ─▶ executor
    client ─▶ front process 3 ─┘

A front does the work that scales with processes: it parses HTTP, checks API keys, and encodes and decodes texts. The
coordinator is the process that was started. It does the work that must be in one place: it decides and queues.

`messages`, `channel`, `stats_messages`
    The messages between the two sides, over one socket pair per front.
`load_page`
    The load of the coordinator in shared memory. A front reads it to refuse a request before it reads the body.
`coordinator`, `front_process`, `front_requests`
    The coordinator's side: supervises the fronts, and runs the requests of each.
`remote_scheduling`, `front_runtime`, `front_main`
    The front's side: a runtime whose requests another process admits and runs, and the entry point of a front.
"""
