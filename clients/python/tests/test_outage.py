"""Outages that last longer than a ttl, with real nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from nodes import Cluster, leader_of
from tenure import LeaseLost, LeaseManager, Loss, TenureError, Unavailable, Unknown

NODES = (1, 2, 3)

OUTAGES: list[tuple[Callable[[int], tuple[int, ...]], signal.Signals, tuple[type[TenureError], ...]]] = [
    # A refused connection sends nothing.
    (lambda _: NODES, signal.SIGKILL, (Unavailable,)),
    # A node without a leader says that it does not serve the request, but its answer can come too late.
    (lambda leader: (leader, leader % 3 + 1), signal.SIGKILL, (Unavailable, Unknown)),
    # The request is sent, and has no answer.
    (lambda _: NODES, signal.SIGSTOP, (Unknown,)),
]


@pytest.mark.parametrize(("chosen", "number", "errors"), OUTAGES, ids=["all_are_down", "two_are_down", "all_hang"])
async def test_lease_is_lost_and_the_client_recovers(
    tmp_path: Path, chosen: Callable[[int], tuple[int, ...]], number: signal.Signals, errors: tuple[type[TenureError], ...]
) -> None:
    cluster = Cluster(tmp_path, nodes=3)
    try:
        for node in NODES:
            cluster.wait_ready(node)
        async with LeaseManager(cluster.urls, operation_timeout=3) as manager, LeaseManager(cluster.urls) as other:
            kinds: list[str] = []
            leader = await leader_of(other.client)
            waiting = other.handle("outage", ttl=10)
            with pytest.raises(LeaseLost) as caught:
                # A wait for the lease extends the timeout.
                async with manager.lease("outage", ttl=8, wait=20) as lease:
                    token = lease.check_held()
                    acquired = asyncio.ensure_future(waiting.acquire(wait=120))
                    while (await other.client.queue("outage"))["total"] == 0:
                        await asyncio.sleep(0.01)
                    stopped = chosen(leader)
                    lease.on_state(lambda state: kinds.append(state.kind))
                    for node in stopped:
                        cluster.signal(node, number)
                    await asyncio.Event().wait()
            # A loop that does not run for 250 ms at the deadline was suspended.
            assert caught.value.why in (Loss.UNREACHABLE, Loss.SUSPENDED)
            assert [kind for kind in dict.fromkeys(kinds) if kind != "held"] == ["at_risk", "lost"]
            assert not lease.is_held
            later = manager.handle("later", ttl=10)
            with pytest.raises(errors):
                await later.acquire()
            for node in stopped:
                if number == signal.SIGKILL:
                    cluster.start(node)
                else:
                    cluster.signal(node, signal.SIGCONT)
            for node in NODES:
                await asyncio.to_thread(cluster.wait_ready, node)
            assert await asyncio.wait_for(acquired, 60) > token
            assert await later.acquire(wait=20) > 0
            assert await later.check()
            assert await waiting.check()
    finally:
        cluster.stop()
