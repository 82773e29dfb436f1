"""HTTP requests to the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from ._aio import acquire_while
from ._endpoints import Endpoints
from ._errors import ShutDown, Unavailable
from ._pools import Pools
from ._process import Owner
from ._retry import (
    Attempt,
    AttemptContext,
    Closed,
    Done,
    MaybeDone,
    NotDone,
    RefusedBy,
    ResolvedAnswer,
    RetryBudget,
    RetryPolicy,
    attempts,
    classify_problem,
)

# Timeout of a connection attempt, in seconds. A node that takes longer counts as unreachable.
CONNECT_TIMEOUT = 1.0
# The client closes idle connections before a node does (after 60 s): a request at that moment would fail.
IDLE_TIMEOUT = 20.0
# Longest wait for the members of the cluster.
REFRESH_TIMEOUT = 1.0
# The most requests at a time that wait neither for a lease nor for events. Each has its own connection, and a process may
# have few open files. Further requests wait for one of these.
MAX_PARALLEL = 64
MAX_ANSWER_BYTES = 64 * 1024 * 1024

TOKEN_VARIABLE = "TENURE_ACCESS_TOKEN"  # noqa: S105 - the name of a variable
_TOKEN = re.compile(r"[!-~]+")
TOKEN_FILE_VARIABLE = "TENURE_ACCESS_TOKEN_FILE"  # noqa: S105 - the name of a variable

# All errors of an exchange. httpx lets some errors of TLS pass as they are.
EXCHANGE_ERRORS = (httpx.HTTPError, httpx.StreamError, OSError)
# These errors occur before the request is sent.
_NOT_SENT = (
    httpx.LocalProtocolError,
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
)


@dataclass(frozen=True)
class QueueWait:
    """A wait for a lease, in seconds."""

    longest: float
    probe: float
    """The interval between readiness probes of the node, and the timeout of one probe."""


@dataclass(frozen=True)
class Call:
    """A request before it is sent."""

    method: str
    path: str
    policy: RetryPolicy
    query: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[float], Mapping[str, Any]] | None = None
    """Creates the body of an attempt. The argument is the time since the start of the first attempt."""
    wait: QueueWait | None = None


class Transport:
    """Sends requests to the nodes. It belongs to one event loop."""

    def __init__(
        self,
        endpoints: str | Iterable[str] | None,
        token: str | None,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
    ) -> None:
        """Creates the HTTP client. Sends no request."""
        self.owner = Owner("client")
        self.endpoints = Endpoints(endpoints, 0.0)
        token = _check_token(token or _token_from_environment())
        # Redirects, proxies and compression are not for the nodes of a cluster.
        headers = {"accept-encoding": "identity"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            headers=headers,
            transport=Pools(_tls(ca, cert, key, any(url.startswith("https:") for url in self.endpoints.urls)), IDLE_TIMEOUT),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            follow_redirects=False,
            trust_env=False,
        )
        self._slots = asyncio.Semaphore(MAX_PARALLEL)
        # When a node answered the last request.
        self._answered_at = -math.inf
        self._refresh: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Closes all connections. Without effect in a forked process: its parent uses them."""
        if not self.owner.is_here:
            return
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait({self._refresh})
        await self._http.aclose()

    def stream(self, url: str, query: Mapping[str, str]) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Opens a GET request whose answer has no end."""
        self.owner.check()
        if self._http.is_closed:
            raise ShutDown
        return self._http.stream("GET", url, params=query, headers={"accept": "text/event-stream"})

    async def is_ready(self, endpoint: str) -> bool:
        """Whether the node knows a leader and has caught up with it.

        Raises:
            httpx.HTTPError, httpx.StreamError, OSError: the node did not answer.
            ShutDown: the client is closed.
        """
        if self._http.is_closed:
            raise ShutDown
        return (await self._http.get(endpoint + "readyz")).status_code != httpx.codes.SERVICE_UNAVAILABLE

    async def send(self, call: Call, budget: RetryBudget) -> ResolvedAnswer:
        """Sends the request until an attempt resolves it or the budget is used up.

        The budget begins when fewer than `MAX_PARALLEL` other requests run.
        """
        self.owner.check()
        # A renewal has a deadline, and a wait for a lease is long: neither waits for other requests.
        if call.wait is not None or call.policy is RetryPolicy.RENEWAL:
            return await self._send(call, budget)
        await self._take_slot(budget.total)
        try:
            return await self._send(call, budget)
        finally:
            self._slots.release()

    async def _take_slot(self, patience: float) -> None:
        """Waits until fewer than `MAX_PARALLEL` requests run, as long as the nodes answer requests of this client.

        Raises:
            Unavailable: the nodes have answered none for the time `patience`.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if await acquire_while(self._slots, lambda: max(began, self._answered_at) + patience - clock()):
            return
        raise Unavailable(f"not sent: {MAX_PARALLEL} earlier requests had no answer for {patience:.3g} s")

    async def _send(self, call: Call, budget: RetryBudget) -> ResolvedAnswer:
        if self._http.is_closed:
            raise ShutDown
        urls, first = self.endpoints.urls, self.endpoints.preferred
        # A wait has its own probes, and a renewal cancels its late attempts.
        is_counted = call.wait is None and call.policy is not RetryPolicy.RENEWAL

        async def attempt(context: AttemptContext) -> Attempt:
            index = (first + context.number) % len(urls)
            counted = self.endpoints.attempt(index, len(urls)) if is_counted else contextlib.nullcontext()
            with counted:
                ended = await self._attempt(call, urls[index], context)
            if isinstance(ended, Done | RefusedBy):
                self._answered_at = asyncio.get_running_loop().time()
                self.endpoints.prefer(index)
                self.refresh_members(urls[index])
            else:
                self.endpoints.avoid(index, len(urls))
            return ended

        wait = call.wait.longest if call.wait else 0.0
        return await attempts(call.policy, budget, wait, len(urls), attempt)

    async def _attempt(self, call: Call, endpoint: str, context: AttemptContext) -> Attempt:
        exchange = asyncio.ensure_future(self._exchange(call, endpoint, context))
        tasks: set[asyncio.Task[Attempt]] = {exchange}
        if call.wait:
            tasks.add(asyncio.ensure_future(self._wait_until_not_ready(endpoint, call.wait.probe)))
        try:
            ended, _ = await asyncio.wait(tasks, timeout=context.limit, return_when=asyncio.FIRST_COMPLETED)
            if exchange in ended:
                return exchange.result()
            if ended:
                return ended.pop().result()
            return MaybeDone(f"{endpoint} did not answer within {context.limit:.3g} s")
        finally:
            await _cancel(tasks)

    async def _exchange(self, call: Call, endpoint: str, context: AttemptContext) -> Attempt:
        if self._http.is_closed:
            return Closed()
        content = None
        headers = {}
        if call.body is not None:
            content = json.dumps(call.body(context.elapsed)).encode()
            headers["content-type"] = "application/json"
        request = self._http.build_request(
            call.method, endpoint + call.path, params=call.query or None, content=content, headers=headers
        )
        try:
            response = await self._http.send(request, stream=True)
            try:
                body = await _read(response)
            finally:
                await response.aclose()
        except _NOT_SENT as error:
            return NotDone(describe(endpoint, error))
        except EXCHANGE_ERRORS as error:
            return MaybeDone(describe(endpoint, error))
        return classify_response(endpoint, response.status_code, body)

    async def _wait_until_not_ready(self, endpoint: str, probe: float) -> Attempt:
        """Probes the readiness of the node while the request waits for a lease.

        Returns why the wait must continue at another node. A stopped or partitioned node closes no connection, so the
        open request alone cannot show that the node is alive.
        """
        while True:
            await asyncio.sleep(probe)
            if self._http.is_closed:
                return Closed()
            try:
                response = await self._http.get(endpoint + "readyz", timeout=httpx.Timeout(probe))
            except httpx.TimeoutException:
                return MaybeDone(f"{endpoint} did not answer the readiness probe within {probe:.3g} s")
            except EXCHANGE_ERRORS as error:
                return MaybeDone(describe(endpoint, error))
            if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return MaybeDone(f"{endpoint} is not ready")

    def refresh_members(self, answered: str) -> None:
        """Asks this node for the members of the cluster, in the background, if the last time is long ago."""
        loop = asyncio.get_running_loop()
        if self.endpoints.asked_members_at == 0.0:
            self.endpoints.asked_members_at = loop.time()
        elif self.endpoints.is_refresh_due(loop.time()) and (self._refresh is None or self._refresh.done()):
            self._refresh = loop.create_task(self._ask_members(answered))

    async def _ask_members(self, answered: str) -> None:
        if self._http.is_closed:
            return
        try:
            response = await self._http.get(answered + "v1/cluster", timeout=httpx.Timeout(REFRESH_TIMEOUT))
            members = [member["http"] for member in response.json()["members"]]
        except (*EXCHANGE_ERRORS, ValueError, LookupError, TypeError, RecursionError):
            # Without an answer, the endpoints stay as they are until the next time.
            return
        self.endpoints.add_members(answered, members)


