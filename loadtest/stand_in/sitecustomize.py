"""Python imports this at its start where the folder is on PYTHONPATH: `stand_in` is then an engine like the others."""

from pathlib import Path

import service.engines

service.engines.__path__.append(str(Path(__file__).parent / "engines"))
