"""The client without asyncio, for threads.

A background thread with an event loop renews the leases of a manager, also while the work computes or blocks.

    with LeaseManager("http://10.0.0.1:7101,http://10.0.0.2:7101") as manager:
        with manager.lease("nightly", ttl=30, wait=60) as lease:
            for part in parts:
                write(part, fence=lease.check_held())

No thread can be cancelled from outside: at a loss the work must stop itself. It checks `Lease.is_held`, or calls
`Lease.check_held`, which raises `LeaseLost`. All objects here can be used from several threads. The options, errors and
states are those of `tenure`.

A forked process cannot use the manager of its parent: all calls raise a `RuntimeError`, and the parent goes on. It creates
its own manager.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import _election, _watch
from . import _lease as _async
from . import _manager as _managers
from ._aio import end_task
from ._errors import LeaseLost, ShutDown, TenureError
from ._guard import Guard
from ._options import DAY, DEFAULT_DRAIN, check_between
from ._process import Owner
from .states import HoldState, Loss

if TYPE_CHECKING:
    from . import api
    from ._clock import Clock
    from ._election import Leader
    from ._grant import Grant

T = TypeVar("T")

# Longest wait between two looks at the signals of the main thread, in seconds. On Windows, Ctrl-C ends no endless wait.
_SIGNAL_CHECK = 1.0


log = logging.getLogger("tenure")


class _Loop:
    """A thread with an event loop."""

    def __init__(self) -> None:
        self.owner = Owner("manager")
        self._loop = asyncio.new_event_loop()
        self._is_stopped = False
        self._started: set[concurrent.futures.Future[Any]] = set()
        self._thread = threading.Thread(target=self._serve, name="tenure", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        """Runs the event loop. At its end, cancels and joins all tasks: another thread may wait for one of them."""
        self._loop.run_forever()
        self._is_stopped = True
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` in the thread and waits for its result. An exception of this thread cancels it.

        Raises:
            ShutDown: the thread has ended, also if it ends during the call.
            RuntimeError: this is a forked process, which has no such thread.
        """
        if not self.owner.is_here:
            work.close()
            self.owner.check()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of the client must not wait for the client")
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop is closed.
            work.close()
            raise ShutDown from None
        try:
            while True:
                # The loop can end before it starts the work. Then the future has no result.
                has_ended = not self._thread.is_alive()
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    return future.result(_SIGNAL_CHECK)
                if future.done():
                    return future.result()
                if has_ended:
                    work.close()
                    raise ShutDown
        except concurrent.futures.CancelledError:
            if self._is_stopped:
                raise ShutDown from None
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, None]) -> bool:
        """Starts `work` in the thread, after the work of all earlier calls. Does not wait for its end.

        Returns `False` if the thread has ended, or belongs to another process.
        """
        if not self.owner.is_here:
            work.close()
            return False
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop is closed.
            work.close()
            return False
        self._started.add(future)
        future.add_done_callback(self._started.discard)
        return True

    def call(self, call: Callable[[], T]) -> T:
        """Calls `call` in the thread."""

        async def called() -> T:
            return call()

        return self.run(called())

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterates over `items` in the thread."""
        last_step: asyncio.Task[Any] | None = None

        async def step() -> tuple[T] | None:
            nonlocal last_step
            last_step = asyncio.current_task()
            try:
                return (await items.__anext__(),)
            except StopAsyncIteration:
                return None

        async def close() -> None:
            if last_step is not None:
                # An exception can have ended its wait in the other thread. Nothing can close the iterator before its end.
                await end_task(last_step)
            if hasattr(items, "aclose"):
                await items.aclose()

        try:
            while (item := self.run(step())) is not None:
                yield item[0]
        finally:
            if self.owner.is_here:
                with contextlib.suppress(ShutDown):
                    self.run(close())

    def stop(self) -> None:
        """Cancels all work and ends the thread. Calls that wait for the thread raise `ShutDown`."""
        with contextlib.suppress(RuntimeError):
            # The loop is closed if another thread has stopped it.
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Revertible(Generic[T]):
    """Work whose success must not get lost, for example a grant.

    An exception such as `KeyboardInterrupt` can come at any time: before the work starts, or after it has succeeded and
    before the caller knows that. Then the caller calls `abandon`.
    """

    def __init__(self, loop: _Loop, work: Coroutine[Any, Any, T], revert: Callable[[T], Awaitable[object]]) -> None:
        """Starts nothing yet. `revert` gets the result of the work."""
        self._loop = loop
        self._work = work
        self._revert = revert
        self._task: asyncio.Task[T] | None = None

    def run(self) -> T:
        """Runs the work in the thread of the loop and waits for its result."""
        return self._loop.run(self._run())

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        return await self._work

    def abandon(self) -> None:
        """Cancels the work, and reverts it if it succeeds or has succeeded. Does not wait for that."""
        if not self._loop.start(self._abandon()):
            # No task runs the work: it has ended, or it has not started.
            self._work.close()

    async def _abandon(self) -> None:
        if self._task is None:
            # The work has not started. It starts before this method, or not at all.
            self._work.close()
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and self._task.exception() is None:
            try:
                await self._revert(self._task.result())
            except TenureError as error:
                log.warning("an interrupted call had acquired a lease, which expires by its ttl: %s", error)


class Lease:
    """A handle of one lease, as `tenure.Lease`."""

    def __init__(self, loop: _Loop, lease: _async.Lease) -> None:
        """Only `LeaseManager.handle` creates handles."""
        self._loop = loop
        self._lease = lease

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._lease.name

    @property
    def holder(self) -> str:
        """The holder under whose name this handle acquires the lease."""
        return self._lease.holder

    def acquire(self, *, wait: float = 0.0) -> int:
        """Acquires the lease and returns its fencing token, as `tenure.Lease.acquire`.

        An exception in this thread, for example `KeyboardInterrupt`, leaves the queue. A late grant is released.
        """
        check_between("wait", wait, 0, DAY)
        core, hold = self._lease._core, self._lease._hold

        async def acquire() -> tuple[int, Grant | None]:
            token, is_new = await core.acquire(hold, wait)
            return token, hold.grant if is_new else None

        async def revert(acquired: tuple[int, Grant | None]) -> None:
            _, grant = acquired
            if grant is not None:
                await core.release(hold, drains=False, grant=grant)

        acquiring = _Revertible(self._loop, acquire(), revert)
        try:
            token, _ = acquiring.run()
            return token
        except BaseException:
            acquiring.abandon()
            raise

    def hold(self, *, wait: float = 0.0) -> HeldLease:
        """Returns a `with` that acquires the lease for its body, and releases it at the end, as `LeaseManager.lease`."""
        check_between("wait", wait, 0, DAY)
        return HeldLease(self, wait)

    def release(self) -> bool:
        """Releases the lease. Returns `False` if it was not held. The errors are those of `tenure.Lease.release`.

        It does not wait for the body of a `with`: leave the body instead.
        """
        return self._loop.run(self._lease._core.release(self._lease._hold, drains=False, grant=self._lease._grant))

    def hand_over(self, to: str | None = None) -> str | None:
        """Hands the lease over to a waiter, as `tenure.Lease.hand_over`. It does not wait for the body of a `with`."""
        return self._loop.run(self._lease._core.hand_over(self._lease._hold, to, drains=False, grant=self._lease._grant))

    def check(self) -> bool:
        """Asks the cluster whether the grant is in force, as `tenure.Lease.check`."""
        return self._loop.run(self._lease.check())

    @property
    def is_held(self) -> bool:
        """Whether the lease is held now. Reads the clock and sends no request."""
        return self._lease.is_held

    def check_held(self) -> int:
        """Returns the fencing token if the lease is held now. Sends no request.

        Raises:
            LeaseLost: the lease is not held.
        """
        return self._lease.check_held()

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends without another renewal; 0 if it is not held, `math.inf` for an infinite ttl."""
        return self._lease.remaining

    @property
    def token(self) -> int | None:
        """The fencing token; `None` if the lease is not held."""
        return self._lease.token

    @property
    def state(self) -> HoldState:
        """The state of the lease at this holder, as `tenure.Lease.state`."""
        return self._lease.state

    def on_state(self, call: Callable[[HoldState], None]) -> Callable[[], None]:
        """Calls `call` with each new state, in the thread of the manager. Returns a function that ends this.

        `call` must not block: the renewals wait for it.
        """
        return self._loop.call(lambda: self._lease.on_state(call))

    def on_lost(self, call: Callable[[Loss], None]) -> Callable[[], None]:
        """Calls `call` with the reason of each loss, as `on_state`. A release is no loss."""
        return self.on_state(lambda state: call(state.why) if state.kind == "lost" else None)  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return f"<tenure.sync.Lease {self.name!r} {self._lease._hold.state.kind}>"


