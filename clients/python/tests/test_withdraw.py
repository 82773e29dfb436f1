"""Claims that their caller has abandoned: they leave the queue, or their grant is released."""

from __future__ import annotations

import asyncio

import pytest

from managers import Managed, managed
from scripted import (
    CLOSE,
    TOKEN,
    Answer,
    Handler,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    hang,
    in_turn,
    lease,
    problem,
    standing,
)
from tenure import Lease, ShutDown, Unknown
from tenure._options import DAY

HELD = problem("held", 409, holder="other", token="7")
WAITS = standing("waits", waiter={})


async def shut_down(m: Managed) -> list[str]:
    """Shuts the manager down while its clock passes. Returns the names of the leases that may remain."""
    shutting_down = asyncio.ensure_future(m.manager.shutdown())
    while not shutting_down.done():
        m.clock.now += 0.1
        await asyncio.sleep(0.01)
    return [name for name, _ in await shutting_down]


def until_withdrawal(answer: Handler | Answer) -> Handler:
    """Lets each claim wait, and answers the claims that end a wait with the shortest one."""
    withdrawal = answer if callable(answer) else lambda _: answer
    return lambda request: hang(request) if request.body.get("wait_ms", 0) > 1000 else withdrawal(request)


async def abandon_waiting_claim(m: Managed, withdrawal: Handler | Answer) -> None:
    """Cancels an acquire whose claim keeps its place in the queue."""
    m.server.on("acquire", until_withdrawal(withdrawal))
    m.server.on("explain", WAITS)
    acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
    await m.server.received("acquire")
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring


async def test_shutdown_releases_a_claim_that_the_cluster_applies_late(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", hang)
        server.on("explain", in_turn(standing("unknown"), standing("unknown"), standing("holds", lease=lease())))
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        assert await asyncio.wait_for(m.manager.shutdown(), 20) == []
        assert [request.body["token"] for request in server.of("release")] == [str(TOKEN)]
        with pytest.raises(ShutDown):
            await acquiring


@pytest.mark.parametrize("wait", [0, 30])
async def test_claim_that_no_read_shows_is_unknown_after_a_shutdown(
    server: ScriptedServer, clock: ManualClock, wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", hang)
        monkeypatch.setattr(m.manager._core, "operation_timeout", 0.1)
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=wait))
        await server.received("acquire")
        [(name, error)] = await asyncio.wait_for(m.manager.shutdown(), 20)
        assert (name, type(error)) == ("job", Unknown)
        with pytest.raises(Unknown):
            await acquiring


async def abandoned(m: Managed, monkeypatch: pytest.MonkeyPatch, ttl: float | None = 30) -> Lease:
    """Cancels a claim that waits 30 s, before the cluster knows it."""
    m.server.on("acquire", hang)
    monkeypatch.setattr(m.manager._core, "operation_timeout", 0.1)
    job = m.manager.handle("job", ttl=ttl)
    acquiring = asyncio.ensure_future(job.acquire(wait=30))
    await m.server.received("acquire")
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    await m.until(lambda: not job._hold.operation.locked())
    return job


async def test_claim_that_is_cancelled_before_the_cluster_knows_it_stays_unresolved(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(server, clock) as m:
        await abandoned(m, monkeypatch)
        server.on("explain", standing("holds", lease=lease()))
        assert await m.manager.shutdown() == []
        assert [request.body["token"] for request in server.of("release")] == [str(TOKEN)]


async def test_withdrawal_that_is_sent_again_leaves_the_queue(server: ScriptedServer, clock: ManualClock) -> None:
    def withdraw(request: Request) -> Answer:
        if len(server.of("acquire")) == 2:
            return problem("no_leader", 503)
        # Without a wait, a waiter keeps its position.
        return problem("wait_timeout", 409) if request.body["wait_ms"] >= 1 else HELD

    async with managed(server, clock) as m:
        await abandon_waiting_claim(m, withdraw)
        assert await shut_down(m) == []
        # The cancelled acquire and the shutdown each send one.
        assert {request.body["wait_ms"] for request in server.of("acquire")[1:]} == {1}


async def test_shutdown_that_meets_a_withdrawal_leaves_nothing(server: ScriptedServer, clock: ManualClock) -> None:
    shows_claim = asyncio.Event()

    async def explain(request: Request) -> Answer:
        reads = len(server.of("explain"))
        if reads == 1:
            await shows_claim.wait()
            return WAITS
        # The second read is that of the claim, which the shutdown ends. The node withdraws the claim before the next one.
        return await hang(request) if reads == 2 else standing("unknown")

    async with managed(server, clock) as m:
        server.on("acquire", hang)
        server.on("explain", explain)
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await server.received("explain")
        shutting_down = asyncio.ensure_future(m.manager.shutdown())
        await server.received("explain", 2)
        shows_claim.set()
        assert await asyncio.wait_for(shutting_down, 20) == []


async def test_grant_of_a_withdrawing_claim_is_released(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        await abandon_waiting_claim(m, granted())
        assert await shut_down(m) == []
        assert {request.body["token"] for request in server.of("release")} == {str(TOKEN)}


async def test_standing_that_is_absent_resolves_no_claim(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=30)
        await job.acquire()
        server.on("explain", Answer({"name": "job", "held": []}))
        with pytest.raises(Unknown):
            await job.check()
        assert job.is_held
        await job.release()
        server.on("acquire", in_turn(CLOSE, HELD))
        with pytest.raises(Unknown):
            await job.acquire()
        [(name, error)] = await m.manager.shutdown()
        assert (name, type(error)) == ("job", Unknown)


async def test_invalid_answer_to_a_release_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=30)
        await job.acquire()
        server.on("release", Answer({"status": "ok"}))
        server.on("explain", standing("holds", lease=lease()))
        with pytest.raises(Unknown):
            await job.release()
        assert [name for name, _ in await m.manager.shutdown()] == ["job"]


async def test_cancelled_release_comes_before_the_next_claim(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=30)
        await job.acquire()
        server.on("release", hang)
        releasing = asyncio.ensure_future(job.release())
        await server.received("release")
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        server.on("release", Answer({"released": True}))
        server.on("acquire", granted(token=TOKEN + 1))
        assert await job.acquire() == TOKEN + 1
        assert [request.action for request in server.requests] == ["acquire", "release", "release", "acquire"]
        assert server.of("release")[1].body == {"holder": "me", "token": str(TOKEN)}


@pytest.mark.parametrize("call", ["shutdown", "release"])
async def test_cancelled_claim_that_no_read_shows_stays_unknown_for_its_ttl(
    server: ScriptedServer, clock: ManualClock, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(server, clock) as m:
        job = await abandoned(m, monkeypatch)
        clock.now += 59
        if call == "shutdown":
            [(name, error)] = await m.manager.shutdown()
            assert (name, type(error)) == ("job", Unknown)
            return
        with pytest.raises(Unknown):
            await job.release()
        # Now a late grant has expired.
        clock.now += 2
        assert await job.release() is False
        assert await m.manager.shutdown() == []


async def test_cancelled_claim_with_the_default_ttl_stays_unknown_for_a_day(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(server, clock) as m:
        job = await abandoned(m, monkeypatch, ttl=None)
        clock.now += DAY
        with pytest.raises(Unknown):
            await job.release()
        # The wait in the queue and the time of the request are over, too.
        clock.now += 31
        assert await job.release() is False
