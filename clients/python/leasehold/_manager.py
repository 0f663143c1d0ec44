"""The lock manager.

In:    names of resources. Out: claims, and locks that look like those of ``threading``.
Never: calls a callback while it holds a lock of its own.
"""

from __future__ import annotations

import builtins
import functools
import getpass
import inspect
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from ._binary import binary
from ._check import plain, seconds
from ._claim import RELEASE_LIMIT, Claim
from ._clock import boottime
from ._errors import AlreadyClaimed, Invalid, LeaseholdError, NotAcquired, Unknown
from ._hold import Hold, LostCallback
from ._items import Also, words
from ._link import Link
from ._options import Options
from ._request import Answer, NoAnswer

if TYPE_CHECKING:
    # Every type checker brings this along.
    from typing_extensions import Unpack

log = logging.getLogger("leasehold")

Function = TypeVar("Function", bound=Callable[..., Any])

#: How long it may take to find out who holds what a claim did not get.
HOLDER_LIMIT = 2.0
#: How long a claim that does not wait may take: five seconds pass before the keychain gives a silent server up.
NOW_LIMIT = 10.0
#: Longest session that a server takes, in bytes.
SESSION_LEN_MAX = 512


class LockManager:
    """Makes claims. One keychain process, started here, looks after them all."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        max_hold: float | None = None,
        key: str | None = None,
        api_version: str | None = None,
        on_lost: str = "report",
        sessions: bool = True,
    ) -> None:
        """``url``: the server, or several that are tried in turn. ``ttl``, ``timeout`` and ``max_hold``, in seconds,
        are for claims that don't say otherwise. ``on_lost="terminate"`` sends SIGTERM to this process when a claim is
        lost, after the claim's callback. ``sessions=False`` gives claims no session, so that deadlocks are not noticed:
        for programs whose threads or tasks hand claims on to each other. What is not given comes from
        ``LEASEHOLD_ADDR``, ``LEASEHOLD_KEY`` and ``LEASEHOLD_KEY_FILE``."""
        self._settings: dict[str, Any] = {
            "url": url,
            "ttl": ttl,
            "timeout": timeout,
            "max_hold": max_hold,
            "key": key,
            "api_version": api_version,
            "on_lost": on_lost,
            "sessions": sessions,
        }
        self._sessions = sessions
        self._timeout = None if timeout is None else seconds("timeout", timeout)
        self._terminates = _terminates(on_lost)
        self._newest: weakref.WeakValueDictionary[tuple[str, str], Hold] = weakref.WeakValueDictionary()
        command = [binary(), "keychain", "--tell-renewals"]
        for flag, value in (("--ttl", ttl), ("--timeout", timeout), ("--max-hold", max_hold)):
            if value is not None:
                command += [flag, repr(seconds(flag[2:].replace("-", "_"), value))]
        if api_version is not None:
            command += ["--api-version", api_version]
        self._link = Link(command, _environment(url, key), _lost)
        finalizer = weakref.finalize(self, self._link.close_soon)
        finalizer.atexit = False

    def claim(
        self,
        resource: str,
        *,
        shared: bool = False,
        slots: tuple[int, int] | None = None,
        also: Iterable[Also] | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
        data: Any = None,
        max_hold: float | None = None,
        lead: float | None = None,
        lost: LostCallback | None = None,
        on_lost: str | None = None,
    ) -> Claim:
        """Waits for the turn of a new claim. ``timeout=0`` does not wait; ``data`` is any JSON that is kept with the
        claim (host, user, process and program if it is not given); ``lead`` is how long before the end of the ttl it is
        called lost; ``lost`` is called, once, if it is. An exception that leaves this call early leaves no claim.

        ``shared`` holds it together with others that share it. ``slots=(1, 5)`` takes one of five slots. ``also`` names
        further resources, which are held together with it or not at all; ``leasehold.shared(name)`` and
        ``leasehold.slots(name, take, of)`` say how."""
        answer = Answer()
        options = {"ttl": ttl, "timeout": timeout, "data": data, "max_hold": max_hold, "lead": lead}
        wanted = words(resource, shared, slots, also)
        claim = self._new_claim(resource, wanted, worker_of_thread(), options, lost, on_lost)
        try:
            self._begin(claim, answer)
            answer.result(self._limit(options["timeout"]))
        except NoAnswer as error:
            claim._abandon()
            raise Unknown("the keychain process does not answer") from error
        except BaseException as error:
            claim._abandon()
            if isinstance(error, NotAcquired):
                error.holder, error.position = claim._hold.holder, claim._hold.position
                if error.holder is None:
                    error.holder = self._look_for_holder(resource)
            raise
        return claim

    def lock(self, resource: str, **options: Unpack[Options]) -> Lock:
        """A lock with the methods of ``threading.Lock``; ``options`` are those of ``claim``."""
        return Lock(self, resource, options)

    def guard(self, resource: str, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """A decorator: the function runs while it holds the resource, whose name may contain the function's arguments,
        as in ``"report/{day}"``. ``options`` are those of ``claim``."""

        def decorate(function: Function) -> Function:
            if is_generator(function) or inspect.iscoroutinefunction(function):
                # Its call returns at once, and the work begins when nothing is held any more.
                raise Invalid(
                    f"{function!r} does its work after the call: use 'with locks.claim(...)' in a generator, and"
                    " 'leasehold.aio' with coroutines"
                )
            name = name_from_arguments(resource, function)

            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                with self.claim(name(*args, **kwargs), **options):
                    return function(*args, **kwargs)

            return cast(Function, guarded)

        return decorate

    def holder(self, resource: str) -> dict[str, Any] | None:
        """The claim that holds a resource, whoever made it: ``claim``, ``owner``, ``token`` and ``user_data``; the
        first of them if several do. ``None`` if it is free."""
        holder: dict[str, Any] | None = self._ask("show", resource=resource)["holder"]
        return holder

    def list(self) -> builtins.list[dict[str, Any]]:
        """What this manager holds and waits for."""
        return without_workers(self._ask("list"))

    def ping(self) -> dict[str, Any]:
        """Asks the keychain for a sign of life."""
        return self._ask("ping")

    @property
    def keychain_pid(self) -> int:
        """The keychain's process id."""
        return self._link.pid

    def close(self) -> None:
        """Releases everything and ends the keychain. Claims that are still held are lost, with their callbacks, for the
        reason ``closed``; that sends no signal. The end of the program releases everything, too, and tells nobody."""
        try:
            self._link.close()
        except BaseException:
            # A Ctrl-C, perhaps before anything was sent.
            self._link.close_soon()
            raise

    def __enter__(self) -> LockManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is another manager with the same settings."""
        return _again, (type(self), self._settings)

    def _ask(self, op: str, **line: Any) -> dict[str, Any]:
        try:
            return self._link.ask(op, **line)
        except NoAnswer as error:
            raise Unknown("the keychain process does not answer") from error

    def _look_for_holder(self, resource: str) -> dict[str, Any] | None:
        """Who has refused us, if the server says so soon: a claim that does not wait is told nothing."""
        try:
            holder: dict[str, Any] | None = self._link.ask("show", timeout=HOLDER_LIMIT, resource=resource)["holder"]
        except (LeaseholdError, NoAnswer):
            return None
        return holder

    def _new_claim(
        self,
        resource: str,
        wanted: dict[str, Any],
        worker: str,
        options: dict[str, Any],
        lost: LostCallback | None,
        on_lost: str | None,
    ) -> Claim:
        """A claim that is not asked for yet. From here on its end gives it up, however it comes about."""
        for name in ("ttl", "timeout", "max_hold", "lead"):
            if options[name] is not None:
                options[name] = seconds(name, options[name])
        options["lead"] = options["lead"] or None
        if options["data"] is None:
            options["data"] = about_this_process()
        name = f"{worker}.{next(_SERIALS)}"
        session = session_of(worker) if self._sessions else None
        # Before there is a claim: one that can't be asked for needs not be given up.
        line = plain({**wanted, "worker": name, "key": uuid.uuid4().hex, "session": session, **options})
        terminates = self._terminates if on_lost is None else _terminates(on_lost)
        hold = Hold(resource, worker, line, name=name, lost=lost, terminates=terminates)
        timeout = self._timeout if options["timeout"] is None else options["timeout"]
        hold.wait_until = None if timeout is None else boottime() + timeout
        return Claim(self, self._link, hold)

    def _begin(self, claim: Claim, on_answer: Any) -> None:
        """Asks for the claim, unless its worker has one on the resource already."""
        hold = claim._hold
        with self._link.lock:
            for resource in hold.resources:
                before = self._newest.get((resource, hold.worker))
                if before is not None and before.is_live and before.is_mine:
                    raise AlreadyClaimed(f"this worker already has a claim on {resource!r}; release it first")
            for resource in hold.resources:
                self._newest[(resource, hold.worker)] = hold
        self._link.post("claim", hold.line, on_answer, hold)

    def _limit(self, timeout: float | None) -> float | None:
        """How long the keychain may take to answer."""
        timeout = self._timeout if timeout is None else timeout
        if timeout is None:
            return None
        return timeout + RELEASE_LIMIT if timeout > 0 else NOW_LIMIT


class Lock:
    """A resource as a lock. Each thread that acquires it has a claim of its own."""

    def __init__(self, manager: LockManager, resource: str, options: Options) -> None:
        self._manager = manager
        self.resource = resource
        self._options = options
        self._held = threading.local()

    @property
    def claim(self) -> Claim | None:
        """The claim with which this thread holds it, if it does."""
        claim: Claim | None = getattr(self._held, "claim", None)
        return claim

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Waits for the lock, at most so many seconds; -1: as long as the manager's ``timeout`` says."""
        options = self._options.copy()
        if not blocking:
            options["timeout"] = 0
        elif timeout >= 0:
            options["timeout"] = timeout
        try:
            self._held.claim = self._manager.claim(self.resource, **options)
        except NotAcquired:
            return False
        return True

    def release(self) -> None:
        """Gives it up; raises ``Lost`` if it was lost before, ``RuntimeError`` if this thread has not acquired it."""
        claim, self._held.claim = self.claim, None
        if claim is None:
            raise RuntimeError(f"this thread has not acquired {self.resource!r}")
        claim.release()

    def locked(self) -> bool:
        """Whether anybody holds the resource, in this process or elsewhere."""
        return self.holder() is not None

    def holder(self) -> dict[str, Any] | None:
        """The claim that holds the resource, whoever made it."""
        return self._manager.holder(self.resource)

    def __enter__(self) -> Claim:
        self._held.claim = claim = self._manager.claim(self.resource, **self._options)
        return claim

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        claim, self._held.claim = self.claim, None
        if claim is not None:
            claim.__exit__(kind, error, trace)


