"""A claim that holds its resource.

In:    what the link makes known. Out: the fencing token, and whether the claim still holds.
Never: outlives its last reference: a claim that is forgotten is released.
"""

from __future__ import annotations

import logging
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ._check import seconds
from ._clock import boottime
from ._errors import Ended, Foreign, KeychainGone, LeaseholdError, Lost, Unknown
from ._hold import HELD, OVER, Hold
from ._items import Item
from ._link import Link
from ._request import Answer, NoAnswer

if TYPE_CHECKING:
    from ._manager import LockManager

log = logging.getLogger("leasehold")

#: The last request of a claim is repeated for ten seconds; then the keychain says that the outcome is unknown.
RELEASE_LIMIT = 25.0
#: The keychain's word that a renewal came too late is worth waiting for, as it says why.
REFRESH_GRACE = 0.5


class Claim:
    """A claim that holds its resource. As a context manager it is released at the end; so is a forgotten one."""

    def __init__(self, manager: LockManager, link: Link, hold: Hold) -> None:
        # The manager lives as long as its claims.
        self._manager = manager
        self._link = link
        self._hold = hold
        hold.handle = weakref.ref(self)
        self._forgotten = weakref.finalize(self, _forget, link, hold)
        # At the end of the program the link closes in one go.
        self._forgotten.atexit = False

    @property
    def resource(self) -> str:
        """What it holds."""
        return self._hold.resource

    @property
    def id(self) -> str:
        """Its id on the server."""
        return self._hold.id

    @property
    def token(self) -> int | None:
        """The fencing token: hand it to what the claim protects, which refuses smaller ones than it has seen. ``None``
        if the claim holds several resources whose tokens differ: ``items`` has one for each."""
        return self._hold.token

    @property
    def items(self) -> tuple[Item, ...]:
        """What it holds, one by one: ``resource``, ``mode``, ``slots`` and ``token`` of each."""
        return self._hold.items

    @property
    def slots(self) -> tuple[int, ...]:
        """The numbers of the slots of its (first) resource, from 1: "any one of five boards" is this one."""
        return self._hold.items[0].slots if self._hold.items else ()

    @property
    def session(self) -> str | None:
        """The session that it belongs to. Give it as ``LEASEHOLD_SESSION`` to a program that is started while the claim
        is held, so that the program does not wait for what is held here."""
        return self._hold.session

    @property
    def is_lost(self) -> bool:
        """Whether it is not certain to hold any more: by the keychain's word, by the clock of this process, or because
        it was released."""
        self._check_process()
        self._look()
        return self._hold.is_lost or self._hold.state == OVER

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Waits until it is lost or released; False if it is not by then."""
        self._check_process()
        waiter = Answer()
        self._hold.listeners.append(waiter.wake)
        try:
            return self.is_lost or waiter.wait(timeout)
        finally:
            self._hold.listeners.remove(waiter.wake)

    def validate(self) -> float:
        """The seconds for which it certainly holds if no renewal gets through; raises ``Lost`` if it does not hold."""
        self._check()
        return self._hold.until - boottime()

    def refresh(self, ttl: float | None = None) -> None:
        """Renews it now; the keychain does so every third of the ttl. A ``ttl`` is the claim's from now on."""
        self._check()
        answer = Answer()
        self._post_refresh(ttl, answer)
        try:
            answer.result(self._refresh_limit())
        except (LeaseholdError, NoAnswer) as error:
            raise self._refresh_error(error) from error

    def release(self) -> None:
        """Gives it up; again is no mistake. Raises ``Lost`` if it was lost before."""
        answer = Answer()
        if not self._begin_release(answer):
            return
        # That it is lost is known already: a keychain that hangs need not say so.
        self._check_lost()
        try:
            answer.result(RELEASE_LIMIT)
        except (LeaseholdError, NoAnswer) as error:
            raise self._release_error(error) from error
        self._check_lost()

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A forked child that leaves its parent's block has nothing to release.
        if not self._hold.is_mine:
            return
        try:
            self.release()
        except LeaseholdError as failure:
            # What went wrong inside matters more than that the lock is gone, too.
            if kind is None:
                raise
            log.warning("%s", failure)
        except BaseException:
            # A Ctrl-C, perhaps before anything was sent: nobody else would give it up.
            self._abandon()
            raise

    def __repr__(self) -> str:
        return f"<Claim {self.resource!r} {self.id} token={self.token} {self._state()}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a claim belongs to its process; claim the resource in the other one, too")

    def _state(self) -> str:
        if not self._hold.is_mine:
            return "of another process"
        if self._hold.state == OVER:
            return "released"
        return "lost" if self.is_lost else "held" if self._hold.state == HELD else "waiting"

    def _look(self) -> None:
        """Notices a loss by this process's own clock, after hearing what the keychain has said so far."""
        if self._hold.is_due():
            self._link.settle()
            if self._hold.is_due():
                self._link.lose(self._hold, "not-renewed")

    def _check_process(self) -> None:
        if not self._hold.is_mine:
            raise Foreign(f"the claim on {self.resource!r} belongs to process {self._hold.process}")

    def _check_lost(self) -> None:
        if self._hold.is_lost:
            raise self._hold.error()

    def _check(self) -> None:
        self._check_process()
        self._look()
        self._check_lost()
        if self._hold.state == OVER:
            raise Ended(f"the claim on {self.resource!r} was released")

    def _post_refresh(self, ttl: float | None, answer: Any) -> None:
        ttl = None if ttl is None else seconds("ttl", ttl)
        line = {"resource": self.resource, "worker": self._hold.name, "ttl": ttl}
        self._link.post("refresh", line, answer, self._hold)

    def _refresh_limit(self) -> float:
        """How long a renewal may take: when the claim is lost by the clock, no answer can help any more."""
        return min(max(self._hold.until - boottime(), 0.0) + REFRESH_GRACE, RELEASE_LIMIT)

    def _refresh_error(self, error: Exception) -> LeaseholdError:
        self._look()
        if self._hold.is_lost or isinstance(error, (Ended, Lost)):
            return self._hold.error()
        if isinstance(error, KeychainGone):
            return Unknown("the keychain process ended before it said whether the claim is renewed")
        if not isinstance(error, LeaseholdError):
            return Unknown("the keychain process does not answer: the claim may be renewed or not")
        return error

    def _begin_release(self, answer: Any) -> bool:
        """Sends the release, unless the claim is over."""
        self._check_process()
        self._look()
        if self._hold.state == OVER:
            return False
        self._link.give_up(self._hold, answer)
        # Last: whatever interrupts this before, a claim that is forgotten is given up.
        self._forgotten.detach()
        return True

    def _release_error(self, error: Exception) -> LeaseholdError:
        if self._hold.is_lost or isinstance(error, (Ended, Lost)):
            return self._hold.error()
        if isinstance(error, (KeychainGone, NoAnswer)):
            return Unknown(f"the keychain did not say whether {self.resource!r} is released; its ttl ends it")
        assert isinstance(error, LeaseholdError)
        return error

    def _abandon(self) -> None:
        """Whoever wanted it does not wait for it any more."""
        if self._hold.state != OVER and self._hold.is_mine:
            self._link.give_up(self._hold)
            self._forgotten.detach()


def _forget(link: Link, hold: Hold) -> None:
    if hold.is_mine and hold.state != OVER:
        note = f"the claim on {hold.resource!r} was forgotten, and is released" if hold.state == HELD else ""
        link.give_up(hold, note=note)
