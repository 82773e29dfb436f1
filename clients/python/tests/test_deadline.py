"""The deadline, the renewals and the losses of held leases."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from managers import managed
from scripted import CLOSE, TOKEN, Answer, ManualClock, Request, ScriptedServer, granted, hang, in_turn, lease, lost, renewed
from tenure import Loss, states


async def test_deadline_counts_from_before_the_request(server: ScriptedServer, clock: ManualClock) -> None:
    def slow(_: Request) -> Answer:
        clock.now += 0.9
        return granted(ttl_ms=3000)

    async with managed(server, clock) as m:
        server.on("acquire", slow)
        job = m.manager.handle("job", ttl=3)
        assert await job.acquire() == int(lease()["token"])
        assert job.remaining == pytest.approx(3 * 0.99 - 0.9)


async def test_deadline_uses_the_smaller_remaining_time(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", granted(ttl_ms=30_000, expires_in_ms=2000))
        job = m.manager.handle("job", ttl=1)
        await job.acquire()
        assert job.remaining == pytest.approx(2 * 0.99)


async def test_deadline_is_earlier_by_the_drift(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, drift_permille=100) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        assert job.remaining == pytest.approx(2.7)
        clock.now += 2.699
        assert job.is_held
        clock.now += 0.002
        assert (job.is_held, job.token, job.remaining) == (False, None, 0)


async def test_renewal_counts_from_before_its_request(server: ScriptedServer, clock: ManualClock) -> None:
    def slow(request: Request) -> Answer:
        clock.now += 0.5
        return renewed(request)

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("renew", slow)
        clock.now += 1.1
        await m.until(lambda: job.remaining > 2)
        assert job.remaining == pytest.approx(3 * 0.99 - 0.5)


async def test_renewal_is_sent_after_a_third_of_the_ttl(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        await m.manager.handle("job", ttl=3).acquire()
        await m.pass_time(0.89)
        assert server.of("renew") == []
        await m.pass_time(0.22)
        request = await server.received("renew")
        assert request.body == {"holder": "me", "leases": [{"name": "job", "token": lease()["token"]}]}


async def test_renewal_after_the_deadline_restores_nothing(server: ScriptedServer, clock: ManualClock) -> None:
    def late(request: Request) -> Answer:
        clock.now += 0.7
        return renewed(request)

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("renew", late)
        clock.now += 2.5
        await m.until(lambda: isinstance(job.state, states.Lost))
        assert len(server.of("renew")) == 1
        assert not job.is_held


async def test_one_request_renews_all_leases(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        for name in ("a", "b", "c"):
            server.on("acquire", granted(name=name))
            await m.manager.handle(name, ttl=3).acquire()
        clock.now += 1.11
        m.wake()
        request = await server.received("renew")
        assert sorted(item["name"] for item in request.body["leases"]) == ["a", "b", "c"]
        await m.until(lambda: m.manager.handle("a").remaining > 2)
        assert len(server.of("renew")) == 1


async def test_batch_has_at_most_10000_leases(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=60) as m:
        # A third of the ttl is the timeout of the renewal in real time.
        server.on("acquire", granted(ttl_ms=180_000))
        job = m.manager.handle("job", ttl=180)
        await job.acquire()
        core = m.manager._core
        for number in range(10_000):
            hold = m.manager.handle(f"job-{number}", ttl=180)._hold
            hold.granted(number + 1, 180.0, clock.now, clock.now)
            core.keeper.keep(hold)
        held = list(core.keeper.held.values())
        try:
            clock.now += 177
            await m.until(lambda: job.remaining > 2 and hold.remaining(clock.now) > 2, limit=60)
            # A slow attempt sends its batch again.
            batches = {tuple(item["name"] for item in request.body["leases"]) for request in server.of("renew")}
            assert sorted(len(batch) for batch in batches) == [1, 10_000]
            assert {name for batch in batches for name in batch} == {hold.name for hold in held}
            assert all(hold.remaining(clock.now) > 2 for hold in held)
        finally:
            # The shutdown would release each of them.
            for hold in held:
                hold.give_up()


async def test_failed_renewals_put_the_lease_at_risk(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        seen: list[states.HoldState] = []
        job.on_state(seen.append)
        m.fail_renewals()
        clock.now += 1.11
        await m.until(lambda: len(seen) == 1)
        clock.now += 0.16
        await m.until(lambda: len(seen) == 2)
        assert [s.failures for s in seen if isinstance(s, states.AtRisk)] == [1, 2]
        assert job.is_held
        m.heal_renewals()
        clock.now += 0.16
        await m.until(lambda: isinstance(job.state, states.Held))
        assert job.remaining == pytest.approx(2.97)


async def test_lease_without_renewals_is_unreachable(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        token = await job.acquire()
        m.fail_renewals()
        await m.pass_time(3)
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.UNREACHABLE)


async def test_jump_of_the_clock_is_a_suspend(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        token = await job.acquire()
        await m.pass_time(0.1)
        clock.now += 3600
        assert not job.is_held, "before the keeper runs"
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.SUSPENDED)


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("expired", Loss.EXPIRED),
        ("revoked", Loss.REVOKED),
        ("handed_over", Loss.HANDED_OVER),
        ("released", Loss.RELEASED),
        ("restored", Loss.RESTORED),
        ("unknown", Loss.FORGOTTEN),
        ("reason_of_a_newer_server", Loss.OTHER),
    ],
)
async def test_cluster_ends_the_lease(server: ScriptedServer, clock: ManualClock, why: str, reason: Loss) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        token = await job.acquire()
        server.on("renew", lost(why))
        clock.now += 1.11
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, reason)
        assert not job.is_held


async def test_grace_ends_the_renewals(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3, grace=1)
        token = await job.acquire()
        m.fail_renewals()
        await m.pass_time(1.98)
        await m.until(lambda: job.state.kind == "ending")
        assert isinstance(job.state, states.Ending)
        assert (job.state.token, job.state.why, job.is_held) == (token, Loss.UNREACHABLE, True)
        assert job.state.left == pytest.approx(0.99, abs=0.02)
        await asyncio.wait_for(job.wait_stopping(), 1)
        server.on("renew", renewed)
        await m.pass_time(0.9)
        assert job.state.kind == "ending"
        await m.pass_time(0.1)
        await m.until(lambda: job.state.kind == "lost")


def stalled() -> bool:
    return False


def failing() -> bool:
    raise ZeroDivisionError


@pytest.mark.parametrize("renew_while", [stalled, failing])
async def test_renewals_end_without_progress(
    server: ScriptedServer, clock: ManualClock, renew_while: Callable[[], bool]
) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3, renew_while=renew_while)
        token = await job.acquire()
        await m.pass_time(3)
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.STALLED)
        assert server.of("renew") == []


async def test_progress_check_of_a_cancelled_task_ends_only_its_own_renewals(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lambda request: granted(name=request.path.split("/")[3]))
        worker: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        worker.cancel()
        job = m.manager.handle("job", ttl=3, renew_while=lambda: not worker.done() or worker.result())
        other = m.manager.handle("other", ttl=3)
        token = await job.acquire()
        await other.acquire()
        clock.now += 1.11
        await m.until(lambda: other.remaining > 2.9)
        assert job.state.kind == "ending"
        await m.pass_time(1.9)
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.STALLED)
        assert other.is_held


async def test_longest_hold_ends_the_renewals(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3, longest_hold=3.5)
        token = await job.acquire()
        await m.pass_time(3)
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.HELD_LONGEST)
        assert server.of("renew") == []


async def test_renewals_do_not_extend_the_longest_hold(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3, longest_hold=7)
        acquired = clock.now
        token = await job.acquire()
        grant = m.manager._core._holds["job"].grant
        assert grant is not None
        latest = 0.0
        while grant.end is None and clock.now < acquired + 20:
            await m.pass_time(0.1)
            await m.until(lambda: not grant.is_renewing)
            latest = max(latest, clock.now + job.remaining if job.is_held else 0.0)
        assert job.state == states.Lost(token, Loss.HELD_LONGEST)
        assert len(server.of("renew")) >= 2
        assert latest <= acquired + 7


async def test_longest_hold_below_the_default_ttl_ends_the_lease(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        # The handle names no ttl, and the cluster grants 3 s.
        job = m.manager.handle("job", longest_hold=2)
        token = await job.acquire()
        assert job.remaining == pytest.approx(2)
        await m.pass_time(2)
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.HELD_LONGEST)
        assert server.of("renew") == []


@pytest.mark.parametrize("options", [{"renew_while": stalled}, {"longest_hold": 3.5}], ids=["stalled", "held_longest"])
async def test_acquire_after_the_end_of_the_renewals_gets_a_new_token(
    server: ScriptedServer, clock: ManualClock, options: dict[str, Any]
) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3, **options)
        await job.acquire()
        await m.pass_time(3)
        await m.until(lambda: job.state.kind == "lost")
        server.on("acquire", granted(token=TOKEN + 1))
        assert await job.acquire() == TOKEN + 1
        assert [request.action for request in server.requests] == ["acquire", "release", "acquire"]


async def test_infinite_lease_is_checked_every_10_s(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", granted(ttl_ms="infinite"))
        job = m.manager.handle("job", ttl=math.inf)
        token = await job.acquire()
        assert server.of("acquire")[0].body["ttl_ms"] == "infinite"
        clock.now += 8.9
        m.wake()
        assert (job.remaining, server.of("renew")) == (math.inf, [])
        clock.now += 2.2
        server.on("renew", lost("revoked"))
        await m.until(lambda: job.state.kind == "lost")
        assert job.state == states.Lost(token, Loss.REVOKED)


async def test_invalid_renewal_answers_do_not_end_the_lease(server: ScriptedServer, clock: ManualClock) -> None:
    invalid = [{}, {"results": []}, {"results": [{"name": "job"}]}, {"results": [{"name": "job", "lease": {"ttl_ms": "x"}}]}]
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        m.fail_renewals(in_turn(*(Answer(body) for body in invalid), CLOSE))
        clock.now += 1.11
        for failures in range(1, 5):
            await m.until(lambda f=failures: isinstance(job.state, states.AtRisk) and job.state.failures >= f)  # type: ignore[misc]
            clock.now += 0.16
        assert job.is_held


async def test_states_iterates_from_the_current_state(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        seen = job.states()
        assert await seen.__anext__() == states.Idle()
        token = await job.acquire()
        assert (await seen.__anext__()).kind == "held"
        await job.release()
        assert await asyncio.wait_for(seen.__anext__(), 1) == states.Released(token)
        await seen.aclose()  # type: ignore[attr-defined]


async def test_options_of_a_later_handle_count_from_the_next_acquire_on(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        m.manager.handle("job", ttl=3, grace=1.5, longest_hold=3, renew_while=lambda: False)
        clock.now += 1.11
        await m.until(lambda: job.remaining > 2.9)
        m.fail_renewals()
        await m.pass_time(2)
        await m.until(lambda: job.state.kind != "held")
        assert job.state.kind == "at_risk"
        await job.release()
        await job.acquire()
        await m.pass_time(1.5)
        await m.until(lambda: job.state.kind == "ending")


async def test_options_that_change_during_a_claim_do_not_count_for_it(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:

        def claimed(_: Request) -> Answer:
            m.manager.handle("job", ttl=3, grace=1.5)
            return granted()

        server.on("acquire", claimed)
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        m.fail_renewals()
        await m.pass_time(2)
        await m.until(lambda: job.state.kind != "held")
        assert job.state.kind == "at_risk"


async def test_deadline_that_passes_in_a_suspend_is_seen_soon(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", granted(ttl_ms=300_000))
        job = m.manager.handle("job", ttl=300)
        await job.acquire()
        while job._hold.check_at < clock.now:
            # The keeper has not planned its next check.
            await asyncio.sleep(0)
        # Timers stop in a suspend, so nothing wakes the keeper.
        clock.now += 3600
        await asyncio.wait_for(job.wait_ended(), 5)


async def test_renewal_ends_with_a_third_of_the_ttl(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=20) as m:
        server.on("acquire", granted(ttl_ms=600))
        server.on("renew", hang)
        job = m.manager.handle("job", ttl=0.6)
        await job.acquire()
        clock.now += 0.25
        await m.until(lambda: job.state.kind == "at_risk", limit=5)


async def test_each_subscription_of_one_function_ends_for_itself(server: ScriptedServer, clock: ManualClock) -> None:
    heard: list[str] = []

    def hear(state: states.HoldState) -> None:
        heard.append(state.kind)

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        remove = job.on_state(hear)
        job.on_state(hear)
        remove()
        remove()
        await job.acquire()
        await m.until(lambda: bool(heard))
        assert heard == ["held"]


async def test_listener_hears_nothing_after_its_end(server: ScriptedServer, clock: ManualClock) -> None:
    heard: list[states.HoldState] = []
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        remove = job.on_state(heard.append)
        # The call of this change is planned when the subscription ends.
        job._hold.granted(TOKEN, 3, clock.now, clock.now)
        remove()
        await asyncio.sleep(0.01)
        assert heard == []
