"""Leader election by a lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ._aio import set_within
from ._client import Client
from ._errors import LeaseLost, Refused, ShutDown, TenureError, Unavailable, Unknown
from ._guard import Guard, WorkScope
from ._lease import Lease
from ._options import DAY, check_between, check_metadata
from .states import Loss

if TYPE_CHECKING:
    from . import api
    from ._core import Core

T = TypeVar("T")

log = logging.getLogger("tenure")

OWN_KEYS = "tenure."
ESTABLISHED_KEY = "tenure.established"
LONGEST_TOKEN = 2**63 - 1
# Longest wait of one claim in the queue, in seconds. A longer campaign claims again, at the end of the queue: a node that
# hangs cannot block a candidate.
QUEUE_WAIT = 60.0
# Pause before another claim or read, after the cluster was unavailable or had no room.
RETRY_DELAY = 0.5
# A longer wait can resolve these refusals.
_RETRYABLE = frozenset(
    ["held", "lock_delay", "wait_timeout", "wait_abandoned", "queue_full", "lease_full", "too_many_leases", "lost"]
)


@dataclass(frozen=True)
class Leader:
    """A leader as other processes see it."""

    holder: str
    """The holder of the lease."""
    token: int
    """The fencing token. It is higher than the token of each earlier leader."""
    is_established: bool
    """Whether the leader has fenced its resources. Until then, an earlier leader may still be able to write."""
    metadata: Mapping[str, str]
    """The metadata of the leader."""
    since: str
    """The wall-clock time of the election. Use it for display only."""


def check_options(metadata: Mapping[str, str], refresh: float) -> None:
    """Checks the options of an election that a lease does not have.

    Raises:
        ValueError: an option is outside its bounds.
    """
    if any(key.startswith(OWN_KEYS) for key in metadata):
        raise ValueError(f"invalid metadata: keys that start with {OWN_KEYS!r} are reserved")
    check_metadata({**metadata, ESTABLISHED_KEY: str(LONGEST_TOKEN)})
    check_between("refresh", refresh, 0.01, DAY)


class Election:
    """A candidate or an observer of one election. The cluster knows the candidate by the holder of its manager."""

    def __init__(self, core: Core, client: Client, lease: Lease, metadata: dict[str, str], refresh: float) -> None:
        """Only `LeaseManager.election` creates elections."""
        self._core = core
        self._client = client
        self._lease = lease
        self._metadata = metadata
        self._refresh = refresh

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self._lease.name

    async def campaign(self) -> Leadership:
        """Waits until this candidate is elected.

        The wait has no time limit and continues through changes of the leader and outages of the cluster. The cluster elects
        candidates in the order of its queue. After 60 s in the queue, the candidate joins the queue again at the end.

        Call `Leadership.resign` at the end. Nothing cancels the work at a loss: check `Leadership.is_leader`, or use
        `leader` instead.

        Raises:
            Refused: the cluster refuses the request itself.
            ShutDown: the manager is shut down.
            Unknown: the manager was shut down, and this candidate may still be in the queue or hold the lease.

        A cancelled call leaves the queue. If the cluster granted the lease, the manager releases it.
        """
        guard = Guard(self._core, self._lease._hold)
        await self._campaign(guard)
        return Leadership(self, guard)

    def leader(self) -> LeaderScope:
        """Returns an `async with` that campaigns, runs its body as the leader, and resigns at the end.

        The body is cancelled when the leadership is lost, and the `async with` then raises `LeaseLost`. All rules of
        `LeaseManager.lease` apply. Entering raises the errors of `campaign`.
        """
        return LeaderScope(self)

    async def current(self) -> Leader | None:
        """Reads the leader from the committed state at some moment during the call. `None`: there is no leader.

        Raises:
            Unavailable: no node answered in time.
            Unknown: the answer is invalid.
        """
        held = (await self._client.explain(self.name, self._lease.holder))["held"]
        active = [lease for lease in held if lease.get("state") == "active"]
        try:
            return _leader(active[0]) if active else None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Unknown("the answer has an invalid lease of the leader") from None

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Iterates over the leaders: the current one, then each change. `None`: there is no leader.

        Each item is a current read, and the tokens never fall. An observer can miss a leader between two reads. It sees a
        change of the holder at once, and an established leader within `refresh` seconds. Without a reachable node, the
        iteration waits.
        """
        highest = 0
        last: Leader | None = None
        is_first = True
        async with _Trigger(self._client, self.name) as trigger:
            while True:
                try:
                    leader = await self.current()
                except (Unavailable, Unknown) as error:
                    log.debug("election %s: the read of the leader failed: %s", self.name, error)
                    await asyncio.sleep(min(RETRY_DELAY, self._refresh))
                    continue
                # Current reads exclude an older leader. The check is a second defense: clients must never get one.
                is_older = leader is not None and leader.token < highest
                if not is_older and (is_first or leader != last):
                    is_first, last = False, leader
                    highest = max(highest, leader.token if leader else 0)
                    yield leader
                await trigger.changed(self._refresh)

    async def _campaign(self, guard: Guard) -> None:
        try:
            await self._claim_until_elected(guard)
        except BaseException as error:
            # The last claim is not granted. The cluster may have granted an earlier one whose outcome is unknown.
            if self._core.closing.is_set() and isinstance(error, ShutDown | Unavailable):
                raise await self._core.ended_by_shutdown(guard.hold) from error
            self._core.resolve_later(guard.hold)
            raise

    async def _claim_until_elected(self, guard: Guard) -> None:
        while True:
            try:
                await guard.enter(QUEUE_WAIT)
            except (Refused, Unknown, Unavailable) as error:
                is_final = error.code not in _RETRYABLE if isinstance(error, Refused) else self._core.closing.is_set()
                if is_final:
                    raise
                log.debug("election %s: the campaign continues after an error: %s", self.name, error)
                if not (isinstance(error, Refused) and error.code == "wait_timeout"):
                    await set_within(self._core.closing, RETRY_DELAY)
            else:
                log.info("election %s: elected with token %d", self.name, guard.token)
                return


