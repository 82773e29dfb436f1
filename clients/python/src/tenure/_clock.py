"""The clock of the deadlines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds since a fixed point. Never decreases, and should include the time in suspend."""


def _choose() -> tuple[Clock, str]:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is not None:
        return partial(time.clock_gettime, boottime), "CLOCK_BOOTTIME"
    if sys.platform == "darwin":
        # `time.monotonic` stops during sleep there. This clock does not.
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC), "CLOCK_MONOTONIC"
    return time.monotonic, "time.monotonic"


system_clock, CLOCK_NAME = _choose()
