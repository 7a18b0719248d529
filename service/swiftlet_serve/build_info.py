"""The version of Swiftlet, and the revision of its source."""

from __future__ import annotations

import functools
import json
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "swiftlet-serve"
PACKAGE: Final = Path(__file__).resolve().parent


def version() -> str:
    """Returns Swiftlet's version; "unknown" if the package is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


@functools.cache
def revision() -> str:
    """Returns the Git commit of the source, or "unknown".

    Images and released wheels have it in the file `REVISION` beside this module, installations by pip from a Git
    address in their metadata, and checkouts in Git.
    """
    return _from_file() or _from_metadata() or _from_checkout() or "unknown"


def _from_file() -> str:
    try:
        return (PACKAGE / "REVISION").read_text("ascii").strip()
    except OSError:
        return ""


def _from_metadata() -> str:
    """See PEP 610."""
    try:
        origin = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return ""
    return str(origin.get("vcs_info", {}).get("commit_id", ""))


def _from_checkout() -> str:
    root = PACKAGE.parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
