"""A request to the keychain, and the answer that may still be on its way."""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Optional

from ._errors import KeychainGone, from_answer
from ._hold import Hold
from ._pipe import Message

OnAnswer = Callable[[Optional[Message]], None]


class NoAnswer(Exception):
    """The keychain did not answer in time. Not a ``TimeoutError``: a signal handler of the program may raise one."""


class Answer:
    """An answer that may still be on its way, for one who waits. A bare lock: a signal handler that raises inside an
    ``Event`` may leave its lock taken, and the thread that answers would wait for it for ever."""

    def __init__(self) -> None:
        self._pending = threading.Lock()
        self._pending.acquire()
        self._message: Message | None = None

    def __call__(self, message: Message | None) -> None:
        self._message = message
        # Told twice: it is free already.
        with contextlib.suppress(RuntimeError):
            self._pending.release()

    def wake(self) -> None:
        """Something has happened."""
        self(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for it; False if it is not there by then."""
        return self._pending.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))

    def result(self, timeout: float | None = None) -> Message:
        """Waits for it; a refusal is an exception."""
        if not self.wait(timeout):
            raise NoAnswer("no answer from the keychain")
        return read_answer(self._message)


def read_answer(message: Message | None) -> Message:
    """An answer, or an exception if it is none of success."""
    if message is None:
        raise KeychainGone("the keychain process has ended")
    if not message.get("ok"):
        raise from_answer(message)
    return message


class Request:
    """A line that was sent, and what is to be done with its answer."""

    def __init__(self, op: str, line: Message, on_answer: OnAnswer | None, hold: Hold | None, note: str = "") -> None:
        self.op = op
        #: For the log.
        self.note = note
        self.line = line
        self.on_answer = on_answer
        self.hold = hold

    def answer(self, message: Message | None) -> None:
        if self.on_answer is not None:
            self.on_answer(message)
