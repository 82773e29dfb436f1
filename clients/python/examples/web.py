"""A FastAPI service whose replicas elect one leader. The leader runs a background task.

TENURE_ENDPOINTS=http://10.0.0.1:7101,http://10.0.0.2:7101 uvicorn web:app
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tenure import LeaseLost, LeaseManager, ShutDown


class Replica:
    """This replica of the service, and its part in the election."""

    def __init__(self, manager: LeaseManager, address: str) -> None:
        """Takes no part yet."""
        self.election = manager.election("web-leader", ttl=10, grace=1, metadata={"address": address})
        self.token: int | None = None
        self.rounds = 0

    async def campaign(self) -> None:
        """Leads again and again, until it is cancelled or the manager is shut down."""
        while True:
            try:
                async with self.election.leader() as leadership:
                    self.token = leadership.token
                    await self.lead(leadership.token)
            except LeaseLost:
                continue
            except ShutDown:
                return
            finally:
                self.token = None

    async def lead(self, token: int) -> None:
        """The work of the leader. Each write needs the token."""
        while True:
            self.rounds += 1
            await asyncio.sleep(1)


def create_app(endpoints: str | None = None, address: str = "127.0.0.1:8000") -> FastAPI:
    """Creates the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with LeaseManager(endpoints) as manager:
            app.state.replica = replica = Replica(manager, address)
            campaign = asyncio.ensure_future(replica.campaign())
            try:
                yield
            finally:
                # The replica resigns before it exits, so that the next leader does not wait for the ttl.
                campaign.cancel()
                await asyncio.wait({campaign})

    app = FastAPI(lifespan=lifespan)

    @app.get("/leader")
    async def leader() -> dict[str, str | bool | None]:
        """The address of the leader as the cluster sees it."""
        replica: Replica = app.state.replica
        current = await replica.election.current()
        return {"leader": current.metadata["address"] if current else None, "is_me": replica.token is not None}

    return app


app = create_app()
