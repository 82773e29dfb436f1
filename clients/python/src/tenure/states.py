"""The states of a lease at its holder, and the reasons of a loss.

`Lease.state` returns one of the classes here. Later versions can add states and reasons, so a `match` needs a `case _`.

`left` is the number of seconds to the deadline when the state began, less the drift margin. `Lease.remaining` returns
the time that is left now.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias


class Loss(str, Enum):
    """Why a holder lost its lease."""

    EXPIRED = "expired"
    """The cluster answered that the lease had expired."""
    REVOKED = "revoked"
    """An operator revoked the lease."""
    HANDED_OVER = "handed_over"
    """Another process used the token of this holder to hand the lease over."""
    RELEASED = "released"
    """Another task or process released the lease with the token of this holder."""
    FORGOTTEN = "forgotten"
    """The cluster has no record of the grant."""
    RESTORED = "restored"
    """The cluster was restored from a backup."""
    UNREACHABLE = "unreachable"
    """The deadline passed without a successful renewal."""
    SUSPENDED = "suspended"
    """The deadline passed while this process or its machine did not run, or its event loop was blocked."""
    STALLED = "stalled"
    """The deadline passed after `renew_while` had returned `False`."""
    HELD_LONGEST = "held_longest"
    """The deadline passed after the lease had reached `longest_hold`."""
    OTHER = "other"
    """The cluster ended the lease for a reason that this version does not know."""

    @property
    def explanation(self) -> str:
        """The reason as text, for people."""
        return _EXPLANATIONS[self]

    @property
    def is_by_own_clock(self) -> bool:
        """Whether the clock of the holder alone ended the lease. The cluster may then still count it as held."""
        return self in (Loss.UNREACHABLE, Loss.SUSPENDED, Loss.STALLED, Loss.HELD_LONGEST)

    @classmethod
    def from_api(cls, why: str) -> Loss:
        """The reason for a word of the HTTP API: the `why` of a problem, or the kind of an event."""
        if why == "unknown":
            return cls.FORGOTTEN
        known = (cls.EXPIRED, cls.REVOKED, cls.HANDED_OVER, cls.RELEASED, cls.RESTORED)
        return next((loss for loss in known if loss.value == why), cls.OTHER)

    def __str__(self) -> str:
        return self.value


_EXPLANATIONS = {
    Loss.EXPIRED: "it expired",
    Loss.REVOKED: "an operator revoked it",
    Loss.HANDED_OVER: "it was handed over",
    Loss.RELEASED: "it was released by another task or process",
    Loss.FORGOTTEN: "the cluster does not remember it",
    Loss.RESTORED: "the cluster was restored from a backup",
    Loss.UNREACHABLE: "it could not be renewed in time",
    Loss.SUSPENDED: "this process or its event loop did not run at the deadline",
    Loss.STALLED: "the work made no progress",
    Loss.HELD_LONGEST: "it reached its longest hold time",
    Loss.OTHER: "the cluster ended it for a reason that this version does not know",
}


@dataclass(frozen=True)
class Idle:
    """Not acquired yet."""

    kind: ClassVar[str] = "idle"


@dataclass(frozen=True)
class Held:
    """Held."""

    kind: ClassVar[str] = "held"
    token: int
    left: float
    """Seconds to the deadline; `math.inf` for an infinite ttl."""


@dataclass(frozen=True)
class AtRisk:
    """Held, but renewals fail. Alert if it persists."""

    kind: ClassVar[str] = "at_risk"
    token: int
    left: float
    """Seconds to the deadline; `math.inf` for an infinite ttl."""
    failures: int
    """Failed renewals since the last successful one."""


@dataclass(frozen=True)
class Ending:
    """Held, but no longer renewed. The work must end within `left` seconds."""

    kind: ClassVar[str] = "ending"
    token: int
    left: float
    why: Loss
    """The reason that a loss at the deadline will have."""


@dataclass(frozen=True)
class Lost:
    """Not held: the grant ended without a release by this handle. Drop unwritten work."""

    kind: ClassVar[str] = "lost"
    token: int
    why: Loss


@dataclass(frozen=True)
class Released:
    """Not held: this process released the lease or handed it over."""

    kind: ClassVar[str] = "released"
    token: int


HoldState: TypeAlias = Idle | Held | AtRisk | Ending | Lost | Released
"""The state of one lease at its holder, by local knowledge."""
