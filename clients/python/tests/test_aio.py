"""The same with asyncio."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from conftest import PATIENCE, eventually

from leasehold import AlreadyClaimed, Invalid, Lost, NotAcquired
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


def test_a_guard_refuses_what_is_no_coroutine_function(server):
    def plain():
        pass

    async def generator():
        yield

    async def work():
        async with LockManager(server.url) as locks:
            for function in (plain, generator):
                with pytest.raises(Invalid, match="no coroutine function"):
                    locks.guard("r")(function)

    run(work())


def test_a_claim_is_entered_by_one_task_at_a_time(server):
    async def work():
        async with LockManager(server.url) as locks:
            claiming = locks.claim("r")
            async with claiming as claim:
                with pytest.raises(Invalid, match="entered already"):
                    await asyncio.create_task(claiming.__aenter__())
                assert claim.validate() > 0
            async with claiming:
                assert server.statuses("r") == ["released", "active"]
            assert server.statuses("r") == ["released", "released"]

    run(work())


def test_a_lock_is_for_any_number_of_tasks(server):
    async def work():
        inside = []

        async def one(lock):
            async with lock as claim:
                inside.append(claim)
                assert inside == [claim] and lock.claim is claim
                await asyncio.sleep(0)
                inside.remove(claim)

        async with LockManager(server.url) as locks:
            lock = locks.lock("r", ttl=60)
            await asyncio.gather(*(one(lock) for _ in range(10)))
            assert server.statuses("r") == ["released"] * 10
            assert await lock.acquire() and await lock.locked()
            assert [row["resource"] for row in await locks.list()] == ["r"]
            assert not await asyncio.create_task(lock.acquire(blocking=False))
            assert not await asyncio.create_task(lock.acquire(timeout=0.2))
            with pytest.raises(RuntimeError):
                await asyncio.create_task(lock.release())
            await lock.release()
            assert await lock.holder() is None
            assert (await locks.ping())["ok"]

    run(work())


def test_who_waits_for_a_loss_hears_of_a_release_and_of_a_close(server):
    async def work():
        async with LockManager(server.url) as locks:
            first, second = await locks.claim("first"), await locks.claim("second")
            waiting = [asyncio.create_task(claim.wait_lost()) for claim in (first, second)]
            await asyncio.sleep(0)
            await first.release()
            assert await waiting[0] == "released"
        assert await waiting[1] == "closed"

    run(work())


def test_a_lost_claim_is_left_at_once_when_the_keychain_does_not_answer(server):
    async def work():
        async with LockManager(server.url, ttl=2) as locks:
            claim = await locks.claim("r")
            keychain = locks._manager.keychain_pid
            os.kill(keychain, signal.SIGSTOP)
            try:
                await claim.wait_lost()
                with pytest.raises(Lost):
                    await asyncio.wait_for(claim.release(), 5)
            finally:
                os.kill(keychain, signal.SIGCONT)

    run(work())


def test_a_lost_claim_terminates_a_program_after_its_callback_on_the_loop(server, program):
    script = """
        import asyncio, sys
        from leasehold.aio import LockManager

        async def stop(claim, why):
            await asyncio.sleep(0.5)
            print("stopped", why, flush=True)

        async def main():
            locks = LockManager(sys.argv[1], ttl=2, on_lost="terminate")
            claim = await locks.claim("r", lost=stop)
            print(claim.id, flush=True)
            await asyncio.sleep(1000)

        asyncio.run(main())
    """
    other = program(script, server.url)
    server.revoke(other.process.stdout.readline().strip())
    other.says("stopped ended")
    assert other.ends() == -signal.SIGTERM
