"""The start of the command: signals that come early, and standard streams that are closed or never read."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from swiftlet_serve.http.gate.api_keys import make_key
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import ask

MAIN = "from swiftlet_serve.__main__ import main; main()"
HANGS_UP_BEFORE_THE_MODELS = """
import os, signal, sys
from pathlib import Path
class Finder:
    def find_spec(self, name, *_):
        if name == "swiftlet_serve.cli.main":
            sys.meta_path.remove(self)
            from swiftlet_serve import server
            start = server.LocalRuntime.begin
            def hang_up(settings):
                Path(settings.api_keys_file).write_text({keys!r})
                os.kill(os.getpid(), signal.SIGHUP)
                return start(settings)
            server.LocalRuntime.begin = hang_up
sys.meta_path.insert(0, Finder())
"""
INTERRUPTS_ITSELF = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""
CLOSE_ALL = (
    "import os, sys; [os.close(number) for number in range(3)]; os.execv(sys.executable, [sys.executable, *{args!r}])"
)


@contextmanager
def start(code: str, args: Sequence[str], **streams: object) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def serve(artifact_dir: Path, *options: str) -> list[str]:
    return ["serve", "--port", "0", "--engine", "echo", "--models", str(artifact_dir / "tiny-classify"), *options]


def test_sighup_before_the_models_are_loaded_has_its_effect_once_they_are(artifact_dir, tmp_path):
    (_, old_line), (new, new_line) = make_key("old"), make_key("new")
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"{old_line}\n")
    code = HANGS_UP_BEFORE_THE_MODELS.format(keys=f"{new_line}\n") + MAIN

    async def until_the_new_key_is_known(port: int) -> None:
        while (await ask(port, headers=[f"X-API-Key: {new}"])).status != 200:
            await asyncio.sleep(0)

    with start(code, serve(artifact_dir, "--api-keys-file", str(file)), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = re.search(r":(\d+)", process.stdout.readline())
        assert port is not None
        asyncio.run(asyncio.wait_for(until_the_new_key_is_known(int(port[1])), PATIENCE_S))
        process.terminate()

        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("module", ["swiftlet_serve.cli.main", "swiftlet_serve.server"])
def test_sigint_during_the_start_ends_the_process_without_a_traceback(module, artifact_dir):
    code = INTERRUPTS_ITSELF.format(module=module) + MAIN
    with start(code, serve(artifact_dir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        output, _ = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, output) == (-signal.SIGINT, "")


def test_server_starts_and_answers_with_all_standard_streams_closed(artifact_dir, tmp_path):
    addresses = tmp_path / "addresses"
    code = f"""
from pathlib import Path
from swiftlet_serve.cli import summaries
summaries.announce = lambda addresses, _: Path({str(addresses)!r}).write_text(addresses.public)
{MAIN}
"""
    os.mkfifo(addresses)
    with start(CLOSE_ALL.format(args=["-c", code, *serve(artifact_dir)]), []) as process:
        port = int(addresses.read_text().rpartition(":")[2])
        links = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        response = asyncio.run(ask(port))
        process.terminate()

        assert process.wait(PATIENCE_S) == 0
    assert links == [os.devnull] * 3
    assert response.status == 200


def test_log_that_is_never_read_stops_neither_the_server_nor_its_end(artifact_dir, tmp_path):
    """The pipe is full from the start."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (1 << 12, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(size))
    os.set_blocking(writer, True)
    ready = tmp_path / "ready"
    code = f"""
from pathlib import Path
from swiftlet_serve import server
server.is_writable, known = lambda stream: Path({str(ready)!r}).write_text(str(known(stream))) == 0, server.is_writable
{MAIN}
"""
    os.mkfifo(ready)
    with start(code, serve(artifact_dir), stdout=writer, stderr=writer) as process:
        assert ready.read_text() == "False"  # the addresses are not printed
        process.terminate()

        assert process.wait(PATIENCE_S) == 0
    os.close(reader)
    os.close(writer)
