"""The deadline and the renewals of one grant."""

from __future__ import annotations

import json
import math

import pytest

from tenure._grant import CheckAt, Expired, Grant, Nothing, Renew, Stop
from tenure._hold import Hold, RenewNow
from tenure._keeper import batches
from tenure._options import LeaseOptions
from tenure.states import Loss


def grant(ttl: float = 3.0, sent: float = 10.0) -> Grant:
    return Grant(7, ttl, sent, 10)


def test_deadline_is_before_the_request_plus_ttl_minus_drift() -> None:
    held = grant()
    assert held.left(10.0) == pytest.approx(2.97)
    held.renew(3.0, 11.0, 10)
    assert held.left(11.0) == pytest.approx(2.97)
    held.renew(0.1, 11.001, 10)
    assert held.left(11.0) == pytest.approx(2.97), "a shorter ttl does not shorten the grant"


def test_renewal_is_due_after_a_third_of_the_ttl() -> None:
    for _ in range(100):
        held = grant()
        assert 10.9 <= held.next_renewal <= 11.1
        assert held.next_action(10.899, False, 0) == CheckAt(held.next_renewal)
        assert held.next_action(11.101, False, 0) == Renew()
    held.is_renewing = True
    assert held.next_action(11.102, False, 0) == CheckAt(held.deadline), "the deadline stays in force"


def test_renewals_of_many_holders_are_spread() -> None:
    renewals = [grant().next_renewal for _ in range(200)]
    assert min(renewals) < 10.95
    assert max(renewals) > 11.05


def test_failed_renewal_is_retried_until_the_grace() -> None:
    held = grant()
    held.retry(12.0)
    assert held.next_action(12.0, False, 0.5) == CheckAt(12.15)
    assert held.next_action(12.15, False, 0.5) == Renew()
    action = held.next_action(12.47, False, 0.5)
    assert isinstance(action, Stop)
    assert (action.at, action.why, action.is_stopping) == (held.deadline, Loss.UNREACHABLE, True)
    assert action.left == pytest.approx(0.5)
    assert held.next_action(12.97, False, 0.5) == Expired(Loss.UNREACHABLE)


@pytest.mark.parametrize("grace", [1.5, 1.501, 3.0, math.inf])
def test_grace_is_at_most_half_the_ttl(grace: float) -> None:
    assert grant().next_action(11.469, False, grace) == Renew()
    assert isinstance(grant().next_action(11.4701, False, grace), Stop)


def test_deadline_missed_while_not_running_is_suspended() -> None:
    assert grant().next_action(12.98, True, 0) == Expired(Loss.SUSPENDED)
    stalled = grant()
    stalled.ending = Loss.STALLED
    assert stalled.next_action(12.98, False, 0) == Expired(Loss.STALLED)


def test_infinite_grant_has_no_deadline_and_is_renewed() -> None:
    held = grant(math.inf, 0.0)
    assert (held.left(1.0), held.is_expired(1e12)) == (math.inf, False)
    assert isinstance(held.next_action(8.0, False, 0), CheckAt)
    assert held.next_action(11.001, False, 0) == Renew()
    held.is_renewing = True
    assert held.next_action(11.001, False, 0) == Nothing()


def test_grants_renew_together_up_to_a_sixth_of_the_ttl_early() -> None:
    held = grant()
    held.next_renewal = 11.0
    assert (held.can_renew_early(10.499), held.can_renew_early(10.5)) == (False, True)
    held.is_paused = True
    assert not held.can_renew_early(10.5)
    held.is_paused, held.ending = False, Loss.STALLED
    assert not held.can_renew_early(10.5)


@pytest.mark.parametrize(("ttl", "pause"), [(0.1, 0.02), (3.0, 0.15), (60.0, 1.0), (math.inf, 1.0)])
def test_retry_comes_after_a_twentieth_of_the_ttl(ttl: float, pause: float) -> None:
    held = grant(ttl)
    held.retry(11.0)
    assert held.next_renewal - 11.0 == pytest.approx(pause)


def test_late_renewal_does_not_restore_the_lease() -> None:
    hold = Hold("job", "me", LeaseOptions(), 10)
    hold.granted(7, 3.0, 10.0, 10.0)
    hold.renewed(7, 3.0, 12.5, 13.0)
    assert not hold.is_held(13.0), "the keeper has not seen the deadline yet"
    hold.granted(8, 3.0, 20.0, 20.0)
    assert hold.grant is not None
    hold.grant.ending = Loss.STALLED
    hold.renewed(8, 3.0, 22.5, 22.6)
    assert hold.remaining(22.6) == pytest.approx(0.37), "the end was announced"


def test_largest_batches_fit_into_a_request() -> None:
    for length in (1, 200):
        hold = Hold("n" * length, "holder", LeaseOptions(), 10)
        split = batches([(hold, RenewNow(2**63 - 1, 30.0))] * 20_000)
        assert sum(len(batch) for batch in split) == 20_000
        for batch in split:
            leases = [{"name": hold.name, "token": str(renewal.token)} for hold, renewal in batch]
            assert len(leases) <= 10_000
            assert len(json.dumps({"holder": '"' * 200, "leases": leases})) <= 2 * 1024 * 1024
        assert len(split) == (2 if length == 1 else 3)


def test_token_and_deadline_are_of_one_grant() -> None:
    hold = Hold("job", "me", LeaseOptions(), 10)
    hold.granted(7, 3.0, 10.0, 10.0)
    assert hold.token(12.0) == 7
    # Another thread has read the old grant, and then sees the deadline of a new one.
    hold.deadline = 23.0
    assert hold.token(20.0) is None