def _lost(hold: Hold) -> None:
    """Calls the callback of a lost claim, then ends this process if the claim wants that. On a thread of its own: a
    callback that takes long holds up nothing, and no other claim's signal."""
    if hold.on_lost is None and not hold.terminates:
        return
    try:
        threading.Thread(target=_call_back, args=(hold,), name="leasehold-callback", daemon=True).start()
    except RuntimeError as error:
        # There is no room for a thread, or the interpreter is about to end.
        log.error("the callback for the lost claim on %r can't be called: %s", hold.resource, error)
        _terminate(hold)


def _call_back(hold: Hold) -> None:
    claim = hold.handle() if hold.handle is not None else None
    try:
        if hold.on_lost is not None and claim is not None:
            hold.on_lost(claim, hold.reason or "ended")
    except BaseException:  # sys.exit() too: the signal must follow
        log.exception("the callback for the lost claim on %r failed", hold.resource)
    _terminate(hold)


def _terminate(hold: Hold) -> None:
    # Whoever closes the manager has not lost anything against its will.
    if hold.terminates and hold.reason != "closed":
        log.error("the claim on %r is lost: this process is terminated", hold.resource)
        os.kill(os.getpid(), signal.SIGTERM)


_SERIALS = itertools.count(1)
_THREADS = itertools.count(1)
_THREAD = threading.local()


