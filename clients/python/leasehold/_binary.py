"""The ``leasehold`` command that this package uses.

In:    ``LEASEHOLD_BIN``, what the wheel has installed, the PATH. Out: the command to start.
Never: takes the PATH's before the wheel's own, which is certainly of the same version as this package.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os


def binary() -> str:
    """``LEASEHOLD_BIN`` if it is set, else the command that came with this package, else the one on the PATH."""
    return os.environ.get("LEASEHOLD_BIN") or _installed() or "leasehold"


@functools.cache
def _installed() -> str | None:
    """The command in the wheel's own list of installed files: wherever pip has put it."""
    try:
        files = importlib.metadata.files("leasehold") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == "leasehold" and file.parent.name == "bin":
            path = os.path.abspath(str(file.locate()))
            return path if os.access(path, os.X_OK) else None
    return None
