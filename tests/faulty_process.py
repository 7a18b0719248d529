"""The engine process, with the engines of the tests beside the service's own."""

from pathlib import Path

from service import engine_process, engines

engines.__path__.append(str(Path(__file__).parent / "engines"))

if __name__ == "__main__":
    engine_process.main()
