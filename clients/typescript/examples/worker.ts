// A worker with an HTTP interface. Start several replicas: one of them leads and does the work.
//
//   TENURE_ENDPOINTS=http://10.0.0.1:7101,http://10.0.0.2:7101 PORT=8080 node worker.js
//
//   GET /health   200 with `leads`, and the token of a leader
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import express from "express";
import { Election, type Leadership, LeaseLost, LeaseManager } from "tenure";

const manager = new LeaseManager({ onError: (error, lease) => console.error(`${lease}: ${error}`) });
const election = new Election(manager, "mail-worker", { ttl: "2s", grace: "500ms" });
const stop = new AbortController();
let leadership: Leadership | undefined;

const app = express();
app.get("/health", (_request, response) => {
  // `isLeader` reads the clock, so the answer is right also after a pause of this process.
  const leader = leadership?.isLeader() ? leadership : undefined;
  response.json({ leads: leader !== undefined, token: leader?.token ?? null });
});
const server = app.listen(Number(process.env.PORT ?? 0), "127.0.0.1", () => {
  console.log(`listening on ${(server.address() as AddressInfo).port}`);
});

/** Sends mails until the leadership or the process ends. */
async function sendMails(elected: Leadership): Promise<void> {
  leadership = elected;
  while (!stop.signal.aborted && !elected.stopping.aborted) {
    // Each mail carries `elected.token`, so that the outbox rejects those of an earlier leader.
    await sleep(100);
  }
}

for (const signal of ["SIGINT", "SIGTERM"] as const) {
  process.once(signal, () => stop.abort(new Error(`received ${signal}`)));
}
while (!stop.signal.aborted) {
  try {
    await election.lead(sendMails, { signal: stop.signal });
  } catch (error) {
    if (error instanceof LeaseLost) {
      console.error(`stopped leading: ${error.message}`);
    } else if (!stop.signal.aborted) {
      throw error;
    }
  }
}
server.close();
const left = await manager.shutdown();
console.log(`shut down; ${left.length} leases may be left`);
