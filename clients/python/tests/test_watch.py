"""The watch: it loses no event, and it ends if the cluster refuses it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import httpx
import pytest

from managers import managed
from nodes import Cluster
from scripted import CLOSE, Answer, ManualClock, Request, ScriptedServer, in_turn, problem
from tenure import Client, LeaseManager, Refused, ShutDown, Unavailable, _watch, sync
from tenure._endpoints import Endpoints
from tenure._process import Owner
from tenure._retry import RetryBudget
from tenure._watch import MAX_EVENT_BYTES, EventParser, ServerEvent, Watch

NODES = (1, 2, 3)
DENIED = problem("forbidden", 403)


def test_events_do_not_depend_on_the_chunk_size() -> None:
    text = ': alive\n\nid: 7.0\nevent: granted\ndata: {"a":1}\n\nid:8\r\n\r\ndata: aé\ndata: b\n\n'.encode()
    expected = [ServerEvent("7.0", '{"a":1}'), ServerEvent("8", None), ServerEvent(None, "aé\nb")]
    for size in range(1, len(text)):
        parser = EventParser()
        chunks = [text[start : start + size] for start in range(0, len(text), size)]
        assert [event for chunk in chunks for event in parser.feed(chunk)] == expected


def test_endless_event_is_not_kept() -> None:
    for endless in (b"x", b"data: x\n"):
        parser = EventParser()
        with pytest.raises(ValueError, match="too large"):
            for _ in range(MAX_EVENT_BYTES):
                parser.feed(endless * 1024)


def test_silent_stream_is_kept_for_a_few_heartbeats() -> None:
    # A node sends one each 10 s.
    assert 20 <= _watch.SILENCE_TIMEOUT <= 30


async def test_probe_of_a_closed_client_is_shut_down(server: ScriptedServer) -> None:
    async with Client(server.urls) as client:
        pass
    with pytest.raises(ShutDown):
        await client._transport.is_ready(server.urls[0] + "/")


async def test_watches_with_short_limits_leave_a_node_that_hangs(servers: ScriptedServer) -> None:
    async def answer(request: Request) -> Answer:
        if request.node == 0:
            await asyncio.Event().wait()
        return Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')

    servers.on("watch", answer)
    async with Client(servers.urls) as client, client.watch() as watch:
        for _ in range(3):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(watch.__anext__(), 0.3)
        assert client._transport.endpoints.preferred != 0


async def test_forked_process_reads_no_state_of_its_parent(
    server: ScriptedServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(server, clock) as m, m.manager.lease("job", ttl=3) as job:
        leadership = await m.manager.election("led", ttl=3).campaign()
        waits = [leadership.wait_lost]
        for lease in (job, m.manager.handle("job")):
            waits += [lease.wait_ended, lease.wait_stopping, lease.states().__anext__]  # type: ignore[list-item]
        with monkeypatch.context() as forked:
            forked.setattr(m.manager._core.owner, "_pid", 0)
            for wait in waits:
                with pytest.raises(RuntimeError, match="belongs to process"):
                    await asyncio.wait_for(wait(), 5)
            with pytest.raises(RuntimeError, match="belongs to process"):
                job.on_state(print)
            with pytest.raises(RuntimeError, match="belongs to process"):
                _ = leadership.token
        await leadership.resign()


async def test_forked_process_keeps_the_connections_of_its_parent(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("watch", Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n'))
    async with Client(server.urls) as client, client.watch() as watch:
        await watch.__anext__()
        stream = watch._stream
        assert stream is not None
        with monkeypatch.context() as forked:
            forked.setattr(client._transport.owner, "_pid", 0)
            await watch.aclose()
            await client.aclose()
        assert (watch._stream, client._transport._http.is_closed) == (stream, False)


async def test_watch_resumes_after_its_last_position(server: ScriptedServer) -> None:
    first = b'id: 5\n\nid: 6\nevent: new\ndata: {"event": "event_of_a_newer_server", "name": "a", "new": 1}\n\n'
    lagged = b'event: lagged\ndata: {"code": "lagged"}\n\nid: 7\ndata: {"event": "granted", "name": "b"}\n\n'
    compacted = problem("compacted", 410, oldest=9)
    server.on("watch", in_turn(Answer(first), CLOSE, problem("no_leader", 503), Answer(lagged), compacted))
    async with Client(server.urls) as client, client.watch("jobs/") as watch:
        events = [await watch.__anext__(), await watch.__anext__()]
        assert [event["event"] for event in events] == ["event_of_a_newer_server", "granted"]
        with pytest.raises(Refused) as caught:
            await watch.__anext__()
    assert (caught.value.code, caught.value.problem.get("oldest")) == ("compacted", 9)
    queries = [request.path.partition("?")[2] for request in server.of("watch")]
    assert queries == ["prefix=jobs%2F", *["prefix=jobs%2F&after=6"] * 3, "prefix=jobs%2F&after=7"]


async def test_denied_watch_fails_after_two_rounds(servers: ScriptedServer) -> None:
    servers.on("readyz", Answer())
    servers.on("watch", lambda request: CLOSE if request.node == 1 else DENIED)
    async with Client(servers.urls) as client:
        with pytest.raises(Refused) as caught:
            await client.watch("jobs/").__anext__()
    assert caught.value.code == "forbidden"
    assert [request.node for request in servers.of("watch")] == [0, 1, 2] * 2


async def test_watch_finds_the_node_that_knows_a_new_token(servers: ScriptedServer) -> None:
    event = Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')
    servers.on("readyz", Answer())
    servers.on("watch", in_turn(DENIED, DENIED, DENIED, DENIED, event))
    async with Client(servers.urls) as client, client.watch() as watch:
        assert (await watch.__anext__())["name"] == "a"


@pytest.mark.parametrize("ready", [problem("not_ready", 503), CLOSE])
async def test_denial_of_a_node_without_a_leader_does_not_count(server: ScriptedServer, ready: Answer) -> None:
    event = Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')
    server.on("readyz", ready)
    server.on("watch", in_turn(event, *[problem("unauthenticated", 401)] * 3, event, DENIED))
    async with Client(server.urls) as client, client.watch() as watch:
        assert [(await watch.__anext__())["name"], (await watch.__anext__())["name"]] == ["a", "a"]
        server.on("readyz", Answer())
        with pytest.raises(Refused) as caught:
            await watch.__anext__()
    assert caught.value.code == "forbidden"
    server.on("readyz", ready)
    async with Client(server.urls, timeout=0.1) as client:
        with pytest.raises(Unavailable):
            await client.watch().__anext__()


class Silent:
    """An answer whose node is gone without an end of the connection."""

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """No chunk."""
        await asyncio.Event().wait()
        yield b""


async def test_silent_stream_is_broken_although_each_iteration_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch, "SILENCE_TIMEOUT", 0.3)
    stream = _watch._Stream(cast("httpx.Response", Silent()), AsyncExitStack())
    for _ in range(20):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(stream.read(), 0.1)
        if stream._reading is None:
            break
    assert stream._reading is None, "the time begins again with each iteration"


class Stream:
    """A stream of a node: its position, the next events, and the end of the connection. Each chunk takes some steps."""

    is_success = True
    headers: ClassVar = {"content-type": "text/event-stream"}

    def __init__(self, after: int, steps: int, length: int) -> None:
        """Sends `length` events after this one. `steps` are the steps of the loop before each chunk."""
        self._after = after
        self._steps = steps
        self._length = length

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """Two chunks: the position with the first event, and the other events with the begin of another one."""
        events = [f'id: {i}\ndata: {{"event": "granted", "i": {i}}}\n\n' for i in range(self._after + 1, self._after + 9)]
        for chunk in (f"id: {self._after}\n\n{events[0]}", "".join(events[1 : self._length]) + events[self._length][:20]):
            for _ in range(self._steps):
                await asyncio.sleep(0)
            yield chunk.encode()
        raise httpx.ReadError("the node has stopped")


class Nodes:
    """A transport to nodes that have all events. It counts the open streams."""

    def __init__(self, steps: int) -> None:
        """Each request and each chunk takes this many steps of the loop."""
        self.endpoints = Endpoints("http://node", 0.0)
        self.owner = Owner("client")
        self.opened = 0
        self.open = 0
        self._steps = steps

    def refresh_members(self, _: str) -> None:
        """Each node has the same members."""

    @asynccontextmanager
    async def stream(self, _: str, query: Mapping[str, str]) -> AsyncIterator[Stream]:
        """A stream after the position of the query."""
        for _step in range(self._steps):
            await asyncio.sleep(0)
        self.opened += 1
        if self.opened % 3 == 0:
            raise httpx.ConnectError("no connection")
        self.open += 1
        try:
            yield Stream(int(query.get("after", 0)), self._steps, 1 + self.opened % 3)
        finally:
            await asyncio.sleep(0)
            self.open -= 1


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_cancelled_watch_loses_and_repeats_no_event(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr(_watch, "RECONNECT_DELAY", 0.0)
    nodes = Nodes(steps)
    watch = Watch(cast("Any", nodes), "", None, RetryBudget.within(5))
    seen: list[int] = []
    cancelled = 0
    for patience in [*range(40)] * 4:
        step = asyncio.ensure_future(watch.__anext__())
        for _ in range(patience):
            await asyncio.sleep(0)
        is_pending = not step.done()
        step.cancel()
        await asyncio.wait({step})
        if step.cancelled():
            cancelled += 1
        else:
            assert not is_pending, "a cancelled call returns no event"
            event = cast("Any", step.result())
            seen.append(event["i"])
        assert watch.position == (str(seen[-1]) if seen else watch.position)
    assert seen == [*range(1, len(seen) + 1)]
    assert min(len(seen), cancelled, nodes.opened) > 10
    await watch.aclose()
    for _ in range(20):
        await asyncio.sleep(0)
    assert nodes.open == 0


async def test_client_that_only_watches_finds_the_other_members(servers: ScriptedServer) -> None:
    event = Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')
    servers.on("watch", event)
    servers.on("cluster", Answer({"members": [{"http": url.removeprefix("http://")} for url in servers.urls]}))
    async with Client(servers.urls[0]) as client, client.watch() as watch:
        assert (await watch.__anext__())["name"] == "a"
        endpoints = client._transport.endpoints
        assert servers.of("cluster") == []
        endpoints.asked_members_at -= 31
        assert (await watch.__anext__())["name"] == "a"
        await servers.received("cluster")
        # The member that was given is gone.
        servers.on("watch", lambda request: CLOSE if request.node == 0 else event)
        assert (await asyncio.wait_for(watch.__anext__(), 10))["name"] == "a"
    assert servers.of("watch")[-1].node != 0


async def test_watch_tries_the_members_that_are_found_during_an_outage(servers: ScriptedServer) -> None:
    event = Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')
    servers.on("watch", lambda request: event if request.node == 1 or len(servers.of("watch")) == 1 else CLOSE)
    async with Client(servers.urls[0]) as client, client.watch() as watch:
        assert (await watch.__anext__())["name"] == "a"
        step = asyncio.ensure_future(watch.__anext__())
        await servers.received("watch", 2)
        # As after the answer to another request of this client.
        client._transport.endpoints.add_members(servers.urls[0] + "/", [servers.urls[1].removeprefix("http://")])
        assert (await asyncio.wait_for(step, 10))["name"] == "a"


async def test_tasks_that_share_a_watch_get_each_event_once() -> None:
    nodes = Nodes(1)
    watch = Watch(cast("Any", nodes), "", None, RetryBudget.within(5))
    events = cast("Any", await asyncio.gather(*(watch.__anext__() for _ in range(5))))
    assert sorted(event["i"] for event in events) == [1, 2, 3, 4, 5]
    await watch.aclose()


async def test_close_during_an_iteration_opens_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch, "RECONNECT_DELAY", 0.0)
    nodes = Nodes(50)
    watch = Watch(cast("Any", nodes), "", None, RetryBudget.within(5))
    assert cast("Any", await watch.__anext__())["i"] == 1
    step = asyncio.ensure_future(watch.__anext__())
    for _ in range(10):
        await asyncio.sleep(0)
    await watch.aclose()
    assert nodes.open == 0
    assert cast("Any", await asyncio.wait_for(step, 10))["i"] == 2
    assert nodes.opened > 1
    await watch.aclose()


async def test_abandoned_watch_leaves_no_error_of_a_task() -> None:
    watch = Watch(cast("Any", Nodes(5)), "", None, RetryBudget.within(5))
    assert [cast("Any", await watch.__anext__())["i"] for _ in range(2)] == [1, 2]
    step = asyncio.ensure_future(watch.__anext__())
    await asyncio.sleep(0)
    step.cancel()
    await asyncio.wait({step})
    assert watch._stream is not None
    assert watch._stream._reading is not None
    # The stream breaks. The fixture of all tests finds the error.
    await asyncio.wait({watch._stream._reading})


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes that the test stops and starts."""
    cluster = Cluster(tmp_path, nodes=3)
    try:
        for node in NODES:
            cluster.wait_ready(node)
        yield cluster
    finally:
        cluster.stop()