def classify_response(endpoint: str, status: int, body: bytes) -> Attempt:
    """Classifies an answer by its status line and its problem document."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if 200 <= status < 300:
        if isinstance(document, dict):
            return Done(document)
        return MaybeDone(f"{endpoint}: the answer is invalid")
    if not isinstance(document, dict) or not isinstance(document.get("code"), str):
        # A proxy between the client and the node answered. It cannot know whether the node applied the request.
        return MaybeDone(f"{endpoint} answered {status} without a problem document")
    problem: Any = {"type": "", "title": "", "detail": "", **document, "status": status}
    return classify_problem(problem, endpoint)


async def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            # The truncated body fails to parse, which makes the outcome unknown.
            break
    return bytes(body)


async def _cancel(tasks: set[asyncio.Task[Attempt]]) -> None:
    pending = {task for task in tasks if not task.done()}
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending)


def describe(endpoint: str, error: BaseException) -> str:
    """The endpoint and the innermost cause of an error. The outer errors of an HTTP client say little."""
    if isinstance(error, httpx.LocalProtocolError):
        # The text of this error contains the value of the header, for example the access token.
        return f"{endpoint}: the client cannot send the request: it is not valid HTTP"
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return f"{endpoint}: {error or type(error).__name__}"


def _check_token(token: str | None) -> str | None:
    """Returns the token without surrounding white space. The error does not contain it."""
    if not token:
        return None
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError("invalid access token: expected printable ASCII characters without spaces")
    return token


def _token_from_environment() -> str | None:
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    text = Path(path).read_text() if path else os.environ.get(TOKEN_VARIABLE, "")
    return text.split("\n", 1)[0].strip() or None


def _tls(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    has_https: bool,
) -> ssl.SSLContext:
    ca = ca or os.environ.get("TENURE_CA") or None
    cert = cert or os.environ.get("TENURE_CERT") or None
    key = key or os.environ.get("TENURE_KEY") or None
    if (cert is None) != (key is None) or (cert is not None and ca is None):
        raise ValueError("a client certificate needs `ca`, `cert` and `key`")
    if not has_https:
        # Loading the CAs of the system takes long.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context(cafile=ca)
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
