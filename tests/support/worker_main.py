"""Worker process that finds the test engines beside the engines of the service."""

from pathlib import Path

from swiftlet_serve.service import engines
from swiftlet_serve.service.workers import worker_main

engines.__path__.append(str(Path(__file__).parent / "engines"))

if __name__ == "__main__":
    worker_main.main()
