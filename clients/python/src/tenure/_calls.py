"""The requests of a lease manager, with their retry policies and parsed answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ._errors import Unknown
from ._retry import RetryBudget, RetryPolicy
from ._transport import Call, QueueWait, Transport

if TYPE_CHECKING:
    from .api import Explanation, Lease, RenewResult

# Bounds of the interval between two probes of the node at which a claim waits, in seconds.
SHORTEST_PROBE_INTERVAL = 0.5
LONGEST_PROBE_INTERVAL = 10.0


def lease_path(name: str, action: str = "") -> str:
    """The path of a lease. Of the characters of a name, only the slash has a meaning in a path."""
    return f"v1/leases/{name.replace('/', '%2F')}{action}"


def probe_interval(ttl_ms: int | str | None) -> float:
    """The interval of readiness probes for a claim with this ttl: a third of it."""
    third = ttl_ms / 3000 if isinstance(ttl_ms, int) else LONGEST_PROBE_INTERVAL
    return min(max(third, SHORTEST_PROBE_INTERVAL), LONGEST_PROBE_INTERVAL)


class Calls:
    """The requests for leases."""

    def __init__(self, transport: Transport) -> None:
        """Uses this transport."""
        self.transport = transport

    async def acquire(self, name: str, claim: Mapping[str, Any], budget: RetryBudget) -> Lease:
        """Claims a lease. A claim of the same holder is idempotent, so it is retried after a lost answer."""
        wait_ms: int = claim.get("wait_ms", 0)

        def body(waited: float) -> Mapping[str, Any]:
            # Without a wait, a waiter would keep its position: only the end of a wait leaves the queue.
            return {**claim, "wait_ms": max(1, wait_ms - int(waited * 1000))} if wait_ms else claim

        wait = QueueWait(wait_ms / 1000, probe_interval(claim.get("ttl_ms"))) if wait_ms else None
        call = Call("POST", lease_path(name, "/acquire"), RetryPolicy.CLAIM, body=body, wait=wait)
        return _lease((await self.transport.send(call, budget)).answer)

    async def renew(self, holder: str, leases: list[tuple[str, int]], budget: RetryBudget) -> list[RenewResult]:
        """Renews at most 10,000 leases. The results have the order of the request."""
        body = {"holder": holder, "leases": [{"name": name, "token": str(token)} for name, token in leases]}
        results = (await self._post("v1/renew", body, RetryPolicy.RENEWAL, budget)).get("results")
        if not isinstance(results, list) or len(results) != len(leases):
            raise Unknown("the answer to a renewal is invalid")
        return results

    async def release(self, name: str, holder: str, token: int, budget: RetryBudget) -> bool:
        """Releases a grant. `False` after a lost answer is unknown: the first attempt may have released the lease."""
        body = {"holder": holder, "token": str(token)}
        call = Call("POST", lease_path(name, "/release"), RetryPolicy.RELEASE, body=lambda _: body)
        resolved = await self.transport.send(call, budget)
        released = resolved.answer.get("released")
        if not isinstance(released, bool):
            raise Unknown("the answer to the release is invalid")
        if resolved.ambiguous is not None and not released:
            raise Unknown(resolved.ambiguous)
        return released

    async def hand_over(self, name: str, holder: str, token: int, to: str | None, budget: RetryBudget) -> Lease:
        """Hands a lease over to a waiter. It is not retried after a lost answer."""
        body = {"holder": holder, "token": str(token), **({} if to is None else {"to": to})}
        lease = _lease(await self._post(lease_path(name, "/handover"), body, RetryPolicy.NEVER, budget))
        if not isinstance(lease.get("holder"), str):
            raise Unknown("the answer to the hand-over is invalid")
        return lease

    async def update_metadata(
        self, name: str, holder: str, token: int, version: int, metadata: Mapping[str, str], budget: RetryBudget
    ) -> Lease:
        """Replaces this version of the metadata of a held lease."""
        body = {"holder": holder, "token": str(token), "version": version, "metadata": dict(metadata)}
        return _lease(await self._post(lease_path(name, "/metadata"), body, RetryPolicy.CLAIM, budget))

    async def explain(self, name: str, holder: str | None, budget: RetryBudget) -> Explanation:
        """Explains why a lease is held or free, from the committed state."""
        query = {} if holder is None else {"holder": holder}
        call = Call("GET", lease_path(name, "/explain"), RetryPolicy.READ, query)
        return cast("Explanation", (await self.transport.send(call, budget)).answer)

    async def _post(self, path: str, body: Mapping[str, Any], policy: RetryPolicy, budget: RetryBudget) -> dict[str, Any]:
        return (await self.transport.send(Call("POST", path, policy, body=lambda _: body), budget)).answer


def _lease(answer: dict[str, Any]) -> Lease:
    """Checks the fields of a lease that the deadline depends on."""
    lease = cast("Lease", answer)
    try:
        certain_time(lease)
        int(lease["token"])
    except (LookupError, TypeError, ValueError, OverflowError):
        raise Unknown("the answer is invalid: expected a lease") from None
    return lease


def certain_time(lease: Lease) -> float:
    """The seconds that the grant certainly lasts, counted from the moment when the request was sent.

    It is less than the ttl if the holder had the lease already: a claim with a shorter ttl does not restart a longer one.
    """
    ttl_ms, left_ms = lease["ttl_ms"], lease.get("expires_in_ms")
    if ttl_ms == "infinite":
        return math.inf
    ttl = int(ttl_ms) / 1000
    return ttl if left_ms is None else min(ttl, left_ms / 1000)
