"""The driver of `tenure.sync` for `clients/conformance`: each command runs in a thread of its own.

A thread cannot be cancelled, so this driver has no `cancel`. Work checks `is_held` before each of its steps.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

import tenure
from driver import WORK_INTERVAL, Command, Response, at_ns, describe, seconds, write
from tenure import states, sync


def outcome(call: Callable[[], Response]) -> Response:
    """The response to a request of the client."""
    try:
        return call()
    except tenure.Refused as error:
        return {"outcome": "refused", "code": error.code}
    except tenure.Unknown as error:
        return {"outcome": "unknown", "detail": str(error)}
    except tenure.Unavailable as error:
        return {"outcome": "unavailable", "detail": str(error)}
    except tenure.ShutDown:
        return {"outcome": "shut_down"}


class Stoppable:
    """A thread that ends some time after `stop`."""

    def __init__(self, run: Callable[[threading.Event], None]) -> None:
        """Starts the thread."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=run, args=[self._stop], daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops the thread and waits for its end."""
        self._stop.set()
        self._thread.join()


class Driver:
    """One lease manager and its work."""

    def __init__(self, command: Command) -> None:
        """Creates the manager of the command `open`."""
        options: dict[str, Any] = {
            name: command[name]
            for name in ("holder", "token", "ca", "cert", "key", "drift_permille")
            if command.get(name) is not None
        }
        if "operation_timeout_ms" in command:
            options["operation_timeout"] = seconds(command["operation_timeout_ms"])
        self._manager = sync.LeaseManager(command["endpoints"], **options)
        self._lock = threading.Lock()
        self._leases: dict[str, sync.Lease] = {}
        self._reported: dict[str, tuple[str, str | None, str | None]] = {}
        self._running: dict[str, Stoppable] = {}

    def run(self, command: Command) -> None:
        """Runs one command and writes its response."""
        try:
            operation = getattr(self, "do_" + str(command.get("op")), None)
            if operation is None:
                raise ValueError(f"unknown command {command.get('op')!r}")
            response = operation(command)
        except Exception as error:  # noqa: BLE001 - the suite gets the error
            response = {"error": f"{type(error).__name__}: {error}"}
        write({"id": command.get("id"), **response})
        if command.get("op") == "shutdown" and "error" not in response:
            os._exit(0)

    def lease(self, command: Command) -> sync.Lease:
        """The lease of a command. The options of the first command count."""
        name = command["lease"]
        with self._lock:
            if name not in self._leases:
                options: dict[str, Any] = {
                    key: command[key] for key in ("limit", "metadata") if command.get(key) is not None
                }
                for key in ("ttl", "grace", "lock_delay"):
                    if command.get(key + "_ms") is not None:
                        options[key] = seconds(command[key + "_ms"])
                lease = self._leases[name] = self._manager.handle(name, **options)
                lease.on_state(lambda state: self.report(name, state))
            return self._leases[name]

    def report(self, name: str, state: states.HoldState) -> None:
        """Writes a state event. A renewal is no new state. Only the thread of the manager calls it."""
        described = describe(state)
        new = (state.kind, described.get("token"), described.get("why"))
        if self._reported.get(name) != new:
            self._reported[name] = new
            write({"event": "state", "lease": name, **described, "at_ns": at_ns()})

    def do_acquire(self, command: Command) -> Response:
        """Acquires a lease."""
        lease, wait = self.lease(command), seconds(command.get("wait_ms", 0))
        return outcome(lambda: {"outcome": "held", "token": str(lease.acquire(wait=wait))})

    def do_release(self, command: Command) -> Response:
        """Releases a lease."""
        lease = self.lease(command)
        return outcome(lambda: {"outcome": "released", "was_held": lease.release()})

    def do_hand_over(self, command: Command) -> Response:
        """Hands a lease over."""
        lease = self.lease(command)

        def hand_over() -> Response:
            to = lease.hand_over(command.get("to"))
            return {"outcome": "handed_over", "to": to} if to else self.lost(lease)

        return outcome(hand_over)

    def do_state(self, command: Command) -> Response:
        """Reads the local state."""
        lease = self.lease(command)
        described = describe(lease.state)
        if lease.is_held and lease.remaining != math.inf:
            described["left_ms"] = int(lease.remaining * 1000)
        return {**described, "held": lease.is_held, "at_ns": at_ns()}

    def do_check(self, command: Command) -> Response:
        """Asks the cluster."""
        lease = self.lease(command)
        return outcome(lambda: {"outcome": "held", "token": str(lease.token)} if lease.check() else self.lost(lease))

    @staticmethod
    def lost(lease: sync.Lease) -> Response:
        """The outcome for a lease that is not held."""
        return {"outcome": "lost", "why": describe(lease.state).get("why", "released")}

    def do_work(self, command: Command) -> Response:
        """Acquires a lease, and starts work in another thread that stops at the loss."""
        lease, wait = self.lease(command), seconds(command.get("wait_ms", 0))
        acquired: queue.SimpleQueue[Response] = queue.SimpleQueue()

        def run(stop: threading.Event) -> None:
            # The first response counts: after the acquire, the work has put it into the queue.
            acquired.put(outcome(lambda: self.work(lease.hold(wait=wait), acquired, stop)))

        self._running[lease.name] = Stoppable(run)
        return acquired.get()

    @staticmethod
    def work(held: sync.HeldLease, acquired: queue.SimpleQueue[Response], stop: threading.Event) -> Response:
        """Writes an event every 10 ms while the lease is held."""
        why = "stopped"
        with contextlib.suppress(tenure.LeaseLost), held as lease:
            token = str(lease.check_held())
            acquired.put({"outcome": "held", "token": token})
            while not stop.is_set():
                # The clock is read before the lease is asked: at this time the lease was held.
                at = at_ns()
                if not lease.is_held:
                    why = "lost"
                    break
                write({"event": "work", "lease": lease.name, "token": token, "at_ns": at})
                stop.wait(WORK_INTERVAL)
            write({"event": "work_ended", "lease": lease.name, "at_ns": at_ns(), "why": why})
        return {"outcome": "unknown", "detail": "the work has ended"}

    def do_stop_work(self, command: Command) -> Response:
        """Ends the work, and waits for the release."""
        self._running.pop(command["lease"]).end()
        return {}

    def election(self, command: Command) -> sync.Election:
        """The election of a command."""
        options: dict[str, Any] = {}
        if command.get("candidate") is not None:
            options["metadata"] = {"candidate": command["candidate"]}
        if command.get("ttl_ms") is not None:
            options["ttl"] = seconds(command["ttl_ms"])
        return self._manager.election(command["election"], **options)

    def do_campaign(self, command: Command) -> Response:
        """Takes part in an election until `resign`."""
        election = self.election(command)
        self._running[command["election"]] = Stoppable(lambda stop: self.campaign(command["election"], election, stop))
        return {}

    @staticmethod
    def campaign(name: str, election: sync.Election, stop: threading.Event) -> None:
        """Campaigns again after each loss."""
        while not stop.is_set():
            try:
                with election.campaign() as leadership:
                    term = {"election": name, "token": str(leadership.token)}
                    last = at_ns()
                    write({"event": "elected", **term, "at_ns": last})
                    # The clock is read before the client is asked: at this time it led.
                    at = at_ns()
                    while leadership.is_leader:
                        last = at
                        if stop.wait(WORK_INTERVAL):
                            break
                        at = at_ns()
                    # Before the release: the next leader can be elected after it.
                    write({"event": "deposed", **term, "at_ns": last})
            except tenure.ShutDown:
                return

    def do_resign(self, command: Command) -> Response:
        """Ends the candidacy, and waits for the release."""
        self._running.pop(command["election"]).end()
        return {}

    def do_leader(self, command: Command) -> Response:
        """Reads the current leader."""
        leader = self._manager.election(command["election"]).current()
        return {"leader": leader and leader.metadata.get("candidate", leader.holder)}

    @staticmethod
    def do_clock(_: Command) -> Response:
        """Reads the clock."""
        return {"at_ns": at_ns()}

    def do_shutdown(self, _: Command) -> Response:
        """Shuts the manager down."""
        return {"left": sorted({name for name, _ in self._manager.shutdown()})}


def main() -> None:
    """Runs commands concurrently until `shutdown` or the end of the input."""
    driver: Driver | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if driver is None:
            driver = Driver(command)
            write({"id": command["id"]})
        else:
            threading.Thread(target=driver.run, args=[command], daemon=True).start()
    # Like a crash: nothing is released.
    os._exit(0)


if __name__ == "__main__":
    main()
