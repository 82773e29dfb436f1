#!/usr/bin/env python3
"""The work of the guides. It reports its start, whether it runs alone, and its token. It ends when the check allows it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path


def _report(*words: object) -> None:
    """Appends one line to the file `events`. One write cannot mix with the writes of other processes."""
    line = " ".join(str(word) for word in (os.environ["GUIDE_NAME"], *words, time.monotonic())) + "\n"
    file = os.open("events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def write_report(token: int | str | None = None) -> None:
    """Works until the file `finish-NAME` exists. The kernel unlocks `resource` if the process is killed."""
    with open("resource", "a") as resource:
        try:
            fcntl.flock(resource, fcntl.LOCK_EX | fcntl.LOCK_NB)
            company = "alone"
        except BlockingIOError:
            company = "overlap"
        _report("start", company, token or "-")
        while not Path(f"finish-{os.environ['GUIDE_NAME']}").exists():
            time.sleep(0.01)
        _report("end", company, token or "-")


lead = write_report

if __name__ == "__main__":
    write_report(os.environ.get("TENURE_TOKEN"))
else:
    # After the other imports of the program.
    _report("load", "-", "-")
