"""The examples of the README run as they are written."""

from __future__ import annotations

import asyncio
import pathlib
import textwrap

from leasehold import LockManager

README = (pathlib.Path(__file__).parent.parent / "README.md").read_text()


def examples() -> list[str]:
    return [block.split("```")[0] for block in README.split("```python\n")[1:]]


def test_the_first_lines_take_a_lock_and_guard_a_function(server):
    tokens = []
    names = {"write_to_the_database": lambda fencing_token: tokens.append(fencing_token)}
    exec(examples()[0].replace("http://127.0.0.1:4080", server.url), names)
    names["report"]("monday")
    names["locks"].close()
    assert tokens == [1]
    assert server.statuses("db/main") == ["released"]
    assert server.statuses("report/monday") == ["released"]


def test_the_lines_for_asyncio_take_a_lock(server, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_ADDR", server.url)
    tokens = []

    async def work(token):
        tokens.append(token)

    names = {"work": work}
    head, body = examples()[1].split("\n\n", 1)
    exec(f"{head}\nasync def main():\n{textwrap.indent(body, '    ')}", names)
    asyncio.run(names["main"]())
    assert tokens == [1]
    assert server.statuses("db/main") == ["released"]


def test_the_lines_about_sharing_slots_and_sets_hold_what_they_say(server):
    flashed = []
    with LockManager(server.url) as locks:
        names = {"locks": locks, "flash": flashed.append}
        exec(examples()[2], names)
        assert names["reader"].items[0].mode == "shared"
        assert flashed == [1]
        assert set(names["tokens"]) == {"tape/1", "tape/2", "drives"}


def test_the_settings_that_it_names_are_there(server, monkeypatch):
    monkeypatch.setenv("LEASEHOLD_ADDR", server.url)
    names = {}
    exec(examples()[3], {"LockManager": LockManager}, names)
    names["locks"].close()
