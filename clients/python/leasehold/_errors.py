"""What can go wrong, each in a class of its own."""

from __future__ import annotations

from typing import Any, Dict, Type


class LeaseholdError(Exception):
    """Anything that went wrong."""


class Invalid(LeaseholdError):
    """A setting makes no sense."""


class NotAcquired(LeaseholdError):
    """It was not free in time. The claim has left the queue."""


class Unreachable(LeaseholdError):
    """No server answers."""


class Refused(LeaseholdError):
    """The server refuses, or this manager already has a claim on the resource."""


class Ended(LeaseholdError):
    """The claim is over, or there is none."""


class Lost(LeaseholdError):
    """The claim is no longer certain to hold its resource."""

    reason: str = "lost"


class Unknown(LeaseholdError):
    """The request was sent and nothing came back: it may have happened."""


class Aborted(LeaseholdError):
    """The claim was given up before it was acquired."""


class KeychainGone(LeaseholdError):
    """The keychain process is not there any more; whatever was held is lost."""


KINDS: Dict[str, Type[LeaseholdError]] = {
    "invalid": Invalid,
    "timeout": NotAcquired,
    "unreachable": Unreachable,
    "refused": Refused,
    "already-claimed": Refused,
    "ended": Ended,
    "lost": Lost,
    "unknown": Unknown,
    "aborted": Aborted,
    "closed": KeychainGone,
}


def from_answer(answer: Dict[str, Any]) -> LeaseholdError:
    """The exception for an answer that is none of success."""
    kind = KINDS.get(str(answer.get("error")), LeaseholdError)
    return kind(str(answer.get("detail", answer)))
