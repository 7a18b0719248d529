"""Runtimes that a network can run in, one file each; imported only when chosen."""

import sys

# With this OpenVINO, and what quantises for it, report to their makers as soon as they are imported.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # as the import system has it for what is not there
