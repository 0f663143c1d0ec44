"""A real server for each test that wants one. The binary is in LEASEHOLD_BIN."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import urllib.request
from typing import Any, Dict, Iterator, List

import pytest


class Server:
    def __init__(self, data: pathlib.Path) -> None:
        command = [os.environ["LEASEHOLD_BIN"], "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = "http://" + self.process.stdout.readline().strip().split("http://")[1]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as response:
            text = response.read()
            return json.loads(text) if text else None

    def claims(self, resource: str) -> List[Dict[str, Any]]:
        return self.request("GET", f"/v1/claims/?resource={resource}")

    def revoke(self, claim: str) -> None:
        self.request("PATCH", f"/v1/claims/{claim}/", {"status": "revoked"})


@pytest.fixture()
def server(tmp_path: pathlib.Path) -> Iterator[Server]:
    server = Server(tmp_path / "data")
    yield server
    server.process.kill()
    server.process.wait()
    assert server.process.stdout is not None
    server.process.stdout.close()
