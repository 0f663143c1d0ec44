"""What can't be sent is refused where it is given; nobody else's claim suffers."""

from __future__ import annotations

import datetime
import os
import pathlib
import sys

import pytest

from leasehold import Invalid, LockManager
from leasehold._request import Answer, Request

DEEP: list = []
for _ in range(100_000):
    DEEP = [DEEP]
NOT_TEXT = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("data", lambda locks, _: locks.claim("r", data=datetime.datetime.now())),
        ("data", lambda locks, _: locks.claim("r", data=float("nan"))),
        ("data", lambda locks, _: locks.claim("r", data={"file": NOT_TEXT})),
        ("data", lambda locks, _: locks.claim("r", data=DEEP)),
        ("data", lambda locks, _: locks.claim("r", data="x" * (1 << 20))),
        ("take", lambda locks, _: locks.claim("r", slots=(object(), 2))),
        ("resources", lambda locks, _: locks.claim("r", also=[{"resource": "s", "mode": object()}])),
        ("resource", lambda locks, _: locks.claim(NOT_TEXT)),
        ("resource", lambda locks, _: locks.holder(pathlib.Path("a"))),
        ("ttl", lambda _, claim: claim.refresh(datetime.timedelta(seconds=5))),
        ("ttl", lambda _, claim: claim.refresh(float("nan"))),
        ("ttl", lambda _, claim: claim.refresh(1e12)),
        ("ttl", lambda _, claim: claim.refresh(0)),
        ("ttl", lambda _, claim: claim.refresh("5")),
        ("timeout", lambda locks, _: locks.claim("r", timeout="5")),
        ("timeout", lambda _, claim: LockManager("http://127.0.0.1:1", timeout="5")),
    ],
)
def test_what_can_not_be_sent_is_named_and_harms_no_claim(server, name, use):
    with LockManager(server.url) as locks:
        held = locks.claim("held")
        with pytest.raises(Invalid, match=f"'{name}'"):
            use(locks, held)
        assert locks.ping()["ok"], "the thread of the link goes on"
        assert held.validate() > 0
        with locks.claim("r", timeout=5):
            pass


def test_a_long_line_that_fits_is_sent(server):
    with LockManager(server.url) as locks:
        assert locks.holder("x" * 100) is None
        data = "\u20ac" * 20_000
        with locks.claim("r", data=data):
            assert server.claims("r")[0]["user_data"] == data


def test_data_that_is_changed_after_the_call_is_not_sent_again_with_the_change(server):
    with LockManager(server.url) as locks:
        data = {"who": "me"}
        claim = locks.claim("r", data=data)
        data["who"] = datetime.datetime.now()
        assert claim._hold.line["data"] == {"who": "me"}


def test_a_request_that_the_keychain_does_not_understand_is_answered(server):
    with LockManager(server.url) as locks:
        answer = Answer()
        locks._link._post(Request("ping", {"data": "x" * (1 << 20)}, answer, None))
        with pytest.raises(Invalid):
            answer.result(30)
        locks.ping()


def test_claims_do_not_tell_the_arguments_of_the_program(server, monkeypatch):
    monkeypatch.setattr(sys, "argv", [f"/usr/bin/{NOT_TEXT}", "--db-password=secret"])
    with LockManager(server.url) as locks, locks.claim("r"):
        assert server.claims("r")[0]["user_data"]["program"] == "/usr/bin/caf?"
