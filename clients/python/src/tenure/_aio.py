"""Waits with a time limit. `asyncio.wait_for` can swallow a cancellation before Python 3.12, so they do not use it."""

from __future__ import annotations

import asyncio


async def acquire_within(lock: asyncio.Lock, seconds: float) -> bool:
    """Acquires the lock within this time. After a cancellation the lock is not acquired."""
    acquired = asyncio.ensure_future(lock.acquire())
    try:
        await asyncio.wait({acquired}, timeout=seconds)
    except asyncio.CancelledError:
        acquired.add_done_callback(lambda task: None if task.cancelled() else lock.release())
        acquired.cancel()
        raise
    if acquired.done():
        return True
    acquired.cancel()
    await asyncio.wait({acquired})
    return not acquired.cancelled()


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within this time."""
    if not event.is_set():
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()
    return event.is_set()
