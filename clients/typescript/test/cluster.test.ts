import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import {
  Client,
  Election,
  type LeaseEvent,
  LeaseLost,
  LeaseManager,
  type ManagerOptions,
  systemClock,
  Unavailable,
} from "tenure";
import { reasonsAtTheDeadline } from "./support/clock.js";
import { enableAccessControl, TestCluster, tenure } from "./support/cluster.js";

let cluster: TestCluster;

before(async () => {
  cluster = await (await TestCluster.start(3)).ready();
});

after(() => cluster[Symbol.asyncDispose]());

function manager(options: ManagerOptions = {}): LeaseManager {
  return new LeaseManager({ endpoints: cluster.urls, ...options });
}

test("version_of_the_package_is_that_of_the_server", async () => {
  const text = await readFile(new URL("../../package.json", import.meta.url), "utf8");
  const { version } = await new Client({ endpoints: cluster.urls }).version();
  assert.equal((JSON.parse(text) as { version: string }).version, version);
});

test("lease_passes_from_holder_to_waiter_with_a_higher_token", async () => {
  await using one = manager();
  await using other = manager();
  const held = await one.acquire("pass", { ttl: "5s", metadata: { zone: "a" } });
  const { token } = held;
  await assert.rejects(other.acquire("pass"), { code: "held", holder: one.holder });
  const waiting = other.acquire("pass", { ttl: "5s", wait: "10s" });
  while ((await one.client.queue("pass")).total === 0) {
    await new Promise(setImmediate);
  }
  assert.equal((await one.client.get("pass")).metadata?.zone, "a");
  assert.equal(await held.release(), true);
  const next = await waiting;
  assert.ok(next.token > token);
  const { transitions } = await one.client.history("pass");
  assert.deepEqual(
    transitions.map((event) => event.event),
    ["granted", "released", "granted"],
  );
});

test("lease_is_renewed_beyond_its_ttl", async () => {
  await using holder = manager();
  await using held = await holder.acquire("renewed", { ttl: "6s" });
  const { token } = held;
  let renewals = 0;
  for await (const state of held.states()) {
    renewals += state.status === "held" ? 1 : 0;
    if (renewals > 4) {
      break;
    }
  }
  assert.ok(held.token.equals(token));
  assert.equal(await held.check(), true);
});

test("revoke_aborts_the_work", async () => {
  await using holder = manager();
  const working = holder.with("revoked", { ttl: "6s" }, async ({ signal }) => {
    assert.equal(await holder.client.revoke("revoked", { reason: "by the test" }), 1);
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  });
  await assert.rejects(working, { name: "LeaseLost", why: "revoked" });
  assert.match((await holder.client.explain("revoked", { holder: holder.holder })).summary, /revoked/);
});

test("hand_over_leaves_no_gap", async () => {
  await using one = manager();
  await using other = manager();
  const held = await one.acquire("handed", { ttl: "5s" });
  await assert.rejects(held.handOver(), { code: "no_such_waiter" });
  const waiting = other.acquire("handed", { ttl: "5s", wait: "10s" });
  while ((await one.client.queue("handed")).total === 0) {
    await new Promise(setImmediate);
  }
  assert.equal(await held.handOver({ to: other.holder }), other.holder);
  assert.equal((await waiting).isHeld(), true);
  assert.equal(held.state.status, "released");
});

test("counted_and_infinite_leases_have_their_limits", async () => {
  await using one = manager();
  await using other = manager();
  const options = { ttl: "infinite", limit: 2 } as const;
  const leases = [await one.acquire("counted", options), await other.acquire("counted", options)];
  assert.equal(leases[0]?.remaining(), Number.POSITIVE_INFINITY);
  assert.equal((await one.client.get("counted")).holders?.length, 2);
  await using third = manager();
  await assert.rejects(third.acquire("counted", options), { code: "held" });
  const names = [];
  for await (const { name, ttl_ms } of one.client.list({ prefix: "counted" })) {
    names.push([name, ttl_ms]);
  }
  assert.deepEqual(names, Array(2).fill(["counted", "infinite"]));
});

test("cancelled_wait_holds_nothing", async () => {
  await using one = manager();
  await using other = manager();
  const held = await one.acquire("cancelled", { ttl: "5s" });
  const cancel = new AbortController();
  const waiting = other.acquire("cancelled", { wait: "10s", signal: cancel.signal });
  while ((await one.client.queue("cancelled")).total === 0) {
    await new Promise(setImmediate);
  }
  cancel.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  assert.deepEqual(await other.shutdown(), []);
  assert.equal((await one.client.queue("cancelled")).total, 0);
  assert.equal(await held.check(), true);
});

test("watch_returns_each_transition_in_order", async () => {
  await using holder = manager();
  await using watch = holder.client.watch({ prefix: "watched" });
  const first = watch.next();
  for (const until = Date.now() + 30_000; watch.position === undefined; ) {
    assert.ok(Date.now() < until, "the watch begins");
    await sleep(10);
  }
  for (let round = 0; round < 3; round++) {
    await holder.with("watched", () => undefined);
  }
  const { event, name } = (await first).value as LeaseEvent;
  const events = [event];
  while (events.length < 6) {
    events.push((await watch.next()).value?.event ?? "");
  }
  assert.equal(name, "watched");
  assert.deepEqual(events, ["granted", "released", "granted", "released", "granted", "released"]);
});