class GrantedLease(Lease):
    """The lease of a `with`, tied to its grant. After the end of the grant it is not held, also if the lease is."""

    def __init__(self, loop: _Loop, lease: _async.GrantedLease) -> None:
        """Only a `with` creates it."""
        super().__init__(loop, lease)
        self._granted = lease

    def acquire(self, *, wait: float = 0.0) -> int:
        """Returns the token of this grant. Another grant needs a handle or another `with`.

        Raises:
            LeaseLost: the grant has ended.
        """
        return self.check_held()

    @property
    def token(self) -> int:
        """The fencing token of this grant, also after its end: the resource then rejects it after a newer write."""
        return self._granted.token


class HeldLease(AbstractContextManager[GrantedLease]):
    """Holds a lease during a `with`. `LeaseManager.lease` describes it."""

    def __init__(self, lease: Lease, wait: float) -> None:
        """Only `Lease.hold` and `LeaseManager.lease` create it."""
        self._lease = lease
        self._wait = wait
        self._guard: Guard | None = None

    def __enter__(self) -> GrantedLease:
        """Acquires the lease. The errors are those of `Lease.acquire`."""
        handle = self._lease._lease
        guard = Guard(handle._core, handle._hold, lambda: None)
        entering = _Revertible(self._lease._loop, guard.enter(self._wait), lambda _: guard.leave())
        try:
            entering.run()
            self._guard = guard
            return GrantedLease(self._lease._loop, _async.GrantedLease(guard))
        except BaseException:
            entering.abandon()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Releases the lease. Raises `LeaseLost` if the lease ended before a body without an error."""
        if not self._lease._loop.owner.is_here:
            # The lease belongs to the parent of this forked process.
            return
        guard = self._guard
        if guard is None:
            raise RuntimeError("the lease is not acquired")
        try:
            why = self._lease._loop.run(guard.leave())
        except ShutDown:
            # The shutdown did not wait longer than `drain` for this body.
            why = guard.loss() or Loss.RELEASED
        if error is None and why is not None:
            raise LeaseLost(self._lease.name, guard.token, why)


class LeaseManager:
    """A holder of leases, as `tenure.LeaseManager`, with a thread that renews them.

    Use it as `with LeaseManager(...) as manager`, or call `shutdown` at the end.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        holder: str | None = None,
        operation_timeout: float = 5.0,
        drift_permille: int = 10,
        clock: Clock | None = None,
    ) -> None:
        """Creates a manager and its thread. Sends no request. The arguments are those of `tenure.LeaseManager`."""
        self._loop = _Loop()
        try:
            self._manager = self._loop.call(
                lambda: _managers.LeaseManager(
                    endpoints,
                    token=token,
                    ca=ca,
                    cert=cert,
                    key=key,
                    holder=holder,
                    operation_timeout=operation_timeout,
                    drift_permille=drift_permille,
                    clock=clock,
                )
            )
        except BaseException:
            self._loop.stop()
            raise
        self._client = Client(self._loop, self._manager)

    @property
    def holder(self) -> str:
        """The holder under whose name this manager acquires leases."""
        return self._manager.holder

    @property
    def client(self) -> Client:
        """Reads of this cluster."""
        return self._client

    def lease(
        self,
        name: str,
        *,
        wait: float = 0.0,
        ttl: float | None = None,
        grace: float = 0.0,
        lock_delay: float = 0.0,
        limit: int | None = None,
        metadata: Mapping[str, str] | None = None,
        drain: float = DEFAULT_DRAIN,
        longest_hold: float = math.inf,
        renew_while: Callable[[], bool] | None = None,
    ) -> HeldLease:
        """Returns a `with` that acquires the lease for its body, and releases it at the end.

        In one manager, only one body runs at a time for each lease. `wait` is the longest wait in seconds, for other bodies
        and in the queue of the cluster. `tenure.LeaseManager.handle` describes the other options.

        At a loss, the body must stop itself: it checks `Lease.is_held`, or calls `Lease.check_held`. The `with` raises
        `LeaseLost` if the body ends without an error, but later than the lease.
        """
        lease = self.handle(
            name,
            ttl=ttl,
            grace=grace,
            lock_delay=lock_delay,
            limit=limit,
            metadata=metadata,
            drain=drain,
            longest_hold=longest_hold,
            renew_while=renew_while,
        )
        return lease.hold(wait=wait)

    def handle(
        self,
        name: str,
        *,
        ttl: float | None = None,
        grace: float = 0.0,
        lock_delay: float = 0.0,
        limit: int | None = None,
        metadata: Mapping[str, str] | None = None,
        drain: float = DEFAULT_DRAIN,
        longest_hold: float = math.inf,
        renew_while: Callable[[], bool] | None = None,
    ) -> Lease:
        """Returns a handle of a lease, as `tenure.LeaseManager.handle`. `renew_while` runs in the thread of the manager."""
        lease = self._loop.call(
            lambda: self._manager.handle(
                name,
                ttl=ttl,
                grace=grace,
                lock_delay=lock_delay,
                limit=limit,
                metadata=metadata,
                drain=drain,
                longest_hold=longest_hold,
                renew_while=renew_while,
            )
        )
        return Lease(self._loop, lease)

    def election(
        self,
        name: str,
        *,
        ttl: float | None = None,
        grace: float = 0.0,
        lock_delay: float = 0.0,
        metadata: Mapping[str, str] | None = None,
        drain: float = DEFAULT_DRAIN,
        refresh: float = 1.0,
    ) -> Election:
        """Returns a candidate or an observer of the election with the lease `name`, as `tenure.LeaseManager.election`."""
        election = self._loop.call(
            lambda: self._manager.election(
                name, ttl=ttl, grace=grace, lock_delay=lock_delay, metadata=metadata, drain=drain, refresh=refresh
            )
        )
        return Election(self._loop, election)

    def release_all(self) -> list[tuple[str, TenureError]]:
        """Releases all held leases. Returns the leases whose release failed, with the errors.

        It waits for the bodies of `with`, for at most `drain` seconds. Do not call it in such a body.
        """
        return self._loop.run(self._manager.release_all())

    def shutdown(self) -> list[tuple[str, TenureError]]:
        """Leaves all queues, releases all leases and ends the thread, as `tenure.LeaseManager.shutdown`.

        It waits for the bodies of `with` in other threads, for at most `drain` seconds. Do not call it in such a body: it
        would wait for its own caller, and then leave the lease to its ttl.
        Iterations and other calls that wait in other threads raise `ShutDown`.
        """
        try:
            failed = self._loop.run(self._manager.shutdown())
        except ShutDown:
            # The thread has ended. An earlier shutdown has the result, unless it was interrupted.
            if self._manager._left is None:
                raise
            return self._manager._left
        self._loop.stop()
        return failed

    def __enter__(self) -> LeaseManager:
        """Returns the manager."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Shuts the manager down, and logs the leases that may remain held. Without effect in a forked process."""
        if not self._loop.owner.is_here:
            return
        # The body can shut the manager down itself.
        try:
            with contextlib.suppress(ShutDown):
                self._loop.run(self._manager.__aexit__(kind, error, trace))
        finally:
            # Also after a second Ctrl-C: then the leases that are left expire by their ttl.
            self._loop.stop()

    def __repr__(self) -> str:
        return f"<tenure.sync.LeaseManager {self.holder!r}>"


