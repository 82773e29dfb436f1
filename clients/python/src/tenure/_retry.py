"""The attempts of one request, and their combined result."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from ._errors import Refused, ShutDown, TenureError, Unavailable, Unknown

if TYPE_CHECKING:
    from .api import Problem

# Bounds of the pause after a round over all nodes, in seconds. It doubles with each round, and jitter halves it at most.
FIRST_PAUSE = 0.025
LAST_PAUSE = 0.4
# Longest single attempt, without its wait for a lease.
LONGEST_ATTEMPT = 2.0


class RetryPolicy(Enum):
    """Whether a request is sent again after a lost answer, and whether a later answer resolves the outcome."""

    READ = auto()
    """Retried. Its outcome is never unknown, because it changes nothing."""
    RENEWAL = auto()
    """Retried. A later answer resolves it, because a lost lease stays lost. A slow attempt continues in parallel with
    the next one: slow answers must not cost a lease that the cluster has renewed."""
    CLAIM = auto()
    """A claim or an update of metadata: retried, because it is idempotent. A later grant resolves it. A later refusal
    does not, because the first attempt may still be applied."""
    RELEASE = auto()
    """Retried, because its token names one grant. `released: true` resolves it. `released: false` after a lost answer
    does not, because the first attempt may have released the lease."""
    NEVER = auto()
    """A hand-over or a revoke: not retried after a lost answer, because a second one could hit the next holder."""

    @property
    def uses_remaining_time(self) -> bool:
        """Whether an attempt may use all remaining time: no retry needs a share of it, or attempts run in parallel."""
        return self in (RetryPolicy.NEVER, RetryPolicy.RENEWAL)


@dataclass(frozen=True)
class RetryBudget:
    """The time limits of one request, in seconds."""

    total: float
    """The limit of all attempts together, without the wait for a lease. No attempt starts with less than its full
    time, so that the end of the budget does not cut off an answer."""
    attempt: float
    """The limit of one attempt, so that one silent node cannot use up the total."""

    @classmethod
    def within(cls, total: float) -> RetryBudget:
        """A budget with this total. One attempt has two fifths of it, at most 2 s."""
        return cls(total, min(total * 2 / 5, LONGEST_ATTEMPT))


@dataclass(frozen=True)
class Done:
    """The node answered with a success."""

    answer: dict[str, Any]


@dataclass(frozen=True)
class RefusedBy:
    """The cluster refused the request."""

    problem: Problem


@dataclass(frozen=True)
class NotDone:
    """Not applied. Another node, or a later attempt, may apply it."""

    why: str


@dataclass(frozen=True)
class MaybeDone:
    """The outcome of this attempt is unknown."""

    why: str


@dataclass(frozen=True)
class Closed:
    """Not sent: the client is closed."""


Attempt: TypeAlias = Done | RefusedBy | NotDone | MaybeDone | Closed


@dataclass(frozen=True)
class AttemptContext:
    """The number and the time limit of an attempt."""

    number: int
    """From 0."""
    elapsed: float
    """Since the start of the first attempt."""
    limit: float
    """The longest time of this attempt."""


@dataclass(frozen=True)
class ResolvedAnswer:
    """The answer to a request, and why an earlier attempt may have been applied, too."""

    answer: dict[str, Any]
    ambiguous: str | None


async def attempts(
    policy: RetryPolicy,
    budget: RetryBudget,
    wait: float,
    nodes: int,
    attempt: Callable[[AttemptContext], Awaitable[Attempt]],
) -> ResolvedAnswer:
    """Runs attempts until one of them resolves the request or the budget is used up.

    The attempts go to the `nodes` in turn. `wait` is the longest wait for a lease: it extends the limit of each attempt
    and the total.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    results = _Results(policy)
    in_flight: dict[asyncio.Future[Attempt], int] = {}
    pause = FIRST_PAUSE
    total = budget.total + wait

    def whole_attempt(elapsed: float) -> float:
        return budget.attempt + max(wait - elapsed, 0)

    try:
        for number in itertools.count():
            elapsed = clock() - began
            limit = max(total - elapsed, 0) if policy.uses_remaining_time else whole_attempt(elapsed)
            begun = asyncio.ensure_future(attempt(AttemptContext(number, elapsed, limit)))
            in_flight[begun] = number % nodes
            attempt_timeout = budget.attempt if policy is RetryPolicy.RENEWAL else None
            ended, _ = await asyncio.wait(in_flight, timeout=attempt_timeout, return_when=asyncio.FIRST_COMPLETED)
            if resolved := results.add_all(ended, in_flight):
                return resolved
            if ended and (number + 1) % nodes == 0:
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(pause * 2, LAST_PAUSE)
            elapsed = clock() - began
            needed = 0.0 if policy is RetryPolicy.NEVER else whole_attempt(elapsed)
            if elapsed + needed >= total:
                break
        while in_flight:
            ended, _ = await asyncio.wait(in_flight, return_when=asyncio.FIRST_COMPLETED)
            if resolved := results.add_all(ended, in_flight):
                return resolved
        raise results.error()
    finally:
        await cancel_all(in_flight)


