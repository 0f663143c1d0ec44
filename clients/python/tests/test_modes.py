"""Shared claims, slots, sets, and workers that would wait for each other for ever."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

import pytest
from conftest import PATIENCE, eventually

import leasehold
from leasehold import AlreadyClaimed, Deadlock, Invalid, LockManager, Lost, NotAcquired, aio


def test_readers_share_and_a_writer_does_not(server):
    with LockManager(server.url) as one, LockManager(server.url) as two:
        reader = one.claim("r", shared=True)
        with two.claim("r", shared=True, timeout=0) as other:
            assert other.token == reader.token
            assert [item.mode for item in other.items] == ["shared"]
        with pytest.raises(NotAcquired) as refused:
            two.claim("r", timeout=0)
        assert refused.value.holder["claim"] == reader.id
        reader.release()
        assert two.claim("r", timeout=PATIENCE).token > reader.token


def test_slots_are_numbered_and_run_out(server):
    with LockManager(server.url) as locks, LockManager(server.url) as others:
        first, second = locks.claim("boards", slots=(1, 3)), others.claim("boards", slots=(2, 3))
        assert (first.slots, second.slots) == ((1,), (2, 3))
        with LockManager(server.url) as third:
            with pytest.raises(NotAcquired):
                third.claim("boards", slots=(1, 3), timeout=0)
            with pytest.raises(leasehold.Refused, match="3 slots"):
                third.claim("boards", slots=(1, 4))
            first.release()
            assert third.claim("boards", slots=(1, 3), timeout=PATIENCE).slots == (1,)


def test_a_set_is_held_together_and_lost_together(server):
    with LockManager(server.url) as locks:
        locks.claim("b").release()
        also = ["b", leasehold.shared("c"), leasehold.slots("d", 2, 8)]
        claim = locks.claim("a", also=also, ttl=3)
        assert [item.resource for item in claim.items] == ["a", "b", "c", "d"]
        assert [item.mode for item in claim.items] == ["exclusive", "exclusive", "shared", "slots"]
        assert claim.items[3].slots == (1, 2) and all(item.token for item in claim.items)
        assert server.claims("c")[0]["url"].endswith(f"/{claim.id}/")
        with pytest.raises(AlreadyClaimed, match="'b'"):
            locks.claim("b")
        server.revoke(claim.id)
        assert claim.wait_lost(PATIENCE)
        with pytest.raises(Lost):
            claim.release()
        locks.claim("d", also=["a", "b"], timeout=PATIENCE).release()


def test_a_token_that_is_not_the_same_for_all_is_none(server):
    with LockManager(server.url) as locks, LockManager(server.url) as others:
        with others.claim("b", shared=True) as reader:
            locks.claim("a").release()
            claim = locks.claim("a", also=[leasehold.shared("b")])
            assert claim.token is None
            assert claim.items[0].token > claim.items[1].token == reader.token
            assert "token=None" in repr(claim)


def test_what_makes_no_sense_is_named(server):
    with LockManager(server.url) as locks:
        for mistake in (
            {"shared": True, "slots": (1, 5)},
            {"slots": 3},
            {"slots": (0, 5)},
            {"slots": (6, 5)},
            {"also": "b"},
            {"also": [5]},
            {"also": ["r"]},
            {"also": [{"resource": "b", "mode": "both"}]},
        ):
            with pytest.raises(Invalid):
                locks.claim("r", **mistake)
        assert server.claims("r") == []


def test_threads_that_would_wait_for_each_other_are_told(server):
    held, outcomes = threading.Barrier(2), []

    def work(locks, first, second):
        with locks.claim(first):
            held.wait(PATIENCE)
            try:
                with locks.claim(second, timeout=PATIENCE):
                    outcomes.append("went on")
            except Deadlock as error:
                outcomes.append(error)

    with LockManager(server.url) as locks:
        threads = [threading.Thread(target=work, args=(locks, *pair)) for pair in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(outcomes) == 2 and "went on" in outcomes
    (error,) = (outcome for outcome in outcomes if isinstance(outcome, Deadlock))
    assert {step["resource"] for step in error.cycle} == {"a", "b"}
    assert {step["link"] for step in error.cycle} == {"wants", "holds"}
    assert len({step["session"] for step in error.cycle}) == 2


def test_tasks_that_would_wait_for_each_other_are_told(server):
    async def work(locks, held, first, second):
        async with locks.claim(first):
            held.append(first)
            while len(held) < 2:
                await asyncio.sleep(0.01)
            try:
                async with locks.claim(second, timeout=PATIENCE) as claim:
                    return claim.items[0].resource
            except Deadlock as error:
                return error

    async def both():
        async with aio.LockManager(server.url) as locks:
            held = []
            return await asyncio.gather(work(locks, held, "a", "b"), work(locks, held, "b", "a"))

    outcomes = asyncio.run(both())
    assert sum(isinstance(outcome, Deadlock) for outcome in outcomes) == 1, outcomes


def test_a_program_that_is_started_inside_is_told(server):
    with LockManager(server.url) as locks, locks.claim("r") as claim:
        env = {**os.environ, "LEASEHOLD_ADDR": server.url, "LEASEHOLD_SESSION": claim.session}
        command = [os.environ["LEASEHOLD_BIN"], "run", "r", "--", "true"]
        nested = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert nested.returncode == 75 and "its own session" in nested.stderr


def test_a_forked_child_is_a_worker_of_its_own(server):
    with LockManager(server.url) as locks:
        claim = locks.claim("r")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with locks.claim("r", timeout=PATIENCE):
                    code = 0
            finally:
                os._exit(code)
        # The child waits for its parent like a stranger, and is not refused.
        eventually(lambda: "waiting" in server.statuses("r"))
        claim.release()
        assert os.waitpid(child, 0)[1] == 0


def test_without_sessions_nothing_is_refused(server):
    with LockManager(server.url, sessions=False) as locks:
        claim = locks.claim("r")
        assert claim.session is None
        assert server.claims("r")[0].get("session") is None


def test_locks_and_guards_take_the_same_words(server):
    with LockManager(server.url) as locks:
        lock = locks.lock("r", shared=True)
        assert lock.acquire() and lock.claim.items[0].mode == "shared"
        lock.release()

        @locks.guard("board/{kind}", slots=(1, 2))
        def use(kind):
            return server.claims(f"board/{kind}")[0]["items"][0]["slots"]

        assert use("big") == [1]
