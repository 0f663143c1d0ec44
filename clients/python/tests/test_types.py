"""A type checker finds what is misspelt."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).parent.parent
USE = """
from leasehold import LockManager, aio

locks = LockManager("http://a", ttl=3)
locks.lock("r", timeout=3, lost=lambda claim, why: print(claim.token))
locks.lock("r", wait_for=3)  # wrong
locks.guard("r", ttl="x")  # wrong

@locks.guard("r", timeout=3)
def report(day: str) -> int:
    return 1

report(3)  # wrong

async def stop(claim: aio.Claim, why: str) -> None: ...

async def main() -> None:
    aio.LockManager(address="x")  # wrong
    async with aio.LockManager("http://a") as locks, locks.claim("r", lost=stop) as claim:
        print(claim.token)
    locks.lock("r", lost=stop)
    locks.lock("r", lots=stop)  # wrong
"""


def test_a_misspelt_option_is_an_error_of_types(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir=/dev/null", "use.py"]
    env = {**os.environ, "MYPYPATH": str(PACKAGE)}
    checked = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    found = {int(line) for line in re.findall(r"^use.py:(\d+): error", checked.stdout, re.MULTILINE)}
    wrong = {number for number, line in enumerate(USE.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, checked.stdout + checked.stderr