async def cancel_all(tasks: dict[asyncio.Future[Attempt], int]) -> None:
    """Cancels the tasks and waits for their ends."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class _Results:
    """The combined result of the finished attempts."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        # Why an attempt may have been applied, if there is such an attempt.
        self.ambiguous: str | None = None
        # For each node, why its last attempt that was not applied failed.
        self.not_done: dict[int, str] = {}

    def add_all(
        self, ended: set[asyncio.Future[Attempt]], in_flight: dict[asyncio.Future[Attempt], int]
    ) -> ResolvedAnswer | None:
        """Adds the results of the ended attempts. A success counts before the others."""
        nodes = {task: in_flight.pop(task) for task in ended}
        by_success = sorted(ended, key=lambda task: not isinstance(task.result(), Done))
        for task in by_success:
            if resolved := self.add(nodes[task], task.result()):
                return resolved
        return None

    def add(self, node: int, result: Attempt) -> ResolvedAnswer | None:
        """Returns the answer, or raises the error, if this result resolves the request."""
        match result:
            case Done(answer):
                return ResolvedAnswer(answer, self.ambiguous)
            case RefusedBy(problem):
                raise refusal_error(self.policy, self.ambiguous, problem)
            case NotDone(why):
                self.not_done[node] = why
            case MaybeDone(why) if self.policy is RetryPolicy.READ:
                self.not_done[node] = why
            case MaybeDone(why) if self.policy is RetryPolicy.NEVER:
                raise Unknown(why)
            case MaybeDone(why):
                self.ambiguous = why
            case Closed():
                raise ShutDown if self.ambiguous is None else Unknown(self.ambiguous)
        return None

    def error(self) -> TenureError:
        """The error of a request that no attempt resolved."""
        if self.ambiguous is not None:
            return Unknown(self.ambiguous)
        reasons = [self.not_done[node] for node in sorted(self.not_done)]
        return Unavailable("; ".join(dict.fromkeys(reasons)))


_NOT_APPLIED = frozenset(["no_leader", "not_ready", "shutting_down", "too_busy", "failed", "not_leader"])
_MAYBE_APPLIED = frozenset(["outcome_unknown", "internal"])
_REFUSALS_OF_500 = frozenset(["unsupported"])


def classify_problem(problem: Problem, who: str) -> Attempt:
    """Whether the attempt was refused, not applied, or has an unknown outcome."""
    why = f"{who}: {problem['detail']}"
    code = problem["code"]
    if code in _NOT_APPLIED:
        return NotDone(why)
    if code in _MAYBE_APPLIED or (problem["status"] >= 500 and code not in _REFUSALS_OF_500):
        return MaybeDone(why)
    return RefusedBy(problem)


def refusal_error(policy: RetryPolicy, ambiguous: str | None, problem: Problem) -> TenureError:
    """After an attempt that may have been applied, a later refusal does not prove that it was not."""
    if ambiguous is not None and policy in (RetryPolicy.CLAIM, RetryPolicy.RELEASE):
        return Unknown(ambiguous, problem)
    return Refused(problem)
