"""The lease manager. A program usually creates one."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from ._calls import Calls
from ._client import Client
from ._clock import Clock, system_clock
from ._core import Core
from ._election import Election, check_options
from ._errors import TenureError
from ._lease import HeldLease, Lease
from ._options import (
    DAY,
    DEFAULT_DRAIN,
    MAX_DRIFT_PERMILLE,
    LeaseOptions,
    check_between,
    check_holder,
    check_name,
    default_holder,
)

log = logging.getLogger("tenure")


class LeaseManager:
    """A holder of leases. One task renews all held leases in one request per renewal.

    Use it as `async with LeaseManager(...) as manager`, or call `shutdown` at the end. It belongs to one event loop. Code
    that blocks the event loop also blocks the renewals: run it in `asyncio.to_thread`, or use `tenure.sync`.

    It belongs to one process. In a forked process, all calls raise a `RuntimeError`: create another manager there.
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
        """Creates a manager. Sends no request and starts no task.

        Args:
            endpoints: URLs of the nodes, also as one text with commas. Default: the variable TENURE_ENDPOINTS, or the nodes
                of `tenure dev`. The client finds the other members itself.
            token: an access token. Default: the first line of the file TENURE_ACCESS_TOKEN_FILE, or TENURE_ACCESS_TOKEN.
            ca: PEM file with the CAs to trust for `https`, instead of those of the system. Default: TENURE_CA.
            cert: PEM file with the client certificate. Default: TENURE_CERT.
            key: PEM file with its key. Default: TENURE_KEY.
            holder: the holder of the leases: 1 to 200 bytes. Default: the host name, the process id and a random part. Keep
                this default: if two processes use one holder, each can release the lease of the other.
            operation_timeout: seconds that one request with its retries takes at most, without its wait for a lease or
                behind 64 other requests:
                0.001 to 86,400. A call can send several requests: see "Errors" in the README.
            drift_permille: largest difference between the clock rates of this machine and the cluster, in thousandths. The
                deadline is earlier by this part of the ttl. At most 500.
            clock: returns seconds since a fixed point, including suspend. Tests can use their own.

        Raises:
            ValueError: an argument is outside its bounds.
        """
        check_between("operation_timeout", operation_timeout, 0.001, DAY)
        check_between("drift_permille", drift_permille, 0, MAX_DRIFT_PERMILLE)
        holder = default_holder() if holder is None else check_holder(holder)
        self._client = Client(endpoints, token=token, ca=ca, cert=cert, key=key, timeout=operation_timeout)
        calls = Calls(self._client._transport)
        # The result of the shutdown.
        self._left: list[tuple[str, TenureError]] | None = None
        self._core = Core(calls, holder, clock or system_clock, operation_timeout, drift_permille)

    @property
    def holder(self) -> str:
        """The holder under whose name this manager acquires leases."""
        return self._core.holder

    @property
    def client(self) -> Client:
        """Reads of this cluster. It is closed together with the manager."""
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
        """Returns an `async with` that acquires the lease for its body, and releases it at the end.

        The body gets a lease that is tied to its grant: after a loss it is not held, also if the lease is acquired again.
        In one manager, only one body runs at a time for each lease. `wait` is the longest wait in seconds, for other bodies
        and in the queue of the cluster. `handle` describes the other options.

        The body is cancelled when the lease is lost, or `grace` seconds before the deadline if renewals fail. Then the
        `async with` raises `LeaseLost`; its `why` is the cause. It also raises `LeaseLost` if the body ends without an
        error, but later than the lease. Another error of the body stays as it is. A cancellation of the task by other code
        is never swallowed, and releases the lease. If the release at the end fails, the manager logs a warning, and the
        lease expires by its ttl.

        Only the task of the body is cancelled, at its next `await`: tasks outside of an `asyncio.TaskGroup` of the body,
        threads and long steps must check `lease.is_held`.

        Raises:
            Refused, Unknown, Unavailable, ShutDown: as `Lease.acquire`, on entering.
            LeaseLost: as above, on leaving.
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
        """Returns a handle of a lease. Sends no request.

        All handles with one name share one lease. A handle with any option replaces all options of the earlier handles,
        from the next acquire on. A handle without options changes none. All times are in seconds.

        Args:
            name: 1 to 200 letters, digits and `.`, `_`, `:`, `/`, `-`, with a letter or digit first.
            ttl: how long the lease lasts without a renewal, and thus how long others wait when this process dies: 0.1 to
                86,400. `math.inf`: until it is released or revoked, even if this process dies; the manager checks it every
                10 s. Default: the default of the cluster.
            grace: the time that the work needs to stop, at most half the ttl. When only this time is left, renewals end, and
                the body of an `async with` is cancelled.
            lock_delay: after an expiry or a revoke, the cluster grants the lease to no holder for this time: up to 86,400.
            limit: the largest number of holders at once, the same for all holders of the lease: 1 to 10,000. Default: 1.
            metadata: texts that each client of the cluster can read with the lease: at most 32 entries and 4,096 bytes.
            drain: how long `Lease.release`, `Lease.hand_over` and `shutdown` wait for the end of a cancelled body.
            longest_hold: the deadline is at most this long after the acquire. At least the ttl.
            renew_while: called before each renewal. `False` or an exception ends the renewals. It must not block.

        Raises:
            ValueError: the name or an option is outside its bounds.
        """
        options = LeaseOptions(
            ttl=ttl,
            grace=grace,
            lock_delay=lock_delay,
            limit=limit,
            metadata=metadata or {},
            drain=drain,
            longest_hold=longest_hold,
            renew_while=renew_while,
        )
        return Lease(self._core, self._core.hold(check_name(name), options))

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
        """Returns a candidate or an observer of the election with the lease `name`. Sends no request.

        `refresh` is the longest time between two reads of an observer: 0.01 to 86,400 seconds. `metadata` is for observers,
        for example the address of the candidate; its keys must not start with `tenure.`. `handle` describes the other
        options.

        Raises:
            ValueError: the name or an option is outside its bounds.
        """
        # `handle` replaces the options of the other handles, so it comes after the checks.
        check_options(metadata or {}, refresh)
        lease = self.handle(name, ttl=ttl, grace=grace, lock_delay=lock_delay, metadata=metadata, drain=drain)
        return Election(self._core, self._client, lease, dict(metadata or {}), refresh)

    async def release_all(self) -> list[tuple[str, TenureError]]:
        """Releases all held leases concurrently. Returns the leases whose release failed, with the errors.

        It first ends the bodies of all `async with`. Do not call it in such a body: it would cancel its own caller.
        """
        return await self._core.release_all()

    async def shutdown(self) -> list[tuple[str, TenureError]]:
        """Leaves all queues, then ends the bodies of all `async with` and releases all leases, then closes the connections.

        Returns the leases that the cluster may still count as held or queued, with the errors. A waiting acquire raises
        `ShutDown` after the cluster has confirmed that it left the queue, else `Unknown`. Each later acquire raises
        `ShutDown`. If the call is cancelled, call it again to release the remaining leases. Do not call it in the body of an
        `async with` of a lease or a leadership: it would cancel its own caller.
        """
        if self._left is None:
            left = await self._core.shutdown()
            await self._client.aclose()
            self._left = left
        return self._left

    async def __aenter__(self) -> LeaseManager:
        """Returns the manager."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shuts the manager down, and logs the leases that may remain held. Without effect in a forked process."""
        if not self._core.owner.is_here:
            return
        for name, failure in await self.shutdown():
            log.warning("lease %s may remain held until its ttl ends: %s", name, failure)

    def __repr__(self) -> str:
        return f"<tenure.LeaseManager {self.holder!r}>"
