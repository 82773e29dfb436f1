"""Cancellations at the moment of another event."""

from __future__ import annotations

import asyncio
import sys

import pytest

from managers import Managed, managed
from scripted import ManualClock, ScriptedServer, lost
from tenure import LeaseLost, Loss
from tenure._aio import acquire_within


async def test_wait_that_is_cancelled_at_a_release_leaves_the_lock_free() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    waiting = asyncio.ensure_future(acquire_within(lock, 10))
    while not lock._waiters:
        await asyncio.sleep(0)
    lock.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(lock.acquire(), 5)


async def test_loss_in_a_cancelled_task_is_a_lease_lost(server: ScriptedServer, clock: ManualClock) -> None:
    async def clean_up(m: Managed) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(LeaseLost) as caught:
                async with m.manager.lease("job", ttl=3):
                    server.on("renew", lost("revoked"))
                    clock.now += 1.11
                    m.wake()
                    await asyncio.wait_for(asyncio.Event().wait(), 5)
            assert caught.value.why == Loss.REVOKED
        if sys.version_info >= (3, 11):
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 1, "the earlier cancellation still counts"

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(clean_up(m))
        await asyncio.sleep(0)
        task.cancel()
        await task
