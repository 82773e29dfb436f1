"""Answers with the status 200 that are invalid."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from managers import managed
from scripted import CLOSE, Answer, ManualClock, ScriptedServer, granted, in_turn, lease, standing
from tenure import Client, Unknown
from tenure._retry import MaybeDone
from tenure._transport import classify_response
from tenure._watch import _parse

DEEP = b"[" * 100_000
Read = Callable[[Client], Awaitable[object]]


def test_deeply_nested_answer_is_invalid() -> None:
    assert classify_response("a", 200, DEEP) == MaybeDone("a: the answer is invalid")
    assert classify_response("a", 500, DEEP) == MaybeDone("a answered 500 without a problem document")
    assert _parse(DEEP.decode()) is None


async def test_deeply_nested_members_are_ignored(server: ScriptedServer) -> None:
    server.on("cluster", Answer(DEEP))
    async with Client(server.urls) as client:
        await client._transport._ask_members(server.urls[0] + "/")
        assert len(client._transport.endpoints.urls) == 1


@pytest.mark.parametrize(
    ("action", "body", "read"),
    [
        ("leases", {}, lambda client: client.list().__anext__()),
        ("leases", {"leases": [None]}, lambda client: client.list().__anext__()),
        ("leases", {"leases": [], "cursor": {}}, lambda client: client.list().__anext__()),
        ("job", {}, lambda client: client.get("job")),
        ("job", lease(holders={}), lambda client: client.get("job")),
        ("history", {"transitions": {}}, lambda client: client.history("job")),
        ("queue", {"waiters": None}, lambda client: client.queue("job")),
        ("explain", {}, lambda client: client.explain("job")),
        ("explain", {"held": [7]}, lambda client: client.explain("job")),
    ],
)
async def test_read_of_an_invalid_answer_is_unknown(server: ScriptedServer, action: str, body: Any, read: Read) -> None:
    server.on(action, in_turn(Answer(body), CLOSE))
    async with Client(server.urls) as client:
        with pytest.raises(Unknown, match="the answer is invalid"):
            await read(client)


async def test_invalid_further_holders_of_a_lease_are_unknown(server: ScriptedServer) -> None:
    server.on("job", Answer(lease(holders=[], holders_cursor="next")))
    server.on("leases", Answer({"leases": [{}]}))
    async with Client(server.urls) as client:
        with pytest.raises(Unknown, match="the answer is invalid"):
            await client.get("job")


@pytest.mark.parametrize(
    "invalid", [standing("holds"), standing("holds", lease={"token": "x"}), standing("ended", event={})]
)
async def test_check_with_an_invalid_answer_is_unknown(server: ScriptedServer, clock: ManualClock, invalid: Answer) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job")
        await job.acquire()
        server.on("explain", invalid)
        with pytest.raises(Unknown, match="invalid standing"):
            await job.check()
        assert job.is_held


async def test_leader_with_an_invalid_token_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("explain", Answer({"held": [{**lease(), "token": "x"}]}))
        with pytest.raises(Unknown, match="lease of the leader"):
            await m.manager.election("job").current()


async def test_grant_with_an_infinite_number_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        # Python reads the number 1e999 as infinite.
        server.on("acquire", granted(ttl_ms=float("inf")))
        with pytest.raises(Unknown, match="expected a lease"):
            await m.manager.handle("job").acquire()
