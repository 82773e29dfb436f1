"""The end of a campaign: its claims, its errors and its waits."""

from __future__ import annotations

import asyncio

import pytest

from managers import Managed, managed
from scripted import CLOSE, TOKEN, Answer, ManualClock, ScriptedServer, granted, in_turn, lease, problem, standing
from tenure import Refused, ShutDown, Unknown
from tenure._election import Leadership

HELD = problem("held", 409, holder="other")
HOLDS = standing("holds", lease=lease())


async def after_unknown(m: Managed, *later: Answer) -> asyncio.Future[Leadership]:
    """A campaign in the pause after a claim whose answer was lost. Its next claims get the answers `later`."""
    m.server.on("acquire", in_turn(CLOSE, HELD, *later))
    campaign = asyncio.ensure_future(m.manager.election("job", ttl=3).campaign())
    await m.server.received("acquire", 2)
    hold = m.manager._core._holds["job"]
    await m.until(lambda: hold.is_ambiguous and not hold.operation.locked())
    return campaign


@pytest.mark.parametrize("moment", ["pause", "exclusive", "operation"])
async def test_cancelled_campaign_resolves_an_earlier_unknown_claim(
    server: ScriptedServer, clock: ManualClock, moment: str
) -> None:
    async with managed(server, clock) as m:
        campaign = await after_unknown(m, HELD)
        server.on("explain", HOLDS)
        hold = m.manager._core._holds["job"]
        if moment != "pause":
            # Other work of this manager has the lock that the next claim needs.
            lock = getattr(hold, moment)
            await lock.acquire()
            await m.until(lambda: bool(lock._waiters))
        campaign.cancel()
        with pytest.raises(asyncio.CancelledError):
            await campaign
        if moment != "pause":
            lock.release()
        released = await asyncio.wait_for(server.received("release"), 5)
        assert released.body == {"holder": "me", "token": str(TOKEN)}
        await m.until(lambda: not hold.is_ambiguous)


async def test_refused_campaign_resolves_an_earlier_unknown_claim(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        campaign = await after_unknown(m, problem("forbidden", 403))
        server.on("explain", HOLDS)
        with pytest.raises(Refused):
            await campaign
        await asyncio.wait_for(server.received("release"), 5)


async def test_cancelled_campaign_keeps_a_later_grant(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        campaign = await after_unknown(m, granted())
        server.on("explain", HOLDS)
        job = m.manager.handle("job", ttl=3)
        acquiring = asyncio.ensure_future(job.acquire())
        await server.received("acquire", 3)
        campaign.cancel()
        with pytest.raises(asyncio.CancelledError):
            await campaign
        assert await acquiring == TOKEN
        await m.until(lambda: not m.manager._core._tasks)
        assert (job.is_held, server.of("release")) == (True, [])


@pytest.mark.parametrize("is_free", [False, True])
async def test_shutdown_ends_a_campaign_that_waits_in_its_process(
    server: ScriptedServer, clock: ManualClock, is_free: bool
) -> None:
    async with managed(server, clock) as m:
        election = m.manager.election("job", ttl=3)
        leadership = await election.campaign()
        campaign = asyncio.ensure_future(election.campaign())
        exclusive = leadership.lease._hold.exclusive
        await m.until(lambda: bool(exclusive._waiters))
        if is_free:
            # The lock becomes free at the moment of the shutdown.
            exclusive.release()
        assert await m.manager.shutdown() == []
        with pytest.raises(ShutDown):
            await asyncio.wait_for(campaign, 5)
        assert exclusive.locked() is not is_free
        assert len(server.of("acquire")) == 1


@pytest.mark.parametrize("is_resolved", [True, False])
async def test_shutdown_during_a_campaign_says_whether_its_claims_are_resolved(
    server: ScriptedServer, clock: ManualClock, is_resolved: bool
) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        campaign = await after_unknown(m, HELD)
        server.on("explain", HOLDS if is_resolved else problem("no_leader", 503))
        assert [name for name, _ in await m.manager.shutdown()] == ([] if is_resolved else ["job"])
        with pytest.raises(ShutDown if is_resolved else Unknown):
            await asyncio.wait_for(campaign, 5)
        assert len(server.of("release")) == is_resolved
