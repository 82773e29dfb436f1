"""The event stream of a cluster. It resumes after a broken connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import httpx

from ._aio import end_task, start_task
from ._errors import Refused, Unavailable
from ._retry import RetryBudget
from ._transport import EXCHANGE_ERRORS, Transport, describe

if TYPE_CHECKING:
    from .api import Event

# Longest silence of a stream before the client opens another one, in seconds. A node sends a heartbeat at least every 10 s.
SILENCE_TIMEOUT = 30.0
# Pause before a broken stream is opened again. It prevents a busy loop if streams break at once.
RECONNECT_DELAY = 0.2
# Without any node, the pause doubles up to this one.
LONGEST_RECONNECT_DELAY = 2.0
MAX_EVENT_BYTES = 1024 * 1024
# Access control refuses a watch in this many rounds over all nodes before the watch fails: a node can know the rights of a
# new token a little late.
DENIED_ROUNDS = 2
# A watch with one of these problems cannot succeed at another node.
_FINAL = frozenset(["compacted", "invalid"])
# Access control refuses the watch, by the state of the node.
_DENIED = frozenset(["unauthenticated", "forbidden"])


@dataclass(frozen=True)
class ServerEvent:
    """One server-sent event."""

    id: str | None
    data: str | None


class EventParser:
    """Parses server-sent events from chunks of any size."""

    def __init__(self) -> None:
        """Starts at the begin of a stream."""
        self._rest = bytearray()
        self._size = 0
        self._id: str | None = None
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Returns the events that this chunk completes.

        Raises:
            ValueError: an event is too large or is not UTF-8.
        """
        self._rest += chunk
        lines: list[bytes] = []
        if b"\n" in chunk:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        events = []
        for line in lines:
            self._size += len(line) + 1
            if event := self._line(line.removesuffix(b"\r").decode()):
                events.append(event)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("an event is too large")
        return events

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._id, "\n".join(self._data) if self._data else None)
            self._size, self._id, self._data = 0, None, []
            return event if event != ServerEvent(None, None) else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
        return None


class _Cursor(NamedTuple):
    """One value, so that another thread never sees the position of an event that has not been returned."""

    position: str | None
    """The position after the last returned event."""
    received: tuple[Event, str | None] | None = None
    """The next event, and the position after it."""


class _Stream:
    """An open stream."""

    def __init__(self, response: httpx.Response, connection: AsyncExitStack) -> None:
        self._chunks = response.aiter_raw()
        self._connection = connection
        self._parser = EventParser()
        self._reading: asyncio.Task[bytes] | None = None
        # A node sends its position first.
        self.has_position = False

    async def read(self) -> list[ServerEvent]:
        """Waits for the next events. A cancellation loses none: the read continues.

        Raises:
            httpx.HTTPError, httpx.StreamError, OSError, ValueError, asyncio.TimeoutError: the stream is broken.
        """
        reading = self._reading = self._reading or start_task(_read(self._chunks))
        await asyncio.wait({reading})
        if reading.cancelled():
            raise httpx.ReadError("the stream was closed")
        self._reading = None
        events = self._parser.feed(reading.result())
        self.has_position = self.has_position or bool(events)
        return events

    async def close(self) -> None:
        """Closes the connection, also if this call is cancelled."""
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        if self._reading is not None:
            await end_task(self._reading)
        await self._connection.aclose()


