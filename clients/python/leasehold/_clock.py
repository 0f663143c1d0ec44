"""The clock that goes on while the machine is suspended, and that the keychain process goes by, too."""

from __future__ import annotations

import time


def boottime() -> float:
    """Seconds since this machine started, suspended or not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
