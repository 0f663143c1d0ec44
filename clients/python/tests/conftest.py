"""A real server for each test that wants one. The binary is in LEASEHOLD_BIN."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from typing import Any, Callable

import pytest

from leasehold import pytest_plugin

PATIENCE = 60.0
pytest_plugins = ["pytester"]
# For the programs that tests start, wherever they run.
os.environ["PYTHONPATH"] = str(pathlib.Path(__file__).parent.parent)


def eventually(question: Callable[[], Any]) -> None:
    """Asks until the answer is yes."""
    end = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


class Server(pytest_plugin.Server):
    """The server, and what a stranger can ask it."""

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            text = response.read()
            return json.loads(text) if text else None

    def claims(self, resource: str) -> list[dict[str, Any]]:
        return self.request("GET", f"/v1/claims/?resource={resource}")

    def statuses(self, resource: str) -> list[str]:
        return [claim["status"] for claim in self.claims(resource)]

    def revoke(self, claim: str) -> None:
        self.request("PATCH", f"/v1/claims/{claim}/", {"status": "revoked"})

    def hold(self, resource: str) -> Callable[[], None]:
        """Somebody else holds the resource. Returns what gives it up."""
        url = self.request("POST", "/v1/claims/", {"resource": resource, "ttl": 500})["url"]
        path = url[url.index("/v1/") :]
        return lambda: self.request("PATCH", path, {"status": "released"})


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    yield server
    server.stop()


class Program:
    """A Python program of its own, which talks over its standard handles."""

    def __init__(self, script: str, *args: str, **env: str) -> None:
        command = [sys.executable, "-c", textwrap.dedent(script), *args]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    def hears(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def says(self, line: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said == line + "\n", f"{said!r}: {self.process.stderr.read() if not said else ''}"

    def ends(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    with contextlib.ExitStack() as stack:

        def start(script: str, *args: str, **env: str) -> Program:
            program = Program(script, *args, **env)
            stack.callback(program.process.__exit__, None, None, None)
            stack.callback(program.process.kill)
            return program

        yield start
