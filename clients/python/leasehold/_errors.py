"""What can go wrong, each in a class of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class LeaseholdError(Exception):
    """Anything that went wrong."""


class Invalid(LeaseholdError, ValueError):
    """A setting makes no sense: a URL, a time, a name."""


class NotAcquired(LeaseholdError):
    """It was not free in time. The claim has left the queue."""

    #: The claim that holds the resource, as far as the server has told: ``claim``, ``owner``, ``token``, ``user_data``.
    holder: dict[str, Any] | None = None
    #: The place in the queue that was reached; 1 is next.
    position: int | None = None


class Unreachable(LeaseholdError):
    """No server answers."""


class Refused(LeaseholdError):
    """The server refuses."""


class AlreadyClaimed(Refused):
    """This thread or task has a claim on the resource already, and would wait for itself."""


class Deadlock(Refused):
    """The claim would wait for ever: for this thread or task itself, or for others that wait for it. It has left the
    queue."""

    #: The claims in each other's way, the refused one first, as far as you may read them: ``claim``, ``owner``,
    #: ``session``, ``resource``, and as ``link`` whether it ``wants``, ``holds`` or ``reserves`` the resource.
    cycle: Sequence[dict[str, Any]] = ()


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
    """The keychain process can't be started, or the manager is closed."""


class Foreign(LeaseholdError):
    """The claim belongs to another process, of which this one is a forked child."""


KINDS: dict[str, type[LeaseholdError]] = {
    "invalid": Invalid,
    "timeout": NotAcquired,
    "unreachable": Unreachable,
    "refused": Refused,
    "already-claimed": AlreadyClaimed,
    "deadlock": Deadlock,
    "ended": Ended,
    "lost": Lost,
    "unknown": Unknown,
    "aborted": Aborted,
    "closed": KeychainGone,
}


def from_answer(answer: dict[str, Any]) -> LeaseholdError:
    """The exception for an answer that is not a success."""
    kind = KINDS.get(str(answer.get("error")), LeaseholdError)
    error = kind(str(answer.get("detail", answer)))
    if isinstance(error, Deadlock):
        error.cycle = answer.get("cycle") or ()
    return error
