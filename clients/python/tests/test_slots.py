"""Requests take turns, except renewals and waits."""

from __future__ import annotations

import pytest

from scripted import CLOSE, TOKEN, Answer, ScriptedServer, granted, renewed
from tenure import Client, Unknown
from tenure._calls import Calls
from tenure._retry import RetryBudget
from tenure._transport import MAX_PARALLEL

BUDGET = RetryBudget.within(5)


async def begin(client: Client, count: int = MAX_PARALLEL) -> None:
    """Begins this number of requests that do not end."""
    for _ in range(count):
        await client._transport._slots.acquire()


async def test_renewal_takes_no_slot(server: ScriptedServer) -> None:
    server.on("renew", renewed)
    async with Client(server.urls) as client:
        await begin(client)
        (result,) = await Calls(client._transport).renew("me", [("job", TOKEN)], BUDGET)
        assert result["name"] == "job"


async def test_wait_for_a_lease_takes_no_slot(server: ScriptedServer) -> None:
    server.on("acquire", granted())
    async with Client(server.urls) as client:
        await begin(client)
        lease = await Calls(client._transport).acquire("job", {"holder": "me", "wait_ms": 60_000}, BUDGET)
        assert lease["token"] == str(TOKEN)


async def test_slot_is_free_after_an_error(server: ScriptedServer) -> None:
    server.on("job", CLOSE)
    async with Client(server.urls) as client:
        await begin(client, MAX_PARALLEL - 1)
        with pytest.raises(Unknown):
            await client.revoke("job")
        server.on("job", Answer({"revoked": 1}))
        assert await client.revoke("job") == 1
