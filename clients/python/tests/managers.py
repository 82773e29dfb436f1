"""Managers whose clock the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from scripted import Answer, Handler, ManualClock, ScriptedServer, granted, problem, renewed, standing
from tenure import LeaseManager

NO_LEADER = problem("no_leader", 503)


class Managed:
    """A manager of a scripted cluster."""

    def __init__(self, server: ScriptedServer, clock: ManualClock, **options: Any) -> None:
        """Grants, renews and releases until the test scripts other answers."""
        server.on("acquire", granted())
        server.on("renew", renewed)
        server.on("release", Answer({"released": True}))
        server.on("explain", standing("unknown"))
        self.server = server
        self.clock = clock
        self.manager = LeaseManager(server.urls, holder="me", clock=clock, **options)
        self._operation_timeout = self.manager._core.keeper._operation_timeout

    async def pass_time(self, seconds: float, step: float = 0.1) -> None:
        """Moves the clock in steps that the keeper sees."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(self.clock.now + step, until)
            self.wake()
            await asyncio.sleep(0)

    def fail_renewals(self, handler: Handler | Answer = NO_LEADER) -> None:
        """Answers the next renewals with this. They give up soon."""
        self.manager._core.keeper._operation_timeout = 0.05
        self.server.on("renew", handler)

    def heal_renewals(self) -> None:
        """Answers the next renewals with a success, however long that takes."""
        self.manager._core.keeper._operation_timeout = self._operation_timeout
        self.server.on("renew", renewed)

    def wake(self) -> None:
        """Lets the keeper look at the clock now, and not after up to 100 ms."""
        self.manager._core.keeper._wake.set()

    async def until(self, condition: Callable[[], bool], limit: float = 10) -> None:
        """Waits for a condition, at most this many seconds."""

        async def poll() -> None:
            while not condition():
                self.wake()
                await asyncio.sleep(0.001)

        await asyncio.wait_for(poll(), limit)


@asynccontextmanager
async def managed(server: ScriptedServer, clock: ManualClock, **options: Any) -> AsyncIterator[Managed]:
    """A manager that is shut down at the end."""
    managed = Managed(server, clock, **options)
    try:
        yield managed
    finally:
        await managed.manager.shutdown()
