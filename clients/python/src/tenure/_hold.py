"""The local state of one lease: its grant, deadline, options and listeners. No method here sends a request or waits."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import states
from ._grant import CheckAt, Expired, Grant, Nothing, Renew, Stop
from .states import HoldState, Loss

if TYPE_CHECKING:
    from ._guard import Guard
    from ._options import LeaseOptions

log = logging.getLogger("tenure")

# A keeper whose check is this late was suspended or starved, in seconds.
SUSPEND_THRESHOLD = 0.25
NOT_HELD = -math.inf


@dataclass(frozen=True)
class RenewNow:
    """The keeper renews this grant now."""

    token: int
    ttl: float


class Hold:
    """One lease of a manager. All handles with its name share it."""

    def __init__(self, name: str, holder: str, options: LeaseOptions, drift_permille: int) -> None:
        """Creates a lease that is not held."""
        self.name = name
        self.holder = holder
        self.options = options
        self.drift_permille = drift_permille
        # Other threads read the deadline without a lock: it is one attribute.
        self.deadline = NOT_HELD
        # Serializes acquires, releases and hand-overs.
        self.operation = asyncio.Lock()
        # Set while a claim is in flight, perhaps for its whole wait in the queue. It has the operation lock.
        self.claiming = asyncio.Event()
        # Guards of one manager exclude each other here: to the cluster they are one holder.
        self.exclusive = asyncio.Lock()
        self.guard: Guard | None = None
        self.grant: Grant | None = None
        self.state: HoldState = states.Idle()
        # The cluster may have granted a claim whose answer did not arrive.
        self.is_ambiguous = False
        # A claim was abandoned before the cluster knew it. Until this time, a read without that claim proves nothing.
        self.untraced_until = NOT_HELD
        # A grant that ended by the local clock alone, or whose release failed. The cluster may still count it as held.
        self.unreleased_token: int | None = None
        # A grant that was not released, because its work did not end in time. Only a new acquire releases it.
        self.undrained_token: int | None = None
        # Resolves an abandoned claim. It has the operation lock until its end.
        self.resolver: asyncio.Task[None] | None = None
        # When the keeper checks this lease again.
        self.check_at = math.inf
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended.set()
        self._stopping.set()
        self._listeners: list[Callable[[HoldState], None]] = []

    def is_held(self, now: float) -> bool:
        """Whether the lease is held at `now`, by local knowledge."""
        return now < self.deadline

    def remaining(self, now: float) -> float:
        """Seconds to the deadline; 0 if the lease is not held, `math.inf` for an infinite ttl."""
        return max(self.deadline - now, 0.0)

    def token(self, now: float) -> int | None:
        """The token, if the lease is held at `now`."""
        grant = self.grant
        # Another thread can read this during a new acquire: the deadline must be that of the same grant.
        return grant.token if grant is not None and grant.is_held(now) else None

    @property
    def granted_token(self) -> int | None:
        """The token of the current grant, also if its deadline has passed and the keeper has not ended it yet."""
        return self.grant.token if self.grant else None

    @property
    def ended(self) -> asyncio.Event:
        """Set when the current grant ends, and while there is none."""
        return self._ended

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the manager stops renewing the current grant, and while there is none."""
        return self._stopping

    @property
    def token_before_claim(self) -> int | None:
        """The token that the cluster would return for another claim, although the work under it may still run."""
        return self.unreleased_token or self.undrained_token

    @property
    def failed_release(self) -> int | None:
        """The token of a grant that this process gave up and whose release failed."""
        is_released = isinstance(self.state, states.Released) and self.state.token == self.unreleased_token
        return self.unreleased_token if is_released else None

    @property
    def is_unresolved(self) -> bool:
        """Whether the cluster may count a claim or a grant that this process does not hold."""
        return self.is_ambiguous or self.token_before_claim is not None

    def forget_unreleased_token(self, token: int) -> None:
        """The cluster does not count this grant as held."""
        if self.unreleased_token == token:
            self.unreleased_token = None
        if self.undrained_token == token:
            self.undrained_token = None

    def granted(self, token: int, ttl: float, sent: float, now: float, options: LeaseOptions | None = None) -> None:
        """Starts the grant of a claim that was sent at `sent` with these options. Default: those of the lease now."""
        self.is_ambiguous = False
        self.untraced_until = NOT_HELD
        options = options or self.options
        if options.ttl is None and options.grace > ttl / 2:
            log.warning("lease %s: the grace is above half the ttl; the client uses %.3g s", self.name, ttl / 2)
        self.grant = Grant(token, ttl, sent, self.drift_permille, options)
        self.grant.end_at_longest_hold(now)
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()
        self.deadline = self.grant.deadline
        self._set_state(states.Held(token, self.grant.left(now)))

    def renewed(self, token: int, ttl: float, sent: float, now: float) -> None:
        """Applies a successful renewal that was sent at `sent`."""
        grant = self.grant
        if grant is None or grant.token != token:
            return
        grant.is_renewing = False
        if grant.is_expired(now) or grant.ending is not None or grant.is_paused:
            # Too late: a caller of `is_held` or a listener may have seen the end of the grant already.
            return
        grant.renew(ttl, sent, self.drift_permille)
        self.deadline = grant.deadline
        self._set_state(states.Held(token, grant.left(now)))

    def renewal_failed(self, token: int, now: float) -> None:
        """Records a renewal that had no conclusive answer."""
        grant = self.grant
        if grant is None or grant.token != token:
            return
        grant.is_renewing = False
        grant.retry(now)
        if grant.ending is None and not grant.is_expired(now):
            self._set_state(states.AtRisk(token, grant.left(now), grant.failures))

    def is_being_handed_over(self, token: int) -> bool:
        """Whether a hand-over of this grant is in progress."""
        return self.grant is not None and self.grant.token == token and self.grant.is_paused

    def renewal_refused(self, token: int, why: Loss, now: float) -> None:
        """Applies the refusal of a renewal."""
        grant = self.grant
        if why is Loss.HANDED_OVER and grant is not None and grant.token == token and grant.is_paused:
            # The hand-over in progress has succeeded, if it is that one. Its own answer decides.
            grant.is_renewing = False
            grant.retry(now)
        else:
            self.lose(token, why)

    def lose(self, token: int, why: Loss) -> None:
        """Ends the grant with this token as lost."""
        if self.grant is None or self.grant.token != token:
            return
        self.unreleased_token = token if why.is_by_own_clock else None
        log.warning("lease %s with token %d was lost: %s", self.name, token, why.explanation)
        self._end(states.Lost(token, why))

    def end_unheld_grant(self, now: float) -> None:
        """Ends a grant whose deadline has passed at `now`: the keeper has not seen that yet.

        Otherwise, a claim could replace the grant without a signal to its work, and with its token.
        """
        # During a hand-over the grant is not held, and not lost.
        if self.grant is not None and self.grant.is_expired(now):
            self.lose(self.grant.token, self.grant.ending or Loss.UNREACHABLE)

    def give_up(self) -> int | None:
        """Ends the grant locally. The caller sends the release to the cluster after that."""
        if self.grant is None:
            return None
        token = self.grant.token
        # Work that releases its own lease goes on.
        is_own = self.guard is not None and self.guard.task is asyncio.current_task()
        self._end(states.Released(token), interrupts=not is_own)
        return token

    def pause(self, now: float) -> int | None:
        """Marks the lease as not held during a hand-over. Returns `None` if it is not held."""
        if self.grant is None or not self.is_held(now):
            return None
        self.grant.is_paused = True
        self.deadline = NOT_HELD
        return self.grant.token

    def resume(self) -> None:
        """Restores the grant after a refused hand-over."""
        if self.grant is not None:
            self.grant.is_paused = False
            self.deadline = self.grant.deadline

    def next_action(self, now: float, late: float) -> Nothing | CheckAt | RenewNow:
        """The next action of the keeper. `late` is the delay of this check behind its planned time."""
        grant = self.grant
        if grant is None:
            return Nothing()
        match grant.next_action(now, late >= SUSPEND_THRESHOLD, grant.options.grace):
            case Expired(why):
                self.lose(grant.token, why)
                return Nothing()
            case Stop(at, left, why, is_stopping):
                self._stop(grant.token, left, why, is_stopping)
                return CheckAt(at)
            case Renew():
                grant.ending = self._renewal_stop_reason(grant, now)
                if grant.ending is not None:
                    return CheckAt(now)
                grant.is_renewing = True
                return RenewNow(grant.token, grant.ttl)
            case action:
                return action

    def add_listener(self, call: Callable[[HoldState], None]) -> Callable[[], None]:
        """Calls `call` with each new state, from the event loop. Returns a function that ends this."""

        def subscribed(state: HoldState) -> None:
            # The subscription can end after a change, and before this call.
            if subscribed in self._listeners:
                call(state)

        # The wrapper has an identity of its own: one function can be subscribed twice.
        self._listeners.append(subscribed)

        def remove() -> None:
            if subscribed in self._listeners:
                self._listeners.remove(subscribed)

        return remove

    def _renewal_stop_reason(self, grant: Grant, now: float) -> Loss | None:
        """Why the options forbid a renewal, if they do. An infinite lease ignores them."""
        if grant.ttl == math.inf:
            return None
        if now + grant.ttl > grant.since + grant.options.longest_hold:
            return Loss.HELD_LONGEST
        if grant.options.renew_while is None:
            return None
        try:
            goes_on = grant.options.renew_while()
        except (Exception, asyncio.CancelledError):
            # A check that reads a cancelled task raises `CancelledError`. It must not end the keeper.
            log.exception("lease %s: renew_while failed", self.name)
            goes_on = False
        return None if goes_on else Loss.STALLED

    def _stop(self, token: int, left: float, why: Loss, is_stopping: bool) -> None:
        # The state changes before the signal: a task that the signal wakes reads `Ending`.
        if not isinstance(self.state, states.Ending):
            self._set_state(states.Ending(token, left, why))
        if is_stopping and not self._stopping.is_set():
            self._stopping.set()
            self._interrupt_guard()

    def _end(self, state: HoldState, interrupts: bool = True) -> None:
        if self.grant is not None:
            self.grant.end = state
        self.grant = None
        self.deadline = NOT_HELD
        self._set_state(state)
        self._stopping.set()
        self._ended.set()
        if interrupts:
            self._interrupt_guard()

    def _interrupt_guard(self) -> None:
        if self.guard is not None and self.guard.end_work is not None:
            self.guard.end_work()

    def _set_state(self, state: HoldState) -> None:
        self.state = state
        if not self._listeners:
            return
        loop = asyncio.get_running_loop()
        for listener in list(self._listeners):
            loop.call_soon(listener, state)
