"""The attempts of one request, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from scripted import in_virtual_time, problem
from tenure import Refused, TenureError, Unavailable, Unknown
from tenure._retry import (
    FIRST_PAUSE,
    LAST_PAUSE,
    Attempt,
    AttemptContext,
    Done,
    MaybeDone,
    NotDone,
    RefusedBy,
    ResolvedAnswer,
    RetryBudget,
    RetryPolicy,
    attempts,
    classify_problem,
)

Attempter = Callable[[AttemptContext], Awaitable[Attempt]]

HELD = RefusedBy(problem("held", 409).body)


def run(policy: RetryPolicy, total: float, attempt: Attempter, nodes: int = 3, wait: float = 0.0) -> ResolvedAnswer:
    return in_virtual_time(attempts(policy, RetryBudget.within(total), wait, nodes, attempt))


def scripted(*results: Attempt) -> Attempter:
    async def attempt(context: AttemptContext) -> Attempt:
        return results[min(context.number, len(results) - 1)]

    return attempt


def error(policy: RetryPolicy, *results: Attempt) -> TenureError:
    with pytest.raises(TenureError) as caught:
        run(policy, 5.0, scripted(*results))
    return caught.value


def test_codes_map_to_attempt_results() -> None:
    def kind(code: str, status: int) -> type:
        return type(classify_problem(problem(code, status).body, "node"))

    for code in ("no_leader", "not_ready", "shutting_down", "too_busy", "failed", "not_leader"):
        assert kind(code, 503) is NotDone, code
    for code in ("outcome_unknown", "internal"):
        assert kind(code, 504) is MaybeDone, code
    for code in ("held", "lost", "queue_full", "not_found", "invalid"):
        assert kind(code, 409) is RefusedBy, code
    assert kind("unsupported", 501) is RefusedBy
    assert kind("code_of_a_newer_server", 500) is MaybeDone
    assert kind("code_of_a_newer_server", 499) is RefusedBy


def test_attempt_takes_two_fifths_and_at_most_2_s() -> None:
    limits = [RetryBudget.within(total).attempt for total in (0.5, 5.0, 60.0)]
    assert limits == pytest.approx([0.2, 2.0, 2.0])


def test_refusal_after_an_ambiguous_attempt_is_unknown() -> None:
    for policy in (RetryPolicy.CLAIM, RetryPolicy.RELEASE):
        unknown = error(policy, MaybeDone("no answer"), HELD)
        assert isinstance(unknown, Unknown)
        assert (unknown.why, unknown.last) == ("no answer", HELD.problem)
        assert isinstance(error(policy, NotDone("no leader"), HELD), Refused)


def test_refusal_resolves_a_renewal_and_a_read() -> None:
    for policy in (RetryPolicy.RENEWAL, RetryPolicy.READ):
        assert isinstance(error(policy, MaybeDone("no answer"), HELD), Refused)


def test_grant_after_an_ambiguous_attempt_is_done() -> None:
    resolved = run(RetryPolicy.CLAIM, 5.0, scripted(MaybeDone("no answer"), Done({"a": 1})))
    assert resolved == ResolvedAnswer({"a": 1}, "no answer")


def test_hand_over_is_not_repeated_after_a_lost_answer() -> None:
    assert isinstance(error(RetryPolicy.NEVER, MaybeDone("no answer"), Done({})), Unknown)
    assert run(RetryPolicy.NEVER, 5.0, scripted(NotDone("down"), Done({}))).answer == {}


def test_unavailable_names_the_last_error_of_each_node() -> None:
    async def attempt(context: AttemptContext) -> Attempt:
        match context.number % 3:
            case 0:
                return NotDone("a: starting" if context.number == 0 else "a: no leader")
            case 1:
                return MaybeDone("b: no answer")
        return NotDone("c: refused")

    with pytest.raises(Unavailable) as caught:
        run(RetryPolicy.READ, 2.0, attempt)
    assert caught.value.why == "a: no leader; b: no answer; c: refused"


def test_attempt_starts_only_with_its_full_time() -> None:
    begun = []

    async def attempt(context: AttemptContext) -> Attempt:
        begun.append(context)
        await asyncio.sleep(context.limit - 0.001)
        return NotDone("no leader")

    with pytest.raises(Unavailable):
        run(RetryPolicy.CLAIM, 0.5, attempt)
    assert len(begun) == 2
    assert all(context.elapsed + context.limit <= 0.5 for context in begun)


def test_pause_grows_after_each_round() -> None:
    times = []

    async def attempt(context: AttemptContext) -> Attempt:
        times.append(context.elapsed)
        return NotDone("no leader")

    with pytest.raises(Unavailable):
        run(RetryPolicy.READ, 10.0, attempt)
    rounds = times[::3]
    assert times[: len(rounds) * 3 : 3] == times[2::3][: len(rounds)]
    pause = FIRST_PAUSE
    for before, after in itertools.pairwise(rounds):
        assert pause / 2 - 1e-9 <= after - before <= pause + 1e-9
        pause = min(pause * 2, LAST_PAUSE)


def test_renewal_accepts_an_answer_after_the_attempt_limit() -> None:
    async def slow(context: AttemptContext) -> Attempt:
        await asyncio.sleep(1.0)
        return Done({"number": context.number})

    assert run(RetryPolicy.RENEWAL, 1.5, slow).answer == {"number": 0}


def test_renewal_tries_another_node_while_one_hangs() -> None:
    async def attempt(context: AttemptContext) -> Attempt:
        if context.number == 0:
            await asyncio.sleep(context.limit)
            return MaybeDone("hangs")
        return NotDone("no leader") if context.number == 1 else Done({"number": context.number})

    assert run(RetryPolicy.RENEWAL, 2.0, attempt).answer == {"number": 2}


def test_wait_continues_at_the_next_node() -> None:
    async def attempt(context: AttemptContext) -> Attempt:
        assert context.elapsed + context.limit <= 65.0
        if context.number < 3:
            await asyncio.sleep(19.0)
            return MaybeDone("its node is gone")
        return Done({"number": context.number})

    assert run(RetryPolicy.CLAIM, 5.0, attempt, wait=60.0) == ResolvedAnswer({"number": 3}, "its node is gone")


def test_cancelled_request_cancels_its_attempt() -> None:
    ended = []

    async def attempt(_: AttemptContext) -> Attempt:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(True)
        return NotDone("late")

    async def cancel() -> None:
        request = asyncio.ensure_future(attempts(RetryPolicy.CLAIM, RetryBudget.within(5.0), 60.0, 3, attempt))
        await asyncio.sleep(1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    in_virtual_time(cancel())
    assert ended == [True]
