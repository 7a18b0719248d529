"""Python imports this at its start where the folder is on PYTHONPATH: `stand_in` is then an engine like the others.

With CLOSED_BOOKS in the environment the server counts nothing, so that it can be measured what counting costs.
"""

import os
from pathlib import Path

import swiftlet_serve.service.engines

swiftlet_serve.service.engines.__path__.append(str(Path(__file__).parent / "engines"))

if os.environ.get("CLOSED_BOOKS"):
    from swiftlet_serve.service.telemetry.request_stats import RequestStats

    RequestStats.accept = RequestStats.finish = RequestStats.ran = lambda *_: None
