"""How programs end: in peace, killed, terminated because they lost a claim; and claims that are forgotten."""

from __future__ import annotations

import gc
import signal

import pytest
from conftest import eventually

from leasehold import LockManager

HOLD = """
    import os, signal, sys, time
    from leasehold import LockManager
    locks = LockManager(sys.argv[1], ttl=600)
    claim = locks.claim("r")
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["pass", "sys.exit(3)", "raise RuntimeError"])
def test_a_program_that_ends_releases(server, program, how):
    other = program(HOLD + "    " + how, server.url)
    other.says("held")
    other.hears("")
    other.ends()
    assert server.statuses("r") == ["released"]


@pytest.mark.parametrize("how", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_program_that_is_killed_has_its_claims_aborted(server, program, how):
    other = program(HOLD + "    " + how, server.url)
    other.says("held")
    other.hears("")
    other.ends()
    eventually(lambda: server.statuses("r") == ["aborted"])


def test_a_claim_that_is_forgotten_is_released(server):
    with LockManager(server.url, ttl=600) as locks:
        claim = locks.claim("r")
        assert claim.validate() > 0
        del claim
        gc.collect()
        eventually(lambda: server.statuses("r") == ["released"])
        locks.claim("s")
        eventually(lambda: server.statuses("s") == ["released"])


def test_a_manager_that_is_forgotten_ends_its_keychain(server):
    claim = LockManager(server.url, ttl=600).claim("r")
    gc.collect()
    assert claim.validate() > 0, "the manager lives as long as its claims"
    del claim
    gc.collect()
    eventually(lambda: server.statuses("r") == ["released"])


def test_a_program_that_ends_loses_nothing(server, program):
    other = program(
        HOLD.replace('"r")', '"r", on_lost="terminate", lost=lambda *_: print("lost", flush=True))'), server.url
    )
    other.says("held")
    other.hears("")
    assert other.ends() == 0
    assert other.process.stdout.read() == ""
    assert server.statuses("r") == ["released"]


def test_a_lost_claim_terminates_a_program_though_the_callback_of_another_one_does_not_return(server, program):
    script = """
        import sys, time
        from leasehold import LockManager
        locks = LockManager(sys.argv[1], ttl=2)
        def stay(claim, why):
            print("stays", flush=True)
            time.sleep(1000)
        first = locks.claim("first", lost=stay)
        second = locks.claim("second", on_lost="terminate")
        print(first.id, second.id, flush=True)
        time.sleep(1000)
    """
    other = program(script, server.url)
    first, second = other.process.stdout.readline().split()
    server.revoke(first)
    other.says("stays")
    server.revoke(second)
    assert other.ends() == -signal.SIGTERM


TERMINATED = """
    import sys, time
    from leasehold import LockManager
    locks = LockManager(sys.argv[1], ttl=2, on_lost=sys.argv[2])
    claim = locks.claim("r", lost=lambda claim, why: print("lost", why, flush=True))
    print(claim.id, flush=True)
    time.sleep(1000)
"""


def test_a_lost_claim_terminates_a_program_that_wants_it_after_its_callback(server, program):
    other = program(TERMINATED, server.url, "terminate")
    assert other.process.stdout is not None
    server.revoke(other.process.stdout.readline().strip())
    other.says("lost ended")
    assert other.ends() == -signal.SIGTERM


def test_a_lost_claim_terminates_nobody_else(server, program):
    other = program(TERMINATED, server.url, "report")
    assert other.process.stdout is not None
    server.revoke(other.process.stdout.readline().strip())
    other.says("lost ended")
    assert other.process.poll() is None