async def test_watch_outlives_an_outage_of_all_nodes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    try:
        cluster.wait_ready()
        blocking = await asyncio.to_thread(sync.LeaseManager, cluster.urls)
        async with LeaseManager(cluster.urls) as manager, manager.client.watch("outage/") as watch:
            events = await asyncio.to_thread(blocking.client.watch, "outage/")
            waiting = [asyncio.ensure_future(watch.__anext__()), asyncio.ensure_future(asyncio.to_thread(next, events))]
            while watch.position is None or events.position is None:
                await asyncio.sleep(0.01)
            async with manager.lease("outage/before", ttl=3):
                assert [event["name"] for event in await asyncio.gather(*waiting)] == ["outage/before"] * 2
            released = [await watch.__anext__(), await asyncio.to_thread(next, events)]
            assert [event["event"] for event in released] == ["released"] * 2
            waiting = [asyncio.ensure_future(watch.__anext__()), asyncio.ensure_future(asyncio.to_thread(next, events))]
            cluster.signal(1, signal.SIGKILL)
            # Longer than the timeout of the client, which is that of the first connection.
            _, pending = await asyncio.wait(waiting, timeout=6)
            assert pending == set(waiting)
            cluster.start(1)
            await asyncio.to_thread(cluster.wait_ready)
            async with manager.lease("outage/after", ttl=3):
                after = await asyncio.wait_for(asyncio.gather(*waiting), 20)
            assert [event["name"] for event in after] == ["outage/after"] * 2
            assert (await watch.__anext__())["event"] == "released"
            cluster.signal(1, signal.SIGKILL)
            ending = asyncio.ensure_future(watch.__anext__())
            await manager.shutdown()
            with pytest.raises(ShutDown):
                await asyncio.wait_for(ending, 10)
        await asyncio.to_thread(blocking.shutdown)
    finally:
        cluster.stop()


