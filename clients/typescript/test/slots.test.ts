import assert from "node:assert/strict";
import { Agent, type ClientRequest } from "node:http";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, LeaseManager, Unavailable, Unknown } from "tenure";
import { type Call, send } from "#dist/call.js";
import { Endpoints } from "#dist/endpoints.js";
import { budgetWithin } from "#dist/retry.js";
import { MAX_PARALLEL, Slots } from "#dist/slots.js";
import { Transport } from "#dist/transport.js";
import { ManualClock } from "./support/clock.js";
import { deferred, freeLeases, lease, ScriptedServer, TOKEN } from "./support/server.js";

/** A test whose request does not end fails after this time. */
const LIMIT = { timeout: 30_000 };
const REVOKE = { method: "DELETE", path: "v1/leases/job", policy: "never", budget: budgetWithin(5_000) } as const;

let server: ScriptedServer;
let transport: Transport;

beforeEach(async () => {
  server = await ScriptedServer.start(() => ({ body: { revoked: 1 } }));
  transport = new Transport(undefined, undefined);
});

afterEach(async () => {
  transport.close();
  await server[Symbol.asyncDispose]();
});

/** Begins this number of requests that do not end. */
async function begin(slots: Slots, count = MAX_PARALLEL): Promise<void> {
  for (let number = 0; number < count; number++) {
    await slots.take(1_000);
  }
}

function ask(call: Call): Promise<object> {
  return send<object>(transport, new Endpoints(server.url), call);
}

test("leases_are_released_over_few_connections", LIMIT, async () => {
  const full = deferred();
  let now = 0;
  let most = 0;
  const release = async () => {
    now += 1;
    most = Math.max(most, now);
    await full.promise;
    now -= 1;
    return { body: { released: true } };
  };
  server.handler = freeLeases({ release });
  const manager = new LeaseManager({ endpoints: server.url, clock: new ManualClock(), operationTimeout: "60s" });
  const names = Array.from({ length: 3 * MAX_PARALLEL }, (_, number) => `job-${number}`);
  await Promise.all(names.map((name) => manager.acquire(name, { ttl: "60s" })));
  const shutdown = manager.shutdown();
  await server.received("/release", MAX_PARALLEL);
  await sleep(100);
  full.resolve();
  assert.deepEqual(await shutdown, []);
  assert.equal(new Set(server.of("/release").map(({ path }) => path)).size, names.length);
  assert.equal(most, MAX_PARALLEL);
});

test("request_behind_unanswered_ones_is_not_sent", LIMIT, async () => {
  await begin(transport.slots);
  // A change that may have been sent would be unknown.
  await assert.rejects(ask({ ...REVOKE, budget: budgetWithin(200) }), (error) => {
    return error instanceof Unavailable && /not sent: 64 earlier requests had no answer for 200 ms/.test(error.message);
  });
  assert.deepEqual(server.requests, []);
});

test("request_waits_for_its_turn_while_nodes_answer", { timeout: 10_000 }, async (context) => {
  let time = 1_000;
  context.mock.method(performance, "now", () => time);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const pass = (ms: number) => {
    time += ms;
    context.mock.timers.tick(ms);
  };
  const slots = new Slots();
  await begin(slots);
  const order: string[] = [];
  const turns = ["first", "second"].map((name) => slots.take(200).then(() => order.push(name)));
  for (let number = 0; number < 8; number++) {
    pass(150);
    slots.answered();
  }
  slots.release();
  await turns[0];
  assert.deepEqual(order, ["first"]);
  slots.release();
  await turns[1];
  const refused = assert.rejects(slots.take(200), Unavailable);
  pass(200);
  await refused;
});

test("answer_counts_for_the_requests_that_wait", LIMIT, async () => {
  const before = performance.now();
  await ask(REVOKE);
  assert.ok(transport.slots.answeredAt >= before);
});

test("renewal_takes_no_turn", LIMIT, async () => {
  await begin(transport.slots);
  const renewal = { method: "POST", path: "v1/renew", policy: "renewal", budget: budgetWithin(5_000) } as const;
  await ask(renewal);
  assert.equal(server.requests.length, 1);
});

test("wait_for_a_lease_takes_no_turn", LIMIT, async () => {
  await begin(transport.slots);
  const wait = { longest: 60_000, probe: 10_000 };
  await ask({ method: "POST", path: "v1/leases/job/acquire", policy: "claim", budget: budgetWithin(5_000), wait });
  assert.equal(server.requests.length, 1);
});

test("cancelled_request_gives_its_turn_up", LIMIT, async () => {
  await begin(transport.slots);
  const cancel = new AbortController();
  const cancelled = ask({ ...REVOKE, signal: cancel.signal });
  const next = ask(REVOKE);
  cancel.abort(new Error("cancelled by the test"));
  await assert.rejects(cancelled, /cancelled by the test/);
  transport.slots.release();
  await next;
  assert.equal(server.requests.length, 1);
});

test("turn_is_free_after_an_error", LIMIT, async () => {
  await begin(transport.slots, MAX_PARALLEL - 1);
  server.handler = () => "close";
  await assert.rejects(ask(REVOKE), Unknown);
  server.handler = () => ({ body: { revoked: 1 } });
  await ask(REVOKE);
  assert.equal(server.requests.length, 2);
});

test("connection_limit_excludes_the_wait_for_the_agent", LIMIT, async (context) => {
  server.handler = () => ({ body: lease("job", TOKEN) });
  const agent = Agent.prototype as unknown as { addRequest: (request: ClientRequest, ...given: unknown[]) => void };
  const { addRequest } = agent;
  let asked = 0;
  context.mock.method(agent, "addRequest", function (this: Agent, ...given: Parameters<typeof addRequest>) {
    asked += 1;
    // Longer than the limit.
    setTimeout(() => addRequest.apply(this as unknown as typeof agent, given), 1_200);
  });
  await new Client({ endpoints: server.url, operationTimeout: "10s" }).get("job");
  assert.equal(asked, 1);
});
