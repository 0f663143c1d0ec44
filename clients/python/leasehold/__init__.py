"""Locks and leases that say when they are lost.

In:    names of resources. Out: claims that hold them, renewed by one keychain process for all.
Never: a claim that is reported as held when the server could have handed it over.
"""

from ._errors import (
    Aborted,
    Ended,
    Invalid,
    KeychainGone,
    LeaseholdError,
    Lost,
    NotAcquired,
    Refused,
    Unknown,
    Unreachable,
)
from ._manager import Claim, LockManager

__all__ = [
    "Aborted",
    "Claim",
    "Ended",
    "Invalid",
    "KeychainGone",
    "LeaseholdError",
    "LockManager",
    "Lost",
    "NotAcquired",
    "Refused",
    "Unknown",
    "Unreachable",
]
