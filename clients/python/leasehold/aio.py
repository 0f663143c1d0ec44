"""The same for asyncio: ``async with`` and ``await``.

In:    names of resources. Out: claims. Each task is a worker: tasks queue for a resource like strangers.
Never: blocks the event loop for a request. (Making a manager starts its keychain process, which takes a moment.)
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import functools
import inspect
import itertools
import weakref
from collections.abc import Awaitable, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, TypeVar, cast

from . import _claim, _link, _manager
from ._errors import Invalid, LeaseholdError, NotAcquired, Unknown
from ._hold import OVER
from ._items import Also, Item, words
from ._options import AnyOptions
from ._pipe import Message
from ._request import read_answer

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A function, or a coroutine function.
LostCallback = Callable[["Claim", str], object]
Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])


#: How long ``on_lost="terminate"`` waits for a callback on an event loop, which may be stuck.
CALLBACK_LIMIT = 10.0


class Options(AnyOptions, total=False):
    """Those of ``LockManager.claim``."""

    lost: LostCallback | None


class LockManager:
    """Makes claims; takes the settings of ``leasehold.LockManager``."""

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
        self._manager = _manager.LockManager(
            url,
            ttl=ttl,
            timeout=timeout,
            max_hold=max_hold,
            key=key,
            api_version=api_version,
            on_lost=on_lost,
            sessions=sessions,
        )

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
    ) -> Claiming:
        """``await`` it, or use it in ``async with``; the options are those of ``leasehold.LockManager.claim``. ``lost``
        is called on the event loop, and may be a coroutine function. A task that is cancelled while it waits leaves the
        queue and holds nothing."""
        options = {"ttl": ttl, "timeout": timeout, "data": data, "max_hold": max_hold, "lead": lead}
        wanted = words(resource, shared, slots, also)
        return Claiming(lambda: self._claim(resource, wanted, options, lost, on_lost))

    def lock(self, resource: str, **options: Unpack[Options]) -> Lock:
        """A lock with the methods of ``asyncio.Lock``, for any number of tasks; ``options`` are those of ``claim``."""
        return Lock(self, resource, options)

    def guard(self, resource: str, **options: Unpack[Options]) -> Callable[[Function], Function]:
        """A decorator for coroutine functions; see ``leasehold.LockManager.guard``."""

        def decorate(function: Function) -> Function:
            if not inspect.iscoroutinefunction(function):
                # Of a generator, the work begins when nothing is held any more.
                raise Invalid(f"{function!r} is no coroutine function")
            name = _manager.name_from_arguments(resource, function)

            @functools.wraps(function)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                async with self.claim(name(*args, **kwargs), **options):
                    return await function(*args, **kwargs)

            return cast(Function, guarded)

        return decorate

    async def holder(self, resource: str) -> dict[str, Any] | None:
        """The claim that holds a resource, whoever made it; ``None`` if it is free."""
        holder: dict[str, Any] | None = (await self._ask("show", _link.ANSWER_LIMIT, resource=resource))["holder"]
        return holder

    async def list(self) -> builtins.list[dict[str, Any]]:
        """What this manager holds and waits for."""
        return _manager.without_workers(await self._ask("list", _link.ANSWER_LIMIT))

    async def ping(self) -> dict[str, Any]:
        """Asks the keychain for a sign of life."""
        return await self._ask("ping", _link.ANSWER_LIMIT)

    async def _ask(self, op: str, limit: float, **line: Any) -> dict[str, Any]:
        future = _Future()
        self._manager._link.post(op, line, future)
        return await future.result(limit)

    async def _look_for_holder(self, resource: str) -> dict[str, Any] | None:
        try:
            holder: dict[str, Any] | None = (await self._ask("show", _manager.HOLDER_LIMIT, resource=resource))[
                "holder"
            ]
        except LeaseholdError:
            return None
        return holder

    async def close(self) -> None:
        """Releases everything and ends the keychain."""
        await asyncio.get_running_loop().run_in_executor(None, self._manager.close)

    async def __aenter__(self) -> LockManager:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _claim(
        self,
        resource: str,
        wanted: dict[str, Any],
        options: dict[str, Any],
        lost: LostCallback | None,
        on_lost: str | None,
    ) -> Claim:
        future = _Future()
        inner = self._manager._new_claim(resource, wanted, worker_of_task(), options, None, on_lost)
        claim = Claim(inner)
        if lost is not None:
            inner._hold.on_lost = _on_loop(claim, lost)
        try:
            self._manager._begin(inner, future)
            await future.result(self._manager._limit(options["timeout"]))
        except BaseException as error:
            inner._abandon()
            if isinstance(error, NotAcquired):
                error.holder, error.position = inner._hold.holder, inner._hold.position
                if error.holder is None:
                    error.holder = await self._look_for_holder(resource)
            raise
        return claim


class Claiming:
    """A claim to be: ``await`` it, or enter it."""

    def __init__(self, begin: Callable[[], Awaitable[Claim]]) -> None:
        self._begin = begin
        self._claim: Claim | None = None
        self._is_entered = False

    def __await__(self) -> Generator[Any, None, Claim]:
        return self._begin().__await__()

    async def __aenter__(self) -> Claim:
        if self._is_entered:
            # Its end could not tell whose claim to release.
            raise Invalid("this claim is entered already: call claim() for each block, or use lock()")
        self._is_entered = True
        try:
            self._claim = await self._begin()
        except BaseException:
            self._is_entered = False
            raise
        return self._claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        claim, self._claim, self._is_entered = self._claim, None, False
        if claim is not None:
            await claim.__aexit__(kind, error, trace)


class Lock:
    """A resource as a lock. Each task that acquires it has a claim of its own."""

    def __init__(self, manager: LockManager, resource: str, options: Options) -> None:
        self._manager = manager
        self.resource = resource
        self._options = options
        # A task that ends without releasing forgets its claim.
        self._held: weakref.WeakKeyDictionary[asyncio.Task[Any], Claim] = weakref.WeakKeyDictionary()

    @property
    def claim(self) -> Claim | None:
        """The claim with which this task holds it, if it does."""
        return self._held.get(_task())

    async def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Waits for the lock, at most so many seconds; -1: as long as the manager's ``timeout`` says."""
        options = self._options.copy()
        if not blocking:
            options["timeout"] = 0
        elif timeout >= 0:
            options["timeout"] = timeout
        try:
            self._held[_task()] = await self._manager.claim(self.resource, **options)
        except NotAcquired:
            return False
        return True

    async def release(self) -> None:
        """Gives it up; raises ``Lost`` if it was lost before, ``RuntimeError`` if this task has not acquired it."""
        claim = self._held.pop(_task(), None)
        if claim is None:
            raise RuntimeError(f"this task has not acquired {self.resource!r}")
        await claim.release()

    async def locked(self) -> bool:
        """Whether anybody holds the resource, in this process or elsewhere."""
        return await self.holder() is not None

    async def holder(self) -> dict[str, Any] | None:
        """The claim that holds the resource, whoever made it."""
        return await self._manager.holder(self.resource)

    async def __aenter__(self) -> Claim:
        self._held[_task()] = claim = await self._manager.claim(self.resource, **self._options)
        return claim

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        claim = self._held.pop(_task(), None)
        if claim is not None:
            await claim.__aexit__(kind, error, trace)


