"""Claims against the real server: held, waited for, lost, refused."""

from __future__ import annotations

import signal
import threading

import pytest
from conftest import PATIENCE, eventually

from leasehold import (
    AlreadyClaimed,
    Ended,
    Invalid,
    KeychainGone,
    LockManager,
    Lost,
    NotAcquired,
    Refused,
    Unreachable,
)


def test_a_claim_is_held_and_released(server):
    with LockManager(server.url) as locks:
        with locks.claim("r", data={"who": "me"}) as claim:
            assert claim.token == 1 and isinstance(claim.token, int)
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
    # Without sessions, a stranger: a second claim of the same thread would be refused as a deadlock.
    with LockManager(server.url) as first, LockManager(server.url, sessions=False) as second:
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
            with pytest.raises(AlreadyClaimed):
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


def test_the_command_must_be_there(monkeypatch):
    monkeypatch.setenv("LEASEHOLD_BIN", "/nonexistent/leasehold")
    with pytest.raises(KeychainGone):
        LockManager("http://127.0.0.1:1")


def test_a_place_in_the_queue_and_the_holder_are_told(server):
    server.hold("r")
    with LockManager(server.url) as locks, pytest.raises(NotAcquired) as refused:
        locks.claim("r", timeout=2)
    assert refused.value.position == 1 and refused.value.holder["token"] == 1
    with LockManager(server.url) as locks, pytest.raises(NotAcquired) as refused:
        locks.claim("r", timeout=0)
    assert refused.value.holder["token"] == 1, "also to a claim that does not wait"


@pytest.mark.parametrize("url", ["", "htp://host", "http://host:notaport", "http://"])
def test_a_bad_url_is_called_a_bad_url(url):
    with pytest.raises(Invalid) as error:
        LockManager(url)
    assert url in str(error.value), error.value


@pytest.mark.parametrize(
    "setting", [{"ttl": 0}, {"ttl": "x"}, {"max_hold": 0}, {"api_version": "v1/x"}, {"on_lost": "die"}]
)
def test_a_bad_setting_is_called_by_its_name(setting):
    with pytest.raises(Invalid):
        LockManager("http://127.0.0.1:1", **setting)


def test_no_limit_on_a_hold_is_written_as_none(server):
    with LockManager(server.url) as locks:
        with pytest.raises(Invalid, match="leave it out"):
            locks.claim("r", max_hold=0)
        with locks.claim("r", max_hold=None):
            pass


def test_the_version_of_the_api_can_be_chosen(server):
    with LockManager(server.url, api_version="v1") as locks, locks.claim("r"):
        pass
    with LockManager(server.url, api_version="v9") as locks, pytest.raises(Refused, match="404"):
        locks.claim("r", timeout=0.5)


def test_claims_say_who_made_them(server):
    with LockManager(server.url) as locks, locks.claim("r"):
        [shown] = server.claims("r")
        assert set(shown["user_data"]) == {"host", "user", "pid", "program"}
        assert "pytest" in shown["user_data"]["program"]


def test_losses_and_troubles_are_logged(server, caplog):
    with LockManager(server.url, ttl=3) as locks:
        claim = locks.claim("r")
        server.revoke(claim.id)
        assert claim.wait_lost(PATIENCE)
    assert any("'r'" in record.getMessage() and record.name == "leasehold" for record in caplog.records)
