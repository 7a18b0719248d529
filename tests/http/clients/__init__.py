"""Programs that use unmodified clients of other servers. Each prints what its clients did, as JSON.

A program names its packages in its first lines. `uv run` installs them in an environment of their own. The arguments
are three servers and texts, as JSON:

    uv run tests/http/clients/cohere_python.py \
        '{"url": "http://127.0.0.1:8000", "slow_url": "...", "limited_url": "..."}' '["A text.", "Another."]'

`slow_url` never answers in time. `limited_url` refuses every other request, by the rate limit and by a full queue in
turn. A program prints an object for each of its clients:

    version    of the client
    answers    {task: {"one": answer, "batch": answers}}, in the form that `test_clients` gives our own answers
    error      the class and the message of the error for a blank text
    deadline   the same, for a deadline that passes
    overload   the same for the rate limit and for a full queue; null where the client tried again by itself
"""
