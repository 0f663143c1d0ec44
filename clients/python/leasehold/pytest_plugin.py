"""Fixtures for programs that use Leasehold: a real server in a temporary folder.

In:    the ``leasehold`` command that this package uses. Out: ``leasehold_server`` and ``leasehold_locks``.
Never: leaves a server behind.
"""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from ._binary import binary
from ._manager import LockManager


class Server:
    """A server on a free port of this machine, with its data in a folder."""

    def __init__(self, data: pathlib.Path, *flags: str) -> None:
        command = [binary(), "serve", "--listen", "127.0.0.1:0", "--data", str(data), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        if "http://" not in first:
            self.stop()
            raise RuntimeError(f"'{' '.join(command)}' does not start")
        #: Where it listens.
        self.url = "http://" + first.split("http://")[1].strip()

    def stop(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def leasehold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a run."""
    server = Server(tmp_path_factory.mktemp("leasehold"))
    yield server
    server.stop()


@pytest.fixture
def leasehold_locks(leasehold_server: Server) -> Iterator[LockManager]:
    """A manager for one test; what it holds is released at the end."""
    with LockManager(leasehold_server.url) as locks:
        yield locks