async def refusal(watch: Watch) -> str:
    """The code with which this watch is refused."""
    async with watch:
        with pytest.raises(Refused) as caught:
            await asyncio.wait_for(watch.__anext__(), 20)
    return caught.value.code


async def test_watch_without_a_right_is_refused(own_cluster: Cluster) -> None:
    root = await asyncio.to_thread(own_cluster.enable_access_control)
    reader = await asyncio.to_thread(own_cluster.create_reader, "open/", root)
    async with Client(own_cluster.urls) as nobody, Client(own_cluster.urls, token=f"tenure_{'a7' * 36}") as unknown:
        assert [await refusal(client.watch("open/")) for client in (nobody, unknown)] == ["unauthenticated"] * 2
    async with Client(own_cluster.urls, token=reader) as client, LeaseManager(own_cluster.urls, token=root) as manager:
        assert await refusal(client.watch("closed/")) == "forbidden"
        watch = client.watch("open/")
        first = asyncio.ensure_future(watch.__anext__())
        while watch.position is None:
            await asyncio.sleep(0.01)
        async with manager.lease("open/a", ttl=3):
            assert (await first)["name"] == "open/a"
        assert (await watch.__anext__())["event"] == "released"
        listed = re.findall(
            r"[0-9a-f]{16}", await asyncio.to_thread(own_cluster.auth, "token", "list", "reader", token=root)
        )
        await asyncio.to_thread(own_cluster.auth, "token", "revoke", *listed, token=root)
        assert await refusal(watch) == "unauthenticated"
        with pytest.raises(Refused):
            await watch.__anext__()


