"""The client against real nodes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import generate
import pytest

import tenure
from nodes import Cluster, binary, leader_of
from tenure import Client, Leader, LeaseLost, LeaseManager, Loss, Refused, Unavailable
from tenure._transport import Transport


@pytest.fixture
async def manager(cluster: Cluster) -> AsyncIterator[LeaseManager]:
    async with LeaseManager(cluster.urls) as manager:
        yield manager


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[LeaseManager]:
    async with LeaseManager(cluster.urls) as other:
        yield other


async def test_version_is_that_of_the_server(cluster: Cluster, manager: LeaseManager) -> None:
    assert (await manager.client.version())["version"] == tenure.__version__
    cargo = Path(__file__).resolve().parents[3] / "Cargo.toml"
    assert f'version = "{tenure.__version__}"' in cargo.read_text()


def test_generated_types_equal_the_committed_ones(cluster: Cluster) -> None:
    assert generate.generate(cluster.fetch("/openapi.json")) == generate.OUTPUT.read_text()


async def test_token_rises_with_each_grant(manager: LeaseManager, other: LeaseManager) -> None:
    tokens = []
    for _ in range(2):
        for holder in (manager, other):
            async with holder.lease("rises/a", ttl=3, metadata={"zone": "a"}) as lease:
                tokens.append(lease.check_held())
                held = await holder.client.get("rises/a")
                assert (int(held["token"]), held["holder"], held["metadata"]) == (lease.token, holder.holder, {"zone": "a"})
    assert tokens == sorted(set(tokens))


async def test_lease_is_renewed_while_it_is_held(manager: LeaseManager) -> None:
    async with manager.lease("renewed", ttl=6) as lease:
        renewals = 0
        async for state in lease.states():
            renewals += state.kind == "held"
            if renewals == 3:
                break
        assert (await manager.client.get("renewed"))["renewals"] >= 2


async def test_revoke_cancels_the_work(manager: LeaseManager, other: LeaseManager) -> None:
    with pytest.raises(LeaseLost) as caught:
        async with manager.lease("revoked", ttl=6):
            assert await other.client.revoke("revoked", "stuck") == 1
            await asyncio.Event().wait()
    assert caught.value.why == Loss.REVOKED
    history = await manager.client.history("revoked")
    assert [(event["event"], event.get("reason")) for event in history["transitions"]][-1] == ("revoked", "stuck")


async def test_waiter_gets_the_lease_at_the_release(manager: LeaseManager, other: LeaseManager) -> None:
    lease = manager.handle("queue", ttl=5)
    await lease.acquire()
    with pytest.raises(Refused) as caught:
        await other.handle("queue").acquire()
    assert (caught.value.code, caught.value.holder) == ("held", manager.holder)
    waiting = asyncio.ensure_future(other.handle("queue", ttl=5).acquire(wait=10))
    while (await manager.client.queue("queue"))["total"] == 0:
        await asyncio.sleep(0.01)
    assert (await manager.client.explain("queue", other.holder)).get("standing", {})["status"] == "waits"  # type: ignore[index]
    await lease.release()
    assert await waiting > 0
    with pytest.raises(Refused) as caught:
        await lease.acquire(wait=0.1)
    # A client that had to send its request again may have no time left to wait.
    assert caught.value.code in ("wait_timeout", "held")


async def test_cancelled_waiter_leaves_the_queue(manager: LeaseManager, other: LeaseManager) -> None:
    async with manager.lease("left", ttl=5):
        waiting = asyncio.ensure_future(other.handle("left", ttl=5).acquire(wait=60))
        while (await manager.client.queue("left"))["total"] == 0:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while (await manager.client.queue("left"))["total"] > 0:
            await asyncio.sleep(0.01)
    assert (await manager.client.get("left"))["state"] == "released"


async def test_hand_over_goes_to_the_waiter(manager: LeaseManager, other: LeaseManager) -> None:
    lease = manager.handle("handed", ttl=5)
    await lease.acquire()
    with pytest.raises(Refused) as caught:
        await lease.hand_over()
    assert caught.value.code == "no_such_waiter"
    assert lease.is_held
    waiting = asyncio.ensure_future(other.handle("handed", ttl=5).acquire(wait=10))
    while (await manager.client.queue("handed"))["total"] == 0:
        await asyncio.sleep(0.01)
    assert await lease.hand_over() == other.holder
    assert await waiting > 0
    assert not lease.is_held


async def test_counted_lease_has_several_holders(manager: LeaseManager, other: LeaseManager) -> None:
    async with manager.lease("counted", ttl=5, limit=2), other.lease("counted", ttl=5, limit=2):
        held = await manager.client.get("counted")
        assert {holder["holder"] for holder in held.get("holders") or []} == {manager.holder, other.holder}
        names = [lease["name"] async for lease in manager.client.list("counted", states=["active"])]
        assert names == ["counted", "counted"]


async def test_watch_has_each_transition_once(manager: LeaseManager) -> None:
    async with manager.client.watch("watched/") as watch:
        first = asyncio.ensure_future(watch.__anext__())
        while watch.position is None:
            await asyncio.sleep(0.01)
        async with manager.lease("watched/a", ttl=3):
            pass
        events = [await first, await watch.__anext__()]
        position = watch.position
    assert [(event["event"], event["name"]) for event in events] == [("granted", "watched/a"), ("released", "watched/a")]
    async with manager.lease("watched/b", ttl=3):
        pass
    async with manager.client.watch("watched/", after=position) as watch:
        assert (await watch.__anext__())["name"] == "watched/b"


async def test_election_publishes_its_leaders(manager: LeaseManager, other: LeaseManager) -> None:
    candidate = manager.election("elected", ttl=3, metadata={"address": "a"})
    rival = other.election("elected", ttl=3, refresh=0.05)
    observed = rival.observe()
    assert await observed.__anext__() is None
    fenced: list[int] = []

    async def fence(token: int) -> None:
        fenced.append(token)

    async with candidate.leader() as leadership:
        leader = await observed.__anext__()
        assert isinstance(leader, Leader)
        assert (leader.holder, leader.token, leader.is_established) == (manager.holder, leadership.token, False)
        await leadership.establish(fence)
        established = await observed.__anext__()
        assert established is not None
        assert (established.is_established, established.metadata) == (True, {"address": "a"})
        assert fenced == [leadership.token]
        campaign = asyncio.ensure_future(rival.campaign())
        while (await manager.client.queue("elected"))["total"] == 0:
            await asyncio.sleep(0.01)
    next_leadership = await campaign
    assert next_leadership.is_leader
    assert next_leadership.token > leadership.token
    assert not leadership.is_leader
    assert await next_leadership.resign() is True
    await observed.aclose()  # type: ignore[attr-defined]


async def test_revoked_leader_is_cancelled(manager: LeaseManager, other: LeaseManager) -> None:
    with pytest.raises(LeaseLost):
        async with manager.election("deposed", ttl=1).leader() as leadership:
            await other.client.revoke("deposed")
            await leadership.wait_lost()
            await asyncio.Event().wait()
    assert await other.election("deposed").current() is None


async def test_infinite_lease_is_held_until_its_release(manager: LeaseManager) -> None:
    async with manager.lease("infinite", ttl=float("inf")) as lease:
        assert lease.remaining == float("inf")
        assert (await manager.client.get("infinite"))["ttl_ms"] == "infinite"


async def test_client_learns_the_other_members(cluster: Cluster) -> None:
    transport = Transport(cluster.urls, None, None, None, None)
    transport.endpoints.given = []
    await transport._ask_members(cluster.urls[0] + "/")
    assert transport.endpoints.urls == [cluster.urls[0] + "/"]
    await transport.aclose()


async def test_lease_outlives_the_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, nodes=3)
    try:
        for node in (1, 2, 3):
            cluster.wait_ready(node)
        async with (
            LeaseManager(cluster.urls[:1], operation_timeout=15) as manager,
            manager.lease("survivor", ttl=20) as lease,
        ):
            leader = await leader_of(manager.client)
            # The manager was given one node. It must find the others before that one dies.
            manager.client._transport.endpoints.has_failure = True
            manager.client._transport.endpoints.asked_members_at -= 10
            while len(manager.client._transport.endpoints.urls) < 3:
                await manager.client.version()
            cluster.signal(leader, signal.SIGKILL)
            assert await lease.check() is True
            async for state in lease.states():
                if state.kind == "held" and lease.remaining > 18:
                    break
            assert lease.is_held
    finally:
        cluster.stop()


async def test_paused_cluster_costs_the_lease_in_time(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.wait_ready()
        async with LeaseManager(cluster.urls, operation_timeout=0.5) as manager:
            states = []
            with pytest.raises(LeaseLost) as caught:
                async with manager.lease("paused", ttl=6, grace=3, wait=20) as lease:
                    lease.on_state(lambda state: states.append(state.kind))
                    cluster.signal(1, signal.SIGSTOP)
                    try:
                        await asyncio.Event().wait()
                    finally:
                        assert lease.is_held, "the grace is before the deadline"
            assert caught.value.why == Loss.UNREACHABLE
            assert "ending" in states
            with pytest.raises(Unavailable):
                await manager.client.get("paused")
            cluster.signal(1, signal.SIGCONT)
    finally:
        cluster.stop()


async def test_tls_and_client_certificates_work(tmp_path: Path) -> None:
    tls = tmp_path / "tls"
    extra = '[tls]\nca = "tls/ca.pem"\ncert = "tls/node-{node}.pem"\nkey = "tls/node-{node}.key"\nclient_cert = "require"\n'
    cluster = Cluster(tmp_path, extra=extra, scheme="https", before=_make_certificates)
    ca, cert, key = tls / "ca.pem", tls / "client.pem", tls / "client.key"
    try:
        async with LeaseManager(cluster.urls, ca=ca, cert=cert, key=key) as manager:
            # A campaign also waits for the start of the node.
            leadership = await asyncio.wait_for(manager.election("tls", ttl=3).campaign(), 20)
            assert leadership.is_leader
            assert await leadership.resign() is True
        async with Client(cluster.urls, ca=ca, timeout=3) as client:
            with pytest.raises(Unavailable):
                await client.version()
        async with Client(cluster.urls, timeout=3) as client:
            with pytest.raises(Unavailable):
                await client.version()
    finally:
        cluster.stop()
    with pytest.raises(ValueError, match="a client certificate needs"):
        Client("https://localhost", cert=cert, key=key)


def _make_certificates(folder: Path) -> None:
    command = [binary(), "tls", "init", "tls", "--config", "cluster.toml"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
