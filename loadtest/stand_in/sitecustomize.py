"""Registers the engine `stand_in`. Python imports this module at start-up if its directory is on PYTHONPATH.

If STAND_IN_WITHOUT_STATS is set, the server keeps no request statistics, which allows their cost to be measured.
STAND_IN_ADMISSION_POLICY sets the admission policy: `deadline` (the default) or `fifo`, which ignores deadlines.
"""

import os
from pathlib import Path
from typing import cast

import swiftlet_serve.engines

swiftlet_serve.engines.__path__.append(str(Path(__file__).parent / "engines"))

if os.environ.get("STAND_IN_WITHOUT_STATS"):
    from swiftlet_serve.telemetry.request_stats import RequestStats

    for name in ("accept", "finish", "add_batch"):
        setattr(RequestStats, name, lambda *_: None)

if policy := os.environ.get("STAND_IN_ADMISSION_POLICY"):
    from swiftlet_serve.scheduling.dispatcher import Dispatcher
    from swiftlet_serve.scheduling.load import AdmissionPolicy

    Dispatcher.policy = cast("AdmissionPolicy", policy)