class Claim:
    """A claim that holds its resource, until it is released, forgotten or lost."""

    def __init__(self, claim: _claim.Claim) -> None:
        self._claim = claim

    @property
    def resource(self) -> str:
        """What it holds."""
        return self._claim.resource

    @property
    def id(self) -> str:
        """Its id on the server."""
        return self._claim.id

    @property
    def token(self) -> int | None:
        """The fencing token; ``None`` if the claim holds several resources whose tokens differ."""
        return self._claim.token

    @property
    def items(self) -> tuple[Item, ...]:
        """What it holds, one by one."""
        return self._claim.items

    @property
    def slots(self) -> tuple[int, ...]:
        """The numbers of the slots of its (first) resource, from 1."""
        return self._claim.slots

    @property
    def session(self) -> str | None:
        """The session that it belongs to."""
        return self._claim.session

    @property
    def is_lost(self) -> bool:
        """Whether it is not certain to hold any more, or was released."""
        return self._claim.is_lost

    def validate(self) -> float:
        """The seconds for which it certainly holds if no renewal gets through; raises ``Lost`` if it does not hold."""
        return self._claim.validate()

    async def refresh(self, ttl: float | None = None) -> None:
        """Renews it now. A ``ttl`` is the claim's from now on."""
        self._claim._check()
        future = _Future()
        self._claim._post_refresh(ttl, future)
        try:
            await future.result(self._claim._refresh_limit())
        except LeaseholdError as error:
            raise self._claim._refresh_error(error) from error

    async def release(self) -> None:
        """Gives it up; again is no mistake. Raises ``Lost`` if it was lost before."""
        future = _Future()
        if not self._claim._begin_release(future):
            return
        # That it is lost is known already: a keychain that hangs need not say so.
        self._claim._check_lost()
        try:
            await future.result(_claim.RELEASE_LIMIT)
        except LeaseholdError as error:
            raise self._claim._release_error(error) from error
        self._claim._check_lost()

    async def wait_lost(self) -> str:
        """Returns when it is lost, with the reason, or ``released``."""
        hold = self._claim._hold
        future = _Future()
        hold.listeners.append(future.wake)
        try:
            while not self.is_lost:
                await future.woken()
        finally:
            hold.listeners.remove(future.wake)
        return hold.reason or ("released" if hold.state == OVER else "ended")

    async def __aenter__(self) -> Claim:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._claim._hold.is_mine:
            return
        try:
            await self.release()
        except LeaseholdError:
            # What went wrong inside matters more than that the lock is gone, too.
            if kind is None:
                raise
        except BaseException:
            # An interrupt, perhaps before anything was sent: nobody else would give it up.
            self._claim._abandon()
            raise

    def __repr__(self) -> str:
        return repr(self._claim)


