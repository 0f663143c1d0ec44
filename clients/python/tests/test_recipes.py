"""The recipes of docs/python.md run as they are written, with the real frameworks."""

from __future__ import annotations

import pathlib
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "python.md"
BLOCKS = [block.split("```")[0] for block in PAGE.read_text().split("```python\n")[1:]]
FIRST, CRON, DJANGO_LOCKS, DJANGO_VIEW, CELERY = BLOCKS


@pytest.fixture(autouse=True)
def addressed(server, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_ADDR", server.url)


def test_first(server):
    tokens = []
    exec(FIRST, {"work": tokens.append, "stop": lambda: tokens.append("lost")})
    assert tokens == [1] and server.statuses("db/main") == ["released"]


def test_cron(server, capsys):
    tokens = []
    names = {"nightly_job": tokens.append}
    exec(CRON, names)
    assert tokens == [1] and server.statuses("cron/nightly") == ["released"]
    server.hold("cron/nightly")
    exec(CRON, names)
    assert tokens == [1]
    assert "another machine has it: {" in capsys.readouterr().out


def test_django(server, tmp_path, monkeypatch):
    from django.conf import settings
    from django.test import RequestFactory

    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "locks.py").write_text(DJANGO_LOCKS.replace("timeout=5", "timeout=1"))
    (tmp_path / "shop" / "views.py").write_text(DJANGO_VIEW)
    monkeypatch.syspath_prepend(tmp_path)
    settings.configure(DEFAULT_CHARSET="utf-8")
    from shop import locks, views

    tokens = []
    views.charge = lambda order_id, fencing_token: tokens.append(fencing_token)
    request = RequestFactory().post("/pay/7")
    assert views.pay(request, 7).status_code == 200
    assert tokens == [1] and server.statuses("order/7") == ["released"]
    server.hold("order/7")
    assert views.pay(request, 7).status_code == 409
    locks.locks().close()
    for name in [name for name in sys.modules if name.split(".")[0] == "shop"]:
        del sys.modules[name]


def test_celery(server):
    from celery.exceptions import Retry

    tokens = []
    names = {"rebuild_index": lambda shop, token: tokens.append((shop, token)), "__name__": "jobs"}
    exec(CELERY, names)
    names["app"].conf.task_always_eager = True
    names["rebuild"].apply(args=["north"]).get()
    assert tokens == [("north", 1)] and server.statuses("rebuild/north") == ["released"]
    server.hold("rebuild/north")
    with pytest.raises(Retry):
        names["rebuild"].apply(args=["north"], throw=True, retries=0).get()
    names["locks"].close()
