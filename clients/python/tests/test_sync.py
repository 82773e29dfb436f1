"""The client without asyncio, against a real node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from nodes import Cluster
from tenure import LeaseLost, Loss, Refused, ShutDown
from tenure.sync import LeaseManager


@pytest.fixture
def manager(cluster: Cluster) -> Iterator[LeaseManager]:
    with LeaseManager(cluster.urls) as manager:
        yield manager


@pytest.fixture
def other(cluster: Cluster) -> Iterator[LeaseManager]:
    with LeaseManager(cluster.urls) as other:
        yield other


def test_body_has_the_lease_while_it_blocks(manager: LeaseManager, other: LeaseManager) -> None:
    with manager.lease("sync/held", ttl=1.5) as lease:
        token = lease.check_held()
        first = lease.state
        while lease.state is first:
            assert lease.is_held
        with pytest.raises(Refused) as caught:
            other.handle("sync/held").acquire()
        assert caught.value.holder == manager.holder
    assert not lease.is_held
    assert other.handle("sync/held").acquire() > token
    assert [held["name"] for held in manager.client.list("sync/held", states=["active"])] == ["sync/held"]


def test_loss_is_reported_and_raised(manager: LeaseManager, other: LeaseManager) -> None:
    reasons: list[Loss] = []
    lost = threading.Event()

    def record(reason: Loss) -> None:
        reasons.append(reason)
        lost.set()

    with pytest.raises(LeaseLost) as caught, manager.lease("sync/lost", ttl=6) as lease:
        lease.on_lost(record)
        assert other.client.revoke("sync/lost") == 1
        assert lost.wait(10)
        assert not lease.is_held
        lease.check_held()
    assert caught.value.why == Loss.REVOKED
    assert reasons == [Loss.REVOKED]
    with pytest.raises(LeaseLost), manager.lease("sync/lost", ttl=6) as lease:
        lost.clear()
        lease.on_lost(record)
        other.client.revoke("sync/lost")
        assert not lease.check()
        assert lost.wait(10)


def test_waiter_gets_the_lease(manager: LeaseManager, other: LeaseManager) -> None:
    got: list[int] = []
    lease = manager.handle("sync/queue", ttl=5)
    token = lease.acquire()
    thread = threading.Thread(target=lambda: got.append(other.handle("sync/queue", ttl=5).acquire(wait=10)))
    thread.start()
    while manager.client.queue("sync/queue")["total"] == 0:
        time.sleep(0.01)
    assert lease.hand_over() == other.holder
    thread.join()
    assert got[0] > token


def test_shutdown_waits_for_a_body_in_another_thread(manager: LeaseManager) -> None:
    entered, order = threading.Event(), []

    def work() -> None:
        with pytest.raises(LeaseLost), manager.lease("sync/drained", ttl=5) as lease:
            entered.set()
            assert lease.is_held
            time.sleep(0.2)
            order.append("end of the work")

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(5)
    assert manager.release_all() == []
    order.append("released")
    thread.join()
    assert order == ["end of the work", "released"]


def test_leader_resigns_at_the_end_of_its_with(manager: LeaseManager, other: LeaseManager) -> None:
    election, rival = manager.election("sync/leader", ttl=5), other.election("sync/leader")
    with election.campaign() as leadership:
        assert leadership.is_leader
        assert leadership.establish(lambda token: token) == leadership.token
        observed = rival.observe()
        leader = next(observed)
        assert leader is not None
        assert (leader.token, leader.is_established) == (leadership.token, True)
    assert next(observed) is None
    observed.close()  # type: ignore[attr-defined]
    assert rival.current() is None


def test_watch_iterates_over_transitions(manager: LeaseManager) -> None:
    handle = manager.handle("sync/watched", ttl=5)
    handle.acquire()
    index = manager.client.history("sync/watched")["transitions"][-1]["index"]
    handle.release()
    events = manager.client.watch("sync/watched", after=str(index))
    assert events.position == str(index)
    assert next(events)["event"] == "released"
    position = events.position
    assert position != str(index)
    handle.acquire()
    handle.release()
    with manager.client.watch("sync/watched", after=position) as resumed:
        assert [next(resumed)["event"], next(resumed)["event"]] == ["granted", "released"]
    assert next(events)["event"] == "granted"
    events.close()
    assert next(events)["event"] == "released", "a closed watch continues after its position"
    events.close()


def test_manager_that_is_shut_down_refuses_calls(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    lease = manager.handle("sync/down")
    lease.acquire()
    assert manager.shutdown() == []
    with pytest.raises(ShutDown):
        lease.acquire()
    assert not lease.is_held
    with pytest.raises(ValueError, match="drift_permille"):
        LeaseManager(cluster.urls, drift_permille=501)


def test_second_shutdown_returns_the_result_of_the_first(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    with pytest.raises(LeaseLost), manager.lease("sync/twice", ttl=1, drain=0.05):
        # The shutdown waits for the end of this body, and then gives up.
        left = manager.shutdown()
        assert [name for name, _ in left] == ["sync/twice"]
        assert manager.shutdown() == left


def test_lease_of_a_body_is_tied_to_its_grant(manager: LeaseManager) -> None:
    with pytest.raises(LeaseLost), manager.lease("sync/tied", ttl=6) as old:
        manager.client.revoke("sync/tied")
        assert not old.check()
    with manager.lease("sync/tied", ttl=5) as new:
        assert new.is_held
        assert (old.is_held, old.release()) == (False, False)
        assert old.token < new.token
        for call in (old.check_held, old.acquire):
            with pytest.raises(LeaseLost) as caught:
                call()
            assert caught.value.token == old.token
        assert new.is_held


def in_thread(work: Callable[[], object]) -> Callable[[], BaseException | None]:
    """Starts `work` in a thread. Returns a function that waits for its end and returns its error."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the test compares it
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def ended() -> BaseException | None:
        thread.join(10)
        assert not thread.is_alive(), "the thread hangs"
        return errors[0] if errors else None

    return ended


