"""Threads queue like strangers, and whatever leaves claim() early leaves nothing behind."""

from __future__ import annotations

import gc
import pathlib
import signal
import sys
import threading
import time

import pytest
from conftest import PATIENCE, eventually

import leasehold
from leasehold import AlreadyClaimed, LockManager, Lost


def test_a_hundred_threads_queue_for_one_resource(server):
    inside, tokens, errors = [], [], []

    def work(locks):
        try:
            with locks.claim("r", timeout=PATIENCE) as claim:
                inside.append(claim.token)
                assert inside == [claim.token], "two hold it at once"
                with pytest.raises(AlreadyClaimed):
                    locks.claim("r")
                inside.remove(claim.token)
                tokens.append(claim.token)
        except BaseException as error:
            errors.append(error)

    with LockManager(server.url) as locks:
        threads = [threading.Thread(target=work, args=(locks,)) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert errors == []
    assert tokens == sorted(tokens) and len(tokens) == 100


class Enough(Exception):
    pass


@pytest.mark.parametrize("what", [KeyboardInterrupt, Enough, TimeoutError])
def test_what_interrupts_a_wait_leaves_the_queue(server, what):
    give_up = server.hold("r")

    def interrupt(*_):
        raise what

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with LockManager(server.url) as locks:
            waker = threading.Thread(
                target=lambda: (
                    eventually(lambda: "waiting" in server.statuses("r")),
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM),
                )
            )
            waker.start()
            with pytest.raises(what):
                locks.claim("r")
            waker.join()
            eventually(lambda: server.statuses("r") == ["active", "withdrawn"])
            give_up()
            # It can be had again, by the same thread, at once.
            with locks.claim("r", timeout=PATIENCE):
                pass
            assert locks.list() == []
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_interrupt_at_any_moment_leaves_nothing_behind(server):
    """Whenever it comes: while the request is sent, while it is answered, before the claim is returned."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with LockManager(server.url, ttl=600) as locks:
            caught = 0
            for n in range(60):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 * (n + 1))
                    claim = locks.claim(f"r{n}")
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    claim.release()
                except KeyboardInterrupt:
                    caught += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                claim = None
            gc.collect()
            assert caught > 0, "no interrupt came in time"
            eventually(lambda: locks.list() == [])
            eventually(lambda: server.request("GET", "/v1/claims/?status=active") == [])
            assert server.request("GET", "/v1/claims/?status=waiting") == []
    finally:
        signal.signal(signal.SIGALRM, before)


def is_interrupted(line: int, action) -> bool:
    """Calls it, and interrupts it at its so manieth line, here or in ``threading``, as Ctrl-C may."""
    lines = 0
    files = (str(pathlib.Path(leasehold.__file__).parent), threading.__file__)

    def trace(frame, event, _):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(files):
            return None
        lines += 1
        if lines == line:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    try:
        action(lambda: sys.settrace(trace))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return lines >= line


def leave(locks, begin):
    with locks.claim("r"):
        begin()


def release(locks, begin):
    claim = locks.claim("r")
    begin()
    claim.release()


def wait_lost(locks, begin):
    with locks.claim("r") as claim:
        begin()
        try:
            claim.wait_lost(0.001)
        finally:
            sys.settrace(None)


@pytest.mark.parametrize("action", [leave, release, wait_lost])
def test_an_interrupt_at_any_line_leaves_nothing_held(server, action):
    with LockManager(server.url, ttl=600) as locks:
        other = locks.claim("other")
        line = 1
        while is_interrupted(line, lambda begin: action(locks, begin)):
            gc.collect()
            # Also: the thread that works for all claims goes on.
            eventually(lambda: [claim["resource"] for claim in locks.list()] == ["other"])
            line += 1
        assert line > 10
        other.refresh()


def test_an_interrupt_of_a_close_at_any_line_leaves_no_keychain(server):
    def close(begin):
        begin()
        locks.close()

    line, is_more = 1, True
    while is_more:
        locks = LockManager(server.url, ttl=600)
        claim = locks.claim("r")
        keychain = locks._link._pipe.process
        is_more = is_interrupted(line, close)
        del claim, locks
        gc.collect()
        eventually(lambda: keychain.poll() is not None)  # noqa: B023
        line += 1
    assert line > 10
    assert "active" not in server.statuses("r")


def test_a_claim_may_be_released_by_another_thread(server):
    with LockManager(server.url) as locks:
        claim = locks.claim("r")
        told = []
        watcher = threading.Thread(target=lambda: told.append(claim.wait_lost(PATIENCE)))
        watcher.start()
        eventually(lambda: claim._hold.listeners)
        thread = threading.Thread(target=claim.release)
        thread.start()
        thread.join(PATIENCE)
        assert server.statuses("r") == ["released"]
        watcher.join(5)
        assert told == [True] and claim.is_lost, "who works with it hears of it"


def test_who_works_with_a_claim_hears_that_its_manager_is_closed(server):
    told = []
    locks = LockManager(server.url, on_lost="terminate")
    claim = locks.claim("r", lost=lambda claim, why: told.append(why))
    locks.close()
    assert claim.is_lost and claim.wait_lost(0)
    eventually(lambda: told == ["closed"])
    for use in (claim.validate, claim.release):
        with pytest.raises(Lost) as lost:
            use()
        assert lost.value.reason == "closed"


def test_an_old_claim_that_is_forgotten_does_not_take_the_new_one_along(server):
    with LockManager(server.url, ttl=3) as locks:
        claim = locks.claim("r")
        server.revoke(claim.id)
        assert claim.wait_lost(PATIENCE)
        claim = locks.claim("r", ttl=600)
        gc.collect()
        locks.ping()
        time.sleep(0)
        assert claim.validate() > 0
        assert server.statuses("r") == ["revoked", "active"]
