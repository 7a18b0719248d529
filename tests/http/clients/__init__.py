"""Programs that use unmodified clients of other servers. Each prints the answers that its client returned, as JSON.

A program names its packages in its first lines. `uv run` installs them in an environment of their own.

    uv run tests/http/clients/triton_http.py http://127.0.0.1:8000
"""
