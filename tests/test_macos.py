"""A server without the functions that only Linux has, as on macOS, and the kernels compiled for macOS."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack

import pytest

import build_kernels
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

WITHOUT_LINUX = '''
"""Takes from this process what macOS lacks."""

# Some modules ask at their import what system this is, and then load what only macOS has.
import ctypes, os, select, socket, sys, sysconfig, urllib.request

def refuse(event, arguments):
    if event == "open" and str(arguments[0]).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory")
    if event == "ctypes.dlsym" and arguments[1] in ("mallopt", "malloc_trim", "prctl"):
        raise AttributeError(arguments[1])

LINUX = ("memfd_create", "pidfd_open", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "process_cpu_count")
for module, names in (
    (os, LINUX), (select, ("epoll",)), (socket, ("SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_INFO", "TCP_USER_TIMEOUT"))
):
    for name in names:
        vars(module).pop(name, None)
sysconfig.get_config_vars()
sys.platform = "darwin"
sys.addaudithook(refuse)
'''
ZIG = importlib.util.find_spec("ziglang")
CPU = "generic+v8_2a+dotprod+i8mm"
MACHO_OF_ARM64 = b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"


def test_server_without_the_functions_of_linux_answers_and_stops(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LINUX)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path[1:]])
    command = [sys.executable, "-m", "swiftlet_serve", "serve", "--port", "0", "--models", "mobilebert-sst2"]
    with (
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server,
        ExitStack() as at_end,
    ):
        at_end.callback(server.kill)
        (url,) = re.findall(r"https?://[^,\s]+", server.stdout.readline())
        body = json.dumps({"inputs": "A warm, funny and clever film."}).encode()
        request = urllib.request.Request(f"{url}/classify", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            answer = json.load(response)
        with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as response:
            metrics = response.read().decode()
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=PATIENCE_S)

    assert answer[0][0]["label"] == "POSITIVE"
    assert "swiftlet_requests_accepted_total" in metrics
    assert (server.returncode, re.findall("WARNING|ERROR|Traceback", log)) == (0, []), log


@pytest.mark.exhaustive
@pytest.mark.skipif(ZIG is None, reason="needs the package ziglang")
@pytest.mark.parametrize("library", build_kernels.KERNELS["aarch64"])
def test_library_is_compiled_for_macos(library, tmp_path, monkeypatch):
    """It is not run. Zig brings the headers of macOS, and names processors in a way of its own."""
    compiler = f"{sys.executable} -m ziglang c++ -target aarch64-macos"
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("CXXFLAGS", f"-mcpu={CPU} -Wall -Wextra -Werror")
    assert build_kernels._compile(library, build_kernels.KERNELS["aarch64"][library], tmp_path) is None
    (compiled,) = tmp_path.rglob(f"{library}.so")

    content = compiled.read_bytes()
    assert content.startswith(MACHO_OF_ARM64)
    assert b"_swiftlet_" in content
