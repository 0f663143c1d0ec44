"""Losing a claim: by this process's own clock, and when the keychain dies."""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import signal
import threading
import time

import pytest
from conftest import PATIENCE, eventually

from leasehold import Aborted, KeychainGone, LockManager, Lost, Unknown
from leasehold._link import Link


@pytest.fixture
def stopped():
    """Stops a process until the test is over."""
    pids = []

    def stop(pid):
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)

    yield stop
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_stopped_keychain_is_noticed_by_this_process(server, stopped):
    told = threading.Event()
    with LockManager(server.url, ttl=2) as locks:
        claim = locks.claim("r", lost=lambda claim, why: told.set())
        asked = locks.claim("asked")
        stopped(locks.keychain_pid)
        # Not by the callback's thread alone: whoever asks finds out.
        eventually(lambda: asked.is_lost)
        assert "lost" in repr(asked)
        assert told.wait(PATIENCE)
        with pytest.raises(Lost) as lost:
            claim.validate()
        assert lost.value.reason == "not-renewed"
        os.kill(locks.keychain_pid, signal.SIGCONT)


def test_a_refresh_ends_with_its_claim_when_the_keychain_does_not_answer(server, stopped):
    with LockManager(server.url, ttl=2) as locks:
        claim = locks.claim("r")
        stopped(locks.keychain_pid)
        with pytest.raises(Lost) as lost:
            claim.refresh()
        assert lost.value.reason == "not-renewed"
        os.kill(locks.keychain_pid, signal.SIGCONT)


def test_a_refresh_of_a_long_claim_is_unknown_when_the_keychain_does_not_answer(server, stopped, monkeypatch):
    monkeypatch.setattr("leasehold._claim.RELEASE_LIMIT", 0.5)
    with LockManager(server.url, ttl=600) as locks:
        claim = locks.claim("r")
        stopped(locks.keychain_pid)
        with pytest.raises(Unknown, match="may be renewed or not"):
            claim.refresh()
        assert claim.validate() > 0, "what is unknown is not lost"
        os.kill(locks.keychain_pid, signal.SIGCONT)


def test_a_process_that_was_stopped_itself_keeps_what_its_keychain_has_renewed(server, program):
    script = """
        import sys
        from leasehold import LockManager
        locks = LockManager(sys.argv[1], ttl=4)
        claim = locks.claim("r")
        print("held", flush=True)
        sys.stdin.readline()
        print(claim.is_lost, flush=True)
        claim.validate()
        claim.release()
        print("released", flush=True)
    """
    other = program(script, server.url)
    other.says("held")
    other.process.send_signal(signal.SIGSTOP)
    eventually(lambda: server.claims("r")[0]["active_duration"] > 5)
    other.process.send_signal(signal.SIGCONT)
    other.hears("")
    other.says("False")
    other.says("released")


def test_a_keychain_that_dies_is_started_again_and_takes_up_its_claims(server):
    with LockManager(server.url, ttl=60) as locks:
        claim = locks.claim("r", max_hold=3600, lead=1)
        pid = locks.keychain_pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: locks.ping()["pid"] != pid)
        assert claim.validate() > 0 and not claim.is_lost
        before = claim.validate()
        claim.refresh()
        assert claim.validate() > before - 5
        assert [row["claim"] for row in locks.list()] == [claim.id]
        with locks.claim("s"):
            pass
        claim.release()
        assert server.statuses("r") == ["released"]


def test_a_claim_that_waits_keeps_its_place_when_the_keychain_dies(server):
    give_up = server.hold("r")
    with LockManager(server.url) as locks:
        got = []
        waiting = threading.Thread(target=lambda: got.append(locks.claim("r", timeout=PATIENCE)))
        waiting.start()
        eventually(lambda: "waiting" in server.statuses("r"))
        os.kill(locks.keychain_pid, signal.SIGKILL)
        give_up()
        waiting.join(PATIENCE)
        assert got[0].validate() > 0
        assert server.statuses("r") == ["released", "active"], "one claim, in its place"


@pytest.fixture
def restart(monkeypatch):
    """Holds up what is told to the next keychain."""
    begun, may_go_on = threading.Event(), threading.Event()
    repeat = Link._repeat

    def later(self):
        begun.set()
        assert may_go_on.wait(PATIENCE)
        repeat(self)

    monkeypatch.setattr(Link, "_repeat", later)
    yield begun, may_go_on
    may_go_on.set()


def test_a_claim_is_released_that_was_given_up_when_the_keychain_had_died(server, restart):
    begun, may_go_on = restart
    with LockManager(server.url, ttl=600) as locks:
        claim = locks.claim("r")
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert begun.wait(PATIENCE)
        errors = []

        def release():
            try:
                claim.release()
            except Exception as error:
                errors.append(error)

        releasing = threading.Thread(target=release)
        releasing.start()
        eventually(lambda: claim._hold.state == "over")
        may_go_on.set()
        releasing.join(PATIENCE)
        assert errors == []
        assert server.statuses("r") == ["released"]


