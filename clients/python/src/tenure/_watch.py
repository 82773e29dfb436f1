"""The event stream of a cluster. It resumes after a broken connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import httpx

from ._errors import Refused, TenureError, Unavailable
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
# A watch with one of these problems cannot succeed at another node.
_FINAL = frozenset(["compacted", "invalid", "unauthenticated", "forbidden"])


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


class Watch:
    """An endless iterator over transitions: each once and in order, also across broken connections and failed nodes.

    `async for event in client.watch("jobs/")`. After its first connection it waits without a limit for a node, and continues
    after its position. If an iteration is cancelled or fails, the next one continues without a gap. Use it in `async with`
    to close its connection at the end.
    """

    def __init__(self, transport: Transport, prefix: str, after: str | None, timeout: float) -> None:
        """Only `Client.watch` creates watches."""
        self._transport = transport
        self._prefix = prefix
        self._position = after
        self._timeout = timeout
        self._has_been_open = False
        self._stack = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._reading: asyncio.Task[bytes] | None = None
        self._parser = EventParser()
        self._received: list[ServerEvent] = []

    @property
    def position(self) -> str | None:
        """The position after the last event, for `Client.watch(after=...)`. `None` before the first answer."""
        return self._position

    def __aiter__(self) -> Watch:
        """Returns the watch."""
        return self

    async def __anext__(self) -> Event:
        """Waits for the next transition.

        Raises:
            Refused: no node will serve this watch. The code is `compacted`: the cluster no longer keeps the next events, so
                list the leases and start a new watch. Or it is `invalid`, `unauthenticated` or `forbidden`.
            Unavailable: no node opened the first stream in time. The next call tries again.
            ShutDown: the client is closed.
        """
        while True:
            while self._received:
                received = self._received.pop(0)
                self._position = received.id or self._position
                if event := _parse(received.data):
                    return event
            chunks = self._chunks or await self._connect()
            try:
                self._received = self._parser.feed(await self._next_chunk(chunks))
            except (*EXCHANGE_ERRORS, ValueError, asyncio.TimeoutError):
                await self.aclose()
                await asyncio.sleep(RECONNECT_DELAY)

    async def _next_chunk(self, chunks: AsyncIterator[bytes]) -> bytes:
        # The task survives a cancellation of this call, so that no chunk is lost.
        if self._reading is None:
            self._reading = asyncio.ensure_future(_read(chunks))
        ended, _ = await asyncio.wait({self._reading}, timeout=SILENCE_TIMEOUT)
        if not ended:
            raise asyncio.TimeoutError
        reading, self._reading = self._reading, None
        return reading.result()

    async def _connect(self) -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        began = clock()
        endpoints = self._transport.endpoints
        urls, first = endpoints.urls, endpoints.preferred
        reasons: dict[int, str] = {}
        attempt, pause = 0, RECONNECT_DELAY
        while True:
            index = (first + attempt) % len(urls)
            opening = asyncio.ensure_future(self._open(urls[index]))
            try:
                ended, _ = await asyncio.wait({opening}, timeout=self._timeout)
            finally:
                if not opening.done():
                    opening.cancel()
                    await asyncio.wait({opening})
            why = opening.result() if ended else f"{urls[index]} did not answer within {self._timeout:g} s"
            if not isinstance(why, str):
                endpoints.prefer(index)
                self._has_been_open = True
                self._chunks = why
                return why
            reasons[index] = why
            if not self._has_been_open and clock() - began >= self._timeout:
                raise Unavailable("; ".join(reasons.values()))
            attempt += 1
            if attempt % len(urls) == 0:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RECONNECT_DELAY)

    async def _open(self, endpoint: str) -> AsyncIterator[bytes] | str:
        """Opens a stream. Returns its chunks, or why the node did not open it."""
        query = {"prefix": self._prefix, **({"after": self._position} if self._position else {})}
        stack = AsyncExitStack()
        try:
            response = await stack.enter_async_context(self._transport.stream(endpoint + "v1/watch", query))
            if response.is_success:
                self._stack, self._parser = stack, EventParser()
                stack = AsyncExitStack()
                return response.aiter_raw()
            body = await response.aread()
        except EXCHANGE_ERRORS as error:
            return describe(endpoint, error)
        finally:
            await stack.aclose()
        if refusal := _refusal(response.status_code, body):
            raise refusal
        return f"{endpoint} answered {response.status_code}"

    async def aclose(self) -> None:
        """Closes the connection. The next iteration opens another one after the last position."""
        reading, self._reading, self._chunks = self._reading, None, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait({reading})
            # A failure of the broken stream is not an error of the watch.
            reading.cancelled() or reading.exception()
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()

    async def __aenter__(self) -> Watch:
        """Returns the watch."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the connection."""
        await self.aclose()


async def _read(chunks: AsyncIterator[bytes]) -> bytes:
    try:
        return await chunks.__anext__()
    except StopAsyncIteration:
        raise httpx.ReadError("the stream has ended") from None


def _parse(data: str | None) -> Event | None:
    """The transition. Without one, the event has only a position, or is `lagged`: then the server ends the stream."""
    try:
        event: Any = json.loads(data or "null")
    except ValueError:
        return None
    return cast("Event", event) if isinstance(event, dict) and "event" in event else None


def _refusal(status: int, body: bytes) -> TenureError | None:
    """An error if the problem concerns the request, and not the node."""
    try:
        problem: Any = json.loads(body)
    except ValueError:
        return None
    if not isinstance(problem, dict) or problem.get("code") not in _FINAL:
        return None
    return Refused(cast("Any", {"type": "", "title": "", "detail": "", **problem, "status": status}))
