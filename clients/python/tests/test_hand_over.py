"""A hand-over whose call is cancelled, or that has no answer yet."""

from __future__ import annotations

import asyncio

import pytest

from managers import Managed, managed
from scripted import TOKEN, Answer, ManualClock, Request, ScriptedServer, granted, hang, lease, problem, standing
from tenure import LeaseLost, Refused, Unavailable, Unknown, states
from tenure._guard import LONGEST_CHECK


async def cancel_hand_over(m: Managed) -> None:
    """Cancels a hand-over during its request."""
    m.server.on("handover", hang)
    handing = asyncio.ensure_future(m.manager.handle("job").hand_over())
    await m.server.received("handover")
    handing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handing


async def test_end_of_a_grant_waits_for_no_claim_in_flight(server: ScriptedServer, clock: ManualClock) -> None:
    goes_on = asyncio.Event()

    async def grant_later(_: Request) -> Answer:
        await goes_on.wait()
        return granted()

    async with managed(server, clock) as m:
        server.on("acquire", grant_later)
        job = m.manager.handle("job", ttl=30)
        acquiring = asyncio.ensure_future(job.acquire(wait=3600))
        await server.received("acquire")
        assert await asyncio.wait_for(job.release(), 10) is False
        assert await asyncio.wait_for(job.hand_over(), 10) is None
        assert await asyncio.wait_for(m.manager._core.update_metadata(job._hold, {"a": "b"}), 10) is False
        assert not acquiring.done()
        goes_on.set()
        assert await acquiring == TOKEN
        assert job.is_held
        assert await job.release()
        assert [request.action for request in server.requests] == ["acquire", "release"]


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


@pytest.mark.parametrize(
    "end",
    [standing("ended", event={"token": str(TOKEN), "event": "handed_over"}), standing("unknown")],
    ids=["ended", "unknown"],
)
async def test_check_during_the_own_hand_over_is_no_loss(server: ScriptedServer, clock: ManualClock, end: Answer) -> None:
    is_checked = asyncio.Event()

    async def hand_over(_: Request) -> Answer:
        await is_checked.wait()
        return Answer(lease(holder="next", token=TOKEN + 1))

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("handover", hand_over)
        server.on("explain", end)
        handing = asyncio.ensure_future(job.hand_over())
        await server.received("handover")
        assert await job.check() is False
        is_checked.set()
        assert await handing == "next"
        assert job.state == states.Released(TOKEN)


async def test_unavailable_hand_over_leaves_the_lease_held(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> None:
        raise Unavailable("no leader")

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        monkeypatch.setattr(m.manager._core.calls, "hand_over", unavailable)
        with pytest.raises(Unavailable):
            await job.hand_over()
        assert (job.is_held, server.of("release")) == (True, [])


async def test_end_of_the_work_during_its_hand_over_is_no_loss(server: ScriptedServer, clock: ManualClock) -> None:
    is_applied = asyncio.Event()

    async def hand_over(_: Request) -> Answer:
        await is_applied.wait()
        return Answer(lease(holder="next", token=TOKEN + 1))

    async with managed(server, clock) as m:
        leadership = await m.manager.election("job", ttl=3).campaign()
        server.on("handover", hand_over)
        handing = asyncio.ensure_future(leadership.hand_over())
        await server.received("handover")
        resigning = asyncio.ensure_future(leadership.resign())
        # The end of the work waits this long for a keeper that is late.
        await asyncio.sleep(2 * LONGEST_CHECK)
        assert leadership.lease.state.kind == "held"
        is_applied.set()
        assert await handing == "next"
        await resigning
        assert leadership.lease.state == states.Released(TOKEN)
        assert server.of("release") == []


async def test_hand_over_without_a_new_holder_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        answer = lease(token=TOKEN + 1)
        del answer["holder"]
        server.on("handover", Answer(answer))
        with pytest.raises(Unknown):
            await job.hand_over()
        assert not job.is_held


async def test_second_hand_over_of_a_leadership_waits_for_the_first(server: ScriptedServer, clock: ManualClock) -> None:
    is_refused = asyncio.Event()

    async def refuse(_: Request) -> Answer:
        await is_refused.wait()
        return problem("no_such_waiter", 409)

    async with managed(server, clock) as m:
        leadership = await m.manager.election("job", ttl=3).campaign()
        server.on("handover", refuse)
        first = asyncio.ensure_future(leadership.hand_over())
        await server.received("handover")
        second = asyncio.ensure_future(leadership.hand_over("next"))
        await m.until(lambda: second.done() or bool(leadership.lease._hold.operation._waiters))
        is_refused.set()
        for handing in (first, second):
            with pytest.raises(Refused):
                await asyncio.wait_for(handing, 10)
        assert leadership.is_leader
        assert [request.body.get("to") for request in server.of("handover")] == [None, "next"]


async def test_establish_waits_for_the_end_of_a_hand_over(server: ScriptedServer, clock: ManualClock) -> None:
    is_refused = asyncio.Event()

    async def refuse(_: Request) -> Answer:
        await is_refused.wait()
        return problem("no_such_waiter", 409)

    async def fence(token: int) -> int:
        return token

    async with managed(server, clock) as m:
        server.on("explain", standing("holds", lease=lease()))
        server.on("metadata", Answer(lease(metadata_version=1)))
        leadership = await m.manager.election("job", ttl=3).campaign()
        server.on("handover", refuse)
        handing = asyncio.ensure_future(leadership.hand_over())
        await server.received("handover")
        establishing = asyncio.ensure_future(leadership.establish(fence))
        await m.until(lambda: establishing.done() or bool(leadership.lease._hold.operation._waiters))
        is_refused.set()
        with pytest.raises(Refused):
            await asyncio.wait_for(handing, 10)
        assert await asyncio.wait_for(establishing, 10) == TOKEN
        assert leadership.is_established


async def test_hand_over_of_a_leadership_names_its_waiter(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        leadership = await m.manager.election("job", ttl=3).campaign()
        with pytest.raises(ValueError, match="invalid holder"):
            await leadership.hand_over("")
        server.on("handover", Answer(lease(holder="next", token=TOKEN + 1)))
        assert await leadership.hand_over("next") == "next"
        assert [request.body["to"] for request in server.of("handover")] == ["next"]
