"""Waits with a time limit. `asyncio.wait_for` can swallow a cancellation before Python 3.12, so they do not use it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def acquire_within(lock: asyncio.Lock, seconds: float | None, stop: asyncio.Event | None = None) -> bool:
    """Acquires the lock within this time; `None`: without a limit.

    The wait ends early if `stop` is set; the lock can be acquired at that moment. After a cancellation the lock
    is not acquired.
    """
    acquired = asyncio.ensure_future(lock.acquire())
    stopped = asyncio.ensure_future(stop.wait()) if stop is not None else None
    ends = {acquired} if stopped is None else {acquired, stopped}
    try:
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        acquired.add_done_callback(lambda task: None if task.cancelled() else lock.release())
        acquired.cancel()
        raise
    finally:
        if stopped is not None:
            stopped.cancel()
    if acquired.done():
        return True
    acquired.cancel()
    await asyncio.wait({acquired})
    return not acquired.cancelled()


async def acquire_while(slots: asyncio.Semaphore, left: Callable[[], float]) -> bool:
    """Acquires the semaphore while `left` returns a time, in seconds. The wait keeps its place in the line."""
    acquired = asyncio.ensure_future(slots.acquire())
    try:
        while not acquired.done() and (seconds := left()) > 0:
            await asyncio.wait({acquired}, timeout=seconds)
    except asyncio.CancelledError:
        acquired.add_done_callback(lambda task: None if task.cancelled() else slots.release())
        acquired.cancel()
        raise
    acquired.cancel()
    await asyncio.wait({acquired})
    return not acquired.cancelled()


def start_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Starts a task. The event loop reports no error of it, also if its owner is gone at its end."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels the task and waits for its end."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within this time."""
    if not event.is_set():
        waiting = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()
    return event.is_set()