class _Future:
    """An answer from another thread, for the task that waits for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Message | None] = self._loop.create_future()

    def __call__(self, message: Message | None) -> None:
        def answer() -> None:
            if not self._answer.done():
                self._answer.set_result(message)

        # A loop that is closed has nobody who waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(answer)

    def wake(self) -> None:
        """Something has happened."""
        self(None)

    async def woken(self) -> None:
        """Waits for ``wake``."""
        await self._answer

    async def result(self, timeout: float | None = None) -> Message:
        """Waits for it; a refusal is an exception."""
        try:
            message = await asyncio.wait_for(self._answer, timeout)
        except asyncio.TimeoutError as error:
            raise Unknown("the keychain process does not answer") from error
        return read_answer(message)


def _on_loop(claim: Claim, lost: LostCallback) -> Callable[[_claim.Claim, str], None]:
    """Calls back on the event loop. It does not keep the claim alive: one that is forgotten is released."""
    loop, handle = asyncio.get_running_loop(), weakref.ref(claim)

    async def call(why: str) -> None:
        known = handle()
        if known is not None:
            result = lost(known, why)
            if inspect.isawaitable(result):
                await result

    def tell(_: _claim.Claim, why: str) -> None:
        calling = call(why)
        try:
            called = asyncio.run_coroutine_threadsafe(calling, loop)
        except RuntimeError:
            # The loop is closed: nobody is there any more.
            calling.close()
            return
        # A signal that follows must not come before the callback is done.
        called.result(CALLBACK_LIMIT)

    return tell


def _task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a lock of leasehold.aio belongs to a task, and there is none")
    return task


_TASKS = itertools.count(1)
_WORKERS: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()


def worker_of_task() -> str:
    """The running task as a worker."""
    task = asyncio.current_task()
    if task is None:
        return _manager.worker_of_thread()
    return _WORKERS.setdefault(task, f"task-{next(_TASKS)}")
