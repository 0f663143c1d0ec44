"""One keychain process, and the lines to and from it.

In:    bytes to write. Out: lines that have come, and what the process complains about.
Never: blocks its caller.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Sequence
from typing import Any

from ._check import to_json
from ._errors import KeychainGone

Message = dict[str, Any]

#: How much of its complaints is kept for an exception.
COMPLAINT_LEN_MAX = 4096


class Pipe:
    """A process that was started here."""

    def __init__(self, command: Sequence[str], env: dict[str, str]) -> None:
        try:
            self.process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                # A Ctrl-C at the terminal is for the program, which may want to clean up while it still holds.
                start_new_session=True,
            )
        except OSError as error:
            raise KeychainGone(f"'{command[0]}' can't be started ({error}); set LEASEHOLD_BIN to its path") from error
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self._in = self.process.stdin.fileno()
        self._out = self.process.stdout.fileno()
        self._err = self.process.stderr.fileno()
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._to_write = bytearray()
        self._read = bytearray()
        self._complaint = b""
        self.is_gone = False

    def feed(self, message: Message) -> None:
        """Adds a line to what is to be written."""
        self._to_write += to_json(message) + b"\n"

    def wait(self, wake: int, seconds: float | None) -> None:
        """Waits until something can be read or written, ``wake`` can be read, or the time is over."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._out, select.POLLIN)
        poll.register(self._err, select.POLLIN)
        if self._to_write:
            poll.register(self._in, select.POLLOUT)
        # Rounded up: woken too early, the caller would find nothing due and wait again, for no time at all.
        poll.poll(None if seconds is None else int(seconds * 1000) + 1)

    def write(self) -> None:
        """Writes as much as goes at the moment."""
        try:
            while self._to_write:
                del self._to_write[: os.write(self._in, self._to_write)]
        except BlockingIOError:
            pass
        except OSError:
            # It does not read any more. The end of its output tells the rest.
            self._to_write.clear()

    def lines(self) -> list[Message]:
        """What has come."""
        while not self.is_gone:
            try:
                read = os.read(self._out, 65536)
            except BlockingIOError:
                break
            self._read += read
            self.is_gone = not read
        *whole, rest = bytes(self._read).split(b"\n")
        self._read = bytearray(rest)
        return [json.loads(line) for line in whole]

    def complaints(self) -> list[str]:
        """What it has written to its standard error, in lines."""
        text = b""
        try:
            while True:
                read = os.read(self._err, 65536)
                if not read:
                    break
                text += read
        except BlockingIOError:
            pass
        self._complaint = (self._complaint + text)[-COMPLAINT_LEN_MAX:]
        return text.decode(errors="replace").splitlines()

    @property
    def complaint(self) -> str:
        """The last that it has complained about."""
        return self._complaint.decode(errors="replace").strip()

    def end(self, seconds: float) -> int:
        """Closes the pipes and waits for the end of the process, which is killed if it takes too long."""
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.stdin.close()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if not self.process.stderr.closed:
            self.complaints()
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def forget(self) -> None:
        """In a forked child: the process is the parent's, and so are its pipes."""
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
        # Keeps the child from waiting for, or complaining about, a process that is not its own.
        self.process.returncode = 0
