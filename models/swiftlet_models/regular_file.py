"""The check that a path names a file whose content is there."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def check_regular(path: Path) -> None:
    """Checks that a path names a regular file, or a link to one. To open a pipe or a device may never end.

    Raises:
        OSError: there is no such file, or it is of another kind.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
