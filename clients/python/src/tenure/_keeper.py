"""The keeper of a manager: it renews the held leases and detects losses."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._calls import Calls, certain_time
from ._errors import TenureError
from ._grant import CheckAt
from ._hold import Hold, RenewNow
from ._retry import RetryBudget
from .states import Loss

if TYPE_CHECKING:
    from ._clock import Clock
    from .api import RenewResult

log = logging.getLogger("tenure")

# Longest time between two checks while a lease is held, in seconds. Timers stop while the machine is suspended and
# deadlines do not, so the keeper must read the clock often.
CHECK_INTERVAL = 0.1
# Shortest timeout of a renewal, for very short ttls.
MIN_RENEWAL_TIMEOUT = 0.05
MAX_RENEW_ITEMS = 10_000
# The server accepts 2 MiB. The rest is for the holder.
MAX_BATCH_BYTES = 2_000_000
# Bytes of one lease in a renewal, beside its name: field names, punctuation and the token.
ITEM_BYTES = 64


class Keeper:
    """One task that renews all held leases of a manager in batches."""

    def __init__(
        self,
        calls: Calls,
        holder: str,
        clock: Clock,
        operation_timeout: float,
        spawn: Callable[..., object],
        ended: Callable[[Hold], None],
    ) -> None:
        """`spawn` starts a task that the manager owns. `ended` receives each lease that the keeper no longer keeps."""
        self.held: dict[str, Hold] = {}
        self._calls = calls
        self._holder = holder
        self._clock = clock
        self._operation_timeout = operation_timeout
        self._spawn = spawn
        self._ended = ended
        self._wake = asyncio.Event()
        # The next checks. An entry counts only if its time is the `check_at` of its lease.
        self._checks: list[tuple[float, int, Hold]] = []
        self._numbers = itertools.count()

    def keep(self, hold: Hold) -> None:
        """Checks this held lease now, and from then on."""
        self.held[hold.name] = hold
        self._schedule(hold, -math.inf)
        self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        planned = math.inf
        while True:
            now = self._clock()
            next_check = self._check_due(now, max(now - planned, 0.0))
            pause = min(max(next_check - now, 0.0), CHECK_INTERVAL)
            # Without a held lease there is no planned check, so the next one cannot be late.
            planned = now + pause if self.held else math.inf
            await self._sleep(pause if self.held else None)

    async def _sleep(self, seconds: float | None) -> None:
        timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._wake.clear()

    def _check_due(self, now: float, late: float) -> float:
        """Checks the due leases and sends their renewals. Returns the time of the next check."""
        renewals: list[tuple[Hold, RenewNow]] = []
        while self._checks and self._checks[0][0] <= now:
            at, _, hold = heapq.heappop(self._checks)
            if at == hold.check_at:
                self._check(hold, now, late, renewals)
        if renewals:
            for hold in list(self.held.values()):
                if hold.grant is not None and hold.grant.can_renew_early(now):
                    hold.grant.next_renewal = min(hold.grant.next_renewal, now)
                    self._check(hold, now, late, renewals)
            for batch in batches(renewals):
                self._spawn(self._renew(batch))
        while self._checks and self._checks[0][0] != self._checks[0][2].check_at:
            heapq.heappop(self._checks)
        return self._checks[0][0] if self._checks else math.inf

    def _check(self, hold: Hold, now: float, late: float, renewals: list[tuple[Hold, RenewNow]]) -> None:
        action = hold.next_action(now, late)
        if isinstance(action, RenewNow):
            renewals.append((hold, action))
            # The deadline stays in force during the renewal.
            action = hold.next_action(now, late)
        if hold.grant is None:
            self._drop(hold)
        self._schedule(hold, action.at if isinstance(action, CheckAt) else math.inf)

    def _schedule(self, hold: Hold, at: float) -> None:
        hold.check_at = at
        if at < math.inf:
            heapq.heappush(self._checks, (at, next(self._numbers), hold))

    async def _renew(self, renewals: list[tuple[Hold, RenewNow]]) -> None:
        # This reading comes before the request: the cluster starts the ttl later.
        sent = self._clock()
        shortest = min(renewal.ttl for _, renewal in renewals)
        most = max(self._operation_timeout, MIN_RENEWAL_TIMEOUT)
        total = min(max(shortest / 3, MIN_RENEWAL_TIMEOUT), most)
        batch = [(hold.name, renewal.token) for hold, renewal in renewals]
        results: list[RenewResult] | None = None
        try:
            results = await self._calls.renew(self._holder, batch, RetryBudget.within(total))
        except TenureError as error:
            log.debug("a renewal of %d leases failed: %s", len(batch), error)
        except Exception:
            # A fault here must not end the renewals.
            log.exception("a renewal of %d leases failed", len(batch))
        now = self._clock()
        for index, (hold, renewal) in enumerate(renewals):
            if results is None:
                hold.renewal_failed(renewal.token, now)
            else:
                apply_result(hold, renewal.token, results[index], sent, now)
            if hold.grant is not None:
                self._schedule(hold, -math.inf)
            else:
                self._drop(hold)
        self._wake.set()

    def _drop(self, hold: Hold) -> None:
        if self.held.get(hold.name) is hold:
            self._ended(hold)
            del self.held[hold.name]


def batches(renewals: list[tuple[Hold, RenewNow]]) -> list[list[tuple[Hold, RenewNow]]]:
    """Splits renewals into requests that the server accepts."""
    split: list[list[tuple[Hold, RenewNow]]] = []
    left = 0
    for renewal in renewals:
        needed = len(renewal[0].name) + ITEM_BYTES
        if not split or left < needed or len(split[-1]) == MAX_RENEW_ITEMS:
            split.append([])
            left = MAX_BATCH_BYTES
        split[-1].append(renewal)
        left -= needed
    return split


def apply_result(hold: Hold, token: int, result: RenewResult, sent: float, now: float) -> None:
    """Applies the result of one renewal."""
    try:
        lease, problem = result.get("lease"), result.get("problem")
        if lease:
            hold.renewed(token, certain_time(lease), sent, now)
            return
        why = problem.get("why") if problem else None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        # The answer does not say whether the grant is in force.
        hold.renewal_failed(token, now)
        return
    if why:
        hold.renewal_refused(token, Loss.from_api(why), now)
    else:
        hold.renewal_failed(token, now)
