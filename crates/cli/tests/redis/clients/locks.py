"""Real Python lock clients against one port, as their users call them.

    locks.py KIND PORT promises          every call of the lock, one by one
    locks.py KIND PORT crowd FILE ROUNDS takes turns with everybody else: writes "enter" and "leave" lines
    locks.py hashes                      the SHA-1 of every script of the installed clients

KIND: redis2 and redis3 (redis-py with either protocol), valkey, asyncio.
"""

import asyncio
import hashlib
import os
import sys
import time

import redis
import redis.asyncio
import valkey
from redis.exceptions import LockError, RedisError


def hashes():
    for lock in (redis.lock.Lock, redis.asyncio.lock.Lock, valkey.lock.Lock):
        for name in ("LUA_RELEASE_SCRIPT", "LUA_EXTEND_SCRIPT", "LUA_REACQUIRE_SCRIPT"):
            print(hashlib.sha1(getattr(lock, name).encode()).hexdigest())


def client_of(kind, port):
    if kind == "valkey":
        return valkey.Valkey(port=port)
    return redis.Redis(port=port, protocol=3 if kind == "redis3" else 2)


def promises(kind, port):
    client = client_of(kind, port)
    errors = (valkey.exceptions.LockError, LockError)
    lock = client.lock(f"job/{kind}", timeout=30)
    assert lock.acquire(blocking=False)
    assert lock.locked() and lock.owned()
    assert lock.extend(60) and client.pttl(f"job/{kind}") > 60_000
    assert lock.extend(20, replace_ttl=True) and client.pttl(f"job/{kind}") <= 20_000
    assert lock.reacquire() and client.pttl(f"job/{kind}") > 20_000
    other = client.lock(f"job/{kind}", timeout=30)
    assert not other.acquire(blocking=False)
    assert not other.acquire(blocking_timeout=0.2)
    assert other.locked() and not other.owned()
    other.local.token = b"somebody else's"
    try:
        other.release()
        raise SystemExit("a stranger released the lock")
    except errors:
        pass
    lock.release()
    assert not lock.locked()
    # A lock that nobody extends ends by itself.
    assert other.acquire(blocking=False)
    other.release()
    short = client.lock(f"short/{kind}", timeout=0.3)
    assert short.acquire()
    later = client.lock(f"short/{kind}", timeout=30, sleep=0.05)
    assert later.acquire(blocking_timeout=50)
    try:
        short.release()
        raise SystemExit("a lock was released that had expired")
    except errors:
        pass
    assert later.owned()
    later.release()
    with client.lock(f"with/{kind}", timeout=30) as held:
        assert held.owned()
    assert client.execute_command("LEASEHOLD.TOKEN", f"short/{kind}", "nobody's") is None


async def promises_asyncio(port):
    client = redis.asyncio.Redis(port=port)
    lock = client.lock("job/asyncio", timeout=30)
    assert await lock.acquire(blocking=False)
    assert await lock.locked() and await lock.owned()
    assert await lock.extend(60) and await client.pttl("job/asyncio") > 60_000
    assert await lock.reacquire() and await client.pttl("job/asyncio") <= 30_000
    other = client.lock("job/asyncio", timeout=30)
    assert not await other.acquire(blocking=False)
    later = client.lock("job/asyncio", timeout=0.5, sleep=0.02, thread_local=False)
    waiting = asyncio.create_task(later.acquire())
    await lock.release()
    assert await asyncio.wait_for(waiting, 50)
    try:
        await lock.release()
        raise SystemExit("a lock was released twice")
    except LockError:
        pass
    # A lock that nobody extends ends by itself, and can't be extended or released then.
    last = client.lock("job/asyncio", timeout=30, sleep=0.02)
    assert await last.acquire(blocking_timeout=50)
    for late in (later.extend(30), later.release()):
        try:
            await late
            raise SystemExit("a lock was changed that had expired")
        except LockError:
            pass
    assert await last.owned()
    await last.release()
    await client.aclose()


def write(path, line):
    with open(path, "ab", buffering=0) as file:
        file.write(line.encode())


def crowd(kind, port, path, rounds):
    """Errors mean that nobody knows: try again. Only a lock that was granted counts."""
    done = 0
    while done < rounds:
        try:
            client = client_of(kind, port)
            lock = client.lock("crowd", timeout=5, sleep=0.01)
            if not lock.acquire(blocking_timeout=30):
                continue
            began = time.monotonic()
            write(path, f"enter {kind} {os.getpid()} {done}\n")
            write(path, f"leave {kind} {os.getpid()} {done}\n")
            if time.monotonic() - began > 4:
                raise SystemExit("the machine is too slow: a lock of five seconds may have expired")
            done += 1
            lock.release()
        except (RedisError, valkey.exceptions.ValkeyError):
            time.sleep(0.05)


async def crowd_asyncio(port, path, rounds):
    done = 0
    while done < rounds:
        client = redis.asyncio.Redis(port=port)
        try:
            lock = client.lock("crowd", timeout=5, sleep=0.01)
            if not await lock.acquire(blocking_timeout=30):
                continue
            write(path, f"enter asyncio {os.getpid()} {done}\n")
            write(path, f"leave asyncio {os.getpid()} {done}\n")
            done += 1
            await lock.release()
        except RedisError:
            await asyncio.sleep(0.05)
        finally:
            await client.aclose()


def main():
    if sys.argv[1] == "hashes":
        return hashes()
    kind, port, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if what == "promises":
        asyncio.run(promises_asyncio(port)) if kind == "asyncio" else promises(kind, port)
    else:
        path, rounds = sys.argv[4], int(sys.argv[5])
        asyncio.run(crowd_asyncio(port, path, rounds)) if kind == "asyncio" else crowd(kind, port, path, rounds)


main()
