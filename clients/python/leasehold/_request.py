"""A request to the keychain, and the answer that may still be on its way."""

from __future__ import annotations

import threading
from typing import Callable, Optional

from ._errors import KeychainGone, from_answer
from ._hold import Hold
from ._pipe import Message

OnAnswer = Callable[[Optional[Message]], None]


class Answer:
    """An answer that may still be on its way."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._message: Message | None = None

    def __call__(self, message: Message | None) -> None:
        self._message = message
        self._ready.set()

    def result(self, timeout: float | None = None) -> Message:
        """Waits for it; a refusal is an exception."""
        if not self._ready.wait(timeout):
            raise TimeoutError("no answer from the keychain")
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