test("candidate_leads_after_the_leader_resigns", async () => {
  await using one = manager();
  await using other = manager();
  const options = { ttl: "5s", refresh: "100ms", metadata: { address: "a" } } as const;
  const election = new Election(one, "election", options);
  const stop = new AbortController();
  const observed = new Election(other, "election").observe({ signal: stop.signal });
  assert.equal((await observed.next()).value, undefined);
  const leadership = await election.campaign();
  const elected = (await observed.next()).value;
  assert.deepEqual([elected?.holder, elected?.isEstablished, elected?.metadata], [one.holder, false, { address: "a" }]);
  assert.equal(await leadership.establish((token) => token.toString()), elected?.token.toString());
  assert.equal((await observed.next()).value?.isEstablished, true);
  const next = new Election(other, "election", options).lead(async (second) => {
    assert.ok(second.token > (elected?.token ?? second.token));
    return (await election.current())?.holder;
  });
  while ((await one.client.queue("election")).total === 0) {
    await new Promise(setImmediate);
  }
  assert.equal(await leadership.resign(), true);
  assert.equal(await next, other.holder);
  stop.abort(new Error("observed enough"));
  await assert.rejects(async () => {
    for await (const _ of observed) {
      assert.equal(stop.signal.aborted, true);
    }
  }, /observed enough/);
});

test("cancelled_campaign_leaves_the_queue", async () => {
  await using one = manager();
  await using other = manager();
  await using leader = await new Election(one, "quiet").campaign();
  const cancel = new AbortController();
  const campaign = new Election(other, "quiet").campaign({ signal: cancel.signal });
  while ((await one.client.queue("quiet")).total === 0) {
    await new Promise(setImmediate);
  }
  cancel.abort(new Error("no more"));
  await assert.rejects(campaign, /no more/);
  await other.shutdown();
  assert.equal((await one.client.queue("quiet")).total, 0);
  assert.equal(leader.isLeader(), true);
});

test("lease_survives_the_stop_of_one_node", async () => {
  await using holder = manager();
  await using held = await holder.acquire("survivor", { ttl: "12s" });
  const { leader } = await holder.client.cluster();
  const stopped = leader ?? 1;
  cluster.signal(stopped, "SIGSTOP");
  const begun = performance.now();
  for await (const state of held.states()) {
    // A renewal after the longest election keeps the lease at its full ttl.
    if (state.status === "lost" || (state.status === "held" && performance.now() - begun > 2_500)) {
      break;
    }
  }
  cluster.signal(stopped, "SIGCONT");
  assert.equal(held.state.status, "held");
  assert.equal(await held.check(), true);
});

test("lease_is_lost_at_its_deadline_without_a_cluster", async () => {
  await using alone = await (await TestCluster.start(1)).ready();
  const clock = systemClock();
  const holder = manager({ endpoints: alone.urls, clock });
  let reasons: string[] = [];
  const working = holder.with("alone", { ttl: "6s", grace: "3s" }, async (held) => {
    let isHeldInGrace = false;
    held.stopping.addEventListener("abort", () => {
      isHeldInGrace = held.isHeld();
    });
    alone.signal(1, "SIGSTOP");
    const latest = clock.now() + 6_000;
    const atTheDeadline = reasonsAtTheDeadline(held.signal);
    let lastHeld = 0;
    while (!held.signal.aborted) {
      const at = clock.now();
      lastHeld = held.isHeld() ? at : lastHeld;
      await sleep(10);
    }
    assert.ok(lastHeld < latest && !held.isHeld());
    assert.equal(isHeldInGrace, true);
    reasons = await atTheDeadline;
  });
  await assert.rejects(working, (error) => error instanceof LeaseLost && reasons.includes(error.why));
  await assert.rejects(new Client({ endpoints: alone.urls, operationTimeout: "500ms" }).cluster(), Unavailable);
  alone.signal(1, "SIGCONT");
  await alone.ready();
  assert.deepEqual(await holder.shutdown(), []);
});

test("tls_and_access_tokens_reach_a_protected_cluster", async () => {
  const prepare = async (folder: string, config: string) => {
    await tenure(["tls", "init", join(folder, "tls"), "--config", config]);
    return `[tls]
ca = "tls/ca.pem"
cert = "tls/node-{node}.pem"
key = "tls/node-{node}.key"
client_cert = "require"
`;
  };
  await using secure = await TestCluster.start(1, prepare, "https");
  const pem = (name: string) => readFile(join(secure.folder, "tls", name));
  const tls = { ca: await pem("ca.pem"), cert: await pem("client.pem"), key: await pem("client.key") };
  await secure.ready(tls);
  const environment = {
    TENURE_ENDPOINTS: secure.urls.join(","),
    TENURE_CA: join(secure.folder, "tls/ca.pem"),
    TENURE_CERT: join(secure.folder, "tls/client.pem"),
    TENURE_KEY: join(secure.folder, "tls/client.key"),
  };
  const accessToken = await enableAccessControl(environment);
  await using holder = new LeaseManager({ endpoints: secure.urls, tls, accessToken });
  assert.equal(await holder.with("secure", (held) => held.isHeld()), true);
  const wrong = new Client({ endpoints: secure.urls, tls, accessToken: `tenure_${"a7".repeat(36)}` });
  await assert.rejects(wrong.get("secure"), { code: "unauthenticated" });
  const untrusted = new Client({ endpoints: secure.urls, operationTimeout: "300ms" });
  await assert.rejects(untrusted.cluster(), Unavailable);
});
