import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { LeaseLost, LeaseManager } from "tenure";
import { reasonsAtTheDeadline } from "./support/clock.js";
import { TestCluster } from "./support/cluster.js";

const NODES = [1, 2, 3];

/** An outage: the nodes that it stops, the signal, and the possible errors of an acquire. */
const OUTAGES = [
  // A refused connection sends nothing.
  ["all_nodes_are_down", () => NODES, "SIGKILL", ["Unavailable"]],
  // A node without a leader says that it does not serve the request, but its answer can come too late.
  ["two_nodes_are_down", (leader: number) => [leader, (leader % 3) + 1], "SIGKILL", ["Unavailable", "Unknown"]],
  // The request is sent, and has no answer.
  ["all_nodes_hang", () => NODES, "SIGSTOP", ["Unknown"]],
] as const;

for (const [outage, chosen, signal, errors] of OUTAGES) {
  test(`lease_is_lost_and_the_client_recovers_after_${outage}`, async () => {
    await using cluster = await (await TestCluster.start(NODES.length)).ready();
    await using holder = new LeaseManager({ endpoints: cluster.urls, operationTimeout: "3s" });
    await using other = new LeaseManager({ endpoints: cluster.urls });
    let { leader } = await other.client.cluster();
    for (const until = Date.now() + 30_000; typeof leader !== "number"; { leader } = await other.client.cluster()) {
      assert.ok(Date.now() < until, "the cluster has a leader");
      await sleep(10);
    }
    // A wait for the lease extends the timeout.
    // Between the end of a failed renewal and the grace there are more than 2 s.
    const held = await holder.acquire("outage", { ttl: "12s", grace: "2s", wait: "20s" });
    const { token } = held;
    const waiting = other.acquire("outage", { ttl: "10s", wait: "2m" });
    while ((await other.client.queue("outage")).total === 0) {
      await sleep(10);
    }
    const states: string[] = [];
    held.onState(({ status }) => states.push(status));
    const aborted = new Promise((resolve) => {
      held.signal.addEventListener("abort", () => resolve(held.signal.reason));
    });
    const reasons = reasonsAtTheDeadline(held.signal);
    const stopped = chosen(leader);
    for (const node of stopped) {
      cluster.signal(node, signal);
    }
    const reason = await aborted;
    assert.ok(reason instanceof LeaseLost, `${reason}`);
    assert.ok((await reasons).includes(reason.why), reason.why);
    assert.equal(held.isHeld(), false);
    const order = states.filter((status, index) => status !== states[index - 1] && status !== "held");
    assert.deepEqual(order, ["at_risk", "ending", "lost"]);
    const names: readonly string[] = errors;
    await assert.rejects(holder.acquire("later", { ttl: "10s" }), (error: Error) => names.includes(error.name));

    if (signal === "SIGKILL") {
      await cluster.restart(...stopped);
    } else {
      stopped.map((node) => cluster.signal(node, "SIGCONT"));
    }
    await cluster.ready();
    const next = await waiting;
    assert.ok(next.token > token, `${next.token} after ${token}`);
    const later = await holder.acquire("later", { ttl: "10s", wait: "20s" });
    assert.equal(await later.check(), true);
    assert.equal(held.state.status, "lost");
    assert.equal(await held.release(), false);
    assert.equal(await next.check(), true, "the release of the lost lease does not end the next one");
  });
}
