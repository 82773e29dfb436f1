import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import { Election, LeaseManager } from "tenure";
import { ManualClock } from "./support/clock.js";
import {
  deferred,
  freeLeases,
  lease,
  problem,
  type Replies,
  type Reply,
  ScriptedServer,
  standing,
  TOKEN,
  TTL,
} from "./support/server.js";

/** A test whose leadership does not end fails after this time. */
const LIMIT = { timeout: 10_000 };

let server: ScriptedServer;
let clock: ManualClock;
let holder: LeaseManager;

beforeEach(async () => {
  clock = new ManualClock();
  server = await ScriptedServer.start(freeLeases());
  holder = new LeaseManager({ endpoints: server.url, holder: "me", clock, operationTimeout: "2s" });
});

afterEach(async () => {
  script();
  await holder.shutdown();
  await server[Symbol.asyncDispose]();
});

function script(replies: Replies = {}): void {
  server.handler = freeLeases(replies);
}

test("candidate_claims_with_the_options_of_its_election", async () => {
  const options = { ttl: TTL, grace: "1s", lockDelay: "2s", drain: "3s", metadata: { address: "a" } } as const;
  await new Election(holder, "job", options).campaign();
  const { wait_ms: wait, ...claim } = server.of("/acquire")[0]?.body ?? {};
  assert.deepEqual(claim, { holder: "me", ttl_ms: TTL, lock_delay_ms: 2_000, metadata: { address: "a" } });
  assert.ok(wait > 50_000 && wait <= 60_000, `${wait}`);
});

test("leader_stops_a_grace_before_its_deadline", LIMIT, async () => {
  const leadership = await new Election(holder, "job", { ttl: TTL, grace: "2s" }).campaign();
  script({ renew: () => problem(503, "no_leader") });
  const stopping = once(leadership.stopping, "abort");
  clock.advance(TTL - 2_000);
  await stopping;
  assert.equal(leadership.isLeader(), true);
  assert.equal(leadership.signal.aborted, false);
});

test("leadership_is_handed_over_to_the_named_candidate", async () => {
  const leadership = await new Election(holder, "job").campaign();
  script({ handover: () => ({ body: lease("job", TOKEN, { holder: "next" }) }) });
  assert.equal(await leadership.handOver({ to: "next" }), "next");
  assert.equal(server.of("/handover")[0]?.body.to, "next");
});

test("leader_whose_hand_over_is_refused_can_be_established", LIMIT, async () => {
  const leadership = await new Election(holder, "job").campaign();
  const refusal = deferred<Reply>();
  script({
    handover: () => refusal.promise,
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
    metadata: () => ({ body: {} }),
  });
  const handed = assert.rejects(leadership.handOver(), { code: "no_such_waiter" });
  await server.received("/handover");
  const established = leadership.establish(() => "fenced");
  // A rejection before the answer must not be unhandled.
  established.catch(() => undefined);
  refusal.resolve(problem(409, "no_such_waiter"));
  await handed;
  assert.equal(await established, "fenced");
  assert.equal(leadership.isLeader(), true);
});

test("leader_that_has_handed_over_is_not_established", LIMIT, async () => {
  const leadership = await new Election(holder, "job").campaign();
  const answer = deferred<Reply>();
  script({ handover: () => answer.promise });
  const handed = leadership.handOver();
  await server.received("/handover");
  const established = assert.rejects(
    leadership.establish(() => "fenced"),
    { name: "LeaseLost" },
  );
  answer.resolve({ body: lease("job", TOKEN, { holder: "next" }) });
  assert.equal(await handed, "next");
  await established;
  assert.deepEqual(server.of("/metadata"), []);
});