def test_shutdown_ends_the_iterations_of_other_threads(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    observed, watched = threading.Event(), threading.Event()
    lease = manager.handle("sync/iterated", ttl=5)
    lease.acquire()
    index = manager.client.history("sync/iterated")["transitions"][-1]["index"]
    lease.release()

    def observe() -> None:
        for _ in manager.election("sync/observed").observe():
            observed.set()

    def watch() -> None:
        for _ in manager.client.watch("sync/iterated", after=str(index)):
            watched.set()

    ends = [in_thread(observe), in_thread(watch)]
    assert observed.wait(5)
    assert watched.wait(5)
    assert manager.shutdown() == []
    assert [type(ended()) for ended in ends] == [ShutDown, ShutDown]


@pytest.mark.parametrize(("error", "expected"), [(None, LeaseLost), (ZeroDivisionError(), ZeroDivisionError)])
def test_body_that_outlives_the_drain_loses_its_lease(
    cluster: Cluster, error: Exception | None, expected: type[Exception]
) -> None:
    manager = LeaseManager(cluster.urls)
    entered, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        with manager.lease("sync/outlived", ttl=1, wait=5, drain=0.05) as lease:
            entered.set()
            goes_on.wait(10)
            assert not lease.is_held
            if error is not None:
                raise error

    ended = in_thread(work)
    assert entered.wait(10)
    assert [name for name, _ in manager.shutdown()] == ["sync/outlived"]
    goes_on.set()
    assert type(ended()) is expected


def test_leader_that_outlives_the_manager_keeps_its_error(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    election = manager.election("sync/outlived-leader", ttl=5, drain=0.05)
    with pytest.raises(ZeroDivisionError), election.campaign() as leadership:
        # The shutdown waits for the end of this body, and then gives up.
        assert [name for name, _ in manager.shutdown()] == ["sync/outlived-leader"]
        assert not leadership.is_leader
        raise ZeroDivisionError


def test_shutdown_waits_for_a_leader_in_another_thread(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    entered, order = threading.Event(), []

    def lead() -> None:
        with manager.election("sync/drained-leader", ttl=5).campaign() as leadership:
            entered.set()
            while not manager._manager._core.closing.is_set():
                time.sleep(0.001)
            # A shutdown that does not wait ends the leadership during this time.
            time.sleep(0.2)
            order.append(("end of the work", leadership.is_leader))

    ended = in_thread(lead)
    assert entered.wait(5)
    assert manager.shutdown() == []
    order.append(("shut down", False))
    assert ended() is None
    assert order == [("end of the work", True), ("shut down", False)]


@pytest.mark.parametrize("last", ["establish", "hand_over"])
def test_leader_that_acts_during_a_shutdown_does_not_wait_for_it(cluster: Cluster, last: str) -> None:
    manager = LeaseManager(cluster.urls)
    entered = threading.Event()

    def lead() -> None:
        with manager.election("sync/late-leader", ttl=5).campaign() as leadership:
            entered.set()
            while not leadership._leadership._guard.is_draining:
                time.sleep(0.001)
            if last == "hand_over":
                assert leadership.hand_over() is None
            else:
                with pytest.raises(LeaseLost):
                    leadership.establish(lambda token: token)

    ended = in_thread(lead)
    assert entered.wait(5)
    began = time.monotonic()
    assert manager.shutdown() == []
    assert time.monotonic() - began < 10, "the drain of 30 s is over"
    assert ended() is None


def test_refused_hand_over_does_not_wait_for_its_own_body(manager: LeaseManager) -> None:
    with manager.election("sync/refused-leader", ttl=5, drain=0.05).campaign() as leadership:
        with pytest.raises(Refused) as caught:
            leadership.hand_over("nobody")
        assert caught.value.code == "no_such_waiter"
        assert leadership.is_leader


def test_leadership_of_a_closed_manager_is_not_entered(cluster: Cluster) -> None:
    manager = LeaseManager(cluster.urls)
    leadership = manager.election("sync/closed-leader", ttl=5).campaign()
    assert manager.shutdown() == []
    with pytest.raises(ShutDown), leadership:
        raise AssertionError("the body must not run")


def test_with_object_can_be_entered_again(manager: LeaseManager) -> None:
    held = manager.lease("sync/again", ttl=5)
    entered = threading.Event()

    def work() -> None:
        with held as lease:
            entered.set()
            while lease.is_held and lease.state.kind == "held" and not stop.is_set():
                time.sleep(0.001)

    stop = threading.Event()
    ended = in_thread(work)
    assert entered.wait(5)
    stopping = in_thread(manager.release_all)
    stop.set()
    assert stopping() is None
    first = ended()
    assert first is None or isinstance(first, LeaseLost)
    with held as lease:
        assert lease.is_held
