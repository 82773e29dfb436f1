"""The outcomes of acquire, release and hand over."""

from __future__ import annotations

import asyncio
import gc

import pytest

from managers import managed
from scripted import (
    CLOSE,
    TOKEN,
    Answer,
    Handler,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    hang,
    in_turn,
    lease,
    problem,
    renewed,
    standing,
)
from tenure import LeaseLost, LeaseManager, Loss, Refused, ShutDown, Unavailable, Unknown, states
from tenure._retry import AttemptContext, NotDone, RetryPolicy
from tenure._transport import Call

HELD = problem("held", 409, holder="other", token="7")


def lost_answer() -> Handler:
    """The first answer to a claim is lost, and the next one is a refusal."""
    return in_turn(CLOSE, HELD)


async def test_held_lease_is_refused(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", HELD)
        job = m.manager.handle("job", ttl=3, lock_delay=1, limit=2, metadata={"a": "b"})
        with pytest.raises(Refused) as caught:
            await job.acquire()
        assert (caught.value.code, caught.value.holder) == ("held", "other")
        options = {"ttl_ms": 3000, "lock_delay_ms": 1000, "limit": 2, "metadata": {"a": "b"}}
        assert server.of("acquire")[0].body == {"holder": "me", **options}
        assert not job.is_held


async def test_refusal_after_a_lost_answer_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lost_answer())
        server.on("explain", standing("unknown"))
        job = m.manager.handle("job", ttl=3)
        with pytest.raises(Unknown) as caught:
            await job.acquire()
        assert caught.value.last is not None
        assert caught.value.last["code"] == "held"
        assert not job.is_held


