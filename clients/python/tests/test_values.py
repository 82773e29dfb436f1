"""Endpoints, options, events and errors."""

from __future__ import annotations

import asyncio
import math
import pickle
import time
from typing import Any

import pytest

import tenure
from managers import managed
from scripted import Answer, ManualClock, Request, ScriptedServer, problem
from tenure import Client, LeaseLost, LeaseManager, Loss, Refused, ShutDown, Unavailable, Unknown
from tenure._clock import system_clock
from tenure._endpoints import MAX_ENDPOINTS, Endpoints


def test_endpoints_are_hosts_or_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101,https://leases.example/tenure"
    urls = ["http://127.0.0.1:7101/", "http://node-2:7101/", "http://[::1]:7101/", "https://leases.example/tenure/"]
    assert Endpoints(text, 0).urls == Endpoints(text.split(","), 0).urls == urls
    assert len(Endpoints(None, 0).urls) == 3
    monkeypatch.setenv("TENURE_ENDPOINTS", "a:1")
    assert Endpoints(None, 0).urls == ["http://a:1/"]


@pytest.mark.parametrize(
    "text", ["", "ftp://a", "http://a?b", "http://u:p@a", "http://", "http://a:x", ["a"] * (MAX_ENDPOINTS + 1)]
)
def test_invalid_endpoints_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Endpoints(text, 0)


def test_members_are_added_and_given_endpoints_stay() -> None:
    endpoints = Endpoints("https://a:1/x,https://b:1/x", 0)
    endpoints.add_members("https://b:1/x/", ["b:1", "c:1", "c:x"])
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
        {"lock_delay": -1},
        {"limit": 0},
        {"limit": 10_001},
        {"metadata": {str(n): "" for n in range(33)}},
        {"metadata": {"a": "b" * 4096}},
    ],
)
async def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    async with LeaseManager() as manager:
        with pytest.raises(ValueError, match="invalid"):
            manager.handle(**{"name": "job", **options})


async def test_options_at_their_bounds_are_accepted() -> None:
    for bad in ({"holder": ""}, {"holder": "a\n"}, {"operation_timeout": 0}, {"drift_permille": 501}):
        with pytest.raises(ValueError, match="invalid"):
            LeaseManager(**bad)
    async with LeaseManager(drift_permille=500) as manager:
        options: list[dict[str, Any]] = [{"ttl": 0.1}, {"ttl": 86_400, "grace": 43_200, "limit": 10_000}, {"ttl": math.inf}]
        assert [manager.handle("a" * 200, **option).is_held for option in options] == [False] * 3
        with pytest.raises(ValueError, match="wait"):
            manager.lease("job", wait=86_401)
        with pytest.raises(ValueError, match="reserved"):
            manager.election("job", metadata={"tenure.x": ""})


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
                "leases": [{"name": "b" if "cursor=c" in request.path else "a"}],
                "cursor": None if "cursor=c" in request.path else "c",
            }
        )

    server.on("leases", page)
    for action in ("a%2Fb", "history", "queue", "explain", "cluster"):
        server.on(action, Answer({"revoked": 2}))
    async with Client(server.urls, consistency="stale") as client:
        await client.get("a/b")
        await client.history("a/b")
        await client.queue("a/b")
        await client.explain("a/b", "me")
        await client.cluster()
        assert await client.revoke("a/b", "why") == 2
        assert [lease["name"] async for lease in client.list("a", states=["active", "expired"])] == ["a", "b"]
    assert [f"{request.method} {request.path}" for request in server.requests] == [
        "GET /v1/leases/a%2Fb?consistency=stale",
        "GET /v1/leases/a%2Fb/history?consistency=stale",
        "GET /v1/leases/a%2Fb/queue?consistency=stale",
        "GET /v1/leases/a%2Fb/explain?holder=me&consistency=stale",
        "GET /v1/cluster",
        "DELETE /v1/leases/a%2Fb?reason=why",
        "GET /v1/leases?prefix=a&state=active%2Cexpired&limit=1000&consistency=stale",
        "GET /v1/leases?prefix=a&state=active%2Cexpired&limit=1000&cursor=c&consistency=stale",
    ]


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
