"""The drivers for the conformance suite speak its protocol."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nodes import Cluster
from tenure import LeaseManager

FOLDER = Path(__file__).resolve().parent.parent / "conformance"


class Driver:
    """A driver process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Reads all lines in a task."""
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._changed = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())
        self._id = 0

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "id" in message:
                self._answers[message.pop("id")].set_result(message)
            else:
                self.events.append(message)
                self._changed.set()

    def send(self, op: str, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        """Sends a command."""
        assert self.process.stdin is not None
        self._id += 1
        self._answers[self._id] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": self._id, "op": op, **fields}).encode() + b"\n")
        return self._answers[self._id]

    async def event(self, **fields: Any) -> dict[str, Any]:
        """Waits for an event with these fields."""
        while True:
            for event in self.events:
                if fields.items() <= event.items():
                    return event
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 30)

    async def end(self) -> int:
        """Ends the input and waits for the exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.stdin.wait_closed()
        code = await asyncio.wait_for(self.process.wait(), 10)
        await self._reading
        return code


@pytest.fixture(params=["driver.py", "driver_sync.py"])
async def driver(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    pipe, file = asyncio.subprocess.PIPE, str(FOLDER / request.param)
    driver = Driver(await asyncio.create_subprocess_exec(sys.executable, file, stdin=pipe, stdout=pipe))
    opened = await driver.send(
        "open", endpoints=cluster.urls, holder="driver", operation_timeout_ms=10_000, drift_permille=10
    )
    assert "error" not in opened
    yield driver
    assert await driver.end() == 0


async def test_driver_acquires_and_releases(driver: Driver, cluster: Cluster) -> None:
    options = {"ttl_ms": 3000, "wait_ms": 0, "grace_ms": 500, "lock_delay_ms": 0, "limit": 1, "metadata": {"a": "b"}}
    acquired = await driver.send("acquire", lease="driven/a", **options)
    assert acquired["outcome"] == "held"
    state = await driver.send("state", lease="driven/a")
    assert (state["state"], state["held"], state["token"]) == ("held", True, acquired["token"])
    assert 0 < state["left_ms"] <= 2970
    assert (await driver.send("check", lease="driven/a"))["outcome"] == "held"
    assert (await driver.send("hand_over", lease="driven/a"))["code"] == "no_such_waiter"
    async with LeaseManager(cluster.urls, holder="other") as other:
        await other.handle("driven/b", ttl=5).acquire()
        refused = await driver.send("acquire", lease="driven/b")
        assert (refused["outcome"], refused["code"]) == ("refused", "held")
        waiting = asyncio.ensure_future(other.handle("driven/a", ttl=5).acquire(wait=10))
        while (await other.client.queue("driven/a"))["total"] == 0:
            await asyncio.sleep(0.01)
        assert await driver.send("hand_over", lease="driven/a") == {"outcome": "handed_over", "to": "other"}
        assert await waiting > int(acquired["token"])
    assert await driver.send("release", lease="driven/a") == {"outcome": "released", "was_held": False}
    await driver.event(event="state", lease="driven/a", state="released")
    assert "error" in await driver.send("no_such_command")
    assert (await driver.send("clock"))["at_ns"] > state["at_ns"]


async def test_driver_reports_work_until_the_loss(driver: Driver, cluster: Cluster) -> None:
    # A renewal learns of the revoke before the deadline, also on a busy machine.
    started = await driver.send("work", lease="driven/work", ttl_ms=9000)
    assert started["outcome"] == "held"
    await driver.event(event="work", lease="driven/work", token=started["token"])
    async with LeaseManager(cluster.urls) as other:
        await other.client.revoke("driven/work")
    ended = await driver.event(event="work_ended", lease="driven/work")
    assert ended["why"] == "lost"
    assert (await driver.event(event="state", lease="driven/work", state="lost"))["why"] == "revoked"
    assert (await driver.send("check", lease="driven/work"))["outcome"] == "lost"
    # The first work reports its end before it leaves the lease. Until then, this process uses the lease.
    again = await driver.send("work", lease="driven/work", ttl_ms=9000, wait_ms=10_000)
    assert again["outcome"] == "held"
    assert await driver.send("stop_work", lease="driven/work") == {}
    await driver.event(event="work_ended", why="stopped")
    assert (await driver.send("state", lease="driven/work"))["state"] == "released"


async def test_driver_takes_part_in_an_election(driver: Driver) -> None:
    assert await driver.send("campaign", election="driven/leader", candidate="a", ttl_ms=3000) == {}
    elected = await driver.event(event="elected", election="driven/leader")
    assert await driver.send("leader", election="driven/leader") == {"leader": "a"}
    assert await driver.send("resign", election="driven/leader") == {}
    deposed = await driver.event(event="deposed", election="driven/leader")
    assert (deposed["token"], deposed["at_ns"] > elected["at_ns"]) == (elected["token"], True)
    assert await driver.send("leader", election="driven/leader") == {"leader": None}
    await driver.send("acquire", lease="driven/left", ttl_ms=3000)
    assert await driver.send("shutdown") == {"left": []}
    assert await asyncio.wait_for(driver.process.wait(), 10) == 0
