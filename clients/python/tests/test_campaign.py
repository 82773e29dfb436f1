"""Elections: the claims, the errors and the waits of a campaign, and the reads of an observer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from managers import NO_LEADER, Managed, managed
from scripted import (
    CLOSE,
    TOKEN,
    Answer,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    in_turn,
    lease,
    problem,
    standing,
)
from tenure import LeaseLost, Loss, Refused, ShutDown, Unknown
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


@pytest.mark.parametrize(
    "code",
    ["held", "lock_delay", "wait_timeout", "wait_abandoned", "queue_full", "lease_full", "too_many_leases", "lost"],
)
async def test_campaign_continues_after_a_refusal_that_a_wait_resolves(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr("tenure._election.RETRY_DELAY", 0.001)
    async with managed(server, clock) as m:
        server.on("acquire", in_turn(problem(code, 409), granted()))
        leadership = await asyncio.wait_for(m.manager.election("job", ttl=3).campaign(), 10)
        assert leadership.is_leader
        assert [request.body["wait_ms"] for request in server.of("acquire")] == [60_000, 60_000]


def holds(version: int) -> Answer:
    """The lease of the candidate, with this version of its metadata."""
    return standing("holds", lease=lease(metadata_version=version))


async def fence(token: int) -> int:
    """Fences nothing."""
    return token


async def test_leader_can_establish_again(server: ScriptedServer, clock: ManualClock) -> None:
    updates: list[Request] = []

    def update(request: Request) -> Answer:
        if request.body["version"] != len(updates):
            return problem("metadata_changed", 409)
        updates.append(request)
        return Answer(lease(metadata_version=len(updates)))

    async with managed(server, clock) as m:
        server.on("explain", lambda _: holds(len(updates)))
        server.on("metadata", update)
        leadership = await m.manager.election("job", ttl=3).campaign()
        for _ in range(2):
            assert await leadership.establish(fence) == TOKEN
        assert leadership.is_established
        assert len(updates) == 2


async def test_conflict_with_an_earlier_update_is_retried(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("explain", in_turn(holds(0), holds(1)))
        server.on("metadata", in_turn(problem("metadata_changed", 409), Answer(lease(metadata_version=2))))
        leadership = await m.manager.election("job", ttl=3).campaign()
        await leadership.establish(fence)
        assert leadership.is_established
        assert [request.body["version"] for request in server.of("metadata")] == [0, 1]


async def test_establish_of_an_old_leadership_leaves_the_next_one(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("explain", standing("holds", lease=lease(token=TOKEN + 1)))
        server.on("metadata", Answer(lease(token=TOKEN + 1, metadata_version=1)))
        leadership = await m.manager.election("job", ttl=3).campaign()
        hold = leadership.lease._hold
        async with hold.operation:
            establishing = asyncio.ensure_future(leadership.establish(fence))
            await m.until(lambda: bool(hold.operation._waiters))
            # The same manager is elected again.
            hold.lose(TOKEN, Loss.REVOKED)
            hold.granted(TOKEN + 1, 3, clock.now, clock.now)
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(establishing, 10)
        assert server.of("metadata") == []


async def test_establish_with_an_invalid_answer_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("explain", Answer({"standing": {}}))
        leadership = await m.manager.election("job", ttl=3).campaign()
        with pytest.raises(Unknown):
            await leadership.establish(fence)
        assert leadership.is_leader


def held_by(*holders: str) -> Answer:
    """The answer to the read of an observer."""
    held = [lease(holder=holder) for holder in holders]
    return Answer({"name": "job", "summary": "", "holders": len(held), "held": held, "waiters": 0})


async def test_observer_waits_while_no_node_answers(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=0.2) as m:
        server.on("explain", NO_LEADER)
        observed = m.manager.election("job", refresh=0.01).observe()
        first = asyncio.ensure_future(observed.__anext__())
        # One read takes at most 0.2 s, and has fewer attempts.
        await server.received("explain", 30)
        assert not first.done()
        server.on("explain", held_by("other"))
        leader = await asyncio.wait_for(first, 10)
        assert leader is not None
        assert leader.holder == "other"
        await observed.aclose()  # type: ignore[attr-defined]


async def test_observer_never_goes_back_to_an_older_leader(server: ScriptedServer, clock: ManualClock) -> None:
    reads = [Answer({"held": [lease(token=token)] if token else []}) for token in (7, 0, 6, 8)]
    async with managed(server, clock) as m:
        server.on("explain", in_turn(*reads))
        observed = m.manager.election("job", refresh=0.01).observe()
        leaders = [await asyncio.wait_for(observed.__anext__(), 10) for _ in range(3)]
        assert [leader and leader.token for leader in leaders] == [7, None, 8]
        await observed.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("bad", [{"refresh": 0}, {"metadata": {"tenure.x": ""}}])
async def test_refused_election_replaces_no_options(server: ScriptedServer, clock: ManualClock, bad: dict[str, Any]) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        with pytest.raises(ValueError, match="invalid"):
            m.manager.election("job", **{"ttl": 9, **bad})
        await job.acquire()
        assert server.of("acquire")[0].body["ttl_ms"] == 3000


async def test_observer_sees_a_change_of_the_holder_at_once(server: ScriptedServer, clock: ManualClock) -> None:
    is_elected = asyncio.Event()

    async def watch(_: Request) -> Answer:
        await is_elected.wait()
        return Answer(b'id: 6\ndata: {"event": "granted", "name": "job"}\n\n')

    async with managed(server, clock) as m:
        server.on("explain", held_by())
        server.on("watch", watch)
        observed = m.manager.election("job", refresh=3600).observe()
        assert await observed.__anext__() is None
        following = asyncio.ensure_future(observed.__anext__())
        await server.received("watch")
        server.on("explain", held_by("other"))
        is_elected.set()
        leader = await asyncio.wait_for(following, 10)
        assert leader is not None
        assert leader.holder == "other"
        await observed.aclose()  # type: ignore[attr-defined]
