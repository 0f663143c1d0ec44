"""The thread that talks to the keychain process, and looks after it.

In:    requests, from any thread and from finalizers. Out: answers, events, and word of claims that are lost.
Never: waits for a process that is gone, or calls a callback of the program.

A keychain that dies is started again: claims that are held are taken up by their ids, and requests that wait for an
answer are repeated. A forked child starts a keychain of its own when it needs one.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Callable

from ._check import plain
from ._clock import boottime
from ._errors import Invalid, KeychainGone, LeaseholdError, Unknown
from ._hold import HELD, OVER, Hold
from ._pipe import Message, Pipe
from ._request import Answer, NoAnswer, OnAnswer, Request

log = logging.getLogger("leasehold")

#: The keychain answers questions about itself at once; one that does not by then is stopped or stuck.
ANSWER_LIMIT = 15.0
#: How long a process that has closed its output may take to end.
END_LIMIT = 2.0
#: How long the thread that reads may take to show that it has read everything.
SETTLE_LIMIT = 1.0
#: A suspended machine stops the clock of ``poll``; the deadlines go on.
LOOK_PERIOD = 2.0
#: So many keychains in a row that die before they say a word are too many.
DEATHS_MAX = 5


class Link:
    """All that a manager has to do with its keychain."""

    def __init__(self, command: Sequence[str], env: dict[str, str], on_lost: Callable[[Hold], None]) -> None:
        self._command = list(command)
        self._env = env
        self._on_lost = on_lost
        self.is_closed = False
        #: Whether what is held when it closes is lost to somebody: not at the end of the program.
        self._close_is_loss = False
        self._reset()
        key = id(self)
        _LINKS[key] = weakref.ref(self, lambda _: _LINKS.pop(key, None))
        self._ensure()

    def _reset(self) -> None:
        """As if nothing had been started."""
        #: Also the manager's, as it is renewed in a forked child. A signal handler of the program may come in between,
        #: on the same thread.
        self.lock = threading.RLock()
        self._pipe: Pipe | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._posted: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._settling: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Request] = {}
        self._holds: dict[str, Hold] = {}
        #: Claims that a new keychain is taking up, and what waits for that.
        self._taking_up: dict[Hold, list[Request]] = {}
        self._look_at = float("inf")
        self._deaths = 0
        self._has_spoken = False
        self._is_running = False
        self._process = 0
        self._thread: threading.Thread | None = None

    # From any thread.

    def ask(self, op: str, timeout: float | None = ANSWER_LIMIT, **line: Any) -> Message:
        """Sends a request and waits for its answer; a refusal is an exception."""
        answer = Answer()
        self.post(op, line, answer)
        return answer.result(timeout)

    def post(self, op: str, line: Message, on_answer: OnAnswer | None, hold: Hold | None = None) -> None:
        """Sends a request. Its answer comes on another thread; ``None`` if the keychain is gone."""
        line = plain(line)
        self._ensure()
        self._post(Request(op, line, on_answer, hold))

    def give_up(self, hold: Hold, on_answer: OnAnswer | None = None, note: str = "") -> None:
        """Releases a claim, or takes it out of the queue. Takes no lock: finalizers call it, at any moment."""
        if hold.is_mine and self._is_running:
            line = {"resource": hold.resource, "worker": hold.name}
            # First: an interrupt before it leaves the claim held, and one after it does no harm.
            self._post(Request("release", line, on_answer, hold, note))
            hold.end()
        else:
            hold.end()
            if on_answer is not None:
                on_answer(None)

    def settle(self) -> None:
        """Returns when everything that the keychain has said so far is known here."""
        settled = Answer()
        self._settling.put(settled)
        if self._is_running:
            self._wake_up()
            settled.wait(SETTLE_LIMIT)

    def lose(self, hold: Hold, reason: str) -> None:
        """The claim is not certain to hold its resource any more."""
        with self.lock:
            if hold.state != HELD or hold.is_lost:
                return
            hold.reason = reason
            hold.is_lost = True
        log.warning("the claim on %r (%s) is lost: %s", hold.resource, hold.id, reason)
        hold.tell()
        self._on_lost(hold)

    @property
    def pid(self) -> int:
        """The number of the keychain process."""
        self._ensure()
        assert self._pipe is not None
        return self._pipe.process.pid

    def close(self, is_loss: bool = True) -> None:
        """Releases everything and ends the keychain. ``is_loss``: who still works with a claim is told."""
        if not self.is_closed:
            if is_loss and self._process == os.getpid():
                self._close_is_loss = True
                for hold in list(self._holds.values()):
                    self.lose(hold, "closed")
            answer = Answer()
            self.close_soon(answer)
            try:
                answer.result(ANSWER_LIMIT)
            except LeaseholdError as error:
                log.warning("the keychain did not close in peace: %s", error)
            except NoAnswer:
                log.warning("the keychain does not answer, and is killed")
                if self._pipe is not None:
                    self._pipe.process.kill()
        # A finalizer may have closed it without waiting.
        thread = self._thread if self._is_running else None
        if thread is not None and thread is not threading.current_thread():
            thread.join(ANSWER_LIMIT)

    def close_soon(self, on_answer: OnAnswer | None = None) -> None:
        """The same without waiting, for finalizers."""
        if self._is_running and not self.is_closed and self._process == os.getpid():
            # First: who was interrupted before it can close again.
            self._post(Request("shutdown", {}, on_answer, None))
        elif on_answer is not None:
            on_answer({"ok": True})
        self.is_closed = True

    def _post(self, request: Request) -> None:
        self._posted.put(request)
        self._wake_up()
        if not self._is_running:
            self._fail_posted()

    def _wake_up(self) -> None:
        # Full: it is awake already.
        with contextlib.suppress(OSError):
            if self._wake is not None:
                self._wake[1].send(b"!")

    def _fail_posted(self) -> None:
        while True:
            try:
                request = self._posted.get_nowait()
            except queue.Empty:
                return
            request.answer(None)

    def _ensure(self) -> None:
        """Starts a keychain and its thread where there is none: at first, in a forked child, and after a failure."""
        with self.lock:
            if self.is_closed:
                raise KeychainGone("the lock manager is closed")
            if self._is_running:
                return
            self._process = os.getpid()
            self._deaths, self._has_spoken = 0, False
            self._spawn()
            self._start_thread()
        _close_at_exit_of_child()
        first = Answer()
        self._post(Request("ping", {}, first, None))
        try:
            first.result(ANSWER_LIMIT)
        except KeychainGone as error:
            raise self._why_not() from error
        except NoAnswer as error:
            raise Unknown("the keychain process does not answer") from error

    def _start_thread(self) -> None:
        if self._wake is None:
            # Stays open as long as the link: another thread may be about to use it.
            self._wake = socket.socketpair()
            for end in self._wake:
                end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="leasehold-keychain", daemon=True)
        self._is_running = True
        try:
            self._thread.start()
        except BaseException:
            self._is_running = False
            raise

    def __del__(self) -> None:
        for end in self._wake or ():
            end.close()

    def _spawn(self) -> None:
        self._pipe = Pipe([*self._command, "--parent", str(os.getpid())], self._env)
        log.debug("keychain process %d has started", self._pipe.process.pid)

    def _why_not(self) -> LeaseholdError:
        """Why a keychain did not start: it says so before it ends."""
        complaint = self._pipe.complaint if self._pipe is not None else ""
        words = complaint.removeprefix("leasehold: ").removeprefix("error: ")
        return Invalid(words) if words else KeychainGone("the keychain process has ended at once")

    # On the link's own thread.

    def _run(self) -> None:
        # Python ignores SIGPIPE, but a program may want to end by it: when its own reader is gone, not a keychain.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
        try:
            while self._step():
                pass
        finally:
            self._is_running = False
            if self._pipe is not None:
                # Also after a mistake of ours: nothing may be renewed that nobody knows of.
                self._pipe.end(END_LIMIT)
            self._let_go()

    def _step(self) -> bool:
        """Waits for something, and does it. False when there is nothing left to do."""
        assert self._pipe is not None
        assert self._wake is not None
        seconds = min(max(self._look_at - boottime(), 0.0), LOOK_PERIOD) if self._holds else None
        self._pipe.wait(self._wake[0].fileno(), seconds)
        with contextlib.suppress(BlockingIOError):
            self._wake[0].recv(65536)
        settling = [self._settling.get_nowait() for _ in range(self._settling.qsize())]
        self._send_posted()
        self._pipe.write()
        # What has come goes before what is due: a renewal may have got through in the last moment.
        for message in self._pipe.lines():
            self._deaths, self._has_spoken = 0, True
            self._heard(message)
        for line in self._pipe.complaints():
            log.warning("keychain: %s", line)
        self._look()
        for settled in settling:
            settled.wake()
        return not self._pipe.is_gone or self._restart()

    def _send_posted(self) -> None:
        while True:
            try:
                request = self._posted.get_nowait()
            except queue.Empty:
                return
            self._send(request)

    def _send(self, request: Request) -> None:
        assert self._pipe is not None
        if request.op == "release" and request.hold is not None:
            # Before the keychain hears of it. Who sent it may have been interrupted and not have said so.
            request.hold.end()
        elif request.op == "shutdown":
            self.is_closed = True
        if request.op in ("refresh", "release") and request.hold in self._taking_up:
            # A keychain says that a claim is released as soon as it has stopped to take it up; the server does later.
            self._taking_up[request.hold].append(request)
            return
        if request.note:
            log.warning("%s", request.note)
        number = next(self._ids)
        self._waiting[number] = request
        line = {name: value for name, value in request.line.items() if value is not None}
        try:
            self._pipe.feed({"id": number, "op": request.op, **line})
        except (TypeError, ValueError, RecursionError) as error:
            # ``plain`` lets none through. If it errs, one request fails, and not the thread with all claims.
            self._heard({"id": number, "ok": False, "error": "invalid", "detail": str(error)})

    def _heard(self, message: Message) -> None:
        if "event" in message:
            self._happened(message)
            return
        if message.get("id") is None:
            # A line of ours that it can't read: somebody waits for an answer that does not come.
            log.error("the keychain does not understand a request: %s", message.get("detail", message))
            return
        request = self._waiting.pop(message["id"], None)
        if request is None:
            return
        if request.hold is not None:
            self._answered(request, request.hold, message)
        request.answer(message)

    def _answered(self, request: Request, hold: Hold, message: Message) -> None:
        op = request.op
        if op == "take-up":
            for deferred in self._taking_up.pop(hold, []):
                self._send(deferred)
        if op in ("claim", "take-up") and message.get("ok"):
            hold.acquired(message)
            # Also one that was given up meanwhile, until its release is answered.
            self._holds[hold.id] = hold
            self._look_at = min(self._look_at, hold.until)
        elif op == "take-up" and hold.state == HELD:
            log.warning("the claim on %r can't be taken up: %s", hold.resource, message.get("detail"))
            self._holds.pop(hold.id, None)
            self.lose(hold, "ended" if message.get("error") == "ended" else "keychain-gone")
        elif op == "refresh" and message.get("ok"):
            hold.until = message["until"]
            hold.line["ttl"] = request.line.get("ttl") or hold.line.get("ttl")
            self._look_at = min(self._look_at, hold.until)
        elif op == "release":
            self._holds.pop(hold.id, None)

    def _happened(self, event: Message) -> None:
        if event["event"] == "waiting":
            self._waits(event)
            return
        hold = self._holds.get(event.get("claim", ""))
        if hold is None:
            return
        if event["event"] == "renewed":
            hold.until = event["until"]
        elif event["event"] == "lost":
            self._holds.pop(hold.id, None)
            self.lose(hold, event["reason"])

    def _waits(self, event: Message) -> None:
        requests = (request for request in self._waiting.values() if request.op == "claim")
        for hold in (request.hold for request in requests):
            if hold is not None and hold.name == event.get("worker"):
                hold.holder, hold.position = event.get("holder"), event.get("position")
                if event.get("trouble"):
                    log.warning("%r has to wait: %s", hold.resource, event["trouble"])

    def _look(self) -> None:
        """Finds claims that no renewal was heard of in time."""
        if boottime() < self._look_at:
            return
        held = [hold for hold in self._holds.values() if hold.state == HELD and not hold.is_lost]
        for hold in [hold for hold in held if hold.is_due()]:
            self.lose(hold, "not-renewed")
        self._look_at = min((hold.until for hold in held if not hold.is_lost), default=float("inf"))

    def _restart(self) -> bool:
        """Another keychain in the place of one that has ended. False if there is to be none."""
        assert self._pipe is not None
        code = self._pipe.end(END_LIMIT)
        # One that ends before its first word does not like its settings.
        if self.is_closed or not self._has_spoken:
            return False
        self._deaths += 1
        if self._deaths > DEATHS_MAX:
            log.error("the keychain process ends again and again (%d): %s", code, self._pipe.complaint)
            return False
        log.warning("the keychain process has ended (%d); another one goes on with its claims", code)
        time.sleep(0.05 * (2 ** (self._deaths - 1) - 1))
        try:
            self._spawn()
        except KeychainGone as error:
            log.error("%s", error)
            return False
        self._repeat()
        return True

    def _repeat(self) -> None:
        """Tells a new keychain what the one before it knew."""
        before, self._waiting = self._waiting, {}
        deferred, self._taking_up = self._taking_up, {}
        for held in list(self._holds.values()):
            # Of one that is over, the release is not answered yet.
            if held.state == OVER or not held.is_lost:
                line = {"resource": held.resource, "worker": held.name, **held.to_take_up()}
                self._send(Request("take-up", line, None, held))
                self._taking_up[held] = deferred.get(held, [])
        for request in before.values():
            hold = request.hold
            if request.op == "claim" and hold is not None:
                request.line = hold.to_repeat()
            elif request.op not in ("release", "refresh", "list", "ping", "show"):
                request.answer(None)
                continue
            self._send(request)

    def _let_go(self) -> None:
        """There is no keychain any more: whatever was held is lost, and nothing is answered."""
        waiting, self._waiting = self._waiting, {}
        holds, self._holds = self._holds, {}
        deferred, self._taking_up = self._taking_up, {}
        for request in [*waiting.values(), *(request for requests in deferred.values() for request in requests)]:
            request.answer({"ok": True} if request.op == "shutdown" else None)
        for hold in holds.values():
            if not self.is_closed:
                self.lose(hold, "keychain-gone")
            elif self._close_is_loss:
                self.lose(hold, "closed")
            else:
                hold.end()
        self._fail_posted()

    # In a forked child.

    def forget(self) -> None:
        """The keychain, its thread and its claims are the parent's."""
        if self._pipe is not None and self._is_running:
            self._pipe.forget()
        for end in self._wake or ():
            end.close()
        self._reset()


_LINKS: dict[int, weakref.ref[Link]] = {}


def _links() -> list[Link]:
    links = (link() for link in list(_LINKS.values()))
    return [link for link in links if link is not None]


def _close_all() -> None:
    """A program that ends releases what it holds."""
    for link in _links():
        link.close(is_loss=False)


def _forget_all() -> None:
    for link in _links():
        link.forget()


def _close_at_exit_of_child() -> None:
    """Children of ``multiprocessing``, and of its relative in Celery, leave without ``atexit``."""
    for name in ("multiprocessing", "billiard"):
        process, util = sys.modules.get(f"{name}.process"), sys.modules.get(f"{name}.util")
        if process is not None and util is not None and process.current_process()._parent_pid is not None:
            util.Finalize(None, _close_all, exitpriority=0)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_all)
