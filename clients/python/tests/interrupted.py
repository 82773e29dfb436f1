"""A program whose main thread gets SIGINT. `test_interrupt.py` runs it.

It acquires a lease, or waits for an event or a leader, and prints `interrupted`. It waits for a line on its standard
input while the manager is open, and at the end prints the threads that are left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from tenure import _election, _watch, api
from tenure.sync import Lease, LeaseManager, Watch

WAIT = 60.0
TTL = 120.0


def interrupt_at_the_grant(lease: Lease) -> None:
    """Sends SIGINT to this process in the moment in which the manager gets the grant."""
    lease.on_state(lambda state: os.kill(os.getpid(), signal.SIGINT) if state.kind == "held" else None)


def interrupt_at_the_event() -> None:
    """Sends SIGINT to this process in the moment in which the manager gets the first event."""
    parse = _watch._parse

    def parsed(data: str | None) -> api.Event | None:
        event = parse(data)
        if event is not None:
            _watch._parse = parse
            os.kill(os.getpid(), signal.SIGINT)
        return event

    _watch._parse = parsed


def interrupt_in_the_iteration() -> None:
    """Sends SIGINT to this process in the moment in which an observer waits for the next leader."""
    wait = _election._Trigger.changed

    async def changed(trigger: _election._Trigger, longest: float) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await wait(trigger, longest)

    _election._Trigger.changed = changed  # type: ignore[method-assign, assignment]


def watch_on(events: Watch, after: str) -> None:
    """Prints the next two events, and whether the first one is after the position."""
    print(events.position == after, flush=True)
    print(next(events)["event"], next(events)["event"], flush=True)
    events.close()


def enter(lease: Lease) -> None:
    """Holds the lease in a `with`."""
    with lease.hold(wait=WAIT):
        print("entered", flush=True)


def main(endpoints: str, name: str, call: str, moment: str) -> None:
    """Runs one call until the signal."""
    # A shell starts programs in the background with an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with LeaseManager(endpoints) as manager:
        lease = manager.handle(name, ttl=TTL)
        # The moment of a watch is the position before the event.
        events = manager.client.watch(name, after=moment)
        calls: dict[str, Callable[[], object]] = {
            "with": lambda: enter(lease),
            "acquire": lambda: lease.acquire(wait=WAIT),
            "campaign": lambda: manager.election(name, ttl=TTL).campaign(),
            "watch": lambda: next(events),
            "observe": lambda: list(manager.election(name, refresh=WAIT).observe()),
        }
        if moment == "grant":
            interrupt_at_the_grant(lease)
        if call == "watch":
            interrupt_at_the_event()
        if call == "observe":
            interrupt_in_the_iteration()
        print("ready", flush=True)
        try:
            calls[call]()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        if call == "watch":
            watch_on(events, after=moment)
        sys.stdin.readline()
        # The lease is free for other parts of this program.
        with manager.lease(f"{name}/again", ttl=TTL):
            print("again", flush=True)
    print(*(thread.name for thread in threading.enumerate()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
