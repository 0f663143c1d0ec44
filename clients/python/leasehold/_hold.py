"""What is known of one claim.

In:    the keychain's word, and this process's clock. Out: whether the claim holds.
Never: says that a claim is held when the server could have handed it over.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Callable

from ._clock import boottime
from ._errors import Lost
from ._items import Item, granted, resources

if TYPE_CHECKING:
    from ._claim import Claim

LostCallback = Callable[["Claim", str], None]

WAITING, HELD, OVER = "waiting", "held", "over"


class Hold:
    """One claim. Its handle, a ``Claim``, may be forgotten before it is over."""

    def __init__(
        self,
        resource: str,
        worker: str,
        line: dict[str, Any],
        *,
        name: str,
        lost: LostCallback | None,
        terminates: bool,
    ) -> None:
        self.resource = resource
        #: All that it holds or wants, the first one first.
        self.resources = resources(line)
        #: The thread or task whose claim it is.
        self.worker = worker
        #: What the keychain knows it by: no two claims of a manager have the same.
        self.name = name
        #: The request for it, which is repeated if the keychain dies.
        self.line = line
        self.process = os.getpid()
        self.state = WAITING
        self.id = ""
        self.token: int | None = None
        self.items: tuple[Item, ...] = ()
        #: The worker that the server knows it to belong to, if the server knows sessions.
        self.session: str | None = None
        #: Until when it certainly holds, by ``boottime``.
        self.until = 0.0
        self.since = 0.0
        #: When the wait for it ends; ``None``: never.
        self.wait_until: float | None = None
        #: What the server said last while it waited.
        self.holder: dict[str, Any] | None = None
        self.position: int | None = None
        self.reason: str | None = None
        self.is_lost = False
        self.on_lost = lost
        self.terminates = terminates
        #: Told, on whatever thread notices it, that the claim is lost or over.
        self.listeners: list[Callable[[], None]] = []
        self.handle: weakref.ref[Claim] | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this process made it; a forked child did not."""
        return self.process == os.getpid()

    @property
    def is_live(self) -> bool:
        """Whether a second claim of the same worker would wait for this one."""
        return self.state != OVER and not self.is_lost

    def is_due(self) -> bool:
        """Whether it is not certain to hold any more, by what this process knows."""
        return self.state == HELD and boottime() >= self.until

    def acquired(self, answer: dict[str, Any]) -> None:
        """The keychain holds it."""
        self.id, self.token = answer["claim"], answer["token"]
        self.until = answer["until"]
        # A keychain that takes it up from another does not know what was granted.
        if not self.items:
            self.items = granted(self.resource, answer)
            self.session = answer.get("session")
        self.since = self.since or boottime()
        if self.state == WAITING:
            self.state = HELD

    def end(self) -> None:
        """It is given up."""
        self.state = OVER
        self.tell()

    def tell(self) -> None:
        """Wakes whoever waits for the end of it."""
        for listener in list(self.listeners):
            listener()

    def error(self) -> Lost:
        """The exception for a claim that is lost."""
        reason = self.reason or "ended"
        error = Lost(f"the claim on {self.resource!r} is lost: {reason}")
        error.reason = reason
        return error

    def to_take_up(self) -> dict[str, Any]:
        """The request to go on with it, for another keychain."""
        now = boottime()
        line: dict[str, Any] = {name: self.line[name] for name in ("ttl", "lead") if name in self.line}
        if self.line.get("max_hold") is not None:
            line["max_hold"] = max(self.line["max_hold"] - (now - self.since), 0.001)
        line.update(claim=self.id, token=self.token, within=max(self.until - now, 0.001))
        return line

    def to_repeat(self) -> dict[str, Any]:
        """The request for it, for another keychain: under the same key it is the same claim."""
        line = dict(self.line)
        if self.wait_until is not None and line.get("timeout") != 0:
            line["timeout"] = max(self.wait_until - boottime(), 0.001)
        return line
