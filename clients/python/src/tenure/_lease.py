"""The handle of one lease, and the `async with` that holds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import LeaseLost
from ._guard import WorkScope
from ._options import DAY, check_between
from .states import HoldState, Loss

if TYPE_CHECKING:
    from ._core import Core
    from ._grant import Grant
    from ._guard import Guard
    from ._hold import Hold

T = TypeVar("T")


class Lease:
    """A handle of one lease. All handles with one name and manager share one lease and are one holder.

    Properties and methods that are not `async` use local knowledge: they send no request and do not block. A lease cannot
    stop a paused process from writing late. Send the `token` with every write, and let the resource check it.
    """

    def __init__(self, core: Core, hold: Hold) -> None:
        """Only `LeaseManager.handle` creates handles."""
        self._core = core
        self._hold = hold
        # The only grant of a lease of an `async with`.
        self._grant: Grant | None = None

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._hold.name

    @property
    def holder(self) -> str:
        """The holder under whose name this handle acquires the lease."""
        return self._hold.holder

    async def acquire(self, *, wait: float = 0.0) -> int:
        """Acquires the lease and returns its fencing token. The manager renews the lease until it is released or lost.

        `wait` is the longest wait in the queue of the cluster, in seconds: 0 to 24 h. Acquiring is idempotent: if this
        manager holds the lease already, the call returns its token at once. Use `hold` where parts of one program must
        exclude each other.

        Raises:
            Refused: not acquired. The code is `held`, `wait_timeout` or another code of the HTTP API.
            Unknown: the cluster may have granted the lease, but this handle does not hold it. Acquire it again, or release
                it. Otherwise it expires by its ttl; an infinite lease does not expire.
            Unavailable: not acquired.
            ShutDown: not acquired.

        A cancelled call leaves the queue. If the cluster granted the lease, the manager releases it.
        """
        check_between("wait", wait, 0, DAY)
        token, _ = await self._core.acquire(self._hold, wait)
        return token

    def hold(self, *, wait: float = 0.0) -> HeldLease:
        """Returns an `async with` that acquires the lease for its body, and releases it at the end.

        `LeaseManager.lease` describes the details.
        """
        check_between("wait", wait, 0, DAY)
        return HeldLease(self, wait)

    async def run(self, work: Callable[[Lease], Awaitable[T]], *, wait: float = 0.0) -> T:
        """Acquires the lease, awaits `work(lease)` while it is held, and releases it.

        It works like `hold`, and also reads the clock before each step of the work: after a suspend, the work does not
        take another step with a lease that has ended. Tasks that the work starts have no such check.

        Raises:
            LeaseLost: the work was cancelled at the loss.
            Refused, Unknown, Unavailable, ShutDown: as `acquire`. The work did not start.
        """
        held = self.hold(wait=wait)
        async with held as lease:
            return await _WhileHeld(held, work(lease))

    async def release(self) -> bool:
        """Releases the lease, so that the next holder gets it at once. Returns `False` if it was not held.

        If the lease is held by an `async with` in another task, the call first cancels its body and waits for its end,
        for at most `drain` seconds. The manager renews the lease during that time.

        The result is `False`, too, while another task waits for the lease. That acquire goes on, and can get the lease.

        Raises:
            Refused: the code is `not_drained`: the body did not end in time, and the lease expires by its ttl. A new
                acquire releases it and gets a new token.
            Unknown, Unavailable: the cluster may still count the lease as held. Release it again. Otherwise it expires by
                its ttl; an infinite lease does not expire.

        After any error this handle no longer holds the lease. If the call is cancelled during the request, this handle does
        not hold the lease, and the lease expires by its ttl unless the release arrives.
        """
        return await self._core.release(self._hold, grant=self._grant)

    async def hand_over(self, to: str | None = None) -> str | None:
        """Hands the lease over to a waiter in the queue: to the holder `to`, or to the first waiter.

        Returns the new holder, or `None` if the lease was not held. The lease is never free in between. This handle stops
        holding the lease before it sends the request. As `release`, the call first ends the body of an `async with`.

        Raises:
            Refused: the code is `no_such_waiter`: this handle holds the lease as before; or `not_drained`, as `release`.
            Unavailable: this handle holds the lease as before.
            Unknown: another holder may have the lease. This handle no longer holds it.

        If the call ended a body and raises `Refused` or `Unavailable`, the manager releases the lease: it has no owner.

        If the call is cancelled during the request, this handle does not hold the lease and no longer renews it. Another
        holder may have the lease. If the call ended a body, the manager releases the lease.
        """
        return await self._core.hand_over(self._hold, to, grant=self._grant)

    async def check(self) -> bool:
        """Asks the cluster whether the grant is in force. If the cluster has ended it, the handle records the loss.

        Without a grant the call returns `False` and sends no request. Cancelling the call has no effect.

        Raises:
            Unavailable: no node answered in time. The state of the lease does not change.
        """
        return await self._core.check(self._hold)

    @property
    def is_held(self) -> bool:
        """Whether this handle holds the lease now: compares the deadline with a clock that counts suspend.

        Safe to read from any thread.
        """
        return self._hold.is_held(self._core.clock())

    def check_held(self) -> int:
        """Returns the fencing token if the lease is held now. Sends no request.

        Raises:
            LeaseLost: the lease is not held.
        """
        token = self.token
        if token is None:
            raise self._lost()
        return token

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends without another renewal, less the drift margin.

        0 if the lease is not held, `math.inf` for an infinite ttl. Safe to read from any thread.
        """
        return self._hold.remaining(self._core.clock())

    @property
    def token(self) -> int | None:
        """The fencing token, below 2**63; `None` if the lease is not held."""
        return self._hold.token(self._core.clock())

    @property
    def state(self) -> HoldState:
        """The state of the lease at this holder. `is_held` is exact at any time; a state can be up to 100 ms late."""
        self._core.owner.check()
        return self._hold.state

    async def states(self) -> AsyncIterator[HoldState]:
        """Iterates over the states: the current one, then each change. A slow reader sees only the newest state."""
        self._core.owner.check()
        changed = asyncio.Event()
        remove = self._hold.add_listener(lambda _: changed.set())
        try:
            last = None
            while True:
                changed.clear()
                if self._hold.state is not last:
                    last = self._hold.state
                    yield last
                else:
                    await changed.wait()
        finally:
            remove()

    def on_state(self, call: Callable[[HoldState], None]) -> Callable[[], None]:
        """Calls `call` with each new state, on the event loop. It must not block. Returns a function that ends this."""
        self._core.owner.check()
        return self._hold.add_listener(call)

    async def wait_stopping(self) -> None:
        """Waits until the manager stops renewing the lease: `grace` before the deadline, or at its end."""
        self._core.owner.check()
        await self._hold.stopping.wait()

    async def wait_ended(self) -> None:
        """Waits until the lease is not held any more."""
        self._core.owner.check()
        await self._hold.ended.wait()

    def _lost(self) -> LeaseLost:
        state = self.state
        why = getattr(state, "why", None)
        if why is None:
            why = Loss.RELEASED if state.kind == "released" else Loss.UNREACHABLE
        return LeaseLost(self.name, getattr(state, "token", 0), why)

    def __repr__(self) -> str:
        return f"<tenure.Lease {self.name!r} {self._hold.state.kind}>"


