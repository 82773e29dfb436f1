"""The work in an `async with`: its cancellation, its errors and its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import pytest

from managers import Managed, managed
from scripted import (
    TOKEN,
    Answer,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    lease,
    lost,
    problem,
    renewed,
    standing,
)
from tenure import Lease, LeaseLost, Loss, Refused, Unavailable, states
from tenure._election import Leadership
from tenure._guard import Guard

HELD = problem("held", 409, holder="other")


async def lose(m: Managed, why: str = "revoked") -> None:
    """Lets the cluster answer the next renewal with a loss."""
    m.server.on("renew", lost(why))
    m.clock.now += 1.11
    m.wake()


async def forever() -> None:
    """Waits for a cancellation. A test whose cancellation is missing fails after 5 s."""
    await asyncio.wait_for(asyncio.Event().wait(), 5)


async def test_body_has_the_lease_and_releases_it(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        async with m.manager.lease("job", ttl=3) as job:
            assert (job.is_held, job.token, job.check_held()) == (True, TOKEN, TOKEN)
        assert job.state == states.Released(TOKEN)
        assert len(server.of("release")) == 1
        with pytest.raises(LeaseLost):
            job.check_held()


async def test_loss_cancels_the_body(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost) as caught:
            async with m.manager.lease("job", ttl=3):
                await lose(m)
                await forever()
        assert (caught.value.name, caught.value.token, caught.value.why) == ("job", TOKEN, Loss.REVOKED)
        await asyncio.sleep(0)
        if sys.version_info >= (3, 11):
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0


async def test_deadline_cancels_the_body(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost) as caught:
            async with m.manager.lease("job", ttl=3):
                m.fail_renewals()
                await m.pass_time(3)
                await forever()
        assert caught.value.why == Loss.UNREACHABLE
        assert len(server.of("release")) == 1, "the work has ended, so the cluster need not wait for the expiry"


async def test_grace_cancels_the_body_before_the_deadline(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost) as caught:
            async with m.manager.lease("job", ttl=3, grace=1) as job:
                m.fail_renewals()
                try:
                    await m.pass_time(2)
                    await forever()
                finally:
                    assert job.is_held
                    assert job.state.kind == "ending"
        assert caught.value.why == Loss.UNREACHABLE
        assert job.state == states.Released(TOKEN)


async def test_loss_cancels_nested_tasks(server: ScriptedServer, clock: ManualClock) -> None:
    ended = []

    async def work(number: int) -> None:
        try:
            await forever()
        finally:
            ended.append(number)

    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost):
            async with m.manager.lease("job", ttl=3):
                await lose(m)
                await asyncio.gather(work(1), work(2))
    assert sorted(ended) == [1, 2]


async def test_outer_cancellation_is_not_swallowed(server: ScriptedServer, clock: ManualClock) -> None:
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            await forever()

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(server.of("release")) == 1


@pytest.mark.parametrize("outer_is_first", [True, False])
async def test_loss_hides_no_outer_cancellation(server: ScriptedServer, clock: ManualClock, outer_is_first: bool) -> None:
    entered = asyncio.Event()
    scopes = []

    async def work(m: Managed) -> None:
        scope = m.manager.lease("job", ttl=3)
        scopes.append(scope)
        async with scope:
            entered.set()
            await forever()

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        # Both cancellations arrive in one pass of the event loop.
        _, interrupt = scopes[0]._scope.entered
        if outer_is_first:
            task.cancel()
        interrupt._cancel()
        if not outer_is_first:
            task.cancel()
        # Python 3.10 has no `Task.uncancel` and cannot tell the cancellations apart.
        with pytest.raises(asyncio.CancelledError if sys.version_info >= (3, 11) else LeaseLost):
            await task


async def test_timeout_around_the_body_stays_a_timeout(server: ScriptedServer, clock: ManualClock) -> None:
    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            await forever()

    async with managed(server, clock) as m:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work(m), 0.1)


async def test_error_of_the_body_stays_as_it_is(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(ZeroDivisionError):
            async with m.manager.lease("job", ttl=3):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with m.manager.lease("job", ttl=3):
                await lose(m)
                try:
                    await forever()
                finally:
                    raise ZeroDivisionError
        assert len(server.of("release")) == 1


async def test_body_that_ends_after_the_loss_raises(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost) as caught:
            async with m.manager.lease("job", ttl=3):
                await lose(m)
                with pytest.raises(asyncio.CancelledError):
                    await forever()
        assert caught.value.why == Loss.REVOKED
        with pytest.raises(LeaseLost) as caught:
            async with m.manager.lease("job", ttl=3):
                clock.now += 100
        assert caught.value.why in (Loss.SUSPENDED, Loss.UNREACHABLE)


async def test_failed_release_does_not_fail_the_work(
    server: ScriptedServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        async with m.manager.lease("job", ttl=3):
            server.on("release", problem("no_leader", 503))
        assert "the release of lease job failed" in caplog.text
        server.on("release", Answer({"released": True}))
        assert await m.manager.shutdown() == []


async def test_bodies_of_one_manager_exclude_each_other(server: ScriptedServer, clock: ManualClock) -> None:
    order = []

    async def work(m: Managed, number: int) -> None:
        async with m.manager.lease("job", ttl=3, wait=10):
            order.append(number)
            await asyncio.sleep(0.01)
            order.append(number)

    async with managed(server, clock) as m:
        await asyncio.gather(work(m, 1), work(m, 2))
        assert order in ([1, 1, 2, 2], [2, 2, 1, 1])
        async with m.manager.lease("job", ttl=3):
            with pytest.raises(Refused) as caught:
                await m.manager.lease("job").__aenter__()
        assert caught.value.code == "held"


async def test_refused_entry_leaves_no_lock(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", HELD)
        with pytest.raises(Refused):
            async with m.manager.lease("job", ttl=3):
                raise AssertionError("the body must not run")
        server.on("acquire", granted())
        async with m.manager.lease("job", ttl=3) as job:
            assert job.is_held


async def test_release_by_another_task_ends_the_body_first(server: ScriptedServer, clock: ManualClock) -> None:
    order = []

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            order.append("work")
            try:
                await forever()
            finally:
                await asyncio.sleep(0.01)
                order.append("end of the work")

    def release(_: Request) -> Answer:
        order.append("release")
        return Answer({"released": True})

    async with managed(server, clock) as m:
        server.on("release", release)
        task = asyncio.ensure_future(work(m))
        await m.until(lambda: bool(order))
        assert await m.manager.handle("job").release() is True
        with pytest.raises(LeaseLost) as caught:
            await task
        assert caught.value.why == Loss.RELEASED
        assert order == ["work", "end of the work", "release"]


async def test_work_that_does_not_end_is_not_released(server: ScriptedServer, clock: ManualClock) -> None:
    goes_on = asyncio.Event()
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3, drain=0.05):
            entered.set()
            while not goes_on.is_set():
                try:
                    await goes_on.wait()
                except asyncio.CancelledError:
                    continue

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        with pytest.raises(Refused) as caught:
            await m.manager.handle("job").release()
        assert caught.value.code == "not_drained"
        assert (m.manager.handle("job").is_held, server.of("release")) == (False, [])
        goes_on.set()
        with pytest.raises(LeaseLost):
            await task


async def test_release_again_of_undrained_work_says_whether_the_lease_is_free(
    server: ScriptedServer, clock: ManualClock
) -> None:
    goes_on = asyncio.Event()
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3, drain=0.05):
            entered.set()
            while not goes_on.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await goes_on.wait()

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        job = m.manager.handle("job")
        server.on("explain", standing("holds", lease=lease()))
        try:
            for _ in range(2):
                with pytest.raises(Refused) as caught:
                    await job.release()
                assert caught.value.code == "not_drained"
        finally:
            # The work ignores its cancellation, and would also ignore the end of a failed test.
            goes_on.set()
        with pytest.raises(LeaseLost):
            await task
        server.on("explain", standing("ended", event={"event": "expired", "token": str(TOKEN)}))
        assert [await job.release(), server.of("release")] == [False, []]


async def test_body_can_release_its_own_lease(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        async with m.manager.lease("job", ttl=3) as job:
            assert await job.release() is True
            await asyncio.sleep(0.01)
        assert len(server.of("release")) == 1


async def test_shutdown_ends_the_body(server: ScriptedServer, clock: ManualClock) -> None:
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            await forever()

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        assert await m.manager.shutdown() == []
        with pytest.raises(LeaseLost):
            await task
        assert len(server.of("release")) == 1


async def test_run_reads_the_clock_before_each_step(server: ScriptedServer, clock: ManualClock) -> None:
    held = []

    async def work(job: Lease) -> None:
        while True:
            held.append(job.is_held)
            if len(held) == 3:
                clock.now += 100
            await asyncio.sleep(0)

    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost) as caught:
            await m.manager.handle("job", ttl=3).run(work)
        assert caught.value.why in (Loss.SUSPENDED, Loss.UNREACHABLE)
        assert held == [True, True, True]


async def test_run_returns_the_result_of_the_work(server: ScriptedServer, clock: ManualClock) -> None:
    async def work(job: Lease) -> int:
        await asyncio.sleep(0)
        return job.check_held()

    async def cancelled(_: Lease) -> None:
        entered.set()
        await forever()

    entered = asyncio.Event()
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        assert await job.run(work) == TOKEN
        assert not job.is_held
        task = asyncio.ensure_future(job.run(cancelled))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_lease_of_a_body_is_tied_to_its_grant(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost):
            async with m.manager.lease("job", ttl=3) as old:
                await lose(m)
                await forever()
        server.on("acquire", granted(token=TOKEN + 1))
        server.on("renew", renewed)
        heard: list[states.HoldState] = []
        old.on_state(heard.append)
        async with m.manager.lease("job", ttl=3) as new:
            assert (new.token, new.is_held) == (TOKEN + 1, True)
            assert (old.token, old.is_held, old.remaining) == (TOKEN, False, 0)
            assert old.state == states.Lost(TOKEN, Loss.REVOKED)
            assert [state async for state in old.states()] == [old.state]
            await asyncio.wait_for(old.wait_ended(), 1)
            for call in (old.check_held, old.acquire):
                with pytest.raises(LeaseLost) as caught:
                    await call()  # type: ignore[misc]
                assert caught.value.token == TOKEN
            assert (await old.release(), await old.hand_over(), await old.check()) == (False, None, False)
            assert new.is_held
            await asyncio.sleep(0)
            assert heard == [], "the states of the new grant"


async def test_cancelled_leave_frees_the_lease(server: ScriptedServer, clock: ManualClock) -> None:
    entered, ends = asyncio.Event(), asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            await ends.wait()
            # The keeper does not see the deadline before the end of the body.
            clock.now += 100

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        hold = m.manager._core._holds["job"]
        ends.set()
        while hold.guard is None or not hold.guard.work_ended.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises((asyncio.CancelledError, LeaseLost)):
            await task
        await m.until(lambda: not hold.exclusive.locked())
        assert len(server.of("release")) == 1
        server.on("acquire", granted(token=TOKEN + 1))
        async with m.manager.lease("job", ttl=3) as job:
            assert job.is_held


@pytest.mark.parametrize("is_refused", [True, False])
async def test_refused_hand_over_releases_a_lease_without_a_body(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    entered = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            await forever()

    async def unavailable(*_: object) -> None:
        raise Unavailable("no leader")

    async with managed(server, clock) as m:
        server.on("handover", problem("no_such_waiter", 409))
        if not is_refused:
            monkeypatch.setattr(m.manager._core.calls, "hand_over", unavailable)
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        with pytest.raises(Refused if is_refused else Unavailable):
            await m.manager.handle("job").hand_over("next")
        with pytest.raises(LeaseLost):
            await task
        assert len(server.of("release")) == 1
        assert m.manager.handle("job").state == states.Released(TOKEN)
        assert not m.manager.handle("job").is_held


@pytest.mark.parametrize(("call", "action", "result"), [("resign", "release", True), ("hand_over", "handover", "next")])
async def test_end_of_a_leadership_by_another_task_ends_the_body_first(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, call: str, action: str, result: object
) -> None:
    order = []
    elected: asyncio.Future[Leadership] = asyncio.get_running_loop().create_future()

    async def lead(m: Managed) -> None:
        async with m.manager.election("job", ttl=3).leader() as leadership:
            order.append("work")
            elected.set_result(leadership)
            try:
                await forever()
            finally:
                await asyncio.sleep(0.01)
                order.append("end of the work")

    def end(request: Request) -> Answer:
        order.append(request.action)
        return Answer({"released": True} if request.action == "release" else lease(holder="next", token=TOKEN + 1))

    async with managed(server, clock) as m:
        server.on("release", end)
        server.on("handover", end)
        task = asyncio.ensure_future(lead(m))
        leadership = await elected
        exclusive = leadership.lease._hold.exclusive
        unlocks: list[str] = []
        unlock = exclusive.release

        def counted() -> None:
            unlocks.append(order[-1])
            unlock()

        monkeypatch.setattr(exclusive, "release", counted)
        assert await getattr(leadership, call)() == result
        with pytest.raises(LeaseLost) as caught:
            await task
        assert caught.value.why == Loss.RELEASED
        assert order == ["work", "end of the work", action]
        assert unlocks == ["end of the work"]
        assert not exclusive.locked()


async def test_second_leave_of_a_guard_keeps_the_next_guard(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        guards = [Guard(m.manager._core, job._hold) for _ in range(2)]
        await guards[0].enter(0)
        await guards[0].leave()
        await guards[1].enter(0)
        await guards[0].leave()
        assert job._hold.exclusive.locked()
        assert job._hold.guard is guards[1]
        await guards[1].leave()
        assert len(server.of("release")) == 2


async def test_leader_can_resign_in_its_body(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        async with m.manager.election("job", ttl=3).leader() as leadership:
            assert await leadership.resign() is True
            assert await leadership.resign() is False
            await asyncio.sleep(0.01)
            assert not leadership.is_leader
        assert len(server.of("release")) == 1


async def test_run_goes_on_after_a_refused_hand_over(server: ScriptedServer, clock: ManualClock) -> None:
    async def work(job: Lease) -> bool:
        with pytest.raises(Refused) as caught:
            await job.hand_over()
        assert caught.value.code == "no_such_waiter"
        await asyncio.sleep(0)
        assert server.of("release") == []
        return job.is_held

    async with managed(server, clock) as m:
        server.on("handover", problem("no_such_waiter", 409))
        assert await m.manager.handle("job", ttl=3).run(work) is True
        assert len(server.of("release")) == 1


@pytest.mark.parametrize(("call", "result"), [("release", True), ("hand_over", "next")])
async def test_run_goes_on_without_the_lease_that_it_gave_up(
    server: ScriptedServer, clock: ManualClock, call: str, result: object
) -> None:
    async def work(job: Lease) -> object:
        ended = await getattr(job, call)()
        await asyncio.sleep(0)
        clock.now += 100
        await asyncio.sleep(0)
        assert not job.is_held
        return ended

    async with managed(server, clock) as m:
        server.on("handover", Answer(lease(holder="next", token=TOKEN + 1)))
        assert await m.manager.handle("job", ttl=3).run(work) == result


async def test_run_reads_the_clock_during_its_hand_over(server: ScriptedServer, clock: ManualClock) -> None:
    async def work(job: Lease) -> None:
        await job.hand_over()
        raise AssertionError("the work goes on after the deadline")

    def hand_over(_: Request) -> Answer:
        clock.now += 100
        return problem("no_such_waiter", 409)

    async with managed(server, clock) as m:
        server.on("handover", hand_over)
        with pytest.raises(LeaseLost):
            await m.manager.handle("job", ttl=3).run(work)


@pytest.mark.parametrize("call", ["release", "hand_over"])
@pytest.mark.parametrize("guard_is_first", [True, False])
async def test_release_that_is_cancelled_at_the_end_of_the_body_releases(
    server: ScriptedServer, clock: ManualClock, call: str, guard_is_first: bool
) -> None:
    entered = asyncio.Event()
    ending: list[asyncio.Task[object]] = []

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            entered.set()
            try:
                await forever()
            finally:
                # There is no `await` between this and the end of the body.
                if guard_is_first:
                    asyncio.get_running_loop().call_soon(ending[0].cancel)
                else:
                    ending[0].cancel()

    async with managed(server, clock) as m:
        task = asyncio.ensure_future(work(m))
        await entered.wait()
        job = m.manager.handle("job")
        ending.append(asyncio.ensure_future(getattr(job, call)()))
        with pytest.raises(asyncio.CancelledError):
            await ending[0]
        with pytest.raises(LeaseLost):
            await task
        await m.until(lambda: not m.manager._core._tasks)
        assert (len(server.of("release")), len(server.of("handover"))) == (1, 0)
        assert not job.is_held


async def test_renewal_refused_by_the_own_hand_over_is_no_loss(server: ScriptedServer, clock: ManualClock) -> None:
    is_sent = asyncio.Event()

    async def renew(_: Request) -> Answer:
        await is_sent.wait()
        return lost("handed_over")

    async with managed(server, clock) as m:
        async with m.manager.lease("job", ttl=3) as job:
            grant = m.manager._core._holds["job"].grant
            assert grant is not None

            async def hand_over(_: Request) -> Answer:
                is_sent.set()
                await m.until(lambda: not grant.is_renewing or grant.end is not None)
                return Answer(lease(holder="next", token=TOKEN + 1))

            server.on("renew", renew)
            server.on("handover", hand_over)
            clock.now += 1.11
            m.wake()
            await server.received("renew")
            assert await job.hand_over() == "next"
        assert job.state == states.Released(TOKEN)


async def test_shutdown_waits_for_the_body_of_a_lost_lease(server: ScriptedServer, clock: ManualClock) -> None:
    order = []
    goes_on = asyncio.Event()

    async def work(m: Managed) -> None:
        async with m.manager.lease("job", ttl=3):
            try:
                m.fail_renewals()
                await m.pass_time(3)
                await forever()
            finally:
                order.append("loss")
                await goes_on.wait()
                order.append("end of the work")

    def release(_: Request) -> Answer:
        order.append("release")
        return Answer({"released": True})

    async with managed(server, clock) as m:
        server.on("release", release)
        task = asyncio.ensure_future(work(m))
        await m.until(lambda: bool(order))
        closing = asyncio.ensure_future(m.manager.shutdown())
        await m.until(lambda: m.manager._core._claims_resolved.is_set())
        goes_on.set()
        assert await closing == []
        with pytest.raises(LeaseLost) as caught:
            await task
        assert caught.value.why == Loss.UNREACHABLE
        assert order == ["loss", "end of the work", "release"]
