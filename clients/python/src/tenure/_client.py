"""Reads of a cluster, and the commands of operators."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ._calls import lease_path
from ._errors import Unknown
from ._options import DAY, check_between, check_holder, check_name
from ._retry import RetryBudget, RetryPolicy
from ._transport import Call, Transport
from ._watch import Watch

if TYPE_CHECKING:
    from .api import Cluster, Explanation, History, Lease, LeasePage, Queue, Version

Consistency: TypeAlias = Literal["leader", "linearizable", "stale"]
"""`leader` and `linearizable` reads are current. `stale` reads come from the node that the client asks."""

PAGE_SIZE = 1000


class Client:
    """A client without a holder: it reads leases and watches them. `LeaseManager.client` is one.

    The answers have the types of `tenure.api`: plain dictionaries. All methods raise the same errors:

    - `Refused`: the cluster refused the request.
    - `Unknown`: an answer was lost, and the cluster may have applied the request. A read raises it only for an answer that
      is invalid.
    - `Unavailable`: no node could serve the request in time. It was not applied.
    - `ValueError`: an argument is invalid.

    Cancelling a call abandons the request. A client belongs to one event loop. Use it as `async with Client(...) as client`,
    or call `aclose`.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        *,
        token: str | None = None,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        timeout: float = 5.0,
        consistency: Consistency = "leader",
    ) -> None:
        """Creates a client. Sends no request.

        `timeout` is the longest time of one request with its retries, in seconds. `consistency` applies to the reads of
        leases. `LeaseManager` describes the other arguments.
        """
        check_between("timeout", timeout, 0.001, DAY)
        self._transport = Transport(endpoints, token, ca, cert, key)
        self._budget = RetryBudget.within(timeout)
        self._consistency = consistency

    async def get(self, name: str) -> Lease:
        """Reads one lease. Its list of `holders` is complete.

        Raises:
            Refused: the code is `not_found` if the cluster has no record of the lease.
        """
        lease = cast("Lease", await self._read_leases(lease_path(check_name(name))))
        holders = lease.get("holders")
        are_valid = (holders is None or _are_leases(holders)) and _is_cursor(lease.get("holders_cursor"))
        _check(_is_lease(lease) and are_valid, "a lease")
        while cursor := lease.get("holders_cursor"):
            query = {"prefix": name, "state": "active", "limit": str(PAGE_SIZE), "cursor": cursor}
            page = await self._read_page(query)
            same = [held for held in page["leases"] if held["name"] == name]
            lease["holders"] = [*(lease.get("holders") or []), *same]
            # Leases with longer names follow those with this name.
            lease["holders_cursor"] = page.get("cursor") if len(same) == len(page["leases"]) else None
        return lease

    async def history(self, name: str) -> History:
        """Reads the last transitions of a lease, oldest first."""
        history = await self._read_leases(lease_path(check_name(name), "/history"))
        _check(isinstance(history.get("transitions"), list), "transitions")
        return cast("History", history)

    async def queue(self, name: str) -> Queue:
        """Reads the first 1,000 waiters of a lease, and their number."""
        queue = await self._read_leases(lease_path(check_name(name), "/queue"))
        _check(isinstance(queue.get("waiters"), list), "waiters")
        return cast("Queue", queue)

    async def explain(self, name: str, holder: str | None = None) -> Explanation:
        """Explains why a lease is held or free, and the standing of one holder with it."""
        query = {} if holder is None else {"holder": check_holder(holder)}
        explained = await self._read_leases(lease_path(check_name(name), "/explain"), query)
        _check(_are_leases(explained.get("held")), "the holders")
        return cast("Explanation", explained)

    async def list(self, prefix: str = "", *, holder: str | None = None, states: Iterable[str] = ()) -> AsyncIterator[Lease]:
        """Iterates over the leases in the order of their names, one for each holder.

        `states` are states of the HTTP API, for example `active`; default: all. The client reads page by page: the leases
        do not form one snapshot.
        """
        if holder is not None:
            check_holder(holder)
        states = [states] if isinstance(states, str) else states
        query = {"prefix": prefix, "holder": holder or "", "state": ",".join(states), "limit": str(PAGE_SIZE)}
        query = {key: value for key, value in query.items() if value}
        while True:
            page = await self._read_page(query)
            for lease in page["leases"]:
                yield lease
            cursor = page.get("cursor")
            if cursor is None:
                return
            query["cursor"] = cursor

    def watch(self, prefix: str = "", *, after: str | None = None) -> Watch:
        """Iterates over the transitions of leases whose names start with `prefix`, each once and in order.

        The watch starts now, or after the position `after` of an earlier one. It resumes after broken connections, also if
        no node runs for a while.
        """
        return Watch(self._transport, prefix, after, self._budget)

    async def revoke(self, name: str, reason: str = "") -> int:
        """Takes a lease from all its holders. Returns their number. The history keeps `reason`, at most 500 bytes.

        The request is not retried after a lost answer, because a second one could hit the next holder.
        """
        query = {"reason": reason} if reason else {}
        answer = await self._send("DELETE", lease_path(check_name(name)), RetryPolicy.NEVER, query)
        revoked = answer.get("revoked")
        if not isinstance(revoked, int):
            raise Unknown("the answer to the revoke is invalid")
        return revoked

    async def cluster(self) -> Cluster:
        """Reads the status of the cluster from one node."""
        return cast("Cluster", await self._send("GET", "v1/cluster", RetryPolicy.READ, {}))

    async def version(self) -> Version:
        """Returns the version of the node that answers."""
        return cast("Version", await self._send("GET", "version", RetryPolicy.READ, {}))

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._transport.aclose()

    async def _read_leases(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        query = dict(query or {})
        if self._consistency != "leader":
            query["consistency"] = self._consistency
        return await self._send("GET", path, RetryPolicy.READ, query)

    async def _read_page(self, query: Mapping[str, str]) -> LeasePage:
        page = await self._read_leases("v1/leases", query)
        _check(_are_leases(page.get("leases")) and _is_cursor(page.get("cursor")), "a page of leases")
        return cast("LeasePage", page)

    async def _send(self, method: str, path: str, policy: RetryPolicy, query: Mapping[str, str]) -> dict[str, Any]:
        return (await self._transport.send(Call(method, path, policy, query), self._budget)).answer

    async def __aenter__(self) -> Client:
        """Returns the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all connections."""
        await self.aclose()


def _check(is_valid: bool, expected: str) -> None:
    """Raises `Unknown` if an answer does not have the shape that the API promises."""
    if not is_valid:
        raise Unknown(f"the answer is invalid: expected {expected}")


def _is_lease(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("token"), str)


def _are_leases(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_lease, value))


def _is_cursor(value: Any) -> bool:
    return value is None or isinstance(value, str)