class Client:
    """Reads of the cluster of a manager, as `tenure.Client`."""

    def __init__(self, loop: _Loop, manager: _managers.LeaseManager) -> None:
        """Only `LeaseManager.client` creates it."""
        self._loop = loop
        self._client = manager.client

    def get(self, name: str) -> api.Lease:
        """Reads one lease, with all its `holders`."""
        return self._loop.run(self._client.get(name))

    def history(self, name: str) -> api.History:
        """Reads the last transitions of a lease, oldest first."""
        return self._loop.run(self._client.history(name))

    def queue(self, name: str) -> api.Queue:
        """Reads the first 1,000 waiters of a lease, and their number."""
        return self._loop.run(self._client.queue(name))

    def explain(self, name: str, holder: str | None = None) -> api.Explanation:
        """Explains why a lease is held or free, and the standing of one holder with it."""
        return self._loop.run(self._client.explain(name, holder))

    def list(self, prefix: str = "", *, holder: str | None = None, states: Iterable[str] = ()) -> Iterator[api.Lease]:
        """Iterates over the leases in the order of their names, one for each holder."""
        return self._loop.iterate(self._client.list(prefix, holder=holder, states=states))

    def watch(self, prefix: str = "", *, after: str | None = None) -> Watch:
        """Iterates over the transitions of leases, each once and in order, as `tenure.Client.watch`."""
        return Watch(self._loop, self._client.watch(prefix, after=after))

    def revoke(self, name: str, reason: str = "") -> int:
        """Takes a lease from all its holders. Returns their number."""
        return self._loop.run(self._client.revoke(name, reason))

    def cluster(self) -> api.Cluster:
        """Reads the status of the cluster from one node."""
        return self._loop.run(self._client.cluster())

    def version(self) -> api.Version:
        """Returns the version of the node that answers."""
        return self._loop.run(self._client.version())