class Watch:
    """An endless iterator over transitions: each once and in order, also across broken connections and failed nodes.

    `async for event in client.watch("jobs/")`. After its first connection it waits without a limit for a node, and continues
    after its position. If an iteration is cancelled or fails, the next one continues without a gap. Use it in `async with`
    to close its connection at the end.
    """

    def __init__(self, transport: Transport, prefix: str, after: str | None, budget: RetryBudget) -> None:
        """Only `Client.watch` creates watches."""
        self._transport = transport
        self._prefix = prefix
        self._budget = budget
        self._cursor = _Cursor(after)
        self._stream: _Stream | None = None
        # The node of the last stream.
        self._endpoint = ""
        self._has_been_open = False
        self._blocks: list[ServerEvent] = []
        self._step = asyncio.Lock()

    @property
    def position(self) -> str | None:
        """The position after the last returned event, for `Client.watch(after=...)`. `None` before the first answer."""
        return self._cursor.position

    def __aiter__(self) -> Watch:
        """Returns the watch."""
        return self

    async def __anext__(self) -> Event:
        """Waits for the next transition.

        Raises:
            Refused: no node will serve this watch. The code is `compacted`: the cluster no longer keeps the next events, so
                list the leases and start a new watch. Or it is `invalid`. Or it is `unauthenticated` or `forbidden`: nodes
                that hear from a leader have said so twice, and no other node serves the watch. The rights of a new token
                reach the nodes one heartbeat interval late.
            Unavailable: no node opened the first stream in time. The next call tries again.
            ShutDown: the client is closed.
        """
        await self._receive()
        return self._take()

    async def _receive(self) -> None:
        """Waits until there is an event to take. After a cancellation, the next call continues."""
        # A cancelled call can still end while the next one starts.
        async with self._step:
            while self._cursor.received is None:
                if self._blocks:
                    self._read_block(self._blocks.pop(0))
                elif (stream := self._stream) is None:
                    await self._connect()
                else:
                    try:
                        self._blocks = await stream.read()
                    except (*EXCHANGE_ERRORS, ValueError, asyncio.TimeoutError):
                        if not stream.has_position:
                            self._avoid_node()
                        await self.aclose()
                        await asyncio.sleep(RECONNECT_DELAY)
                    else:
                        # A client that only watches sends no other request that would ask for the members.
                        self._transport.refresh_members(self._endpoint)

    def _avoid_node(self) -> None:
        """Prefers another node: this one opened a stream and sent nothing."""
        endpoints = self._transport.endpoints
        if self._endpoint in endpoints.urls:
            endpoints.avoid(endpoints.urls.index(self._endpoint), len(endpoints.urls))

    def _read_block(self, block: ServerEvent) -> None:
        position = block.id or self._cursor.position
        event = _parse(block.data)
        self._cursor = _Cursor(self._cursor.position, (event, position)) if event else _Cursor(position)

    def _take(self) -> Event:
        """Returns the received event, and moves the position past it."""
        received = self._cursor.received
        assert received is not None, "an event is received before it is taken"  # noqa: S101 - an invariant
        event, position = received
        self._cursor = _Cursor(position)
        return event

    async def _connect(self) -> None:
        """Opens a stream at one of the nodes."""
        clock = asyncio.get_running_loop().time
        began, pause, denied_rounds = clock(), RECONNECT_DELAY, 0
        endpoints = self._transport.endpoints
        reasons: dict[int, str] = {}
        while True:
            # Other requests of this client can find members during an outage.
            urls, first = endpoints.urls, endpoints.preferred
            denied: Refused | None = None
            for number in range(len(urls)):
                index = (first + number) % len(urls)
                with endpoints.attempt(index, len(urls)):
                    why = await self._open(urls[index])
                if why is None:
                    endpoints.prefer(index)
                    self._has_been_open = True
                    return
                if isinstance(why, Refused):
                    denied = why
                else:
                    endpoints.avoid(index, len(urls))
                reasons[index] = why if isinstance(why, str) else f"{urls[index]}: {why}"
                if not self._has_been_open and clock() - began >= self._budget.total:
                    raise Unavailable("; ".join(reasons.values()))
            denied_rounds = denied_rounds + 1 if denied else 0
            if denied and denied_rounds == DENIED_ROUNDS:
                raise denied
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RECONNECT_DELAY)

    async def _open(self, endpoint: str) -> Refused | str | None:
        """Opens a stream at a node. Returns why it did not: as `Refused` if access control refuses the watch.

        Raises:
            Refused: each node refuses it.
        """
        opening = start_task(self._request(endpoint))
        try:
            await asyncio.wait({opening}, timeout=self._budget.attempt)
        finally:
            await end_task(opening)
        if opening.cancelled():
            return f"{endpoint} did not answer within {self._budget.attempt:.3g} s"
        return opening.result()

    async def _request(self, endpoint: str) -> Refused | str | None:
        position = self._cursor.position
        query = {"prefix": self._prefix, **({"after": position} if position else {})}
        try:
            async with AsyncExitStack() as connection:
                response = await connection.enter_async_context(self._transport.stream(endpoint + "v1/watch", query))
                if response.is_success and _is_event_stream(response):
                    # In one step with the answer: the caller may be cancelled.
                    self._stream, self._endpoint = _Stream(response, connection.pop_all()), endpoint
                    return None
                body = b"" if response.is_success else await response.aread()
            refused = _refusal(response.status_code, body)
            if refused is None:
                return f"{endpoint} answered {response.status_code}"
            if refused.code not in _DENIED:
                raise refused
            # A restarted node has an old state of access control until it hears from a leader.
            return refused if await self._transport.is_ready(endpoint) else f"{endpoint} is not ready: {refused}"
        except EXCHANGE_ERRORS as error:
            return describe(endpoint, error)

    async def aclose(self) -> None:
        """Closes the connection. The next iteration opens another one after the last position.

        Without effect in a forked process: its parent uses the connection.
        """
        if not self._transport.owner.is_here:
            return
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def __aenter__(self) -> Watch:
        """Returns the watch."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connection."""
        await self.aclose()


async def _read(chunks: AsyncIterator[bytes]) -> bytes:
    try:
        # The time counts from the begin of the read, also if the iteration is cancelled and begins again meanwhile.
        return await asyncio.wait_for(chunks.__anext__(), SILENCE_TIMEOUT)
    except StopAsyncIteration:
        raise httpx.ReadError("the stream has ended") from None


def _is_event_stream(response: httpx.Response) -> bool:
    """Whether a node answered, and not another service at its address."""
    kind: str = response.headers.get("content-type", "")
    return kind.startswith("text/event-stream")


def _parse(data: str | None) -> Event | None:
    """The transition. Without one, the event has only a position, or is `lagged`: then the server ends the stream."""
    try:
        event: Any = json.loads(data or "null")
    except (ValueError, RecursionError):
        return None
    return cast("Event", event) if isinstance(event, dict) and "event" in event else None


def _refusal(status: int, body: bytes) -> Refused | None:
    """An error if the problem concerns the request, and not the node."""
    try:
        problem: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(problem, dict) or problem.get("code") not in _FINAL | _DENIED:
        return None
    return Refused(cast("Any", {"type": "", "title": "", "detail": "", **problem, "status": status}))
