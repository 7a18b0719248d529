"""The import of a checkpoint into the cache, by a process of its own."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.model_source import ModelSource

log = logging.getLogger(__name__)

OPTION: Final = re.compile(r"--(special-token|pair-separator|accept-tokenizer|label)\b")  # of an import alone
# Of an import, and of a model to serve: --task qa is :task=qa there.
FOR_SERVE: Final = re.compile(r"--(task|pooling|precision|adapter|name)\b(?: ([a-z]+(?:-[a-z]+)*)(?=[:.,]))?")


def import_model(source: ModelSource, revision: str | None, entry: Path, lock: int) -> None:
    """Imports a checkpoint in a process of its own, whose memory is then free. Its progress goes to stderr.

    That process holds the lock, too: if this one is killed, others wait until the import has ended.

    Raises:
        SetupError: the import fails, with its message.
    """
    command = [sys.executable, "-m", "swiftlet_serve", "import", "--out", str(entry)]
    command += [f"--{key}={value}" for key, value in ({"name": source.name} | dict(source.options)).items()]
    command += [f"--revision={revision}"] if revision else []
    command += ["--", source.source]  # which may begin with a hyphen
    log.info("importing %s, once for this content of it", source.name)
    shutil.rmtree(entry, ignore_errors=True)
    started, message = time.monotonic(), ""
    with subprocess.Popen(  # noqa: S603  # this Python
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=(lock,)
    ) as process:
        for line in process.stderr or ():
            if line.startswith("Error: "):
                message = line.removeprefix("Error: ").strip()
            else:
                print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        shutil.rmtree(entry, ignore_errors=True)
        message = message or f"The import of {source.source} ended with the status {process.returncode}."
        message = FOR_SERVE.sub(r":\1=\2", message)
        if OPTION.search(message):
            importing = f"swiftlet import {shlex.quote(source.source)}"
            message = f"{message} Options are those of {importing}: run it with them, and serve the artifact it writes."
        raise SetupError(message)
    log.info("imported %s in %.1f s", source.name, time.monotonic() - started)
