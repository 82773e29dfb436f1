"""The exclusive use of a lease by one part of a program, and the cancellation of its work."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from . import states
from ._aio import acquire_within, set_within
from ._errors import LeaseLost, ShutDown, TenureError, local_refusal
from .states import Loss

if TYPE_CHECKING:
    from ._core import Core
    from ._grant import Grant
    from ._hold import Hold

log = logging.getLogger("tenure")

# The keeper sees a deadline within this time, in seconds.
LONGEST_CHECK = 0.25


class Interrupt:
    """Cancels the current task from the event loop, and tells this cancellation from others.

    It works like `asyncio.timeout`: a cancellation by other code is never swallowed. Python 3.10 has no `Task.uncancel`, so
    there it is swallowed if it comes after the interrupt.
    """

    def __init__(self) -> None:
        """Prepares an interrupt of the current task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lease is held inside a task")
        self.task: asyncio.Task[Any] = task
        self._loop = asyncio.get_running_loop()
        # The cancellations of the task before this one.
        self._cancelling = 0
        if sys.version_info >= (3, 11):
            self._cancelling = task.cancelling()
        self._is_fired = False
        self._is_injected = False
        self._is_over = False

    def fire(self) -> None:
        """Cancels the task soon."""
        # Not at once: the caller can be this task, and its `cancel` would then hit the code after the work.
        self._loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._is_over or self._is_fired or self._is_injected:
            return
        self._is_fired = True
        self.task.cancel()

    def inject(self) -> asyncio.CancelledError | None:
        """The error to throw into the work instead of a cancellation. `None` if the work was cancelled before."""
        if self._is_fired or self._is_injected:
            return None
        self._is_injected = True
        return asyncio.CancelledError()

    def finish(self, error: BaseException | None) -> bool:
        """Ends the interrupt with the error of the work. Returns whether the error is only this cancellation."""
        self._is_over = True
        if not self._is_fired and not self._is_injected:
            return False
        if sys.version_info >= (3, 11):
            others = self.task.uncancel() if self._is_fired else self.task.cancelling()
            if others > self._cancelling:
                return False
        return isinstance(error, asyncio.CancelledError)


class Guard:
    """Holds a lease exclusively in this manager, for one work at a time."""

    def __init__(self, core: Core, hold: Hold, end_work: Callable[[], None] | None = None) -> None:
        """`end_work` asks the work to end. It can be called more than once. Without it, a release does not wait."""
        self.core = core
        self.hold = hold
        self.grant: Grant | None = None
        # The signals of the grant.
        self.ended = hold.ended
        self.stopping = hold.stopping
        # The task of the work. The work can release its lease itself.
        self.task: asyncio.Task[Any] | None = None
        self.end_work = end_work
        self.work_ended = asyncio.Event()
        # Another task releases the lease or hands it over. It waits for the end of the work, and then sends the request.
        self.is_draining = False
        # Another task has ended the work.
        self.was_stopped = False
        self._leaving: asyncio.Task[Loss | None] | None = None

    async def enter(self, wait: float) -> int:
        """Acquires the lease. Waits at most `wait` seconds for other guards and in the queue of the cluster."""
        exclusive, closing = self.hold.exclusive, self.core.closing
        begun = self.core.clock()
        if exclusive.locked() and wait <= 0:
            raise local_refusal("held", "another part of this program holds the lease")
        # A free lock needs no time.
        is_acquired = await acquire_within(exclusive, max(wait, 0.0), closing)
        if closing.is_set():
            # The shutdown can have ended the other guard.
            if is_acquired:
                exclusive.release()
            raise ShutDown
        if not is_acquired:
            raise local_refusal("held", "another part of this program held the lease during the whole wait")
        try:
            left = max(wait - (self.core.clock() - begun), 0.0) if wait > 0 else 0.0
            await self.core.acquire(self.hold, left)
        except BaseException:
            exclusive.release()
            raise
        self.grant = self.hold.grant
        self.ended, self.stopping = self.hold.ended, self.hold.stopping
        self.hold.guard = self
        return self.token

    @property
    def token(self) -> int:
        """The token of this guard; 0 before `enter`."""
        return self.grant.token if self.grant else 0

    @property
    def is_held(self) -> bool:
        """Whether the grant of this guard is held, by local knowledge. A later grant of the lease does not count."""
        return self.grant is not None and self.grant.is_held(self.core.clock())

    @property
    def is_lost(self) -> bool:
        """Whether the grant was lost or its deadline has passed. A release or hand-over by the work itself is no loss."""
        grant = self.grant
        if grant is None:
            return False
        return grant.is_expired(self.core.clock()) if grant.end is None else isinstance(grant.end, states.Lost)

    @property
    def ending(self) -> Loss | None:
        """Why the manager no longer renews the grant, if the grace has begun."""
        state = self.hold.state
        is_ending = isinstance(state, states.Ending) and state.token == self.token and self.stopping.is_set()
        return state.why if is_ending and isinstance(state, states.Ending) else None

    async def leave(self) -> Loss | None:
        """Releases the lease after the work. Returns why the grant ended before the work, if it did.

        If the release fails, the lease expires by its ttl, and the manager logs the error. A cancellation does not stop
        the release. A second call has no effect.
        """
        if self._leaving is None:
            self.work_ended.set()
            # A cancellation must not leave `exclusive` locked, so everything that waits is in this task.
            self._leaving = self.core.spawn(self._leave())
            self._leaving.add_done_callback(lambda _: self.hold.exclusive.release())
        return await asyncio.shield(self._leaving)

    async def _leave(self) -> Loss | None:
        hold = self.hold
        if hold.grant is not None and hold.grant is self.grant and hold.grant.is_expired(self.core.clock()):
            # The deadline has passed on this clock. The keeper records the reason on its next check.
            await set_within(self.ended, LONGEST_CHECK)
            hold.end_unheld_grant(self.core.clock())
        loss = self.loss()
        hold.guard = None
        await self._release()
        return loss

    def loss(self) -> Loss | None:
        """Why the grant ended before the work. `None` if it is in force, or if the work released it."""
        if self.was_stopped:
            return Loss.RELEASED
        end = self.grant.end if self.grant else None
        return end.why if isinstance(end, states.Lost) else None

    async def _release(self) -> None:
        hold, token = self.hold, self.token
        try:
            if self.is_draining:
                return
            if token in (hold.granted_token, hold.failed_release):
                await self.core.release(hold, drains=False, grant=self.grant)
            elif hold.unreleased_token == token:
                # The work has ended, so the cluster need not wait for the expiry.
                await self.core.send_release(hold, token)
        except TenureError as error:
            log.warning("the release of lease %s failed, and the lease expires by its ttl: %s", hold.name, error)


