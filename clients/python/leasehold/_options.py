"""The options of a claim, for those who pass them on.

In:    nothing. Out: types, so that a type checker finds an option that is misspelt.
Never: is looked at by a running program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypedDict

from ._hold import LostCallback
from ._items import Also


class AnyOptions(TypedDict, total=False):
    """Those that are the same with asyncio."""

    shared: bool
    slots: tuple[int, int] | None
    also: Iterable[Also] | None
    ttl: float | None
    timeout: float | None
    data: Any
    max_hold: float | None
    lead: float | None
    on_lost: str | None


class Options(AnyOptions, total=False):
    """Those of ``LockManager.claim``."""

    lost: LostCallback | None