async def test_watch_outlives_a_restart_with_access_control(own_cluster: Cluster) -> None:
    root = await asyncio.to_thread(own_cluster.enable_access_control)
    reader = await asyncio.to_thread(own_cluster.create_reader, "restart/", root)
    async with Client(own_cluster.urls, token=reader) as client, client.watch("restart/") as watch:
        first = asyncio.ensure_future(watch.__anext__())
        while watch.position is None:
            await asyncio.sleep(0.01)
        for node in NODES:
            own_cluster.signal(node, signal.SIGKILL)
        # Alone, this node may not know the newest tokens. In this time, the watch asks it several times.
        own_cluster.start(1)
        _, pending = await asyncio.wait({first}, timeout=4)
        assert pending == {first}
        for node in NODES[1:]:
            own_cluster.start(node)
        for node in NODES:
            await asyncio.to_thread(own_cluster.wait_ready, node)
        async with LeaseManager(own_cluster.urls, token=root) as manager, manager.lease("restart/a", ttl=3):
            assert (await asyncio.wait_for(first, 20))["name"] == "restart/a"


async def durable_snapshot(data: Path) -> None:
    """Waits until the store of a node has a whole snapshot. It writes the manifest, which has this key, last."""
    while b"snapshot" not in (data / "store/db").read_bytes():
        await asyncio.sleep(0.02)