async def test_grant_after_a_lost_answer_is_held(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", in_turn(CLOSE, granted()))
        assert await m.manager.handle("job", ttl=3).acquire() == TOKEN


async def test_node_that_is_down_makes_it_unavailable(clock: ManualClock) -> None:
    async with ScriptedServer() as server:
        urls = server.urls
    async with LeaseManager(urls, operation_timeout=1.0, clock=clock) as manager:
        with pytest.raises(Unavailable):
            await manager.handle("job", ttl=3).acquire()


async def test_other_nodes_are_asked_after_not_done(servers: ScriptedServer, clock: ManualClock) -> None:
    async with managed(servers, clock) as m:
        servers.on("acquire", lambda request: granted() if request.node == 2 else problem("no_leader", 503))
        await m.manager.handle("job", ttl=3).acquire()
        assert [request.node for request in servers.of("acquire")] == [0, 1, 2]
        await m.manager.handle("job").release()
        assert servers.of("release")[0].node == 2, "the node that answered last gets the next request"


async def test_invalid_answer_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        server.on("explain", standing("unknown"))
        for body in ({}, {"token": "x", "ttl_ms": 1}, lease(ttl_ms="forever"), b"[]", b"<html>"):
            server.on("acquire", Answer(body))
            with pytest.raises(Unknown):
                await m.manager.handle("job", ttl=3).acquire()


async def test_unknown_fields_states_and_codes_are_accepted(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", granted(state="state_of_a_newer_server", new_field={"a": [1]}))
        job = m.manager.handle("job", ttl=3)
        assert await job.acquire() == TOKEN
        server.on("explain", standing("ended", event={"token": str(TOKEN), "event": "event_of_a_newer_server"}))
        assert await job.check() is False
        assert job.state == states.Lost(TOKEN, Loss.OTHER)
        server.on("acquire", problem("code_of_a_newer_server", 499, new_field=1))
        with pytest.raises(Refused) as caught:
            await job.acquire()
        assert caught.value.code == "code_of_a_newer_server"
        server.on("acquire", granted())
        await job.acquire()
        server.on("explain", standing("standing_of_a_newer_server"))
        with pytest.raises(Unknown):
            await job.check()
        assert job.is_held


async def test_acquire_of_a_held_lease_sends_no_request(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        assert await job.acquire() == await m.manager.handle("job").acquire()
        assert len(server.of("acquire")) == 1


async def test_cancelled_acquire_releases_a_late_grant(server: ScriptedServer, clock: ManualClock) -> None:
    answer = asyncio.Event()

    async def late(_: Request) -> Answer:
        await answer.wait()
        return granted()

    async with managed(server, clock) as m:
        server.on("acquire", late)
        server.on("explain", standing("holds", lease=lease()))
        job = m.manager.handle("job", ttl=3)
        acquiring = asyncio.ensure_future(job.acquire())
        await server.received("acquire")
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        answer.set()
        released = await server.received("release")
        assert released.body == {"holder": "me", "token": str(TOKEN)}
        assert not job.is_held


async def test_cancelled_wait_leaves_the_queue(server: ScriptedServer, clock: ManualClock) -> None:
    def explain(_: Request) -> Answer:
        return (
            standing("ended", event={"token": "1", "event": "released"}) if server.closed else standing("waits", waiter={})
        )

    async with managed(server, clock) as m:
        server.on("acquire", hang)
        server.on("explain", explain)
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await m.until(lambda: bool(server.closed))
        assert [request.action for request in server.closed] == ["acquire"]
        assert await m.manager.shutdown() == []
        assert server.of("release") == []


async def test_shutdown_ends_a_waiting_acquire(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", hang)
        server.on("explain", lambda _: standing("unknown") if server.closed else standing("waits", waiter={}))
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        assert await m.manager.shutdown() == []
        with pytest.raises(ShutDown):
            await acquiring
        with pytest.raises(ShutDown):
            await m.manager.handle("job").acquire()


async def test_shutdown_without_an_answer_says_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        server.on("acquire", hang)
        server.on("explain", problem("no_leader", 503))
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        assert [name for name, _ in await m.manager.shutdown()] == ["job"]
        with pytest.raises(Unknown):
            await acquiring


async def test_cancelled_shutdown_ends_the_waiting_acquires(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        server.on("acquire", hang)
        server.on("explain", hang)
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(m.manager.shutdown(), 0.05)
        with pytest.raises(Unknown):
            await asyncio.wait_for(acquiring, 5)


@pytest.mark.parametrize(("action", "error"), [("explain", ShutDown), ("release", Unknown)])
async def test_close_ends_a_request_in_progress(
    server: ScriptedServer, clock: ManualClock, action: str, error: type[Exception]
) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on(action, hang)
        asking = asyncio.ensure_future(m.manager.client.explain("job") if action == "explain" else job.release())
        await server.received(action)
        await m.manager._core.calls.transport.aclose()
        with pytest.raises(error):
            await asyncio.wait_for(asking, 5)


async def test_shutdown_releases_all_leases(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        for name in ("a", "b"):
            await m.manager.handle(name, ttl=3).acquire()
        assert await m.manager.shutdown() == []
        assert sorted(request.path.split("/")[3] for request in server.of("release")) == ["a", "b"]


async def test_release_gives_the_lease_up_first(server: ScriptedServer, clock: ManualClock) -> None:
    held: list[bool] = []
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)

        def release(_: Request) -> Answer:
            held.append(job.is_held)
            return Answer({"released": True})

        server.on("release", release)
        await job.acquire()
        assert await job.release() is True
        assert (held, await job.release()) == ([False], False)


async def test_release_without_an_answer_asks_the_history(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("release", in_turn(CLOSE, Answer({"released": False})))
        server.on("explain", standing("ended", event={"token": str(TOKEN), "event": "released"}))
        assert await job.release() is True


async def test_release_of_a_forgotten_grant_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("release", in_turn(CLOSE, Answer({"released": False})))
        server.on("explain", standing("unknown"))
        with pytest.raises(Unknown):
            await job.release()
        assert not job.is_held


async def test_release_without_any_answer_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("release", CLOSE)
        server.on("explain", CLOSE)
        with pytest.raises(Unknown):
            await job.release()
        assert not job.is_held
        server.on("release", Answer({"released": True}))
        assert await job.release() is True, "a second call repeats the release"


async def test_lost_grant_is_released_before_the_next_claim(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        clock.now += 100
        server.on("acquire", granted(token=TOKEN + 1))
        assert await job.acquire() == TOKEN + 1
        assert [request.action for request in server.requests] == ["acquire", "release", "acquire"]


async def test_hand_over_returns_the_new_holder(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        assert await job.hand_over() is None
        await job.acquire()
        server.on("handover", Answer(lease(holder="next", token=TOKEN + 1)))
        assert await job.hand_over("next") == "next"
        assert server.of("handover")[0].body == {"holder": "me", "token": str(TOKEN), "to": "next"}
        assert job.state == states.Released(TOKEN)


async def test_refused_hand_over_leaves_the_lease_held(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("handover", problem("no_such_waiter", 409))
        with pytest.raises(Refused):
            await job.hand_over()
        assert job.is_held
        server.on("renew", renewed)
        clock.now += 1.11
        await m.until(lambda: job.remaining > 2.9)


async def test_hand_over_without_an_answer_is_not_held(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        server.on("handover", CLOSE)
        with pytest.raises(Unknown):
            await job.hand_over()
        assert (job.is_held, len(server.of("handover"))) == (False, 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (standing("ended", event={"token": str(TOKEN), "event": "revoked"}), Loss.REVOKED),
        (standing("ended", event={"token": "1", "event": "revoked"}), Loss.FORGOTTEN),
        (standing("unknown"), Loss.FORGOTTEN),
    ],
)
async def test_check_records_the_loss(server: ScriptedServer, clock: ManualClock, answer: Answer, reason: Loss) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        assert await job.check() is False
        await job.acquire()
        server.on("explain", standing("holds", lease=lease()))
        assert await job.check() is True
        server.on("explain", answer)
        assert await job.check() is False
        assert job.state == states.Lost(TOKEN, reason)


async def test_access_token_is_sent(server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_ACCESS_TOKEN", "from-the-environment")
    async with managed(server, clock) as m:
        await m.manager.handle("job", ttl=3).acquire()
    async with managed(server, clock, token="given") as m:
        await m.manager.handle("job", ttl=3).acquire()
    sent = [request.headers["authorization"] for request in server.of("acquire")]
    assert sent == ["Bearer from-the-environment", "Bearer given"]


@pytest.mark.parametrize("token", ["given\n", " given\r\n", "\tgiven"])
async def test_white_space_around_a_token_is_removed(server: ScriptedServer, clock: ManualClock, token: str) -> None:
    async with managed(server, clock, token=token) as m:
        await m.manager.handle("job", ttl=3).acquire()
    assert server.of("acquire")[0].headers["authorization"] == "Bearer given"


@pytest.mark.parametrize("token", ["sec\nret", "sec ret", "secré", "sec\x00ret", " "])
async def test_error_of_an_invalid_token_does_not_show_it(server: ScriptedServer, token: str) -> None:
    with pytest.raises(ValueError, match="invalid access token") as caught:
        LeaseManager(server.urls, token=token)
    assert "sec" not in str(caught.value)


async def test_errors_do_not_contain_header_values(
    server: ScriptedServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="tenure")
    async with managed(server, clock, operation_timeout=0.2) as m:
        m.manager.client._transport._http.headers["authorization"] = "Bearer sec\nret"
        call = Call("POST", "v1/leases/job/acquire", RetryPolicy.CLAIM, body=lambda _: {})
        attempt = await m.manager.client._transport._exchange(call, server.urls[0] + "/", AttemptContext(0, 0.0, 5.0))
        assert isinstance(attempt, NotDone)
        assert "not valid HTTP" in attempt.why
        with pytest.raises(Unavailable) as caught:
            await m.manager.client.watch().__anext__()
        assert "sec" not in f"{attempt} {caught.value!r} {caplog.text}"


async def test_lost_grant_is_released_before_a_claim_by_a_new_handle(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        with pytest.raises(LeaseLost):
            async with m.manager.lease("job", ttl=3):
                server.on("release", problem("code_of_a_newer_server", 499))
                m.fail_renewals()
                await m.pass_time(3)
                await asyncio.wait_for(asyncio.Event().wait(), 5)
        await m.until(lambda: not m.manager._core.keeper.held)
        gc.collect()
        server.on("release", Answer({"released": True}))
        server.on("acquire", granted(token=TOKEN + 1))
        assert await m.manager.handle("job", ttl=3).acquire() == TOKEN + 1
        assert len(server.of("release")) == 2
        assert m.manager._core._unresolved == {}


async def test_token_is_released_after_a_hand_over_without_an_answer(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        await m.manager.handle("job", ttl=3).acquire()
        server.on("handover", CLOSE)
        with pytest.raises(Unknown):
            await m.manager.handle("job").hand_over()
        gc.collect()
        server.on("acquire", granted(token=TOKEN + 1))
        assert await m.manager.handle("job", ttl=3).acquire() == TOKEN + 1
        assert [request.action for request in server.requests] == ["acquire", "handover", "release", "acquire"]
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}


async def test_release_resolves_the_unknown_acquire_of_a_dropped_handle(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lost_answer())
        with pytest.raises(Unknown):
            await m.manager.handle("job", ttl=3).acquire()
        gc.collect()
        server.on("explain", standing("holds", lease=lease()))
        assert await m.manager.handle("job").release() is True
        assert m.manager._core._unresolved == {}


async def test_shutdown_reports_the_unknown_acquire_of_a_dropped_handle(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lost_answer())
        with pytest.raises(Unknown):
            await m.manager.handle("job", ttl=3).acquire()
        gc.collect()
        server.on("explain", problem("code_of_a_newer_server", 499))
        assert [name for name, _ in await m.manager.shutdown()] == ["job"]


async def test_unresolved_leases_have_a_bound(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure._core.MAX_UNRESOLVED", 2)
    async with managed(server, clock) as m:
        for name in ("a", "b", "c"):
            server.on("acquire", lost_answer())
            with pytest.raises(Unknown):
                await m.manager.handle(name, ttl=3).acquire()
        assert list(m.manager._core._unresolved) == ["b", "c"]


async def test_grant_whose_deadline_has_passed_is_unknown(server: ScriptedServer, clock: ManualClock) -> None:
    def late(answer: Answer, seconds: float) -> Answer:
        clock.now += seconds
        return answer

    async with managed(server, clock) as m:
        server.on("acquire", lambda _: late(granted(expires_in_ms=500), 0.9))
        with pytest.raises(Unknown):
            await m.manager.handle("job", ttl=3).acquire()
        server.on("acquire", lambda _: late(granted(), 2))
        server.on("renew", lambda request: late(renewed(request), 3))
        job = m.manager.handle("job", ttl=3)
        with pytest.raises(Unknown):
            await job.acquire()
        assert job.state == states.Idle()
        server.on("explain", standing("holds", lease=lease()))
        assert await job.release() is True


def late_grant(refusal: Answer) -> tuple[Handler, Handler, Handler]:
    """A cluster with one lease. It applies the first claim of "me" late.

    Before that, it refuses the second attempt of that claim, and the next claim. Returns the handlers of acquire, release
    and explain.
    """
    attempts: list[Request] = []
    holders: list[str] = []

    def acquire(request: Request) -> Answer:
        if request.body["holder"] != "me":
            return HELD if holders else granted(holder=request.body["holder"])
        attempts.append(request)
        if len(attempts) <= 2:
            return CLOSE if len(attempts) == 1 else HELD
        holders[:] = ["me"]
        return refusal

    def release(_: Request) -> Answer:
        was_held = bool(holders)
        holders.clear()
        return Answer({"released": was_held})

    return acquire, release, lambda _: standing("holds", lease=lease()) if holders else standing("unknown")


@pytest.mark.parametrize("refusal", [problem("no_leader", 503), problem("forbidden", 403), HELD])
@pytest.mark.parametrize("is_shutdown", [True, False])
async def test_refused_claim_does_not_resolve_an_earlier_unknown_one(
    server: ScriptedServer, clock: ManualClock, refusal: Answer, is_shutdown: bool
) -> None:
    async with managed(server, clock, operation_timeout=2) as m, LeaseManager(server.urls, clock=clock) as other:
        for action, handler in zip(("acquire", "release", "explain"), late_grant(refusal), strict=True):
            server.on(action, handler)
        job = m.manager.handle("job", ttl=3)
        with pytest.raises(Unknown):
            await job.acquire()
        with pytest.raises((Refused, Unavailable)):
            await job.acquire()
        with pytest.raises(Refused):
            await other.handle("job", ttl=3).acquire()
        if is_shutdown:
            assert await m.manager.shutdown() == []
        else:
            assert await job.release() is True
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}
        assert await other.handle("job", ttl=3).acquire() == TOKEN


async def test_cancelled_claim_resolves_an_earlier_unknown_one(server: ScriptedServer, clock: ManualClock) -> None:
    answer = asyncio.Event()
    attempts = [CLOSE, HELD]

    async def acquire(_: Request) -> Answer:
        if attempts:
            return attempts.pop(0)
        await answer.wait()
        return problem("forbidden", 403)

    async with managed(server, clock) as m:
        server.on("acquire", acquire)
        server.on("explain", standing("holds", lease=lease()))
        job = m.manager.handle("job", ttl=3)
        with pytest.raises(Unknown):
            await job.acquire()
        acquiring = asyncio.ensure_future(job.acquire())
        await server.received("acquire", 3)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        answer.set()
        released = await server.received("release")
        assert released.body == {"holder": "me", "token": str(TOKEN)}
        assert await job.release() is False


async def test_abandoned_wait_is_resolved_before_the_next_claim(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lambda request: hang(request) if "wait_ms" in request.body else HELD)
        server.on("explain", in_turn(standing("waits", waiter={}), standing("holds", lease=lease())))
        job = m.manager.handle("job", ttl=30)
        waiting = asyncio.ensure_future(job.acquire(wait=30))
        await server.received("acquire")
        following = asyncio.ensure_future(job.acquire())
        for _ in range(5):
            # It waits for the other acquire in this process.
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(Refused):
            await following
        assert [request.action for request in server.requests] == ["acquire", "explain", "explain", "release", "acquire"]
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}


async def test_refused_withdrawal_leaves_the_claim_unresolved(server: ScriptedServer, clock: ManualClock) -> None:
    async with managed(server, clock) as m:
        server.on("acquire", lambda request: hang(request) if request.body["wait_ms"] > 1 else problem("forbidden", 403))
        server.on("explain", standing("waits", waiter={}))
        acquiring = asyncio.ensure_future(m.manager.handle("job", ttl=30).acquire(wait=30))
        await server.received("acquire")
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        shutting_down = asyncio.ensure_future(m.manager.shutdown())
        while not shutting_down.done():
            clock.now += 0.1
            await asyncio.sleep(0.01)
        [(name, error)] = await shutting_down
        assert (name, isinstance(error, Refused)) == ("job", True)
        server.on("explain", standing("unknown"))


async def test_no_claim_is_sent_after_a_shutdown(server: ScriptedServer, clock: ManualClock) -> None:
    answer = asyncio.Event()

    async def release(_: Request) -> Answer:
        await answer.wait()
        return Answer({"released": True})

    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        clock.now += 3
        server.on("release", release)
        acquiring = asyncio.ensure_future(job.acquire())
        await server.received("release")
        closing = asyncio.ensure_future(m.manager.shutdown())
        await m.until(lambda: m.manager._core._claims_resolved.is_set())
        answer.set()
        with pytest.raises(ShutDown):
            await acquiring
        assert await closing == []
        assert len(server.of("acquire")) == 1


@pytest.mark.parametrize("is_released", [True, False])
async def test_shutdown_releases_a_lease_that_the_local_clock_ended(
    server: ScriptedServer, clock: ManualClock, is_released: bool
) -> None:
    async with managed(server, clock, operation_timeout=0.5) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        # The cluster renews the lease, and the answers are lost.
        m.fail_renewals(CLOSE)
        await m.pass_time(3)
        await m.until(lambda: job.state.kind == "lost")
        assert server.of("release") == []
        if not is_released:
            server.on("release", problem("no_leader", 503))
        assert [name for name, _ in await m.manager.shutdown()] == ([] if is_released else ["job"])
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}


async def test_shutdown_releases_a_lease_after_an_outage_longer_than_its_ttl(
    server: ScriptedServer, clock: ManualClock
) -> None:
    async with managed(server, clock) as m:
        job = m.manager.handle("job", ttl=3)
        await job.acquire()
        # Without a majority, the time of the cluster stands still.
        clock.now += 100
        await m.until(lambda: job.state.kind == "lost")
        assert await m.manager.shutdown() == []
        assert server.of("release")[0].body == {"holder": "me", "token": str(TOKEN)}
