// A nightly job. Start it on each host, for instance from cron: the first one writes the report, the others do nothing.
//
//   TENURE_ENDPOINTS=http://10.0.0.1:7101,http://10.0.0.2:7101 node nightly.js
import { setTimeout as sleep } from "node:timers/promises";
import { type FencingToken, type Lease, LeaseLost, LeaseManager, Refused } from "tenure";

const PAGES = 10;

async function writeReport(lease: Lease): Promise<number> {
  for (let page = 1; page <= PAGES; page++) {
    // The signal ends a page that is in progress. `isHeld` reads the clock, so it is right also after a pause.
    if (!lease.isHeld()) {
      return page - 1;
    }
    await writePage(page, lease.token, lease.signal);
  }
  return PAGES;
}

/** Stands for a write to a store that rejects tokens below the highest one. */
async function writePage(page: number, token: FencingToken, signal: AbortSignal): Promise<void> {
  await sleep(100, undefined, { signal });
  console.log(`page ${page} with token ${token}`);
}

await using manager = new LeaseManager({ operationTimeout: "3s" });
try {
  const pages = await manager.with("nightly-report", { ttl: "10s", grace: "2s" }, writeReport);
  console.log(`wrote ${pages} pages`);
} catch (error) {
  if (error instanceof Refused) {
    console.log(`not started: ${error.message}`);
  } else if (error instanceof LeaseLost) {
    console.error(`stopped: ${error.message}`);
    process.exitCode = 1;
  } else {
    throw error;
  }
}
