"""Connections that do not know each other.

A pool of httpcore looks at all its connections for each request, and at pairs of them if many are idle. With hundreds of
connections in one pool, the event loop would stand still for seconds. So each request has a pool for itself while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

import httpx

# The errors of closing a connection. Its peer may have reset it.
CLOSE_ERRORS = (httpx.HTTPError, OSError)


class Pools(httpx.AsyncBaseTransport):
    """A transport with as many pools as it has requests at a time. A pool has at most one connection to each node."""

    def __init__(self, tls: ssl.SSLContext, idle_timeout: float) -> None:
        """Opens no connection. A connection without a request is closed after `idle_timeout` seconds."""
        self._tls = tls
        self._limits = httpx.Limits(keepalive_expiry=idle_timeout)
        self._idle_timeout = idle_timeout
        self._pools: set[httpx.AsyncHTTPTransport] = set()
        self.idle: deque[tuple[httpx.AsyncHTTPTransport, float]] = deque()
        """The pools without a request, and since when. The last one gets the next request, so the others stay idle."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends the request through an idle pool, or through a new one."""
        pool = self.idle.pop()[0] if self.idle else self._new_pool()
        try:
            await self._close_idle()
            response = await pool.handle_async_request(request)
        except BaseException:
            self.put(pool)
            raise
        response.stream = _Stream(cast(httpx.AsyncByteStream, response.stream), self, pool)
        return response

    def put(self, pool: httpx.AsyncHTTPTransport) -> None:
        """Takes back a pool whose request has ended."""
        if pool in self._pools:
            self.idle.append((pool, asyncio.get_running_loop().time()))

    def _new_pool(self) -> httpx.AsyncHTTPTransport:
        pool = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=self._limits)
        self._pools.add(pool)
        return pool

    async def _close_idle(self) -> None:
        """Closes the pools whose last request is too long ago. A pool itself looks at that only when it has a request."""
        now = asyncio.get_running_loop().time()
        while self.idle and now - self.idle[0][1] > self._idle_timeout:
            pool, _ = self.idle.popleft()
            self._pools.discard(pool)
            # An error of an old connection is none of the request that comes now.
            with contextlib.suppress(*CLOSE_ERRORS):
                await pool.aclose()

    async def aclose(self) -> None:
        """Closes all connections, also those of requests."""
        self.idle.clear()
        while self._pools:
            pool = self._pools.pop()
            with contextlib.suppress(*CLOSE_ERRORS):
                await pool.aclose()


class _Stream(httpx.AsyncByteStream):
    """The body of an answer. Its request ends when it is closed."""

    def __init__(self, body: httpx.AsyncByteStream, pools: Pools, pool: httpx.AsyncHTTPTransport) -> None:
        self._body = body
        self._pools = pools
        self._pool: httpx.AsyncHTTPTransport | None = pool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            pool, self._pool = self._pool, None
            if pool is not None:
                self._pools.put(pool)