class Leadership:
    """One term of a leader. It can be lost at any time. Send the `token` with every write."""

    def __init__(self, election: Election, guard: Guard) -> None:
        """Only `Election.campaign` and `Election.leader` create leaderships."""
        self._election = election
        self._guard = guard
        self._is_established = False
        self._has_left = False

    @property
    def token(self) -> int:
        """The fencing token of this leadership, also after its end."""
        self._election._core.owner.check()
        return self._guard.token

    @property
    def is_leader(self) -> bool:
        """Whether this process is still the leader, by local knowledge. Sends no request. Safe to read from any thread."""
        return self._guard.is_held

    @property
    def is_established(self) -> bool:
        """Whether this process is the leader and its leadership is published as established."""
        return self._is_established and self.is_leader

    @property
    def lease(self) -> Lease:
        """The lease of the election: its state, and the remaining time."""
        return self._election._lease

    async def wait_lost(self) -> None:
        """Waits until this process is not the leader any more."""
        while self._guard.hold.granted_token == self.token:
            await self._guard.hold.ended.wait()

    async def establish(self, fence: Callable[[int], Awaitable[T]]) -> T:
        """Fences all earlier leaders, and then publishes this leader as established.

        `fence` receives the token. Before it returns, it must write the token to **every** resource that a leader changes.
        Only then does every resource reject the writes of earlier leaders. Calling `establish` again is harmless.

        Raises:
            LeaseLost: the leadership was lost before it was established.
            TenureError: the resources are fenced, but the request that publishes it failed.

        An error of `fence` passes through, and this process is still the leader. If the call is cancelled, the leader may
        be published or not.
        """
        fenced = await fence(self.token)
        metadata = {**self._election._metadata, ESTABLISHED_KEY: str(self.token)}
        core, guard = self._election._core, self._guard
        # It waits for the end of a hand-over: if that is refused, this process is still the leader.
        if await core.update_metadata(guard.hold, metadata, guard.grant) and self.is_leader:
            self._is_established = True
            return fenced
        raise LeaseLost(self._election.name, self.token, self._guard.loss() or Loss.UNREACHABLE)

    async def resign(self) -> bool:
        """Releases the lease, so that the next candidate gets it at once. Returns `False` if it was lost before.

        After `Election.campaign`: if the release fails, the lease expires by its ttl, and the manager logs the error. A
        cancellation does not stop the release.

        In the body of `Election.leader`, leave the body instead. Another task can call `resign`. It then works like
        `Lease.release`: it first cancels the body and waits for its end, and it raises the errors of `Lease.release`.
        """
        if self._guard.task is not None:
            return await self._election._core.release(self._guard.hold, grant=self._guard.grant)
        if self._has_left:
            return False
        self._has_left = True
        return await self._guard.leave() is None

    async def hand_over(self, to: str | None = None) -> str | None:
        """Hands the leadership over to a waiting candidate: to the holder `to`, or to the first one.

        Returns the new leader, or `None` if the leadership was lost before. As `Lease.hand_over`, the call first ends the
        body of `Election.leader` in another task. The errors are those of `Lease.hand_over`.
        """
        return await self._hand_over(to, drains=True)

    async def _hand_over(self, to: str | None, drains: bool) -> str | None:
        new = await self._election._core.hand_over(self._guard.hold, to, drains, self._guard.grant)
        if new is not None and self._guard.task is None:
            await self.resign()
        return new


class LeaderScope(AbstractAsyncContextManager[Leadership]):
    """Leads during an `async with`. `Election.leader` describes it."""

    def __init__(self, election: Election) -> None:
        """Only `Election.leader` creates it."""
        self._election = election
        self._scope = WorkScope(election._core, election._lease._hold)

    async def __aenter__(self) -> Leadership:
        """Campaigns. The errors are those of `Election.campaign`."""
        return Leadership(self._election, await self._scope.enter(self._election._campaign))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Resigns. Raises `LeaseLost` if the leadership ended before the body."""
        await self._scope.leave(error)


class _Trigger:
    """Wakes an observer at a transition of the lease. The reader always reads the whole state: events can be missed."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def changed(self, longest: float) -> None:
        """Waits for an event, at most this long."""
        timer = asyncio.get_running_loop().call_later(longest, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        self._changed.clear()

    async def _follow(self) -> None:
        while True:
            try:
                # After `compacted`, only a new watch can continue.
                async with self._client.watch(self._name) as watch:
                    async for event in watch:
                        if event["name"] == self._name:
                            self._changed.set()
            except TenureError as error:
                log.debug("election %s: the watch failed: %s", self._name, error)
                await asyncio.sleep(RETRY_DELAY)
                self._changed.set()

    async def __aenter__(self) -> _Trigger:
        self._task = asyncio.ensure_future(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


def _leader(lease: api.Lease) -> Leader:
    metadata = lease.get("metadata", {})
    return Leader(
        holder=lease["holder"],
        token=int(lease["token"]),
        is_established=metadata.get(ESTABLISHED_KEY) == lease["token"],
        metadata={key: value for key, value in metadata.items() if not key.startswith(OWN_KEYS)},
        since=lease["granted_at"],
    )
