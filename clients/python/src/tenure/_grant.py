"""One grant of a lease: its deadline and its renewal times. All times are seconds of the manager's clock.

This module has no clock, no task and no I/O.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TypeAlias

from ._options import LeaseOptions
from .states import HoldState, Loss

INFINITE_CHECK = 10.0
"""Time between two renewals of an infinite lease. They detect a revoke."""
SHORTEST_RETRY = 0.02
LONGEST_RETRY = 1.0


@dataclass(frozen=True)
class Nothing:
    """No timer: the keeper waits for an answer."""


@dataclass(frozen=True)
class CheckAt:
    """Check again at this time."""

    at: float


@dataclass(frozen=True)
class Renew:
    """Send a renewal now."""


@dataclass(frozen=True)
class Stop:
    """The keeper no longer renews the grant. It checks again at `at`."""

    at: float
    left: float
    why: Loss
    is_stopping: bool
    """The grace has begun."""


@dataclass(frozen=True)
class Expired:
    """The deadline has passed."""

    why: Loss


Action: TypeAlias = Nothing | CheckAt | Renew | Stop | Expired


class Grant:
    """The grant of a held lease."""

    def __init__(
        self, token: int, ttl: float, sent: float, drift_permille: int, options: LeaseOptions | None = None
    ) -> None:
        """A grant whose claim was sent at `sent`. `ttl` is `math.inf` for an infinite lease."""
        self.token = token
        # Later handles can change the options of the lease, but not those of its current grant.
        self.options = options or LeaseOptions()
        self.ttl = ttl
        self.since = sent
        self.deadline = deadline(ttl, sent, drift_permille)
        self.next_renewal = next_renewal(ttl, sent)
        self.is_renewing = False
        self.failures = 0
        self.ending: Loss | None = None
        self.is_paused = False
        """A hand-over is in progress: another holder may have the lease already."""
        self.end: HoldState | None = None
        """The state in which the grant ended."""

    def end_at_longest_hold(self, now: float) -> None:
        """Ends a new grant after its longest hold, if the default ttl of the cluster is above that."""
        # An infinite lease ignores the longest hold.
        if self.ttl < math.inf and now + self.options.longest_hold < self.deadline:
            self.deadline, self.ending = now + self.options.longest_hold, Loss.HELD_LONGEST

    def renew(self, ttl: float, sent: float, drift_permille: int) -> None:
        """Applies a renewal that was sent at `sent`. It never moves the deadline backwards."""
        self.ttl = ttl
        self.failures = 0
        self.deadline = max(deadline(ttl, sent, drift_permille), self.deadline)
        self.next_renewal = next_renewal(ttl, sent)

    def retry(self, now: float) -> None:
        """Schedules another renewal after one that failed at `now`."""
        self.failures += 1
        self.next_renewal = now + min(max(self.ttl / 20, SHORTEST_RETRY), LONGEST_RETRY)

    def is_expired(self, now: float) -> bool:
        """Whether the deadline has passed."""
        return self.deadline <= now

    def is_held(self, now: float) -> bool:
        """Whether this grant is held at `now`. Other threads call it without a lock."""
        return self.end is None and not self.is_paused and now < self.deadline

    def left(self, now: float) -> float:
        """Seconds to the deadline."""
        return max(self.deadline - now, 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether a renewal or a hand-over is in progress."""
        return self.is_renewing or self.is_paused

    def can_renew_early(self, now: float) -> bool:
        """Whether a batch that is sent at `now` can include this grant, although its renewal is not due yet."""
        soon = renewal_interval(self.ttl) / 2
        return not self.is_busy and self.ending is None and now + soon >= self.next_renewal

    def next_action(self, now: float, was_not_running: bool, grace: float) -> Action:
        """The next action at `now`. Ends the renewals when only the grace remains."""
        if self.deadline == math.inf:
            if self.is_busy:
                return Nothing()
            return CheckAt(self.next_renewal) if now < self.next_renewal else Renew()
        if self.is_expired(now):
            return Expired(Loss.SUSPENDED if was_not_running else self.ending or Loss.UNREACHABLE)
        stop = self.deadline - min(grace, self.ttl / 2, self.options.longest_hold / 2)
        is_stopping = now >= stop
        if is_stopping and self.ending is None:
            self.ending = Loss.UNREACHABLE
        if self.ending is not None:
            return Stop(self.deadline if is_stopping else stop, self.deadline - now, self.ending, is_stopping)
        if self.is_busy:
            return CheckAt(stop)
        return CheckAt(min(self.next_renewal, stop)) if now < self.next_renewal else Renew()


def deadline(ttl: float, sent: float, drift_permille: int) -> float:
    """The end of a grant for its holder: earlier than `sent + ttl` by the drift margin."""
    return sent + ttl * (1 - drift_permille / 1000)


def renewal_interval(ttl: float) -> float:
    """A third of the ttl."""
    return INFINITE_CHECK if ttl == math.inf else ttl / 3


def next_renewal(ttl: float, sent: float) -> float:
    """A third of the ttl after `sent`, with 10 % jitter, so that holders do not renew at the same moment."""
    return sent + renewal_interval(ttl) * random.uniform(0.9, 1.1)
