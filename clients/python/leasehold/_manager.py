"""The lock manager and its claims.

In:    names of resources. Out: claims, context managers that release what they hold.
Never: calls a callback while it holds a lock of its own.
"""

from __future__ import annotations

import os
import queue
import threading
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Type, Union

from ._errors import Ended, KeychainGone, LeaseholdError, Lost
from ._keychain import Event, Keychain

LostCallback = Callable[["Claim", str], None]


class LockManager:
    """Makes claims. One keychain process, started here, looks after them all."""

    def __init__(
        self,
        url: Union[str, Sequence[str], None] = None,
        *,
        ttl: Optional[float] = None,
        timeout: Optional[float] = None,
        max_hold: Optional[float] = None,
        key: Optional[str] = None,
    ) -> None:
        """``url``: the server, or several that are tried in turn. ``ttl``, ``timeout`` and ``max_hold``, in seconds, are
        for claims that don't say otherwise. What is not given comes from ``LEASEHOLD_ADDR`` and ``LEASEHOLD_KEY``."""
        args: List[str] = []
        for flag, value in (("--ttl", ttl), ("--timeout", timeout), ("--max-hold", max_hold)):
            if value is not None:
                args += [flag, repr(float(value))]
        env = dict(os.environ)
        if url is not None:
            env["LEASEHOLD_ADDR"] = url if isinstance(url, str) else ",".join(url)
        if key is not None:
            # Not a flag: others on this machine could see it.
            env["LEASEHOLD_KEY"] = key
        self._lock = threading.Lock()
        self._claims: Dict[str, Claim] = {}
        # Events that came before their claim was known here.
        self._early: Dict[str, Event] = {}
        self._events: "queue.SimpleQueue[Optional[Callable[[], None]]]" = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._call_back, name="leasehold-callbacks", daemon=True)
        self._caller.start()
        self._keychain = Keychain(args, env, self._heard)

    def claim(
        self,
        resource: str,
        *,
        ttl: Optional[float] = None,
        timeout: Optional[float] = None,
        data: Any = None,
        max_hold: Optional[float] = None,
        lead: Optional[float] = None,
        lost: Optional[LostCallback] = None,
    ) -> "Claim":
        """Waits for the turn of a new claim. ``timeout=0`` does not wait; ``data`` is any JSON that is kept with the claim;
        ``lead`` is how long before the end of the ttl it is called lost; ``lost`` is called, once, if it is."""
        answer = self._keychain.ask(
            "claim", resource=resource, ttl=ttl, timeout=timeout, data=data, max_hold=max_hold, lead=lead
        )
        claim = Claim(self, resource, answer["claim"], answer["token"], lost)
        with self._lock:
            self._claims[claim.id] = claim
            early = self._early.pop(claim.id, None)
        if early is not None:
            self._heard(early)
        return claim

    def list(self) -> List[Dict[str, Any]]:
        """What this manager holds and waits for."""
        claims: List[Dict[str, Any]] = self._keychain.ask("list")["claims"]
        return claims

    def ping(self) -> Dict[str, Any]:
        """Asks the keychain for a sign of life."""
        return self._keychain.ask("ping")

    @property
    def keychain_pid(self) -> int:
        """The keychain's process id."""
        return self._keychain.pid

    def close(self) -> None:
        """Releases everything and ends the keychain."""
        self._keychain.close()
        self._events.put(None)

    def __enter__(self) -> "LockManager":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _heard(self, event: Event) -> None:
        if event["event"] == "gone":
            with self._lock:
                claims = list(self._claims.values())
                self._claims.clear()
            for claim in claims:
                self._tell_lost(claim, "keychain-gone")
        elif event["event"] in ("lost", "released"):
            with self._lock:
                known: Optional[Claim] = self._claims.pop(event["claim"]) if event["claim"] in self._claims else None
                if known is None and event["event"] == "lost":
                    self._early[event["claim"]] = event
            if known is not None and event["event"] == "lost":
                self._tell_lost(known, event["reason"])

    def _tell_lost(self, claim: "Claim", reason: str) -> None:
        if claim._lose(reason):
            callback = claim._on_lost
            if callback is not None:
                self._events.put(lambda: callback(claim, reason))

    def _call_back(self) -> None:
        while True:
            call = self._events.get()
            if call is None:
                return
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a callback's mistake must not silence the others
                hook = threading.excepthook
                hook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))


class Claim:
    """A claim that holds its resource. As a context manager it is released at the end."""

    def __init__(
        self, manager: LockManager, resource: str, claim_id: str, token: Optional[int], lost: Optional[LostCallback]
    ) -> None:
        self.resource = resource
        self.id = claim_id
        #: The fencing token: hand it to what the claim protects, which refuses smaller ones than it has seen.
        self.token = token
        self._manager = manager
        self._on_lost = lost
        self._lost = threading.Event()
        self._reason: Optional[str] = None
        self._over = False

    @property
    def is_lost(self) -> bool:
        """Whether it is known to be lost."""
        return self._lost.is_set()

    def wait_lost(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is lost; False if it is not by then."""
        return self._lost.wait(timeout)

    def validate(self) -> float:
        """The seconds for which it certainly holds if no renewal gets through; raises ``Lost`` if it does not hold."""
        self._check()
        return float(self._manager._keychain.ask("validate", resource=self.resource)["remaining"])

    def refresh(self, ttl: Optional[float] = None) -> None:
        """Renews it now; the keychain does so by itself every third of the ttl."""
        self._check()
        self._manager._keychain.ask("refresh", resource=self.resource, ttl=ttl)

    def release(self) -> None:
        """Gives it up; again is no mistake. Raises ``Lost`` if it was lost before."""
        if self._over:
            return
        self._over = True
        try:
            self._manager._keychain.ask("release", resource=self.resource)
        except (Ended, Lost) as error:
            raise self._error() from error
        except KeychainGone:
            raise self._error() from None
        if self._reason is not None:
            raise self._error()

    def __enter__(self) -> "Claim":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.release()
        except LeaseholdError:
            # What went wrong inside matters more than that the lock is gone, too.
            if kind is None:
                raise

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "released" if self._over else "held"
        return f"<Claim {self.resource!r} {self.id} token={self.token} {state}>"

    def _check(self) -> None:
        if self._reason is not None:
            raise self._error()
        if self._over:
            raise Ended("the claim was released")

    def _error(self) -> Lost:
        reason = self._reason or "ended"
        error = Lost(f"the claim on {self.resource!r} is lost: {reason}")
        error.reason = reason
        return error

    def _lose(self, reason: str) -> bool:
        if self._over or self._lost.is_set():
            return False
        self._reason = reason
        self._lost.set()
        return True
