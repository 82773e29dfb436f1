"""A nightly job that runs on one of several machines.

TENURE_ENDPOINTS=http://10.0.0.1:7101,http://10.0.0.2:7101,http://10.0.0.3:7101 python nightly.py report.txt

Each machine starts it at the same time. The token of the lease goes into each write, so that the storage can reject a
writer that was paused.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tenure import LeaseLost, LeaseManager, Refused, TenureError

PARTS = 5


async def write_report(path: Path, token: int) -> None:
    """Writes the report in steps. The client cancels it at one of its awaits if the lease is lost."""
    lines = []
    for part in range(PARTS):
        await asyncio.sleep(0.01)  # the work
        lines.append(f"part {part} fenced by {token}\n")
    # A real resource compares the token with the highest one that it has stored.
    await asyncio.to_thread(path.write_text, "".join(lines))


async def run(path: Path, endpoints: str | None = None) -> str:
    """Runs the job once. Returns the outcome as text."""
    async with LeaseManager(endpoints) as manager:
        try:
            async with manager.lease("nightly-report", ttl=30, grace=3) as lease:
                await write_report(path, lease.check_held())
        except Refused as error:
            return f"not started: {error}"
        except LeaseLost as error:
            return f"stopped: {error}"
        except TenureError as error:
            # The job may not have started. `Unknown` expires by its ttl.
            return f"failed: {error}"
        return "done"


if __name__ == "__main__":
    print(asyncio.run(run(Path(sys.argv[1]))))
