"""The waits of an acquire: in its process, in the queue, and for the first renewal."""

from __future__ import annotations

import asyncio

import pytest

from managers import managed
from scripted import (
    TOKEN,
    Answer,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    hang,
    lease,
    lost,
    problem,
    renewed,
    standing,
)
from tenure import Refused, ShutDown, Unknown
from tenure._guard import Guard

HELD = problem("held", 409, holder="other", token="7")


async def test_grant_after_a_long_wait_is_renewed_first(server: ScriptedServer, clock: ManualClock) -> None:
    def waited(_: Request) -> Answer:
        clock.now += 2
        return granted(ttl_ms=3000)

    async with managed(server, clock) as m:
        server.on("acquire", waited)
        job = m.manager.handle("job", ttl=3)
        assert await job.acquire(wait=10) == TOKEN
        assert len(server.of("renew")) == 1
        assert server.of("acquire")[0].body["wait_ms"] == 10_000
        assert job.remaining == pytest.approx(2.97)


async def test_failed_renewal_after_a_wait_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    def waited(_: Request) -> Answer:
        clock.now += 2
        return granted(ttl_ms=3000)

    async with managed(server, clock, operation_timeout=0.5) as m:
        server.on("acquire", waited)
        server.on("renew", problem("no_leader", 503))
        server.on("explain", standing("unknown"))
        with pytest.raises(Unknown):
            await m.manager.handle("job", ttl=3).acquire(wait=10)


async def test_shutdown_during_the_first_renewal_is_no_refusal(server: ScriptedServer, clock: ManualClock) -> None:
    is_released = asyncio.Event()

    def waited(_: Request) -> Answer:
        clock.now += 2
        return granted(ttl_ms=3000)

    async def renew(_: Request) -> Answer:
        await is_released.wait()
        return lost("released")

    async with managed(server, clock) as m:
        server.on("acquire", waited)
        server.on("renew", renew)
        server.on("explain", standing("holds", lease=lease()))
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=3).acquire(wait=10))
        await server.received("renew")
        closing = asyncio.ensure_future(m.manager.shutdown())
        await server.received("release")
        is_released.set()
        with pytest.raises(ShutDown):
            await asyncio.wait_for(acquiring, 10)
        assert await asyncio.wait_for(closing, 10) == []


async def test_release_waits_for_no_first_renewal(server: ScriptedServer, clock: ManualClock) -> None:
    goes_on = asyncio.Event()

    def waited(_: Request) -> Answer:
        clock.now += 2
        return granted(ttl_ms=3000)

    async def renew(request: Request) -> Answer:
        await goes_on.wait()
        return renewed(request)

    async with managed(server, clock, operation_timeout=60) as m:
        server.on("acquire", waited)
        server.on("renew", renew)
        job = m.manager.handle("job", ttl=3)
        acquiring = asyncio.ensure_future(job.acquire(wait=10))
        await server.received("renew")
        assert await asyncio.wait_for(job.release(), 5) is False
        goes_on.set()
        assert await asyncio.wait_for(acquiring, 10) == TOKEN
        assert (job.is_held, server.of("release")) == (True, [])


async def test_wait_for_another_body_is_part_of_the_wait(server: ScriptedServer, clock: ManualClock) -> None:
    async def work() -> None:
        async with m.manager.lease("job", wait=10):
            pass

    async with managed(server, clock) as m:
        server.on("acquire", granted(ttl_ms=30_000))
        async with m.manager.lease("job", ttl=30):
            working = asyncio.ensure_future(work())
            await m.until(lambda: bool(m.manager._core._holds["job"].exclusive._waiters))
            clock.now += 4
        await asyncio.wait_for(working, 10)
        assert server.of("acquire")[1].body["wait_ms"] == 6000


async def test_wait_for_another_acquire_is_part_of_the_wait(server: ScriptedServer, clock: ManualClock) -> None:
    goes_on = asyncio.Event()

    async def refuse(_: Request) -> Answer:
        await goes_on.wait()
        return HELD

    async with managed(server, clock) as m:
        server.on("acquire", refuse)
        job = m.manager.handle("job", ttl=30)
        first = asyncio.ensure_future(job.acquire())
        await server.received("acquire")
        second = asyncio.ensure_future(job.acquire(wait=10))
        await m.until(lambda: bool(job._hold.operation._waiters))
        clock.now += 4
        goes_on.set()
        for acquiring in (first, second):
            with pytest.raises(Refused):
                await asyncio.wait_for(acquiring, 10)
        assert server.of("acquire")[1].body["wait_ms"] == 6000


@pytest.mark.parametrize("wait", [0, 30])
async def test_wait_counts_while_another_body_gets_the_lock(server: ScriptedServer, clock: ManualClock, wait: float) -> None:
    async with managed(server, clock, operation_timeout=0.2 if wait else 60) as m:
        server.on("acquire", HELD)
        hold = m.manager.handle("job", ttl=3)._hold
        await hold.exclusive.acquire()
        following = asyncio.ensure_future(hold.exclusive.acquire())
        await m.until(lambda: bool(hold.exclusive._waiters))

        async def enter() -> int:
            # The lock is not locked now, and belongs to the next one.
            hold.exclusive.release()
            return await Guard(m.manager._core, hold).enter(wait)

        entering = asyncio.ensure_future(enter())
        await following
        if wait:
            await asyncio.sleep(0.5)
            assert not entering.done(), "the wait is longer than one request"
            hold.exclusive.release()
        with pytest.raises(Refused):
            await asyncio.wait_for(entering, 10)
        assert len(server.of("acquire")) == (1 if wait else 0)
        if not wait:
            hold.exclusive.release()


async def test_waiting_acquire_leaves_a_node_that_is_not_ready(servers: ScriptedServer, clock: ManualClock) -> None:
    async def wait(request: Request) -> Answer:
        return granted() if request.node == 1 else await hang(request)

    async with managed(servers, clock) as m:
        servers.on("acquire", wait)
        servers.on("readyz", problem("not_ready", 503))
        assert await m.manager.handle("job", ttl=0.3).acquire(wait=30) == TOKEN
        assert [request.node for request in servers.of("acquire")] == [0, 1]
        assert [request.node for request in servers.of("readyz")] == [0]
        before, after = (request.body["wait_ms"] for request in servers.of("acquire"))
        # The first node had half a second.
        assert (before, after <= before - 400) == (30_000, True)


async def test_waiting_acquire_stays_at_a_ready_node(servers: ScriptedServer, clock: ManualClock) -> None:
    ready = asyncio.Event()

    def probe(_: Request) -> Answer:
        ready.set()
        return Answer()

    async def wait(_: Request) -> Answer:
        await ready.wait()
        return granted()

    async with managed(servers, clock) as m:
        servers.on("acquire", wait)
        servers.on("readyz", probe)
        assert await m.manager.handle("job", ttl=0.3).acquire(wait=30) == TOKEN
        assert len(servers.of("acquire")) == 1
