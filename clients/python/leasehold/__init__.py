"""Locks and leases that say when they are lost.

In:    names of resources. Out: claims that hold them, renewed by one keychain process for all.
Never: a claim that is reported as held when the server could have handed it over.
"""

from ._claim import Claim
from ._errors import (
    Aborted,
    AlreadyClaimed,
    Deadlock,
    Ended,
    Foreign,
    Invalid,
    KeychainGone,
    LeaseholdError,
    Lost,
    NotAcquired,
    Refused,
    Unknown,
    Unreachable,
)
from ._items import Item, shared, slots
from ._manager import Lock, LockManager

__all__ = [
    "Aborted",
    "AlreadyClaimed",
    "Claim",
    "Deadlock",
    "Ended",
    "Foreign",
    "Invalid",
    "Item",
    "KeychainGone",
    "LeaseholdError",
    "Lock",
    "LockManager",
    "Lost",
    "NotAcquired",
    "Refused",
    "Unknown",
    "Unreachable",
    "shared",
    "slots",
]
