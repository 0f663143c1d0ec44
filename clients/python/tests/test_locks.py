"""Locks, guards, holders, and the fixtures for other people's tests."""

from __future__ import annotations

import threading

import pytest
from conftest import PATIENCE

from leasehold import Invalid, LockManager


def test_a_lock_looks_like_those_of_threading(server):
    with LockManager(server.url) as locks:
        lock = locks.lock("r", ttl=60)
        assert not lock.locked() and lock.holder() is None
        assert lock.acquire()
        assert lock.locked() and lock.holder()["token"] == lock.claim.token
        refused = []
        other = threading.Thread(
            target=lambda: refused.extend([lock.acquire(blocking=False), lock.acquire(timeout=0.2)])
        )
        other.start()
        other.join(PATIENCE)
        assert refused == [False, False]
        lock.release()
        assert not lock.locked()
        with pytest.raises(RuntimeError):
            lock.release()
        with lock as claim:
            assert claim.validate() > 0
        assert not lock.locked()


def test_a_guard_holds_while_a_function_runs(server):
    with LockManager(server.url) as locks:

        @locks.guard("report/{day}/{kind}", ttl=60)
        def report(day, kind="short"):
            """Writes a report."""
            return server.statuses(f"report/{day}/{kind}")

        assert report("monday") == ["active"]
        assert report(day="monday", kind="long") == ["active"]
        assert server.statuses("report/monday/short") == ["released"]
        assert report.__doc__ == "Writes a report."


async def coroutine():
    pass


def generator():
    yield


async def asynchronous_generator():
    yield


@pytest.mark.parametrize("function", [coroutine, generator, asynchronous_generator])
def test_a_guard_refuses_what_does_its_work_after_the_call(server, function):
    with LockManager(server.url) as locks, pytest.raises(Invalid, match="after the call"):
        locks.guard("r")(function)


def test_the_fixtures_start_a_server(pytester):
    pytester.makepyfile("""
        def test_locks(leasehold_locks, leasehold_server):
            with leasehold_locks.claim("r") as claim:
                assert claim.token == 1
                assert leasehold_server.url.startswith("http://127.0.0.1:")
    """)
    result = pytester.runpytest_subprocess("-p", "leasehold.pytest_plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