class WorkScope:
    """Holds a lease during the body of an `async with`, and cancels the body at a loss."""

    def __init__(self, core: Core, hold: Hold) -> None:
        """Acquires nothing yet."""
        self._core = core
        self._hold = hold
        self._entered: tuple[Guard, Interrupt] | None = None

    async def enter(self, acquire: Callable[[Guard], Awaitable[object]]) -> Guard:
        """Acquires the lease with `acquire`."""
        if self._entered is not None:
            raise RuntimeError("this object holds the lease already: each `async with` needs another one")
        interrupt = Interrupt()
        guard = Guard(self._core, self._hold, interrupt.fire)
        guard.task = interrupt.task
        await acquire(guard)
        self._entered = guard, interrupt
        if not guard.is_held:
            interrupt.fire()
        return guard

    async def leave(self, error: BaseException | None) -> None:
        """Releases the lease. Raises `LeaseLost` if the lease ended before the body."""
        if not self._core.owner.is_here:
            # The lease belongs to the parent of this forked process.
            return
        guard, interrupt = self.entered
        self._entered = None
        is_interrupted = interrupt.finish(error)
        ending = guard.ending
        why = await guard.leave()
        if is_interrupted or (error is None and why is not None):
            raise LeaseLost(self._hold.name, guard.token, why or ending or Loss.RELEASED) from None
        if why is not None and error is not None and hasattr(error, "add_note"):
            error.add_note(f"the lease {self._hold.name!r} was lost: {why.explanation}")

    @property
    def entered(self) -> tuple[Guard, Interrupt]:
        """The guard and the interrupt of the body."""
        if self._entered is None:
            raise RuntimeError("the lease is not acquired")
        return self._entered


def has_other_work(hold: Hold) -> bool:
    """Whether another task works under the lease and can be asked to end its work."""
    guard = hold.guard
    return guard is not None and guard.end_work is not None and guard.task is not asyncio.current_task()


async def drain(hold: Hold) -> bool:
    """Ends the work of another task. Returns `False` if it does not end in time."""
    guard = hold.guard
    if guard is None or guard.end_work is None:
        return True
    guard.is_draining = True
    # After a loss, the loss has ended the work.
    guard.was_stopped = guard.was_stopped or hold.grant is guard.grant
    guard.end_work()
    drain_time = (hold.grant.options if hold.grant else hold.options).drain
    try:
        guard.is_draining = await set_within(guard.work_ended, drain_time)
    except asyncio.CancelledError:
        guard.is_draining = False
        if guard.work_ended.is_set():
            # The guard may have seen `is_draining` already, and left the release to this task.
            guard.core.spawn(guard._release())
        raise
    return guard.is_draining