async def test_watch_after_a_compacted_position_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, extra="[raft]\nsnapshot_every = 100\nsnapshot_keep = 0\n")
    try:
        cluster.wait_ready()
        async with LeaseManager(cluster.urls) as manager:
            for _ in range(60):
                async with manager.lease("compacted/a", ttl=3):
                    pass
            await asyncio.wait_for(durable_snapshot(tmp_path / "data/1"), 20)
            cluster.signal(1, signal.SIGKILL)
            cluster.start(1)
            await asyncio.to_thread(cluster.wait_ready)
            watch = manager.client.watch("compacted/", after="1")
            with pytest.raises(Refused) as caught:
                await asyncio.wait_for(watch.__anext__(), 20)
            assert caught.value.code == "compacted"
            oldest = caught.value.problem.get("oldest")
            assert oldest is not None
            assert watch.position == "1"
            # The documented way on.
            assert {lease["name"] async for lease in manager.client.list("compacted/")} == {"compacted/a"}
            watch = manager.client.watch("compacted/", after=str(oldest))
            async with watch, manager.lease("compacted/b", ttl=3):
                while (await watch.__anext__())["name"] != "compacted/b":
                    pass
    finally:
        cluster.stop()


@pytest.mark.parametrize("other", [Answer(b"<html>", kind="text/html"), Answer(b"")], ids=["page", "empty"])
async def test_watch_leaves_a_node_whose_answer_is_no_stream(servers: ScriptedServer, other: Answer) -> None:
    event = Answer(b'id: 6\ndata: {"event": "granted", "name": "a"}\n\n')
    servers.on("watch", lambda request: event if request.node == 1 else other)
    async with Client(servers.urls) as client, client.watch() as watch:
        assert (await asyncio.wait_for(watch.__anext__(), 10))["name"] == "a"


async def test_watch_without_a_stream_is_unavailable(server: ScriptedServer) -> None:
    server.on("watch", Answer(b"<html>", kind="text/html"))
    async with Client(server.urls, timeout=0.1) as client:
        with pytest.raises(Unavailable):
            await asyncio.wait_for(client.watch().__anext__(), 10)
