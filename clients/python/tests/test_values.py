"""Endpoints, options, events and errors."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
import socket
import ssl
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import tenure
from managers import managed
from scripted import (
    CLOSE,
    TOKEN,
    Answer,
    ManualClock,
    Request,
    ScriptedServer,
    granted,
    in_turn,
    in_virtual_time,
    lease,
    problem,
)
from tenure import Client, Lease, LeaseLost, LeaseManager, Loss, Refused, ShutDown, Unavailable, Unknown, sync
from tenure._calls import probe_interval
from tenure._clock import system_clock
from tenure._endpoints import MAX_ENDPOINTS, Endpoints
from tenure._options import LeaseOptions
from tenure._pools import Pools
from tenure._transport import MAX_PARALLEL

# Each option of a lease. None is the default.
OPTIONS: dict[str, Any] = {
    "ttl": 60,
    "grace": 1,
    "lock_delay": 2,
    "limit": 3,
    "metadata": {"a": "b"},
    "drain": 4,
    "longest_hold": 90,
    "renew_while": lambda: True,
}
OF_ELECTIONS: dict[str, Any] = {key: OPTIONS[key] for key in ("ttl", "grace", "lock_delay", "metadata", "drain")}


def test_endpoints_are_hosts_or_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101,https://leases.example/tenure"
    urls = ["http://127.0.0.1:7101/", "http://node-2:7101/", "http://[::1]:7101/", "https://leases.example/tenure/"]
    assert Endpoints(text, 0).urls == Endpoints(text.split(","), 0).urls == urls
    assert len(Endpoints(None, 0).urls) == 3
    monkeypatch.setenv("TENURE_ENDPOINTS", "a:1")
    assert Endpoints(None, 0).urls == ["http://a:1/"]
    assert Endpoints("b:1", 0).urls == ["http://b:1/"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://a",
        "http://a?b",
        "http://u:p@a",
        "http://",
        "http://a:x",
        "http://a:65536",
        "a:0",
        "a:-1",
        "a..b:1",
        "a" * 64,
        ["a"] * (MAX_ENDPOINTS + 1),
    ],
)
def test_invalid_endpoints_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Endpoints(text, 0)


def test_members_are_added_and_given_endpoints_stay() -> None:
    endpoints = Endpoints("https://a:1/x,https://b:1/x", 0)
    endpoints.add_members("https://b:1/x/", ["b:1", "c:1", "c:x", "c:65536", "c:0"])
    assert endpoints.urls == ["https://a:1/x/", "https://b:1/x/", "https://c:1/x/"]
    endpoints.add_members("https://b:1/x/", [])
    assert endpoints.urls == endpoints.given


def test_members_are_asked_sooner_after_a_failure() -> None:
    endpoints = Endpoints("a:1,b:1", 0)
    assert (endpoints.is_refresh_due(29), endpoints.is_refresh_due(30), endpoints.is_refresh_due(33)) == (False, True, False)
    endpoints.avoid(0, 2)
    assert (endpoints.preferred, endpoints.is_refresh_due(33)) == (1, True)


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "no name"},
        {"name": "a" * 201},
        {"ttl": 0.099},
        {"ttl": 86_401},
        {"ttl": math.nan},
        {"ttl": 9, "grace": 4.501},
        {"ttl": 9, "longest_hold": 8},
        {"longest_hold": -1},
        {"grace": -1},
        {"lock_delay": -1},
        {"lock_delay": 86_401},
        {"drain": -1},
        {"limit": 0},
        {"limit": 10_001},
        {"limit": 2.5},
        {"metadata": {str(n): "" for n in range(33)}},
        {"metadata": {"a": "b" * 4096}},
    ],
)
async def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    async with LeaseManager() as manager:
        with pytest.raises(ValueError, match="invalid"):
            manager.handle(**{"name": "job", **options})


async def test_options_at_their_bounds_are_accepted() -> None:
    refused: list[dict[str, Any]] = [{"holder": ""}, {"holder": "a\n"}, {"operation_timeout": 0}]
    refused += [{"drift_permille": drift} for drift in (-1, 501, math.nan)]
    for bad in refused:
        with pytest.raises(ValueError, match="invalid"):
            LeaseManager(**bad)
    for timeout in (0, 86_401, math.nan):
        with pytest.raises(ValueError, match="invalid timeout"):
            Client(timeout=timeout)
    async with LeaseManager(drift_permille=500) as manager:
        options: list[dict[str, Any]] = [{"ttl": 0.1}, {"ttl": 86_400, "grace": 43_200, "limit": 10_000}, {"ttl": math.inf}]
        assert [manager.handle("a" * 200, **option).is_held for option in options] == [False] * 3
        with pytest.raises(ValueError, match="wait"):
            manager.lease("job", wait=86_401)
        with pytest.raises(ValueError, match="reserved"):
            manager.election("job", metadata={"tenure.x": ""})


@pytest.mark.parametrize("wait", [-1, 86_401])
async def test_wait_outside_its_bounds_sends_no_request(server: ScriptedServer, wait: float) -> None:
    async def work(_: Lease) -> None:
        pass

    server.on("acquire", granted(ttl_ms=60_000))
    server.on("release", Answer({"released": True}))
    async with LeaseManager(server.urls) as manager:
        job = manager.handle("job")
        with pytest.raises(ValueError, match="invalid wait"):
            await job.acquire(wait=wait)
        with pytest.raises(ValueError, match="invalid wait"):
            job.hold(wait=wait)
        with pytest.raises(ValueError, match="invalid wait"):
            await job.run(work, wait=wait)

    def in_threads() -> None:
        with sync.LeaseManager(server.urls) as manager:
            job = manager.handle("job")
            for call in (job.acquire, job.hold):
                with pytest.raises(ValueError, match="invalid wait"):
                    call(wait=wait)

    await asyncio.to_thread(in_threads)
    assert server.requests == []


async def test_request_has_5_s_by_default() -> None:
    async with LeaseManager() as manager, Client() as client:
        assert (manager._core.operation_timeout, manager._core.budget.total, client._budget.total) == (5, 5, 5)
    with sync.LeaseManager() as blocking:
        assert blocking._manager._core.operation_timeout == 5


async def test_options_reach_the_lease() -> None:
    async with LeaseManager() as manager:
        assert manager.lease("job", **OPTIONS)._lease._hold.options == LeaseOptions(**OPTIONS)
        assert manager.election("led", **OF_ELECTIONS)._lease._hold.options == LeaseOptions(**OF_ELECTIONS)


def test_options_of_threads_reach_the_lease() -> None:
    with sync.LeaseManager() as manager:
        assert manager.lease("job", **OPTIONS)._lease._lease._hold.options == LeaseOptions(**OPTIONS)
        assert manager.handle("handle", **OPTIONS)._lease._hold.options == LeaseOptions(**OPTIONS)
        elected = manager.election("led", refresh=2, **OF_ELECTIONS)._election
        assert (elected._lease._hold.options, elected._refresh) == (LeaseOptions(**OF_ELECTIONS), 2)


def test_waiting_claim_probes_every_third_of_its_ttl() -> None:
    ttls: list[int | str | None] = [100, 1_500, 15_000, 60_000, "infinite", None]
    assert [probe_interval(ttl) for ttl in ttls] == [0.5, 0.5, 5, 10, 10, 10]


async def test_managers_of_one_process_are_two_holders() -> None:
    async with LeaseManager() as one, LeaseManager() as other:
        assert one.holder != other.holder


def test_clock_counts_suspend_where_the_system_has_it() -> None:
    assert tenure.CLOCK_NAME == "CLOCK_BOOTTIME"
    assert system_clock() == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=1)


def test_errors_survive_a_pickle() -> None:
    body = problem("held", 409, holder="other").body
    errors = [Refused(body), Unknown("why", body), Unavailable("why"), ShutDown(), LeaseLost("job", 7, Loss.REVOKED)]
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
    texts = [
        "held: why",
        "the outcome is unknown: why; a later attempt was refused: why",
        "no node could serve the request: why",
    ]
    assert [str(error) for error in errors[:3]] == texts
    assert str(errors[4]) == "the lease 'job' was lost: an operator revoked it"


async def test_reads_have_the_documented_paths(server: ScriptedServer) -> None:
    def page(request: Request) -> Answer:
        return Answer(
            {
                "leases": [lease("b" if "cursor=c" in request.path else "a")],
                "cursor": None if "cursor=c" in request.path else "c",
            }
        )

    server.on("leases", page)
    for action in ("a%2Fb", "history", "queue", "explain", "cluster"):
        server.on(action, Answer({**lease("a/b"), "revoked": 2, "transitions": [], "waiters": [], "held": []}))
    async with Client(server.urls, consistency="stale") as client:
        await client.get("a/b")
        await client.history("a/b")
        await client.queue("a/b")
        await client.explain("a/b", "me")
        await client.cluster()
        assert await client.revoke("a/b", "why") == 2
        leases = client.list("a", holder="me", states=["active", "expired"])
        assert [listed["name"] async for listed in leases] == ["a", "b"]
        assert [listed["name"] async for listed in client.list("a", states="active")] == ["a", "b"]
    assert [f"{request.method} {request.path}" for request in server.requests] == [
        "GET /v1/leases/a%2Fb?consistency=stale",
        "GET /v1/leases/a%2Fb/history?consistency=stale",
        "GET /v1/leases/a%2Fb/queue?consistency=stale",
        "GET /v1/leases/a%2Fb/explain?holder=me&consistency=stale",
        "GET /v1/cluster",
        "DELETE /v1/leases/a%2Fb?reason=why",
        "GET /v1/leases?prefix=a&holder=me&state=active%2Cexpired&limit=1000&consistency=stale",
        "GET /v1/leases?prefix=a&holder=me&state=active%2Cexpired&limit=1000&cursor=c&consistency=stale",
        "GET /v1/leases?prefix=a&state=active&limit=1000&consistency=stale",
        "GET /v1/leases?prefix=a&state=active&limit=1000&cursor=c&consistency=stale",
    ]


async def test_calls_of_threads_pass_their_arguments_on(server: ScriptedServer) -> None:
    def call() -> None:
        with sync.LeaseManager(server.urls, holder="me") as manager:
            client = manager.client
            client.explain("a/b", "me")
            assert client.revoke("a/b", "why") == 2
            assert list(client.list("a", holder="me", states=["active", "expired"])) == []
            job = manager.handle("job", ttl=60)
            job.acquire(wait=5)
            assert job.hand_over("next") == "next"
            assert manager.election("led", ttl=60).campaign().hand_over("next") == "next"

    server.on("explain", Answer({"held": []}))
    server.on("a%2Fb", Answer({"revoked": 2}))
    server.on("leases", Answer({"leases": [], "cursor": None}))
    server.on("acquire", granted(ttl_ms=60_000))
    server.on("handover", Answer(lease(holder="next", token=TOKEN + 1)))
    await asyncio.to_thread(call)
    assert [f"{request.method} {request.path}" for request in server.requests] == [
        "GET /v1/leases/a%2Fb/explain?holder=me",
        "DELETE /v1/leases/a%2Fb?reason=why",
        "GET /v1/leases?prefix=a&holder=me&state=active%2Cexpired&limit=1000",
        "POST /v1/leases/job/acquire",
        "POST /v1/leases/job/handover",
        "POST /v1/leases/led/acquire",
        "POST /v1/leases/led/handover",
    ]
    assert server.of("acquire")[0].body["wait_ms"] == 5000
    assert [request.body["to"] for request in server.of("handover")] == ["next", "next"]


async def test_get_reads_all_holders_of_a_counted_lease(server: ScriptedServer) -> None:
    server.on("job", Answer(lease(token=1, holders=[lease(token=1)], holders_cursor="one")))
    pages = [
        {"leases": [lease(token=2)], "cursor": "two"},
        {"leases": [lease(token=3), lease("job-2", token=4)], "cursor": "three"},
    ]
    server.on("leases", in_turn(*map(Answer, pages)))
    async with Client(server.urls) as client:
        held = await client.get("job")
    assert [holder["token"] for holder in held.get("holders") or []] == ["1", "2", "3"]
    assert [request.path.rpartition("=")[2] for request in server.of("leases")] == ["one", "two"]


async def test_revoke_is_not_repeated_after_a_lost_answer(server: ScriptedServer) -> None:
    server.on("job", CLOSE)
    async with Client(server.urls, timeout=1) as client:
        with pytest.raises(Unknown):
            await client.revoke("job")
    assert [request.method for request in server.requests] == ["DELETE"]


async def test_revoke_without_a_number_is_unknown(server: ScriptedServer) -> None:
    server.on("job", Answer({"status": "ok"}))
    async with Client(server.urls, timeout=1) as client:
        with pytest.raises(Unknown):
            await client.revoke("job")


async def test_node_that_failed_does_not_get_the_next_request(servers: ScriptedServer) -> None:
    servers.on("job", CLOSE)
    servers.on("version", Answer({"version": "1"}))
    async with Client(servers.urls, timeout=1) as client:
        with pytest.raises(Unknown):
            await client.revoke("job")
        await client.version()
    assert [(request.action, request.node) for request in servers.requests] == [("job", 0), ("version", 1)]


async def test_callers_with_short_limits_leave_a_node_that_hangs(servers: ScriptedServer) -> None:
    async def answer(request: Request) -> Answer:
        if request.node == 0:
            await asyncio.Event().wait()
        return Answer({"version": "1"})

    servers.on("version", answer)
    async with Client(servers.urls) as client:
        for _ in range(3):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(client.version(), 0.3)
        before = len(servers.of("version"))
        await client.version()
        assert 0 not in [request.node for request in servers.of("version")[before:]]


def test_time_of_cancelled_attempts_counts_until_the_next_answer() -> None:
    endpoints = Endpoints("a:1,b:1", 0)

    async def preferred_after(index: int) -> int:
        """Leaves an attempt at this node after 100 ms. Returns the preferred node."""

        async def attempt() -> None:
            with endpoints.attempt(index, 2):
                await asyncio.sleep(60)

        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(attempt(), 0.1)
        return endpoints.preferred

    async def leave(*indexes: int) -> list[int]:
        return [await preferred_after(index) for index in indexes]

    assert in_virtual_time(leave(0, 0)) == [0, 0]
    endpoints.prefer(0)
    assert in_virtual_time(leave(0, 0)) == [0, 0]
    assert in_virtual_time(leave(1)) == [0], "the time at another node does not count"
    assert in_virtual_time(leave(0)) == [1]
    assert in_virtual_time(leave(1, 1, 1)) == [1, 1, 0]


async def test_list_with_an_invalid_holder_sends_no_request(server: ScriptedServer) -> None:
    async with Client(server.urls) as client:
        with pytest.raises(ValueError, match="invalid holder"):
            await client.list(holder="a\n").__anext__()
    assert server.requests == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse connections at a full queue, or accept more")
async def test_request_leaves_a_host_that_accepts_no_connection(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure._transport.CONNECT_TIMEOUT", 0.1)
    with contextlib.ExitStack() as sockets:
        silent = sockets.enter_context(socket.socket())
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(4):
            # With a full queue, the system drops the next requests for a connection.
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        server.on("job", Answer({"revoked": 1}))
        async with Client([f"http://127.0.0.1:{silent.getsockname()[1]}", *server.urls], timeout=10) as client:
            # A request that may have been sent would be unknown.
            assert await client.revoke("job") == 1


async def test_idle_connections_end_before_a_node_closes_them() -> None:
    async with Client() as client:
        pools = client._transport._http._transport
        assert isinstance(pools, Pools)
        assert 0 < pools._idle_timeout < 60


async def test_each_request_at_a_time_has_its_own_pool(server: ScriptedServer) -> None:
    answers = asyncio.Event()

    async def answer(request: Request) -> Answer:
        await answers.wait()
        return granted(name=request.path.split("/")[-2])

    async with managed(server, ManualClock()) as m:
        server.on("acquire", answer)
        waits = [asyncio.ensure_future(m.manager.handle(f"job-{i}", ttl=60).acquire(wait=60)) for i in range(20)]
        await server.received("acquire", 20)
        pools = m.manager.client._transport._http._transport
        assert isinstance(pools, Pools)
        assert len(pools.idle) == 0
        answers.set()
        assert await asyncio.gather(*waits) == [TOKEN] * 20
        assert len(pools.idle) == 20
        used = pools.idle[-1][0]
        # Only the last pool had a request in the last seconds.
        old = [(pool, since - pools._idle_timeout - 1) for pool, since in pools.idle if pool is not used]
        pools.idle = deque([*old, (used, pools.idle[-1][1])])
        server.on("version", Answer({"version": "1"}))
        await m.manager.client.version()
        assert [pool for pool, _ in pools.idle] == [used]
        opened = [len(pool._pool.connections) for pool in (used, *(pool for pool, _ in old))]
        assert opened == [1] + [0] * 19


async def test_error_of_an_old_connection_fails_no_request(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reset() -> None:
        raise ConnectionResetError

    server.on("job", Answer({"revoked": 1}))
    async with Client(server.urls) as client:
        pools = client._transport._http._transport
        assert isinstance(pools, Pools)
        old = pools._new_pool()
        monkeypatch.setattr(old, "aclose", reset)
        pools.idle.append((old, asyncio.get_running_loop().time() - pools._idle_timeout - 1))
        # The last pool gets the request, and the others are closed.
        pools.put(pools._new_pool())
        # A revoke has no second attempt.
        assert await client.revoke("job") == 1
        assert old not in pools._pools


async def test_leases_are_released_over_few_connections(server: ScriptedServer) -> None:
    now = most = 0
    full = asyncio.Event()

    async def release(_: Request) -> Answer:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await full.wait()
        now -= 1
        return Answer({"released": True})

    # On a slow machine, a request may take long. None is sent twice.
    async with managed(server, ManualClock(), operation_timeout=60) as m:
        server.on("acquire", lambda request: granted(name=request.path.split("/")[-2]))
        server.on("release", release)
        leases = [m.manager.handle(f"job-{i}", ttl=60) for i in range(3 * MAX_PARALLEL)]
        await asyncio.gather(*(lease.acquire() for lease in leases))
        shutdown = asyncio.ensure_future(m.manager.shutdown())
        await server.received("release", MAX_PARALLEL)
        await asyncio.sleep(0.1)
        full.set()
        assert await shutdown == []
    assert len(server.of("release")) == 3 * MAX_PARALLEL
    assert most == MAX_PARALLEL


async def test_request_behind_unanswered_ones_is_not_sent(server: ScriptedServer) -> None:
    async with Client(server.urls, timeout=0.2) as client:
        for _ in range(MAX_PARALLEL):
            await client._transport._slots.acquire()
        # A change that may have been sent would be unknown.
        with pytest.raises(Unavailable, match="64 earlier requests had no answer"):
            await client.revoke("job")
    assert server.requests == []


async def test_request_waits_for_its_turn_while_nodes_answer(server: ScriptedServer) -> None:
    server.on("version", Answer({"version": "1"}))
    server.on("job", Answer({"revoked": 1}))
    async with Client(server.urls, timeout=2) as client:
        await client.version()
        transport = client._transport
        assert 0 <= asyncio.get_running_loop().time() - transport._answered_at < 2
        for _ in range(MAX_PARALLEL):
            await transport._slots.acquire()
        revoke = asyncio.ensure_future(client.revoke("job"))
        for _ in range(6):
            transport._answered_at = asyncio.get_running_loop().time()
            await asyncio.sleep(0.5)
        assert (revoke.done(), server.of("job")) == (False, [])
        transport._slots.release()
        assert await revoke == 1


async def test_first_line_of_the_token_file_is_sent(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("of-the-file\nnote\n")
    monkeypatch.setenv("TENURE_ACCESS_TOKEN", "of-the-variable")
    monkeypatch.setenv("TENURE_ACCESS_TOKEN_FILE", str(file))
    server.on("version", Answer({"version": "1"}))
    async with Client(server.urls) as client:
        await client.version()
    assert server.of("version")[0].headers["authorization"] == "Bearer of-the-file"


@pytest.mark.parametrize(("variable", "error"), [("CA", FileNotFoundError), ("CERT", ValueError), ("KEY", ValueError)])
def test_files_of_tls_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, error: type[Exception]
) -> None:
    # No file is there, and a certificate needs its key.
    monkeypatch.setenv(f"TENURE_{variable}", str(tmp_path / "missing.pem"))
    with pytest.raises(error):
        Client("https://localhost")


async def test_files_of_tls_come_from_the_arguments_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []

    class Context(ssl.SSLContext):
        def load_cert_chain(self, *files: object) -> None:
            loaded.extend(files)

    def context(cafile: object) -> ssl.SSLContext:
        loaded.append(cafile)
        return Context(ssl.PROTOCOL_TLS_CLIENT)

    monkeypatch.setattr("ssl.create_default_context", context)
    files = {variable: tmp_path / variable for variable in ("ca", "cert", "key")}
    for variable in files:
        monkeypatch.setenv(f"TENURE_{variable.upper()}", "of-the-variable")
    async with Client("https://localhost", **files):  # type: ignore[arg-type]
        assert loaded == list(files.values())


async def test_members_are_asked_while_requests_are_sent(server: ScriptedServer, clock: ManualClock) -> None:
    asked = asyncio.Event()

    def members(_: Request) -> Answer:
        asked.set()
        return Answer({"members": [{"http": "127.0.0.1:1"}]})

    async with managed(server, clock) as m:
        server.on("cluster", members)
        endpoints = m.manager.client._transport.endpoints
        await m.manager.handle("job", ttl=3).acquire()
        assert not asked.is_set()
        endpoints.asked_members_at -= 31
        await m.manager.handle("job").release()
        await asyncio.wait_for(asked.wait(), 5)
        await m.until(lambda: len(endpoints.urls) == 2)
        assert endpoints.urls[1] == "http://127.0.0.1:1/"