class GrantedLease(Lease):
    """The lease of an `async with`, tied to its grant. After the end of the grant it is not held, also if the lease is."""

    def __init__(self, guard: Guard) -> None:
        """Only an `async with` creates it."""
        super().__init__(guard.core, guard.hold)
        if guard.grant is None:
            raise RuntimeError("the lease is not acquired")
        self._grant: Grant = guard.grant
        self._ended = guard.ended
        self._stopping = guard.stopping

    async def acquire(self, *, wait: float = 0.0) -> int:
        """Returns the token of this grant. Another grant needs a handle or another `async with`.

        Raises:
            LeaseLost: the grant has ended.
        """
        return self.check_held()

    async def check(self) -> bool:
        """Asks the cluster whether this grant is in force, as `Lease.check`."""
        return await super().check() if self._hold.grant is self._grant else False

    @property
    def is_held(self) -> bool:
        """Whether this grant is held now."""
        return self._grant.is_held(self._core.clock())

    @property
    def remaining(self) -> float:
        """Seconds until this grant ends without another renewal, less the drift margin."""
        now = self._core.clock()
        return self._grant.left(now) if self._grant.is_held(now) else 0.0

    def check_held(self) -> int:
        """Returns the fencing token if this grant is held now, as `Lease.check_held`."""
        if not self.is_held:
            raise self._lost()
        return self._grant.token

    @property
    def token(self) -> int:
        """The fencing token of this grant, also after its end: the resource then rejects it after a newer write."""
        self._core.owner.check()
        return self._grant.token

    @property
    def state(self) -> HoldState:
        """The state of this grant. After its end, the state in which it ended."""
        # The order counts for other threads: the grant ends before the state changes.
        state = super().state
        return self._grant.end or state

    async def states(self) -> AsyncIterator[HoldState]:
        """Iterates over the states of this grant, as `Lease.states`, and ends with the grant."""
        async with contextlib.aclosing(super().states()) as seen:  # type: ignore[type-var]
            async for _ in seen:
                yield self.state
                if self._grant.end is not None:
                    return

    def on_state(self, call: Callable[[HoldState], None]) -> Callable[[], None]:
        """Calls `call` with each new state of this grant, as `Lease.on_state`."""
        token = self._grant.token
        return super().on_state(lambda state: call(state) if getattr(state, "token", 0) == token else None)

    async def wait_stopping(self) -> None:
        """Waits until the manager stops renewing this grant."""
        self._core.owner.check()
        await self._stopping.wait()

    async def wait_ended(self) -> None:
        """Waits until this grant ends."""
        self._core.owner.check()
        await self._ended.wait()


class HeldLease(AbstractAsyncContextManager[GrantedLease]):
    """Holds a lease during an `async with`. `LeaseManager.lease` describes it."""

    def __init__(self, lease: Lease, wait: float) -> None:
        """Only `Lease.hold` and `LeaseManager.lease` create it."""
        self._lease = lease
        self._wait = wait
        self._scope = WorkScope(lease._core, lease._hold)

    async def __aenter__(self) -> GrantedLease:
        """Acquires the lease. The errors are those of `Lease.acquire`."""
        guard = await self._scope.enter(lambda guard: guard.enter(self._wait))
        return GrantedLease(guard)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Releases the lease. Raises `LeaseLost` if the lease ended before the body."""
        await self._scope.leave(error)


class _WhileHeld(Awaitable[T]):
    """Awaits the work, and reads the clock before each of its steps."""

    def __init__(self, held: HeldLease, work: Awaitable[T]) -> None:
        self._held = held
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        guard, interrupt = self._held._scope.entered
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            if error is None and guard.is_lost:
                error = interrupt.inject()
            try:
                step = next(steps) if error is None else steps.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            try:
                error = None
                yield step
            except BaseException as thrown:  # noqa: BLE001 - the work handles it
                error = thrown
