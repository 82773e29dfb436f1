"""Client of Tenure: leases with fencing tokens over Raft.

`LeaseManager` holds leases with asyncio, and `tenure.sync` without it. `Client` reads a cluster.

    async with LeaseManager("http://10.0.0.1:7101,http://10.0.0.2:7101") as manager:
        async with manager.lease("nightly", ttl=30, wait=60) as lease:
            await write_report(fence=lease.token)

The body is cancelled if the lease is lost. All durations are in seconds.
"""

from importlib.metadata import version as _version

from . import api, states
from ._client import Client
from ._clock import CLOCK_NAME, Clock
from ._election import Election, Leader, Leadership
from ._errors import LeaseLost, Refused, ShutDown, TenureError, Unavailable, Unknown
from ._lease import Lease
from ._manager import LeaseManager
from ._watch import Watch
from .states import HoldState, Loss

__version__ = _version("tenure")
"""The version of this package and of the server whose API it knows."""

__all__ = [
    "CLOCK_NAME",
    "Client",
    "Clock",
    "Election",
    "HoldState",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseLost",
    "LeaseManager",
    "Loss",
    "Refused",
    "ShutDown",
    "TenureError",
    "Unavailable",
    "Unknown",
    "Watch",
    "api",
    "states",
]
