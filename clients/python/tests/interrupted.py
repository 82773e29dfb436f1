"""A program whose main thread gets SIGINT. `test_interrupt.py` runs it.

It acquires a lease, prints `interrupted`, waits for a line on its standard input while the manager is open, and at the
end prints the threads that are left.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from tenure.sync import Lease, LeaseManager

WAIT = 60.0
TTL = 120.0


def interrupt_at_the_grant(lease: Lease) -> None:
    """Sends SIGINT to this process in the moment in which the manager gets the grant."""
    lease.on_state(lambda state: os.kill(os.getpid(), signal.SIGINT) if state.kind == "held" else None)


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
        calls: dict[str, Callable[[], object]] = {
            "with": lambda: enter(lease),
            "acquire": lambda: lease.acquire(wait=WAIT),
            "campaign": lambda: manager.election(name, ttl=TTL).campaign(),
        }
        if moment == "grant":
            interrupt_at_the_grant(lease)
        print("ready", flush=True)
        try:
            calls[call]()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.readline()
        # The lease is free for other parts of this program.
        with manager.lease(f"{name}/again", ttl=TTL):
            print("again", flush=True)
    print(*(thread.name for thread in threading.enumerate()), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
