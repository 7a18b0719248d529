"""Worker process that finds the tests' engines and architectures beside those of the service."""

import os
from pathlib import Path

from swiftlet_models import architectures
from swiftlet_serve import engines
from swiftlet_serve.workers import worker_main

engines.__path__.append(str(Path(__file__).parent / "engines"))
architectures.__path__ += os.environ.get("TEST_ARCHITECTURES", "").split()

if __name__ == "__main__":
    worker_main.main()