class Watch(Iterator["api.Event"], AbstractContextManager["Watch"]):
    """An endless iterator over transitions, as the result of `tenure.Client.watch`. A `with` closes its connection.

    An exception in this thread, for example `KeyboardInterrupt`, loses no transition: the next iteration continues.
    """

    def __init__(self, loop: _Loop, watch: _watch.Watch) -> None:
        """Only `Client.watch` creates watches."""
        self._loop = loop
        self._watch = watch
        self._step = threading.Lock()

    @property
    def position(self) -> str | None:
        """The position after the last event, for `Client.watch(after=...)`. `None` before the first answer."""
        return self._watch.position

    def __next__(self) -> api.Event:
        """Waits for the next transition. The errors are those of the watch of `tenure.Client`."""
        # In a forked child, a thread that does not exist there can have the lock.
        self._loop.owner.check()
        with self._step:
            # The event counts as returned only in this thread. An exception can come after its arrival.
            self._loop.run(self._watch._receive())
            return self._watch._take()

    def close(self) -> None:
        """Closes the connection. The next iteration opens another one after the last position."""
        if self._loop.owner.is_here:
            with contextlib.suppress(ShutDown):
                self._loop.run(self._watch.aclose())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes the connection."""
        self.close()


class Election:
    """A candidate or an observer of one election, as `tenure.Election`."""

    def __init__(self, loop: _Loop, election: _election.Election) -> None:
        """Only `LeaseManager.election` creates elections."""
        self._loop = loop
        self._election = election

    def campaign(self) -> Leadership:
        """Waits until this candidate is elected. Use the result in a `with`, or call `Leadership.resign` at the end.

        An exception in this thread, for example `KeyboardInterrupt`, ends the candidacy. A late election is resigned.
        """
        campaigning = _Revertible(self._loop, self._election.campaign(), lambda leadership: leadership.resign())
        try:
            return Leadership(self._loop, campaigning.run())
        except BaseException:
            campaigning.abandon()
            raise

    def current(self) -> Leader | None:
        """Reads the leader from the committed state. `None`: there is no leader."""
        return self._loop.run(self._election.current())

    def observe(self) -> Iterator[Leader | None]:
        """Iterates over the leaders: the current one, then each change."""
        return self._loop.iterate(self._election.observe())


class Leadership(AbstractContextManager["Leadership"]):
    """One term of a leader, as `tenure.Leadership`. A `with` resigns at its end. A shutdown waits for its body."""

    def __init__(self, loop: _Loop, leadership: _election.Leadership) -> None:
        """Only `Election.campaign` creates leaderships."""
        self._loop = loop
        self._leadership = leadership

    @property
    def token(self) -> int:
        """The fencing token of this leadership, also after its end."""
        return self._leadership.token

    @property
    def is_leader(self) -> bool:
        """Whether this process is still the leader. Sends no request."""
        return self._leadership.is_leader

    def establish(self, fence: Callable[[int], T]) -> T:
        """Fences all earlier leaders with `fence(token)` in this thread, then publishes this leader as established."""
        fenced = fence(self.token)

        async def done(_: int) -> T:
            return fenced

        return self._loop.run(self._leadership.establish(done))

    def resign(self) -> bool:
        """Releases the lease. Returns `False` if it was lost before."""
        return self._loop.run(self._leadership.resign())

    def hand_over(self, to: str | None = None) -> str | None:
        """Hands the leadership over to a waiting candidate. Returns the new leader.

        It does not wait for the body of a `with`.
        """
        return self._loop.run(self._leadership._hand_over(to, drains=False))

    def __enter__(self) -> Leadership:
        """Returns the leadership.

        Raises:
            ShutDown: the manager is shut down. The body does not run.
        """
        try:
            self._loop.call(self._begin)
        except BaseException:
            # Python does not call `__exit__` after this.
            self._loop.start(self._end())
            raise
        return self

    def _begin(self) -> None:
        guard = self._leadership._guard
        if guard.core.closing.is_set() and not guard.is_held:
            raise ShutDown
        # Nothing can end the work of a thread, but a shutdown must wait for it.
        guard.end_work = lambda: None

    async def _end(self) -> None:
        await self._leadership.resign()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Resigns. After a shutdown there is no leadership, and the error of the body stays as it is."""
        if not self._loop.owner.is_here:
            return
        with contextlib.suppress(ShutDown):
            self.resign()
