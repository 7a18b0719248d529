"""The engines. A file is its registration: `engines/native.py` is engine `native`. Only the chosen one is imported."""

import sys

# OpenVINO and NNCF send telemetry on import. Without this package they do not.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # None marks a module that cannot be imported
