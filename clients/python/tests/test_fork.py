"""Programs that fork: a child has a keychain of its own, and its parent's claims are not the child's."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.request
import weakref

import pytest
from conftest import PATIENCE, eventually

from leasehold import Foreign, LockManager, NotAcquired


def in_child(action):
    """Runs it in a forked child; what it returns is the child's exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = action() or 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_a_child_gets_a_keychain_of_its_own(server):
    with LockManager(server.url) as locks:
        held = locks.claim("parent")
        pid = locks.keychain_pid

        def child():
            with locks.claim("child", timeout=30) as claim:
                assert claim.validate() > 0
                assert locks.keychain_pid != pid

        assert in_child(child) == 0
        assert server.statuses("child") == ["released"]
        assert server.statuses("parent") == ["active"]
        assert held.validate() > 0
        assert locks.keychain_pid == pid


def test_a_child_waits_for_its_parent_like_a_stranger(server):
    with LockManager(server.url) as locks:
        with locks.claim("r"):

            def child():
                with pytest.raises(NotAcquired):
                    locks.claim("r", timeout=0.5)

            assert in_child(child) == 0
            assert server.statuses("r")[0] == "active"


def test_a_child_claims_though_another_thread_of_its_parent_was_claiming(server):
    inside, may_go_on = threading.Event(), threading.Event()

    class Slow(weakref.WeakValueDictionary):
        def get(self, *args):
            if threading.current_thread() is claiming:
                inside.set()
                may_go_on.wait(PATIENCE)
            return super().get(*args)

    with LockManager(server.url) as locks:
        locks._newest = Slow()
        claiming = threading.Thread(target=lambda: locks.claim("other").release())
        claiming.start()
        assert inside.wait(PATIENCE)

        def child():
            signal.alarm(20)
            with locks.claim("child", timeout=10):
                pass

        assert in_child(child) == 0
        may_go_on.set()
        claiming.join(PATIENCE)


def test_the_parents_claims_are_not_the_childs(server):
    with LockManager(server.url) as locks:
        with locks.claim("r") as claim:

            def child():
                for use in (claim.release, claim.validate, claim.refresh, lambda: claim.is_lost):
                    with pytest.raises(Foreign):
                        use()
                assert "another process" in repr(claim)
                claim.__exit__(None, None, None)

            assert in_child(child) == 0
            assert claim.validate() > 0
        assert server.statuses("r") == ["released"]


def test_a_child_that_forgets_its_parents_claim_releases_nothing(server):
    with LockManager(server.url) as locks:
        claims = [locks.claim("r")]

        def child():
            claims.clear()
            locks.ping()

        assert in_child(child) == 0
        assert server.statuses("r") == ["active"]


def take(locks, resource):
    with locks.claim(resource, timeout=PATIENCE) as claim:
        print(claim.token)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(server, method):
    context = multiprocessing.get_context(method)
    with LockManager(server.url) as locks, locks.claim("parent"):
        processes = [context.Process(target=take, args=(locks, "r")) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE)
            assert process.exitcode == 0
        assert server.statuses("r") == ["released"] * 3
        assert server.statuses("parent") == ["active"]


def hold_and_leave(locks):
    globals()["KEPT"] = locks.claim("r", timeout=PATIENCE)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_that_ends_releases(server, method):
    context = multiprocessing.get_context(method)
    with LockManager(server.url, ttl=600) as locks:
        process = context.Process(target=hold_and_leave, args=(locks,))
        process.start()
        process.join(PATIENCE)
        eventually(lambda: server.statuses("r") == ["released"])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_gunicorn_preload(server, tmp_path: pathlib.Path):
    (tmp_path / "shop.py").write_text(
        textwrap.dedent("""
        import os
        from leasehold import LockManager

        locks = LockManager(os.environ["SERVER"])
        held = locks.claim("master")

        def app(environ, start_response):
            with locks.claim("request", timeout=30) as claim:
                start_response("200 OK", [("Content-Type", "text/plain")])
                return [f"{os.getpid()} {claim.token}".encode()]
        """)
    )
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--preload",
        "--workers",
        "2",
        "--bind",
        f"127.0.0.1:{port}",
        "shop:app",
    ]
    env = {**os.environ, "SERVER": server.url}
    gunicorn = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def served() -> str:
            try:
                with opener.open(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as response:
                    return response.read().decode()
            except OSError:
                return ""

        eventually(served)
        answers = [served().split() for _ in range(20)]
        assert len({token for _, token in answers}) == 20, answers
        assert server.statuses("master") == ["active"]
        assert set(server.statuses("request")) == {"released"}
    finally:
        gunicorn.send_signal(signal.SIGTERM)
        gunicorn.wait(PATIENCE)
    eventually(lambda: server.statuses("master") == ["released"])


def test_celery_prefork(server, tmp_path: pathlib.Path):
    (tmp_path / "jobs.py").write_text(
        textwrap.dedent("""
        import os
        from celery import Celery
        from leasehold import LockManager

        folder = os.environ["FOLDER"]
        app = Celery("jobs", broker="filesystem://", backend=f"file://{folder}/results")
        for name in ("queue", "results", "control"):
            os.makedirs(f"{folder}/{name}", exist_ok=True)
        app.conf.broker_transport_options = {
            "data_folder_in": f"{folder}/queue",
            "data_folder_out": f"{folder}/queue",
            "control_folder": f"{folder}/control",
        }
        locks = LockManager(os.environ["SERVER"])
        # Before the worker forks.
        held = locks.claim("master") if "IS_WORKER" in os.environ else None

        @app.task
        @locks.guard("job/{number}", timeout=30)
        def job(number):
            return os.getpid()
        """)
    )
    env = {**os.environ, "SERVER": server.url, "FOLDER": str(tmp_path)}
    command = [sys.executable, "-m", "celery", "-A", "jobs", "worker", "--pool", "prefork", "--concurrency", "2"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen(command, cwd=tmp_path, env={**env, "IS_WORKER": "yes"}, **quiet)
    try:
        script = "import jobs; print(len([jobs.job.delay(1).get(timeout=60) for _ in range(8)]))"
        asked = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert asked.stdout == "8\n", asked.stderr
        assert server.statuses("job/1") == ["released"] * 8
        assert server.statuses("master") == ["active"]
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(PATIENCE)
    eventually(lambda: server.statuses("master") == ["released"])
