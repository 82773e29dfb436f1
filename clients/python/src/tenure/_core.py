"""The requests of a manager for its leases. The operation lock of a lease serializes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

from ._aio import acquire_within
from ._calls import Calls, certain_time
from ._errors import Refused, ShutDown, TenureError, Unavailable, Unknown, local_refusal
from ._grant import deadline
from ._guard import drain, has_other_work
from ._hold import NOT_HELD, Hold
from ._keeper import Keeper
from ._options import DAY, LeaseOptions, check_holder, millis
from ._process import Owner
from ._retry import RetryBudget
from .states import Loss

if TYPE_CHECKING:
    from ._clock import Clock
    from ._grant import Grant
    from .api import Lease, Standing

T = TypeVar("T")

log = logging.getLogger("tenure")

# Pause between two checks of an abandoned claim that may still wait in the queue, in seconds.
RESOLVE_INTERVAL = 0.005
# After this time, another request withdraws an abandoned claim that still waits.
WITHDRAW_AFTER = 0.25
MAX_METADATA_ATTEMPTS = 5
# Most leases that the manager remembers because their claim or release has no conclusive answer.
MAX_UNRESOLVED = 10_000

NOT_DRAINED = "the work did not end in time: the lease expires by its ttl"


class Core:
    """The state that a manager shares with its leases."""

    def __init__(self, calls: Calls, holder: str, clock: Clock, operation_timeout: float, drift_permille: int) -> None:
        """Starts no task and sends no request."""
        self.calls = calls
        self.holder = holder
        self.owner = Owner("manager")
        self._clock = clock
        self.operation_timeout = operation_timeout
        self.drift_permille = drift_permille
        self.budget = RetryBudget.within(operation_timeout)
        self.keeper = Keeper(calls, holder, clock, operation_timeout, self.spawn, self.remember)
        self.closing = asyncio.Event()
        # Set when every claim in flight is resolved or abandoned.
        self._claims_resolved = asyncio.Event()
        self._claims: set[asyncio.Task[Lease | None]] = set()
        self._holds: WeakValueDictionary[str, Hold] = WeakValueDictionary()
        # The records that a new handle must find: without them, a claim could return the token of earlier work.
        self._unresolved: dict[str, Hold] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._keeper_task: asyncio.Task[None] | None = None

    def clock(self) -> float:
        """Reads the clock of the deadlines. Only the process of the manager can use its leases.

        Raises:
            RuntimeError: this is a forked process.
        """
        self.owner.check()
        return self._clock()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task that the manager owns. A shutdown waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def hold(self, name: str, options: LeaseOptions) -> Hold:
        """The record of this lease. If an option is not the default, all of them replace those of an earlier handle."""
        self.owner.check()
        hold = self._holds.get(name)
        if hold is None:
            hold = self._holds[name] = Hold(name, self.holder, options, self.drift_permille)
        elif options != LeaseOptions():
            hold.options = options
        return hold

    def remember(self, hold: Hold) -> None:
        """Keeps the record of an unresolved lease, also without a handle. Forgets it when it is resolved."""
        self._unresolved.pop(hold.name, None)
        if not hold.is_unresolved:
            return
        if len(self._unresolved) >= MAX_UNRESOLVED:
            # The oldest one is the most likely to have expired at the cluster.
            oldest = next(iter(self._unresolved))
            del self._unresolved[oldest]
            log.warning("the client forgets the unresolved lease %s: more than %d are unresolved", oldest, MAX_UNRESOLVED)
        self._unresolved[hold.name] = hold

    async def acquire(self, hold: Hold, wait: float) -> tuple[int, bool]:
        """Acquires the lease unless it is held already. The keeper renews it from then on.

        Returns the token, and whether it belongs to a new grant.
        """
        begun = self.clock()
        self._check_open()
        if not await acquire_within(hold.operation, wait + self.operation_timeout):
            raise local_refusal("wait_timeout", "another acquire of this lease is in progress in this process")
        try:
            self._check_open()
            token = hold.token(self.clock())
            if token is not None:
                return token, False
            return await self._claim(hold, max(wait - (self.clock() - begun), 0.0)), True
        finally:
            self.remember(hold)
            if hold.resolver is None:
                hold.operation.release()

    def _check_open(self) -> None:
        if self.closing.is_set():
            raise ShutDown
        if self._keeper_task is None or self._keeper_task.done():
            self._keeper_task = asyncio.get_running_loop().create_task(self.keeper.run())

    async def _claim(self, hold: Hold, wait: float) -> int:
        hold.end_unheld_grant(self.clock())
        if hold.token_before_claim is not None:
            # The cluster would answer a claim with the token of the old grant. Work under that grant may still run, so
            # the new work must get a new token.
            await self.send_release(hold, hold.token_before_claim)
            # A shutdown that began during the release does not resolve a later claim.
            self._check_open()
        options = hold.options
        body = options.request(hold.holder)
        if wait > 0:
            body["wait_ms"] = millis(wait)
        # If an earlier claim may have been granted, a refusal of this one does not prove the opposite: a waiter that claims
        # without a wait keeps its position in the queue.
        was_ambiguous = hold.is_ambiguous
        # Until the answer arrives, the cluster may have granted the claim. A shutdown resolves it.
        hold.is_ambiguous = True
        # This reading comes before the request: the cluster starts the ttl later.
        sent = self.clock()
        claim = self.spawn(self._send_claim(hold, body))
        self._claims.add(claim)
        claim.add_done_callback(self._claims.discard)
        hold.claiming.set()
        try:
            await asyncio.wait({claim})
            if claim.result() is None:
                raise await self.ended_by_shutdown(hold)
            lease, sent = await self._confirm(hold, cast("Lease", claim.result()), sent)
        except asyncio.CancelledError:
            # The resolver has the operation lock from now on, so that no other claim comes before it.
            hold.resolver = self.spawn(self._resolve_abandoned(hold, claim, wait, was_ambiguous))
            hold.resolver.add_done_callback(lambda _: _end_resolver(hold))
            raise
        except TenureError as error:
            if not self.closing.is_set():
                hold.is_ambiguous = was_ambiguous or isinstance(error, Unknown)
            raise
        finally:
            hold.claiming.clear()
        if self.closing.is_set():
            raise await self.ended_by_shutdown(hold)
        hold.granted(int(lease["token"]), certain_time(lease), sent, self.clock(), options)
        self.keeper.keep(hold)
        return int(lease["token"])

    async def _send_claim(self, hold: Hold, body: dict[str, Any]) -> Lease | None:
        """Sends a claim. Returns `None` if a shutdown abandons it."""
        answer = asyncio.ensure_future(self.calls.acquire(hold.name, body, self.budget))
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            await asyncio.wait({answer, closing}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                earlier = hold.untraced_until
                # It stays so if the resolver of a cancelled acquire ends this task.
                hold.untraced_until = self._latest_end(hold, body.get("wait_ms", 0) / 1000)
                if await self._is_known(hold, answer, "wait_ms" in body):
                    # The answer proves nothing about an earlier claim. The next read can show one.
                    hold.untraced_until = earlier
            return answer.result() if answer.done() else None
        finally:
            closing.cancel()
            answer.cancel()
            await asyncio.wait({answer, closing})

    def _latest_end(self, hold: Hold, wait: float) -> float:
        """When the grant of an abandoned claim has expired at the latest, if the cluster applies the claim soon."""
        ttl = DAY if hold.options.ttl is None else hold.options.ttl
        return self.clock() + ttl + wait + self.operation_timeout

    async def _confirm(self, hold: Hold, lease: Lease, sent: float) -> tuple[Lease, float]:
        """Renews a grant after a long wait, and checks its deadline. Returns when the request of the deadline was sent."""
        try:
            lease, sent = await self._renew_after_wait(hold, lease, sent)
            if deadline(certain_time(lease), sent, self.drift_permille) <= self.clock():
                raise Unknown("the lease was granted, and its deadline passed before the answer arrived")
        except TenureError:
            if self.closing.is_set():
                # The shutdown releases the grant: it is not held here yet.
                raise await self.ended_by_shutdown(hold) from None
            raise
        return lease, sent

    async def _renew_after_wait(self, hold: Hold, lease: Lease, sent: float) -> tuple[Lease, float]:
        """Renews a grant after a long wait.

        The time of the grant is then known only within the wait, so the deadline is computed from the renewal.
        """
        ttl = math.inf if lease["ttl_ms"] == "infinite" else int(lease["ttl_ms"]) / 1000
        if self.clock() - sent <= ttl / 3:
            return lease, sent
        sent = self.clock()
        # After any error here the grant may still be in force.
        try:
            (result,) = await self.calls.renew(hold.holder, [(hold.name, int(lease["token"]))], self.budget)
        except TenureError as error:
            raise Unknown(f"the lease was granted, and its renewal failed: {error}") from error
        try:
            if renewed := result.get("lease"):
                certain_time(renewed)
                return renewed, sent
            if problem := result.get("problem"):
                raise Refused(problem)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
            pass
        raise Unknown("the lease was granted, and the answer to its renewal is invalid")

    async def ended_by_shutdown(self, hold: Hold) -> TenureError:
        """The error of an acquire or a campaign that a shutdown ended, after the shutdown has resolved its claims."""
        await self._claims_resolved.wait()
        if hold.is_ambiguous:
            return Unknown(_NOT_WITHDRAWN)
        return ShutDown()

    async def release(self, hold: Hold, drains: bool = True, grant: Grant | None = None) -> bool:
        """Ends the work, then releases the lease. Returns `False` if it was not held.

        With `grant`, it releases only this grant, and not a later one.
        """
        self.owner.check()
        async with _grant_lock(hold) as is_locked:
            if not is_locked:
                return False
            if grant is not None and hold.grant is not grant:
                return await self.send_release(hold, grant.token) if hold.failed_release == grant.token else False
            if hold.granted_token is None:
                if hold.failed_release is not None:
                    return await self.send_release(hold, hold.failed_release)
                if hold.undrained_token is not None:
                    await self._check_undrained(hold, hold.undrained_token)
                    return False
                return await self._release_ambiguous(hold) if hold.is_ambiguous else False
            await self._drain(hold, drains)
            return await self._give_up_and_release(hold)

    async def _give_up_and_release(self, hold: Hold) -> bool:
        # The local grant ends first: this process must not count the lease as held after the cluster released it.
        token = hold.give_up()
        if token is None:
            return False
        try:
            return await self.send_release(hold, token)
        except BaseException:
            self._keep_unreleased(hold, token)
            raise

    def _is_ending(self, hold: Hold) -> bool:
        """Whether a release waits for the end of the work. The work must not wait for that release in turn."""
        return self.closing.is_set() or (hold.guard is not None and hold.guard.is_draining)

    async def _drain(self, hold: Hold, drains: bool = True) -> bool:
        """Ends the work of another task. Returns whether there was such work."""
        has_work = drains and has_other_work(hold)
        if not has_work or await drain(hold):
            return has_work
        token = hold.give_up()
        if token is not None:
            hold.undrained_token = token
            self.remember(hold)
        raise local_refusal("not_drained", NOT_DRAINED)

    async def _check_undrained(self, hold: Hold, token: int) -> None:
        """Raises `not_drained` if a grant may be in force that was not released because its work did not end."""
        standing: Standing | None = None
        with contextlib.suppress(TenureError):
            standing = await self._standing(hold)
        match standing:
            case {"status": "holds", "lease": {"token": current}} if int(current) != token:
                pass
            case {"status": "waits" | "ended" | "unknown"}:
                pass
            case _:
                raise local_refusal("not_drained", NOT_DRAINED)
        hold.forget_unreleased_token(token)
        self.remember(hold)

    def _keep_unreleased(self, hold: Hold, token: int) -> None:
        hold.unreleased_token = token
        self.remember(hold)

    async def send_release(self, hold: Hold, token: int) -> bool:
        """Releases a grant. If the answer is lost, the history shows whether the release was applied."""
        try:
            released = await self.calls.release(hold.name, hold.holder, token, self.budget)
        except Unknown:
            was_released = await self._was_released(hold, token)
            if was_released is None:
                raise
            released = was_released
        hold.forget_unreleased_token(token)
        self.remember(hold)
        return released

    async def _was_released(self, hold: Hold, token: int) -> bool | None:
        """Whether the grant was released. `None`: it is in force, or the cluster does not answer or has forgotten it."""
        try:
            standing = await self._standing(hold)
        except TenureError:
            return None
        match standing:
            case {"status": "holds", "lease": {"token": current}} if int(current) == token:
                return None
            case {"status": "ended", "event": {"token": ended, "event": event}}:
                return int(ended) == token and event == "released"
            case {"status": "holds" | "waits"}:
                return False
        return None

    async def hand_over(self, hold: Hold, to: str | None, drains: bool = True, grant: Grant | None = None) -> str | None:
        """Hands the lease over to this waiter, or to the first one. Returns the new holder.

        With `grant`, it hands over only this grant, and not a later one.
        """
        self.owner.check()
        if to is not None:
            check_holder(to)
        if not drains and self._is_ending(hold):
            return None
        async with _grant_lock(hold) as is_locked:
            if not is_locked or hold.grant is None or (grant is not None and hold.grant is not grant):
                return None
            was_drained = await self._drain(hold, drains)
            token = hold.pause(self.clock())
            if token is None:
                return None
            try:
                lease = await self.calls.hand_over(hold.name, hold.holder, token, to, self.budget)
            except Refused as error:
                if error.code == "lost":
                    hold.lose(token, Loss.from_api(error.problem.get("why") or "unknown"))
                    return None
                await self._keep_or_release(hold, was_drained)
                raise
            except Unavailable:
                await self._keep_or_release(hold, was_drained)
                raise
            except (Unknown, asyncio.CancelledError) as error:
                hold.give_up()
                # If the cluster did not apply the hand-over, it would answer a claim with this token.
                self._keep_unreleased(hold, token)
                if was_drained and isinstance(error, asyncio.CancelledError):
                    # The ended work has left the release to this task.
                    self.spawn(self._release_later(hold, token))
                raise
            hold.give_up()
            return lease["holder"]

    async def _release_later(self, hold: Hold, token: int) -> None:
        async with hold.operation:
            # Another claim may have released the token before.
            if hold.unreleased_token != token:
                return
            try:
                await self.send_release(hold, token)
            except TenureError as error:
                log.warning("the release of lease %s failed, and the lease expires by its ttl: %s", hold.name, error)

    async def _keep_or_release(self, hold: Hold, was_drained: bool) -> None:
        """Continues the grant after a refused hand-over. If its work was ended for the hand-over, releases it."""
        if not was_drained:
            hold.resume()
            self.keeper.keep(hold)
            return
        try:
            await self._give_up_and_release(hold)
        except TenureError as error:
            log.warning("the release of lease %s failed, and the lease expires by its ttl: %s", hold.name, error)

    async def check(self, hold: Hold) -> bool:
        """Asks the cluster whether the grant is in force. If it is not, records the loss."""
        self.owner.check()
        token = hold.granted_token
        if token is None:
            return False
        match await self._standing(hold):
            case {"status": "holds", "lease": {"token": current}} if int(current) == token:
                return hold.is_held(self.clock())
            case {"status": "holds" | "waits" | "ended" | "unknown"} if hold.is_being_handed_over(token):
                # The hand-over has ended the grant, or will learn of its end. Its own answer decides.
                return False
            case {"status": "ended", "event": {"token": ended, "event": event}} if int(ended) == token:
                hold.lose(token, Loss.EXPIRED if event == "granted" else Loss.from_api(event))
            case {"status": "holds" | "waits" | "ended" | "unknown"}:
                hold.lose(token, Loss.FORGOTTEN)
            case _:
                raise Unknown(_UNKNOWN_STANDING)
        return False

    async def update_metadata(self, hold: Hold, metadata: dict[str, str], grant: Grant | None = None) -> bool:
        """Replaces the metadata of the current grant. Returns `False` if the lease is not held.

        With `grant`, it replaces only the metadata of this grant, and not of a later one.
        The request names the version that it replaces, so an earlier update that arrives late cannot undo this one.
        """
        if self._is_ending(hold):
            return False
        async with _grant_lock(hold) as is_locked:
            if not is_locked:
                return False
            attempt = 1
            while True:
                token = hold.token(self.clock())
                if token is None or (grant is not None and token != grant.token):
                    return False
                standing = await self._standing(hold)
                if standing["status"] != "holds" or int(standing["lease"]["token"]) != token:
                    await self.check(hold)
                    return False
                version = standing["lease"].get("metadata_version", 0)
                try:
                    await self.calls.update_metadata(hold.name, hold.holder, token, version, metadata, self.budget)
                except Refused as error:
                    if error.code == "lost":
                        await self.check(hold)
                        return False
                    # An earlier update of this holder, whose answer was lost, was applied in between.
                    if error.code != "metadata_changed" or attempt == MAX_METADATA_ATTEMPTS:
                        raise
                    attempt += 1
                    continue
                return hold.token(self.clock()) == token

    async def _resolve_abandoned(
        self, hold: Hold, claim: asyncio.Task[Lease | None], wait: float, was_ambiguous: bool
    ) -> None:
        """Releases the grant of an abandoned claim, if the cluster granted it. The caller passes the operation lock on."""
        waits = wait > 0
        try:
            # The refusal of this claim does not prove that an earlier one was not granted.
            if waits and not await self._is_known(hold, claim, waits):
                # The claim stays unresolved: the cluster may apply it later.
                hold.untraced_until = self._latest_end(hold, wait)
                return
            if await self._is_certainly_not_granted(claim, waits) and not was_ambiguous:
                hold.is_ambiguous = False
                self.remember(hold)
            else:
                await self._resolve_quietly(hold)
        finally:
            claim.cancel()

    def resolve_later(self, hold: Hold) -> None:
        """Releases the grant of an earlier claim whose outcome is unknown. A shutdown resolves such claims itself."""
        if hold.is_ambiguous and not self.closing.is_set():
            self.spawn(self._resolve_unheld(hold))

    async def _resolve_unheld(self, hold: Hold) -> None:
        async with hold.operation:
            if hold.grant is None:
                await self._resolve_quietly(hold)

    async def _resolve_quietly(self, hold: Hold) -> None:
        try:
            await self._resolve(hold)
        except TenureError as error:
            # Without a release, the lease expires by its ttl.
            log.debug("an earlier claim of lease %s is not resolved: %s", hold.name, error)

    async def _is_known(self, hold: Hold, claim: asyncio.Future[Any], waits: bool) -> bool:
        """Waits until the cluster has answered this claim, or knows that it waits. Returns `False` if it does not in time.

        An abort before that proves nothing: the cluster may apply the claim later.
        """
        if not waits:
            # Its answer comes soon.
            await asyncio.wait({claim}, timeout=self.operation_timeout)
            return claim.done()
        clock = asyncio.get_running_loop().time
        give_up_at = clock() + self.operation_timeout
        while not claim.done():
            with contextlib.suppress(TenureError):
                if (await self._standing(hold)).get("status") in ("holds", "waits"):
                    # A shutdown may have marked the claim before this read.
                    hold.untraced_until = NOT_HELD
                    break
            if clock() >= give_up_at:
                return claim.done()
            await asyncio.wait({claim}, timeout=RESOLVE_INTERVAL)
        return True

    async def _is_certainly_not_granted(self, claim: asyncio.Task[Lease | None], waits: bool) -> bool:
        """Waits for the answer to an abandoned claim.

        A claim that waits in a queue is aborted instead, and its node withdraws it.
        """
        if waits and not claim.done():
            claim.cancel()
        await asyncio.wait({claim})
        return not claim.cancelled() and isinstance(claim.exception(), Refused | Unavailable)

    async def _release_ambiguous(self, hold: Hold) -> bool:
        """Resolves a claim without an answer: releases its grant, or withdraws the claim if it still waits."""
        withdraw_at = self.clock() + WITHDRAW_AFTER
        released = False
        while True:
            standing = await self._standing(hold)
            if standing["status"] in ("holds", "waits"):
                hold.untraced_until = NOT_HELD
            match standing:
                case {"status": "holds", "lease": {"token": token}}:
                    released = await self.send_release(hold, int(token))
                case {"status": "waits"} if self.clock() < withdraw_at:
                    # The cluster may grant the claim before its node withdraws it.
                    await asyncio.sleep(RESOLVE_INTERVAL)
                    continue
                case {"status": "waits"}:
                    released = await self._leave_queue(hold)
                case {"status": "ended" | "unknown"} if self.clock() < hold.untraced_until:
                    raise Unknown(_NOT_WITHDRAWN)
                case {"status": "ended" | "unknown"}:
                    pass
                case _:
                    raise Unknown(_UNKNOWN_STANDING)
            hold.is_ambiguous = False
            self.remember(hold)
            return released

    async def _leave_queue(self, hold: Hold) -> bool:
        """Sends another claim with the shortest wait. The cluster commits the end of that wait.

        After another refusal, the holder may still wait.
        """
        claim = {**hold.options.request(hold.holder), "wait_ms": 1}
        try:
            lease = await self.calls.acquire(hold.name, claim, self.budget)
        except Refused as refused:
            if refused.code in ("wait_timeout", "wait_abandoned"):
                return False
            if (await self._standing(hold)).get("status") in ("ended", "unknown"):
                return False
            raise
        return await self.send_release(hold, int(lease["token"]))

    async def _standing(self, hold: Hold) -> Standing:
        explained = await self.calls.explain(hold.name, hold.holder, self.budget)
        standing: Any = explained.get("standing")
        if not isinstance(standing, dict) or not isinstance(standing.get("status"), str):
            raise Unknown("the answer has no standing of the holder")
        try:
            # Newer servers can send another status.
            match standing.get("status"):
                case "holds":
                    int(standing["lease"]["token"])
                case "ended":
                    int(standing["event"]["token"])
        except (LookupError, TypeError, ValueError, OverflowError):
            raise Unknown("the answer has an invalid standing of the holder") from None
        return cast("Standing", standing)

    async def release_all(self) -> list[tuple[str, TenureError]]:
        """Releases all held leases concurrently. Returns the leases whose release failed, with the errors."""
        self.owner.check()
        holds = [hold for hold in self.keeper.held.values() if hold.granted_token is not None]
        return await _failures((hold.name, self.release(hold)) for hold in holds)

    async def shutdown(self) -> list[tuple[str, TenureError]]:
        """Leaves all queues, releases all leases and ends the tasks."""
        self.owner.check()
        self.closing.set()
        try:
            if self._claims:
                await asyncio.wait(set(self._claims))
            # This comes before the releases: the next waiter of a released lease may be an abandoned claim of this manager.
            ambiguous = [hold for hold in self._holds.values() if hold.is_ambiguous]
            failed = await _failures((hold.name, self._resolve(hold)) for hold in ambiguous)
        finally:
            # After a cancellation, too: each abandoned acquire waits for this, and says what it knows.
            self._claims_resolved.set()
        # Some may have expired. Only the cluster knows that: without a majority, cluster time stands still.
        left_held = [hold for hold in self._unresolved.values() if hold.token_before_claim]
        left = _failures((hold.name, self._release_left(hold)) for hold in left_held)
        for failures in await asyncio.gather(left, self.release_all()):
            failed += failures
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._keeper_task is not None:
            self._keeper_task.cancel()
            await asyncio.wait({self._keeper_task})
        for hold in list(self.keeper.held.values()):
            # A lease that was not released expires at the cluster. This process must treat it as not held from now on.
            hold.give_up()
        return failed

    async def _resolve(self, hold: Hold) -> None:
        if hold.is_ambiguous:
            await self._release_ambiguous(hold)

    async def _release_left(self, hold: Hold) -> None:
        """Releases a grant that ended here, and asks the cluster for a grant whose work did not end."""
        async with hold.operation:
            token = hold.unreleased_token
            if token is not None:
                # The work of a grant that the local clock ended may still run.
                if hold.failed_release is None and has_other_work(hold) and not await drain(hold):
                    raise local_refusal("not_drained", NOT_DRAINED)
                await self.send_release(hold, token)
            elif hold.undrained_token is not None:
                await self._check_undrained(hold, hold.undrained_token)


@contextlib.asynccontextmanager
async def _grant_lock(hold: Hold) -> AsyncIterator[bool]:
    """Takes the operation lock to end or to change the grant.

    Yields `False`, without the lock, if a claim is in flight: there is no grant then, and the claim can keep the lock for
    a long time.
    """
    is_locked = await acquire_within(hold.operation, None, hold.claiming)
    try:
        yield is_locked
    finally:
        if is_locked:
            hold.operation.release()


def _end_resolver(hold: Hold) -> None:
    hold.resolver = None
    hold.operation.release()


_NOT_WITHDRAWN = "the claim was abandoned, and the cluster did not confirm that it was withdrawn"
_UNKNOWN_STANDING = "the cluster is newer than this client, and answered with an unknown standing of the holder"


async def _failures(calls: Iterable[tuple[str, Coroutine[Any, Any, object]]]) -> list[tuple[str, TenureError]]:
    named = list(calls)
    results = await asyncio.gather(*(call for _, call in named), return_exceptions=True)
    failed = []
    for (name, _), result in zip(named, results, strict=True):
        if isinstance(result, TenureError):
            failed.append((name, result))
        elif isinstance(result, BaseException):
            raise result
    return failed
