"""Options of a lease, and the bounds that hold in every cluster."""

from __future__ import annotations

import math
import os
import re
import secrets
import socket
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

DAY = 24 * 60 * 60.0
"""Longest ttl, wait and lock delay, in seconds."""
SHORTEST_TTL = 0.1
MAX_LIMIT = 10_000
MAX_DRIFT_PERMILLE = 500
# In bytes.
MAX_NAME = 200
MAX_HOLDER = 200
MAX_HOST = 100
MAX_METADATA = 4_096
MAX_METADATA_ENTRIES = 32

DEFAULT_DRAIN = 30.0

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


def check_name(name: str) -> str:
    """Returns the name if it is a valid name of a lease."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise ValueError(
            f"invalid lease name {name!r}: expected 1 to {MAX_NAME} letters, digits and . _ : / -, "
            "with a letter or digit first"
        )
    return name


def check_holder(holder: str) -> str:
    """Returns the holder if it is valid."""
    has_control = any(unicodedata.category(character) == "Cc" for character in holder)
    if not 1 <= len(holder.encode()) <= MAX_HOLDER or has_control:
        raise ValueError(f"invalid holder {holder!r}: expected 1 to {MAX_HOLDER} bytes without control characters")
    return holder


def check_between(what: str, value: float, least: float, most: float) -> float:
    """Returns the value if it is within its bounds."""
    if not least <= value <= most:
        raise ValueError(f"invalid {what} {value!r}: expected {least:g} to {most:g}")
    return value


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns a copy of the metadata if it is within the limits."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if len(metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA:
        raise ValueError(
            f"invalid metadata with {len(metadata)} entries and {size} bytes: "
            f"expected at most {MAX_METADATA_ENTRIES} entries and {MAX_METADATA} bytes"
        )
    return dict(metadata)


def default_holder() -> str:
    """The host name, the process id and a random part: two managers are never one holder by accident."""
    host = "".join(c for c in socket.gethostname() if unicodedata.category(c) != "Cc")
    host = host.encode()[:MAX_HOST].decode(errors="ignore")
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True)
class LeaseOptions:
    """Options of one lease. Durations are in seconds."""

    ttl: float | None = None
    grace: float = 0.0
    lock_delay: float = 0.0
    limit: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    drain: float = DEFAULT_DRAIN
    longest_hold: float = math.inf
    renew_while: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None and self.ttl != math.inf:
            check_between("ttl", self.ttl, SHORTEST_TTL, DAY)
            check_between("grace", self.grace, 0, self.ttl / 2)
            check_between("longest_hold", self.longest_hold, self.ttl, math.inf)
        check_between("grace", self.grace, 0, math.inf)
        check_between("longest_hold", self.longest_hold, SHORTEST_TTL, math.inf)
        check_between("lock_delay", self.lock_delay, 0, DAY)
        check_between("drain", self.drain, 0, math.inf)
        if self.limit is not None:
            check_between("limit", self.limit, 1, MAX_LIMIT)
            if not isinstance(self.limit, int):
                raise ValueError(f"invalid limit {self.limit!r}: expected an integer")
        object.__setattr__(self, "metadata", check_metadata(self.metadata))

    def request(self, holder: str) -> dict[str, Any]:
        """The body of an acquire without a wait."""
        body: dict[str, Any] = {"holder": holder}
        if self.ttl is not None:
            body["ttl_ms"] = "infinite" if self.ttl == math.inf else millis(self.ttl)
        if self.lock_delay > 0:
            body["lock_delay_ms"] = millis(self.lock_delay)
        if self.limit is not None:
            body["limit"] = self.limit
        if self.metadata:
            body["metadata"] = dict(self.metadata)
        return body


def millis(seconds: float) -> int:
    """Whole milliseconds of this time, rounded up."""
    return math.ceil(round(seconds * 1000, 3))
