"""A local HTTP server whose answers the test scripts, a clock that the test moves, and a loop with virtual time."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

TOKEN = 281474976710661


@dataclass(frozen=True)
class Request:
    """A request that the server received."""

    method: str
    path: str
    """With the query."""
    headers: dict[str, str]
    body: Any
    node: int

    @property
    def action(self) -> str:
        """The last word of the path."""
        return self.path.partition("?")[0].rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Answer:
    """An answer. Without a status, the server closes the connection."""

    body: Any = field(default_factory=dict)
    status: int | None = 200
    kind: str | None = None
    """The content type. Default: that of a node."""


CLOSE = Answer(status=None)

Handler = Callable[[Request], Awaitable[Answer] | Answer]


class ScriptedServer:
    """Nodes of a cluster with one script. An action without a script never gets an answer."""

    def __init__(self, nodes: int = 1) -> None:
        """Creates the nodes."""
        self.requests: list[Request] = []
        self.urls: list[str] = []
        self.closed: list[Request] = []
        self._received = asyncio.Event()
        self._scripts: dict[str, Handler] = {}
        self._nodes = nodes
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    def on(self, action: str, handler: Handler | Answer) -> None:
        """Answers requests with this last word of the path."""
        self._scripts[action] = handler if callable(handler) else lambda _: handler

    def of(self, action: str) -> list[Request]:
        """The received requests of one kind."""
        return [request for request in self.requests if request.action == action]

    async def received(self, action: str, count: int = 1) -> Request:
        """Waits for this number of requests of one kind. Returns the last one."""
        while len(self.of(action)) < count:
            self._received.clear()
            await asyncio.wait_for(self._received.wait(), 10)
        return self.of(action)[count - 1]

    async def __aenter__(self) -> ScriptedServer:
        """Listens on free ports."""
        for node in range(self._nodes):

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int = node) -> None:
                task = asyncio.ensure_future(self._serve(reader, writer, node))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self._servers.append(server)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends all connections."""
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.wait(set(self._connections))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: int) -> None:
        try:
            while request := await _read(reader, node):
                self.requests.append(request)
                self._received.set()
                answer = await self._answer(request, reader)
                if answer is None or answer.status is None:
                    return
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                is_stream = request.action == "watch" and answer.status == 200
                kind = answer.kind or ("text/event-stream" if is_stream else "application/json")
                head = f"HTTP/1.1 {answer.status} Status\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, reader: asyncio.StreamReader) -> Answer | None:
        """The scripted answer. `None` after the client has closed the connection."""
        script = self._scripts.get(request.action, hang)
        answer = script(request)
        if isinstance(answer, Answer):
            return answer
        answering = asyncio.ensure_future(answer)
        # A client sends nothing before the answer, so the read ends only at the end of the connection.
        closing = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({answering, closing}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            self.closed.append(request)
            return None
        finally:
            answering.cancel()
            closing.cancel()
            await asyncio.wait({answering, closing})


def in_turn(*answers: Answer) -> Handler:
    """The answers in turn. The last one answers all further requests."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def hang(_: Request) -> Answer:
    await asyncio.Event().wait()
    return CLOSE


async def _read(reader: asyncio.StreamReader, node: int) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, json.loads(body) if body else None, node)


def lease(name: str = "job", ttl_ms: int | str = 3000, token: int = TOKEN, **fields: Any) -> dict[str, Any]:
    """A lease as the server describes it."""
    return {
        "name": name,
        "holder": "me",
        "token": str(token),
        "term": 1,
        "index": token % 2**48,
        "ttl_ms": ttl_ms,
        "expires_in_ms": None if ttl_ms == "infinite" else ttl_ms,
        "state": "active",
        "granted_at": "2026-01-01T00:00:00Z",
        "renewed_at": "2026-01-01T00:00:00Z",
        "renewals": 0,
        "limit": 1,
        "lock_delay_ms": 0,
        "waiters": 0,
        **fields,
    }


def granted(**fields: Any) -> Answer:
    """The answer to a successful acquire."""
    return Answer(lease(**fields))


def renewed(request: Request) -> Answer:
    """The answer to a batch of renewals that all succeed."""
    items = request.body["leases"]
    return Answer({"results": [{"name": i["name"], "lease": lease(i["name"], token=int(i["token"]))} for i in items]})


def lost(why: str) -> Answer:
    """The answer to a batch with one lost lease."""
    return Answer({"results": [{"name": "job", "problem": problem("lost", 409, why=why).body}]})


def problem(code: str, status: int, **fields: Any) -> Answer:
    """A problem document."""
    body = {"type": f"urn:tenure:problem:{code}", "title": code, "status": status, "detail": "why", "code": code}
    return Answer({**body, **fields}, status)


def standing(status: str, **fields: Any) -> Answer:
    """The answer to `explain`."""
    explained = {"name": "job", "summary": "", "holders": 0, "held": [], "waiters": 0}
    return Answer({**explained, "standing": {"status": status, **fields}})


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        """Starts at 1,000 s."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Reads the clock."""
        return self.now


class _VirtualSelector(selectors.DefaultSelector):
    """Passes the time of each wait at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("the loop would wait without an end")
        if not ready:
            self.now += timeout or 0.0
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` in a loop whose timers need no real time. It cannot use sockets."""
    loop = _VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
