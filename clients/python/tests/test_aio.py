"""The same with asyncio."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from conftest import PATIENCE, eventually

from leasehold import AlreadyClaimed, Lost, NotAcquired
from leasehold.aio import LockManager


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, PATIENCE))


def test_a_claim_is_held_and_released(server):
    async def work():
        async with LockManager(server.url) as locks:
            async with locks.claim("r", data={"who": "me"}) as claim:
                assert claim.token == 1 and claim.validate() > 0 and not claim.is_lost
                await claim.refresh(ttl=60)
                with pytest.raises(AlreadyClaimed):
                    await locks.claim("r")
                assert (await locks.holder("r"))["token"] == 1
            assert server.statuses("r") == ["released"]
            assert await locks.holder("r") is None
            claim = await locks.claim("r")
            await claim.release()
            await claim.release()

    run(work())


def test_tasks_queue_like_strangers_and_the_loop_goes_on(server):
    async def work():
        inside = []

        async def one(locks):
            async with locks.claim("r") as claim:
                inside.append(claim)
                assert inside == [claim]
                await asyncio.sleep(0)
                inside.remove(claim)

        async with LockManager(server.url) as locks:
            await asyncio.gather(*(one(locks) for _ in range(20)))
        assert server.statuses("r") == ["released"] * 20

    run(work())


def test_a_task_that_is_cancelled_leaves_the_queue(server):
    server.hold("r")

    async def work():
        async with LockManager(server.url) as locks:
            task = asyncio.create_task(locks.claim("r").__aenter__())
            await asyncio.to_thread(eventually, lambda: "waiting" in server.statuses("r"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(locks.claim("r").__aenter__(), 0.3)
            await asyncio.to_thread(eventually, lambda: server.statuses("r") == ["active", "withdrawn", "withdrawn"])
            with pytest.raises(NotAcquired) as refused:
                await locks.claim("r", timeout=0)
            assert refused.value.holder["token"] == 1

    run(work())


def test_a_lost_claim_is_told_on_the_loop(server):
    async def work():
        told = asyncio.Event()
        async with LockManager(server.url, ttl=3) as locks:
            claim = await locks.claim("r", lost=lambda claim, why: told.set())
            server.revoke(claim.id)
            assert await claim.wait_lost() == "ended"
            await told.wait()
            with pytest.raises(Lost):
                await claim.release()

    run(work())


def test_a_refresh_ends_with_its_claim_when_the_keychain_does_not_answer(server):
    async def work():
        async with LockManager(server.url, ttl=2) as locks:
            claim = await locks.claim("r")
            keychain = locks._manager.keychain_pid
            os.kill(keychain, signal.SIGSTOP)
            try:
                with pytest.raises(Lost):
                    await claim.refresh()
            finally:
                os.kill(keychain, signal.SIGCONT)

    run(work())


def test_a_guard_holds_while_a_coroutine_runs(server):
    async def work():
        async with LockManager(server.url) as locks:

            @locks.guard("report/{day}")
            async def report(day):
                return server.statuses(f"report/{day}")

            assert await report("monday") == ["active"]
            assert server.statuses("report/monday") == ["released"]

    run(work())