def test_a_claim_leaves_the_queue_that_was_given_up_when_the_keychain_had_died(server, restart):
    begun, may_go_on = restart
    server.hold("r")
    with LockManager(server.url) as locks:

        def wait():
            with contextlib.suppress(Aborted, KeychainGone):
                locks.claim("r")

        waiting = threading.Thread(target=wait)
        waiting.start()
        eventually(lambda: "waiting" in server.statuses("r"))
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert begun.wait(PATIENCE)
        [hold] = locks._newest.values()
        locks._link.give_up(hold)
        may_go_on.set()
        waiting.join(PATIENCE)
        eventually(lambda: server.statuses("r") == ["active", "withdrawn"])


def test_a_lost_claim_is_left_at_once_when_the_keychain_does_not_answer(server, stopped):
    with LockManager(server.url, ttl=2) as locks:
        claim = locks.claim("r")
        stopped(locks.keychain_pid)
        assert claim.wait_lost(PATIENCE)
        begun = time.monotonic()
        with pytest.raises(Lost):
            claim.__exit__(None, None, None)
        assert time.monotonic() - begun < 5
        os.kill(locks.keychain_pid, signal.SIGCONT)


def test_a_claim_that_does_not_wait_waits_for_no_keychain_either(server, stopped, monkeypatch):
    monkeypatch.setattr("leasehold._manager.NOW_LIMIT", 0.5)
    with LockManager(server.url) as locks:
        stopped(locks.keychain_pid)
        begun = time.monotonic()
        with pytest.raises(Unknown):
            locks.claim("r", timeout=0)
        assert time.monotonic() - begun < 5
        os.kill(locks.keychain_pid, signal.SIGCONT)


def test_a_keychain_that_does_not_close_is_killed(server, stopped, monkeypatch):
    locks = LockManager(server.url)
    keychain = locks._link._pipe.process
    monkeypatch.setattr("leasehold._link.ANSWER_LIMIT", 1.0)
    stopped(locks.keychain_pid)
    locks.close()
    eventually(lambda: keychain.returncode == -signal.SIGKILL)


def test_a_claim_that_can_not_be_taken_up_is_lost(server, stopped):
    told = []
    with LockManager(server.url, ttl=3) as locks:
        claim = locks.claim("r", lost=lambda claim, why: told.append(why))
        stopped(server.process.pid)
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert claim.wait_lost(PATIENCE)
        eventually(lambda: told)
        with pytest.raises(Lost):
            claim.validate()
        os.kill(server.process.pid, signal.SIGCONT)


def test_a_claim_that_was_ended_meanwhile_is_lost(server):
    with LockManager(server.url, ttl=60) as locks:
        claim = locks.claim("r")
        os.kill(locks.keychain_pid, signal.SIGSTOP)
        server.revoke(claim.id)
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert claim.wait_lost(PATIENCE)
        with pytest.raises(Lost) as lost:
            claim.release()
        assert lost.value.reason == "ended"


def test_without_a_keychain_everything_is_lost(server, tmp_path: pathlib.Path, monkeypatch):
    command = tmp_path / "leasehold"
    command.write_text(f'#!/bin/sh\nexec {os.environ["LEASEHOLD_BIN"]} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("LEASEHOLD_BIN", str(command))
    with LockManager(server.url, ttl=600) as locks:
        claim = locks.claim("r")
        command.unlink()
        os.kill(locks.keychain_pid, signal.SIGKILL)
        assert claim.wait_lost(PATIENCE)
        with pytest.raises(Lost) as lost:
            claim.release()
        assert lost.value.reason == "keychain-gone"
        with pytest.raises(KeychainGone):
            locks.claim("s")


def test_a_keychain_that_is_told_to_end_loses_its_claims(server, caplog):
    caplog.set_level(logging.WARNING, "leasehold")
    with LockManager(server.url, ttl=600) as locks:
        claim = locks.claim("r")
        os.kill(locks.keychain_pid, signal.SIGTERM)
        assert claim.wait_lost(PATIENCE)
        eventually(lambda: server.statuses("r") == ["aborted"])
        with locks.claim("s"):
            pass


def keychain(path: pathlib.Path, script: str) -> str:
    """A process that speaks as a keychain does, and then does what one does only by an accident."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


ANSWER = """echo '{"id": 1, "ok": true}'"""


def test_the_beginning_of_a_line_of_a_keychain_that_was_killed_is_its_end(tmp_path, monkeypatch):
    cut = """printf '{"id": 2, "ok": tr'; kill -KILL $$"""
    command = keychain(tmp_path / "cut", f'mkdir "$0.once" || exit 1; read line; {ANSWER}; read line; {cut}')
    monkeypatch.setenv("LEASEHOLD_BIN", command)
    locks = LockManager("http://127.0.0.1:1")
    with pytest.raises(KeychainGone):
        locks.claim("r")


def test_a_program_that_ends_by_sigpipe_does_not_end_because_its_keychain_does_not_read(program, tmp_path):
    wait = "while kill -0 $PPID; do sleep 0.1; done"
    deaf = keychain(tmp_path / "deaf", f"read line; exec <&-; {ANSWER}; {wait}")
    script = """
        import os, signal
        from leasehold import LockManager
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        locks = LockManager("http://127.0.0.1:1")
        try:
            locks._link.ask("list", timeout=2)
        except Exception:
            print("no answer", flush=True)
        os._exit(0)
    """
    other = program(script, LEASEHOLD_BIN=deaf)
    other.says("no answer")
    assert other.ends() == 0