def worker_of_thread() -> str:
    """This thread as a worker. Not its system number, which another thread may have after it."""
    if not hasattr(_THREAD, "worker"):
        _THREAD.worker = f"thread-{next(_THREADS)}"
    worker: str = _THREAD.worker
    return worker


_PROCESS = (0, "")


def session_of(worker: str) -> str | None:
    """A worker of this process, as the server is told: below the session that the process was started in. ``None`` if
    so many levels are nested that it would be too long."""
    global _PROCESS
    if _PROCESS[0] != os.getpid():
        # Drawn anew in a forked child, whose threads have the names of its parent's.
        _PROCESS = (os.getpid(), f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
    outer = os.environ.get("LEASEHOLD_SESSION", "")
    is_path = outer.isprintable() and all(outer.split("/"))
    session = f"{outer}/{_PROCESS[1]}-{worker}" if is_path else f"{_PROCESS[1]}-{worker}"
    return session if len(session.encode(errors="replace")) <= SESSION_LEN_MAX else None


def about_this_process() -> dict[str, Any]:
    """What others see of a claim: enough to find out who holds it."""
    try:
        user: str | None = getpass.getuser()
    except (KeyError, OSError):
        # A user without a name, as in many containers.
        user = None
    # Without its arguments: there may be a password among them, and others read this.
    program = (getattr(sys, "argv", None) or [""])[0] or "python"
    about = {"host": socket.gethostname(), "user": user, "pid": os.getpid(), "program": program[:200]}
    # Names of files and users need not be text.
    return {name: _text(value) if isinstance(value, str) else value for name, value in about.items()}


def _text(name: str) -> str:
    return name.encode(errors="replace").decode()


def without_workers(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The claims of a list. Their workers are names of ours."""
    return [{name: value for name, value in claim.items() if name != "worker"} for claim in answer["claims"]]


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether its call only makes an iterator, which does the work later."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def name_from_arguments(resource: str, function: Callable[..., Any]) -> Callable[..., str]:
    """Fills the arguments of a call into the name of a resource."""
    signature = inspect.signature(function)

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return resource.format(**bound.arguments)

    return name


def _again(kind: type[LockManager], settings: dict[str, Any]) -> LockManager:
    return kind(**settings)


def _terminates(on_lost: str) -> bool:
    if on_lost not in ("report", "terminate"):
        raise Invalid("'on_lost' must be 'report' or 'terminate'; a function to call is 'lost'")
    return on_lost == "terminate"


def _environment(url: str | Sequence[str] | None, key: str | None) -> dict[str, str]:
    """Keys are no flags: others on this machine could see them."""
    env = dict(os.environ)
    if url is not None:
        env["LEASEHOLD_ADDR"] = url if isinstance(url, str) else ",".join(url)
        if not env["LEASEHOLD_ADDR"]:
            raise Invalid("'url' must not be empty")
    if key is not None:
        env["LEASEHOLD_KEY"] = key
    return env
