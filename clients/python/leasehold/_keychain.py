"""The keychain process and its pipe.

In:    requests. Out: their answers, and events for whoever listens.
Never: waits for an answer of a process that is gone.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from typing import Any, Callable, Dict, List, Optional

from ._errors import KeychainGone, LeaseholdError, from_answer

Event = Dict[str, Any]


class Keychain:
    """One process for all claims of a manager."""

    def __init__(self, args: List[str], env: Dict[str, str], on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: Dict[int, "_Answer"] = {}
        self._gone = False
        command = os.environ.get("LEASEHOLD_BIN", "leasehold")
        try:
            self._process = subprocess.Popen(
                [command, "keychain", *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                # A Ctrl-C at the terminal is for the program, which may want to clean up while it still holds.
                start_new_session=True,
            )
        except OSError as error:
            raise KeychainGone(f"'{command}' can't be started ({error}); set LEASEHOLD_BIN to its path") from error
        self._reader = threading.Thread(target=self._read, name="leasehold-keychain", daemon=True)
        self._reader.start()

    def send(self, op: str, **fields: Any) -> "_Answer":
        """Sends a request; its answer can be waited for."""
        answer = _Answer()
        with self._lock:
            if self._gone:
                raise KeychainGone("the keychain process has ended")
            request_id = next(self._ids)
            self._waiting[request_id] = answer
            line = {"id": request_id, "op": op, **{k: v for k, v in fields.items() if v is not None}}
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(json.dumps(line).encode() + b"\n")
                self._process.stdin.flush()
            except OSError as error:
                del self._waiting[request_id]
                raise KeychainGone(f"the keychain process has ended ({error})") from error
        return answer

    def ask(self, op: str, **fields: Any) -> Dict[str, Any]:
        """Sends a request and waits for its answer; a refusal is an exception."""
        return self.send(op, **fields).result()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def close(self, timeout: float = 15.0) -> None:
        """Gives everything up and ends the process."""
        try:
            self.send("shutdown").result(timeout)
        except (LeaseholdError, TimeoutError):
            pass
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "event" in message:
                self._on_event(message)
                continue
            with self._lock:
                answer = self._waiting.pop(message.get("id"), None)
            if answer is not None:
                answer.set(message)
        with self._lock:
            self._gone = True
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set(None)
        self._on_event({"event": "gone"})


class _Answer:
    """An answer that may still be on its way."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._message: Optional[Dict[str, Any]] = None

    def set(self, message: Optional[Dict[str, Any]]) -> None:
        self._message = message
        self._ready.set()

    def result(self, timeout: Optional[float] = None) -> Dict[str, Any]:
        if not self._ready.wait(timeout):
            raise TimeoutError("no answer from the keychain")
        if self._message is None:
            raise KeychainGone("the keychain process has ended")
        if not self._message.get("ok"):
            raise from_answer(self._message)
        return self._message
