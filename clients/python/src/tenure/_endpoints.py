"""The URLs of the nodes of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator

import httpx

ENDPOINTS_VARIABLE = "TENURE_ENDPOINTS"
DEFAULT_ENDPOINTS = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103"
MAX_ENDPOINTS = 32
MAX_PORT = 65_535

# Interval at which a client asks the cluster for its members, in seconds.
REFRESH_INTERVAL = 30.0
# Longest interval if an endpoint did not serve a request since the last time: it may have been replaced.
REFRESH_INTERVAL_AFTER_FAILURE = 2.0
# A node can be silent for this time in the attempts that their callers end early, in seconds.
LONGEST_SILENCE = 0.25


class Endpoints:
    """The given endpoints and the other members of the cluster. The node that answered last gets the next request."""

    def __init__(self, given: str | Iterable[str] | None, now: float) -> None:
        """Parses the endpoints. Without any, the variable TENURE_ENDPOINTS or the nodes of `tenure dev` count."""
        if given is None:
            given = os.environ.get(ENDPOINTS_VARIABLE) or DEFAULT_ENDPOINTS
        words = given.split(",") if isinstance(given, str) else list(given)
        self.given = [parse_url(word.strip()) for word in words if word.strip()]
        if not 1 <= len(self.given) <= MAX_ENDPOINTS:
            raise ValueError(f"{len(self.given)} endpoints are given: expected 1 to {MAX_ENDPOINTS}")
        self.urls = list(self.given)
        self.preferred = 0
        # How long the preferred node has been silent in attempts that their callers ended early.
        self.silence = 0.0
        self.asked_members_at = now
        self.has_failure = False

    def prefer(self, index: int) -> None:
        """Sends the next request to this node."""
        self.preferred, self.silence = index, 0.0

    def avoid(self, index: int, count: int) -> None:
        """Moves the preference to the next node of `count`.

        A node that hangs then does not cost each request its first attempt.
        """
        self.has_failure = True
        # Another request may have set a better preference in the meantime.
        if self.preferred == index:
            self.preferred, self.silence = (index + 1) % count, 0.0

    @contextlib.contextmanager
    def attempt(self, index: int, count: int) -> Iterator[None]:
        """Surrounds an attempt at the node `index` of `count`. If its caller cancels it, its time counts against the node.

        A caller with a short limit must not ask a node that hangs each time.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            yield
        except asyncio.CancelledError:
            if self.preferred == index:
                self.silence += clock() - began
                if self.silence >= LONGEST_SILENCE:
                    self.avoid(index, count)
            raise

    def is_refresh_due(self, now: float) -> bool:
        """Whether to ask for the members now. Records that the client asks."""
        interval = REFRESH_INTERVAL_AFTER_FAILURE if self.has_failure else REFRESH_INTERVAL
        if now - self.asked_members_at < interval:
            return False
        self.asked_members_at, self.has_failure = now, False
        return True

    def add_members(self, answered: str, members: Iterable[str]) -> None:
        """Sets the endpoints: the given ones, then the other members.

        They have the scheme and the path of the node that answered. The given endpoints always stay.
        """
        node = httpx.URL(answered)
        urls = list(self.given)
        for address in members:
            try:
                url = parse_url(f"{node.scheme}://{address}{node.path}")
            except ValueError:
                continue
            if url not in urls and len(urls) < MAX_ENDPOINTS:
                urls.append(url)
        self.urls = urls


def parse_url(word: str) -> str:
    """Returns the URL with a slash at its end. `host:port` stands for `http://host:port`."""
    text = word if "://" in word else f"http://{word}"
    try:
        url = httpx.URL(text)
        # The resolver encodes the name of the host again, and accepts fewer names.
        url.raw_host.decode().encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"invalid endpoint {word!r}: {error}") from None
    if url.scheme not in ("http", "https"):
        raise ValueError(f"invalid endpoint {word!r}: expected the scheme http or https")
    if not url.host or url.query or url.fragment or url.userinfo:
        raise ValueError(f"invalid endpoint {word!r}: expected only a scheme, a host, a port and a path")
    if url.port is not None and not 1 <= url.port <= MAX_PORT:
        raise ValueError(f"invalid endpoint {word!r}: expected a port from 1 to {MAX_PORT}")
    path = url.path if url.path.endswith("/") else url.path + "/"
    return str(url.copy_with(path=path))
