"""Ctrl-C during a call of the client without asyncio: a real process and a real signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nodes import Cluster
from tenure import LeaseManager

PROGRAM = Path(__file__).resolve().parent / "interrupted.py"
CALLS = ("with", "acquire", "campaign")


@pytest.fixture
async def other(cluster: Cluster) -> AsyncIterator[LeaseManager]:
    async with LeaseManager(cluster.urls) as other:
        yield other


class Program:
    """The process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Keeps a process whose standard input and output are pipes."""
        self.process = process

    @staticmethod
    async def start(cluster: Cluster, name: str, call: str, moment: str) -> Program:
        """Starts the process, and waits until it calls the client."""
        pipe, words = asyncio.subprocess.PIPE, (",".join(cluster.urls), name, call, moment)
        program = Program(
            await asyncio.create_subprocess_exec(sys.executable, str(PROGRAM), *words, stdin=pipe, stdout=pipe)
        )
        assert await program.line() == "ready"
        return program

    async def line(self) -> str:
        """The next line."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 10)).decode().strip()

    async def ends(self) -> None:
        """Lets the process end. Only its main thread is left then."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        assert await self.line() == "again"
        assert await self.line() == "MainThread"
        assert await asyncio.wait_for(self.process.wait(), 10) == 0


async def queued(manager: LeaseManager, name: str, count: int) -> None:
    """Waits until this many claims are in the queue."""
    while (await manager.client.queue(name))["total"] != count:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("call", CALLS)
async def test_interrupt_at_the_grant_releases_the_lease(cluster: Cluster, other: LeaseManager, call: str) -> None:
    name = f"interrupt/granted/{call}"
    program = await Program.start(cluster, name, call, "grant")
    assert await program.line() == "interrupted"
    # The manager of the process is open, and the ttl is two minutes.
    token = await other.handle(name, ttl=5).acquire(wait=10)
    assert token > 0
    await program.ends()


async def test_interrupt_at_an_event_does_not_lose_it(cluster: Cluster, other: LeaseManager) -> None:
    name = "interrupt/watched"
    async with other.lease(name, ttl=10):
        pass
    granted = (await other.client.history(name))["transitions"][-2]["index"]
    program = await Program.start(cluster, name, "watch", str(granted - 1))
    assert await program.line() == "interrupted"
    assert await program.line() == "True"
    assert await program.line() == "granted released"
    await program.ends()


async def test_interrupt_in_an_iteration_stays_an_interrupt(cluster: Cluster) -> None:
    program = await Program.start(cluster, "interrupt/observed", "observe", "wait")
    assert await program.line() == "interrupted"
    await program.ends()


@pytest.mark.parametrize("call", CALLS)
async def test_interrupt_in_the_queue_leaves_it(cluster: Cluster, other: LeaseManager, call: str) -> None:
    name = f"interrupt/queued/{call}"
    async with other.lease(name, ttl=10):
        program = await Program.start(cluster, name, call, "queue")
        await asyncio.wait_for(queued(other, name, 1), 10)
        program.process.send_signal(signal.SIGINT)
        assert await program.line() == "interrupted"
        await asyncio.wait_for(queued(other, name, 0), 10)
    await program.ends()
