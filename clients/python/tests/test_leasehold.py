"""The Python client against the real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from leasehold import (
    Ended,
    Invalid,
    KeychainGone,
    LockManager,
    Lost,
    NotAcquired,
    Refused,
    Unreachable,
)

PATIENCE = 60.0


def eventually(question):
    end = time.monotonic() + PATIENCE
    while not question():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_a_claim_is_held_and_released(server):
    with LockManager(server.url) as locks:
        with locks.claim("r", data={"who": "me"}) as claim:
            assert claim.token == 1
            assert claim.validate() > 0
            claim.refresh(ttl=60)
            [shown] = server.claims("r")
            assert shown["status"] == "active" and shown["user_data"] == {"who": "me"}
            assert shown["initial_ttl"] == 60.0 and 0 < shown["ttl"] <= 60.0
            assert locks.list() == [{"resource": "r", "held": True, "claim": claim.id, "token": 1}]
            assert "held" in repr(claim)
        assert server.claims("r")[0]["status"] == "released"
        claim.release()
        with pytest.raises(Ended):
            claim.validate()
        assert locks.ping()["ok"]


def test_the_second_waits_its_turn(server):
    with LockManager(server.url) as first, LockManager(server.url) as second:
        claim = first.claim("r")
        with pytest.raises(NotAcquired):
            second.claim("r", timeout=0)
        with pytest.raises(NotAcquired):
            second.claim("r", timeout=0.2)
        got = []
        waiting = threading.Thread(target=lambda: got.append(second.claim("r", timeout=PATIENCE)))
        waiting.start()
        eventually(lambda: any(c["status"] == "waiting" for c in server.claims("r")))
        claim.release()
        waiting.join(PATIENCE)
        assert got[0].token > claim.token
        got[0].release()


def test_a_revoked_claim_calls_back(server):
    told = []
    with LockManager(server.url, ttl=3) as locks:
        claim = locks.claim("r", lost=lambda claim, why: told.append((claim.resource, why)))
        server.revoke(claim.id)
        assert claim.wait_lost(PATIENCE)
        eventually(lambda: told == [("r", "ended")])
        with pytest.raises(Lost):
            claim.validate()
        with pytest.raises(Lost):
            claim.release()


def test_a_dead_server_is_noticed_before_the_ttl_is_over(server):
    with LockManager(server.url, ttl=2) as locks:
        claim = locks.claim("r")
        server.process.send_signal(signal.SIGSTOP)
        try:
            assert claim.wait_lost(PATIENCE)
        finally:
            server.process.send_signal(signal.SIGCONT)
        with pytest.raises(Lost) as lost:
            claim.validate()
        assert lost.value.reason == "not-renewed"


def test_a_claim_is_renewed_for_as_long_as_max_hold_says(server):
    with LockManager(server.url, ttl=3) as locks:
        claim = locks.claim("r", max_hold=4)
        assert claim.wait_lost(PATIENCE)
        with pytest.raises(Lost) as lost:
            claim.release()
        assert lost.value.reason == "max-hold"


def test_failures_are_exceptions(server):
    with LockManager(server.url) as locks:
        with pytest.raises(Invalid):
            locks.claim("")
        with pytest.raises(Invalid):
            locks.claim("r", ttl=-1)
        with locks.claim("r"):
            with pytest.raises(Refused):
                locks.claim("r")
        with pytest.raises(Refused):
            locks.claim("x" * 5000)
        with pytest.raises(ZeroDivisionError):
            with locks.claim("q"):
                raise ZeroDivisionError
        assert server.claims("q")[0]["status"] == "released"
    with LockManager("http://127.0.0.1:1") as locks:
        with pytest.raises(Unreachable):
            locks.claim("r", timeout=0.3)


def test_a_keychain_that_dies_loses_everything(server):
    with LockManager(server.url) as locks:
        claim = locks.claim("r")
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert claim.wait_lost(PATIENCE)
        with pytest.raises(KeychainGone):
            locks.claim("s")
        with pytest.raises(Lost):
            claim.release()


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_parent_that_dies_holds_nothing(server, how):
    script = """
        import os, signal, sys, time
        from leasehold import LockManager
        claim = LockManager(sys.argv[1], ttl=600).claim("r")
        print("held", flush=True)
        sys.stdin.readline()
        if sys.argv[2] == "exit":
            os._exit(0)
        time.sleep(1000)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), server.url, how]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None and parent.stdout is not None
    assert parent.stdout.readline() == b"held\n"
    if how == "SIGKILL":
        parent.kill()
    else:
        parent.stdin.write(b"\n")
        parent.stdin.flush()
    parent.wait()
    eventually(lambda: server.claims("r")[0]["status"] == "aborted")
    parent.stdin.close()
    parent.stdout.close()


def test_the_command_must_be_there(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_BIN", "/nonexistent/leasehold")
    with pytest.raises(KeychainGone):
        LockManager("http://127.0.0.1:1")
