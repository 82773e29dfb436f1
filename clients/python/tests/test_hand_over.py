"""A hand-over whose call is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from managers import Managed, managed
from scripted import CLOSE, TOKEN, Answer, ManualClock, Request, ScriptedServer, granted
from tenure import LeaseLost, states


async def hang(_: Request) -> Answer:
    await asyncio.Event().wait()
    return CLOSE


async def cancel_hand_over(m: Managed) -> None:
    """Cancels a hand-over during its request."""
    m.server.on("handover", hang)
    handing = asyncio.ensure_future(m.manager.handle("job").hand_over())
    await m.server.received("handover")
    handing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handing


async def test_cancelled_hand_over_ends_the_grant(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        await cancel_hand_over(m)
        assert job.state == states.Released(TOKEN)
        await asyncio.wait_for(job.wait_ended(), 1)
        server.on("acquire", granted(token=TOKEN + 1))
        assert await job.acquire() == TOKEN + 1
        assert [request.action for request in server.requests] == ["acquire", "handover", "release", "acquire"]
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}


async def test_cancelled_hand_over_of_a_body_releases_the_lease(server: ScriptedServer, clock: ManualClock) -> None:
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            await asyncio.wait_for(asyncio.Event().wait(), 5)

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        await cancel_hand_over(m)
        # The work has ended, so the cluster need not wait for the expiry.
        released = await asyncio.wait_for(server.received("release"), 5)
        assert released.body == {"holder": "me", "token": str(TOKEN)}
        with pytest.raises(LeaseLost):
            await task
        await m.until(lambda: not m.manager._core._tasks)
        assert m.manager._core._unresolved == {}
