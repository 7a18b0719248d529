"""Several HTTP processes on one port, over one admission, one queue and one pool of engine processes.

    client ─▶ front process 1 ─┐
    client ─▶ front process 2 ─┼─ socket pairs ─▶ coordinator ─▶ dispatcher ─▶ executor
    client ─▶ front process 3 ─┘

A front parses HTTP, checks API keys, and encodes and decodes texts: all that scales with processes. The coordinator is
the process that was started. It decides and queues: what must be in one place.

`messages`, `channel`, `stats_messages`
    What the two sides send each other, over one socket pair for each front.
`load_page`
    The load of the coordinator in shared memory, by which a front refuses a request before it reads the body.
`coordinator`, `front_process`, `front_requests`
    The coordinator's side: supervises the fronts, and runs the requests of each.
`remote_scheduling`, `front_runtime`, `front_main`
    The front's side: a runtime whose requests another process admits and runs, and the entry point of a front.
"""
