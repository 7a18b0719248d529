"""Engines for the tests. A server finds them if it runs `TEST_ENGINES` first."""

from tests.support.paths import ROOT, TESTS

TEST_ENGINES = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from swiftlet_serve import engines
from swiftlet_serve.workers import process_executor
engines.__path__.append({str(TESTS / "support/engines")!r})
process_executor.ProcessExecutor.__init__.__kwdefaults__["worker_module"] = "tests.support.worker_main"
"""
"""Code that a server process runs before its command line."""
