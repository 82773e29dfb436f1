"""A program that forks while it holds a lease. `test_fork.py` runs it, and reads its lines of JSON."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable

import tenure
from tenure import sync

TTL = 5.0


def tell(who: str, told: object) -> None:
    """Prints a line."""
    print(json.dumps({"who": who, "told": told}), flush=True)


def outcome(call: Callable[[], object]) -> str:
    """The result or the error of a call."""
    try:
        return f"returned {call()}"
    except Exception as error:  # noqa: BLE001 - the test compares it
        return f"{type(error).__name__}: {error}"


def blocking_child(endpoints: str, manager: sync.LeaseManager, lease: sync.Lease) -> None:
    """Uses the manager of the parent, and then another one."""
    calls: dict[str, Callable[[], object]] = {
        "acquire": lease.acquire,
        "release": lease.release,
        "hand_over": lease.hand_over,
        "check": lease.check,
        "check_held": lease.check_held,
        "is_held": lambda: lease.is_held,
        "remaining": lambda: lease.remaining,
        "token": lambda: lease.token,
        "state": lambda: lease.state,
        "handle": lambda: manager.handle("forked/other"),
        "lease": lambda: manager.lease("forked/other").__enter__(),
        "list": lambda: next(manager.client.list()),
        "watch": lambda: next(iter(manager.client.watch())),
        "get": lambda: manager.client.get(lease.name),
        "campaign": lambda: manager.election("forked/election").campaign(),
        "release_all": manager.release_all,
        "shutdown": manager.shutdown,
    }
    tell("child", {name: outcome(call) for name, call in calls.items()})
    with sync.LeaseManager(endpoints) as own, own.lease(f"{lease.name}/child", ttl=TTL) as held:
        tell("own", held.is_held)


def fork(endpoints: str, name: str) -> None:
    """Forks with `os.fork`. The child leaves each `with` of the parent."""
    with sync.LeaseManager(endpoints) as manager, manager.lease(name, ttl=TTL) as lease:
        tell("parent", os.getpid())
        child = os.fork()
        if child == 0:
            blocking_child(endpoints, manager, lease)
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        tell("exit", os.waitstatus_to_exitcode(status))
        tell("check", lease.check())
        first = lease.state
        while lease.state is first:
            lease.check_held()
        tell("renewed", lease.is_held)


async def async_child(endpoints: str, manager: tenure.LeaseManager, lease: tenure.Lease) -> None:
    """Uses the manager of the parent, and then another one."""
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "acquire": lease.acquire,
        "release": lease.release,
        "hand_over": lease.hand_over,
        "check": lease.check,
        "get": lambda: manager.client.get(lease.name),
        "watch": lambda: manager.client.watch().__anext__(),
        "enter": lambda: lease.hold().__aenter__(),
        "shutdown": manager.shutdown,
    }
    told = {"is_held": outcome(lambda: lease.is_held)}
    for call, start in calls.items():
        try:
            told[call] = f"returned {await start()}"
        except Exception as error:  # noqa: BLE001 - the test compares it
            told[call] = f"{type(error).__name__}: {error}"
    tell("child", told)
    async with tenure.LeaseManager(endpoints) as own, own.lease(f"{lease.name}/child", ttl=TTL) as held:
        tell("own", held.is_held)


async def spawn(endpoints: str, name: str) -> None:
    """Forks with `multiprocessing` inside an event loop."""

    def run() -> None:
        asyncio.run(async_child(endpoints, manager, lease))
        sys.exit(7)

    async with tenure.LeaseManager(endpoints) as manager, manager.lease(name, ttl=TTL) as lease:
        tell("parent", os.getpid())
        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        await asyncio.to_thread(process.join)
        tell("exit", process.exitcode)
        tell("check", await lease.check())
        renewals = 0
        async for state in lease.states():
            renewals += state.kind == "held"
            if renewals == 2:
                break
        tell("renewed", lease.is_held)


if __name__ == "__main__":
    if sys.argv[1] == "os.fork":
        fork(*sys.argv[2:])
    else:
        asyncio.run(spawn(*sys.argv[2:]))
