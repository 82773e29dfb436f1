"""The driver of the asyncio client for `clients/conformance`.

It reads commands as JSON lines from its standard input, and writes responses and events to its standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import tenure
from tenure import states
from tenure._clock import system_clock

Command: TypeAlias = dict[str, Any]
Response: TypeAlias = dict[str, Any]

WORK_INTERVAL = 0.01


def write(message: Response) -> None:
    """Writes one line at once: a driver can be killed at any time."""
    os.write(1, json.dumps(message).encode() + b"\n")


def at_ns() -> int:
    """The clock of the deadlines."""
    return int(system_clock() * 1e9)


def seconds(milliseconds: Any) -> float:
    """Seconds of a duration in milliseconds."""
    return math.inf if milliseconds == "infinite" else float(milliseconds) / 1000


def describe(state: states.HoldState) -> Response:
    """The fields of a state."""
    described: Response = {"state": state.kind}
    for name in ("token", "failures"):
        if hasattr(state, name):
            described[name] = getattr(state, name)
    if "token" in described:
        described["token"] = str(described["token"])
    if hasattr(state, "why"):
        described["why"] = state.why.value
    left = getattr(state, "left", math.inf)
    if left != math.inf:
        described["left_ms"] = int(left * 1000)
    return described


async def outcome(call: Awaitable[Response]) -> Response:
    """The response to a request of the client."""
    try:
        return await call
    except tenure.Refused as error:
        return {"outcome": "refused", "code": error.code, **({"holder": error.holder} if error.holder else {})}
    except tenure.Unknown as error:
        return {"outcome": "unknown", "detail": str(error)}
    except tenure.Unavailable as error:
        return {"outcome": "unavailable", "detail": str(error)}
    except tenure.ShutDown:
        return {"outcome": "shut_down"}


class Driver:
    """One lease manager and its work."""

    def __init__(self) -> None:
        """Waits for `open`."""
        self._manager: tenure.LeaseManager | None = None
        self._leases: dict[str, tenure.Lease] = {}
        # The acquires in progress, by the ids of their commands.
        self._acquires: dict[int, asyncio.Task[int]] = {}
        self._reported: dict[str, tuple[str, str | None, str | None]] = {}
        self._work: dict[str, asyncio.Task[None]] = {}
        self._elections: dict[str, tenure.Election] = {}
        self._candidates: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.has_ended = asyncio.Event()

    @property
    def manager(self) -> tenure.LeaseManager:
        """The manager of the command `open`."""
        if self._manager is None:
            raise ValueError("the first command must be `open`")
        return self._manager

    async def run(self, command: Command) -> None:
        """Runs one command and writes its response."""
        try:
            operation = getattr(self, "do_" + str(command.get("op")), None)
            if operation is None:
                raise ValueError(f"unknown command {command.get('op')!r}")
            response = await operation(command)
        except Exception as error:  # noqa: BLE001 - the suite gets the error
            response = {"error": f"{type(error).__name__}: {error}"}
        write({"id": command.get("id"), **response})
        if command.get("op") == "shutdown" and "error" not in response:
            self.has_ended.set()

    def start(self, work: Any) -> asyncio.Task[None]:
        """Starts a task that the driver keeps."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def do_open(self, command: Command) -> Response:
        """Creates the manager."""
        options: dict[str, Any] = {
            name: command[name] for name in ("holder", "token", "ca", "cert", "key") if name in command
        }
        if "operation_timeout_ms" in command:
            options["operation_timeout"] = seconds(command["operation_timeout_ms"])
        if "drift_permille" in command:
            options["drift_permille"] = command["drift_permille"]
        self._manager = tenure.LeaseManager(command["endpoints"], **options)
        return {"holder": self._manager.holder}

    def lease(self, command: Command) -> tenure.Lease:
        """The lease of a command. The options of the first command count."""
        name = command["lease"]
        if name not in self._leases:
            options: dict[str, Any] = {key: command[key] for key in ("limit", "metadata") if command.get(key) is not None}
            for key in ("ttl", "grace", "lock_delay"):
                if command.get(key + "_ms") is not None:
                    options[key] = seconds(command[key + "_ms"])
            lease = self._leases[name] = self.manager.handle(name, **options)
            lease.on_state(lambda state: self.report(name, state))
        return self._leases[name]

    def report(self, name: str, state: states.HoldState) -> None:
        """Writes a state event. A renewal is no new state."""
        described = describe(state)
        new = (state.kind, described.get("token"), described.get("why"))
        if self._reported.get(name) != new:
            self._reported[name] = new
            write({"event": "state", "lease": name, **described, "at_ns": at_ns()})

    async def do_acquire(self, command: Command) -> Response:
        """Acquires a lease."""
        lease = self.lease(command)
        acquiring = asyncio.ensure_future(lease.acquire(wait=seconds(command.get("wait_ms", 0))))
        self._acquires[command["id"]] = acquiring

        async def acquire() -> Response:
            await asyncio.wait({acquiring})
            if acquiring.cancelled():
                return {"outcome": "cancelled"}
            return {"outcome": "held", "token": str(acquiring.result())}

        try:
            return await outcome(acquire())
        finally:
            del self._acquires[command["id"]]

    async def do_cancel(self, command: Command) -> Response:
        """Cancels an acquire in progress."""
        if acquiring := self._acquires.get(command["acquire"]):
            acquiring.cancel()
        return {}

    async def do_release(self, command: Command) -> Response:
        """Releases a lease."""
        lease = self.lease(command)

        async def release() -> Response:
            return {"outcome": "released", "was_held": await lease.release()}

        return await outcome(release())

    async def do_hand_over(self, command: Command) -> Response:
        """Hands a lease over."""
        lease = self.lease(command)

        async def hand_over() -> Response:
            to = await lease.hand_over(command.get("to"))
            return {"outcome": "handed_over", "to": to} if to else self.lost(lease)

        return await outcome(hand_over())

    async def do_state(self, command: Command) -> Response:
        """Reads the local state."""
        lease = self.lease(command)
        described = describe(lease.state)
        if lease.is_held and lease.remaining != math.inf:
            described["left_ms"] = int(lease.remaining * 1000)
        return {**described, "held": lease.is_held, "at_ns": at_ns()}

    async def do_check(self, command: Command) -> Response:
        """Asks the cluster."""
        lease = self.lease(command)

        async def check() -> Response:
            return {"outcome": "held", "token": str(lease.token)} if await lease.check() else self.lost(lease)

        return await outcome(check())

    @staticmethod
    def lost(lease: tenure.Lease) -> Response:
        """The outcome for a lease that is not held."""
        return {"outcome": "lost", "why": describe(lease.state).get("why", "released")}

    async def do_work(self, command: Command) -> Response:
        """Acquires a lease, and starts work that the client cancels at the loss."""
        lease = self.lease(command)
        acquired: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._work[lease.name] = self.start(self.work(lease, seconds(command.get("wait_ms", 0)), acquired))
        return await acquired

    async def work(self, lease: tenure.Lease, wait: float, acquired: asyncio.Future[Response]) -> None:
        """Writes an event every 10 ms while the lease is held."""
        why = "stopped"

        async def work(held: tenure.Lease) -> None:
            nonlocal why
            token = str(held.check_held())
            acquired.set_result({"outcome": "held", "token": token})
            try:
                while True:
                    # The clock is read before the lease is asked: at this time the lease was held.
                    at = at_ns()
                    held.check_held()
                    write({"event": "work", "lease": lease.name, "token": token, "at_ns": at})
                    await asyncio.sleep(WORK_INTERVAL)
            finally:
                why = lease.state.kind if lease.state.kind in ("ending", "lost") else "stopped"
                why = why if why != "stopped" or lease.is_held else "lost"
                write({"event": "work_ended", "lease": lease.name, "at_ns": at_ns(), "why": why})

        async def run() -> Response:
            with contextlib.suppress(tenure.LeaseLost):
                await lease.run(work, wait=wait)
            return {"outcome": "unknown", "detail": "the work has ended before its start"}

        refused = await outcome(run())
        if not acquired.done():
            acquired.set_result(refused)

    async def do_stop_work(self, command: Command) -> Response:
        """Ends the work, and waits for the release."""
        task = self._work.pop(command["lease"], None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        return {}

    def election(self, command: Command) -> tenure.Election:
        """The election of a command. The options of the first command count."""
        name = command["election"]
        if name not in self._elections:
            options: dict[str, Any] = {}
            if command.get("candidate") is not None:
                options["metadata"] = {"candidate": command["candidate"]}
            if command.get("ttl_ms") is not None:
                options["ttl"] = seconds(command["ttl_ms"])
            self._elections[name] = self.manager.election(name, **options)
        return self._elections[name]

    async def do_campaign(self, command: Command) -> Response:
        """Takes part in an election until `resign`."""
        name = command["election"]
        self._elections.pop(name, None)
        self._candidates[name] = self.start(self.campaign(self.election(command)))
        return {}

    async def campaign(self, election: tenure.Election) -> None:
        """Campaigns again after each loss."""
        while True:
            try:
                async with election.leader() as leadership:
                    term = {"election": election.name, "token": str(leadership.token)}
                    last = at_ns()
                    write({"event": "elected", **term, "at_ns": last})
                    try:
                        # The clock is read before the client is asked: at this time it led.
                        at = at_ns()
                        while leadership.is_leader:
                            last = at
                            await asyncio.sleep(WORK_INTERVAL)
                            at = at_ns()
                    finally:
                        # Before the release: the next leader can be elected after it.
                        write({"event": "deposed", **term, "at_ns": last})
            except tenure.LeaseLost:
                continue
            except tenure.ShutDown:
                return

    async def do_resign(self, command: Command) -> Response:
        """Ends the candidacy, and waits for the release."""
        task = self._candidates.pop(command["election"], None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        return {}

    async def do_leader(self, command: Command) -> Response:
        """Reads the current leader."""
        leader = await self.election(command).current()
        return {"leader": leader and leader.metadata.get("candidate", leader.holder)}

    async def do_clock(self, _: Command) -> Response:
        """Reads the clock."""
        return {"at_ns": at_ns()}

    async def do_shutdown(self, _: Command) -> Response:
        """Shuts the manager down."""
        return {"left": sorted({name for name, _ in await self.manager.shutdown()})}


async def lines(read: Callable[[], str]) -> asyncio.Queue[str]:
    """A queue of the lines of the standard input. The last one is empty."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[str] = asyncio.Queue()

    def reader() -> None:
        while True:
            line = read()
            loop.call_soon_threadsafe(queue.put_nowait, line)
            if not line:
                return

    threading.Thread(target=reader, daemon=True).start()
    return queue


async def main() -> None:
    """Runs commands concurrently until `shutdown` or the end of the input."""
    driver = Driver()
    commands = await lines(sys.stdin.readline)
    while True:
        getting = asyncio.ensure_future(commands.get())
        ended = asyncio.ensure_future(driver.has_ended.wait())
        await asyncio.wait({getting, ended}, return_when=asyncio.FIRST_COMPLETED)
        # At the end of the input, the driver ends like a program that crashes.
        if ended.done() or not getting.result():
            os._exit(0)
        ended.cancel()
        line = getting.result()
        try:
            command = json.loads(line)
        except ValueError as error:
            write({"id": None, "error": f"the line is not JSON: {error}"})
            continue
        driver.start(driver.run(command))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(main())
