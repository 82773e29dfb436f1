import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import { LeaseManager, type LeftLease, type ManagerOptions, ShutDown, Unknown } from "tenure";
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
} from "./support/server.js";

const HOLDS = standing({ status: "holds", lease: lease("job", TOKEN) });
const UNKNOWN = standing({ status: "unknown" });
/** A test whose claim is not resolved fails after this time. */
const LIMIT = { timeout: 30_000 };

let server: ScriptedServer;
let clock: ManualClock;
let managers: LeaseManager[];

beforeEach(async () => {
  clock = new ManualClock();
  managers = [];
  server = await ScriptedServer.start(freeLeases());
});

afterEach(async () => {
  script();
  await Promise.all(managers.map((each) => each.shutdown()));
  await server[Symbol.asyncDispose]();
});

function script(replies: Replies = {}): void {
  server.handler = freeLeases(replies);
}

function manager(options: ManagerOptions = {}): LeaseManager {
  const made = new LeaseManager({
    endpoints: server.url,
    holder: "me",
    clock,
    operationTimeout: "2s",
    onError: () => undefined,
    ...options,
  });
  managers.push(made);
  return made;
}

function inTurn(...replies: Reply[]): () => Reply {
  return () => (replies.length > 1 ? replies.shift() : replies[0]) as Reply;
}

/** The names of the leases whose end is unknown. */
function unknown(left: LeftLease[]): string[] {
  return left.filter(({ error }) => error instanceof Unknown).map(({ name }) => name);
}

/** The tokens of the releases. */
function released(): string[] {
  return server.of("/release").map(({ body }) => body.token);
}

test("shutdown_releases_a_claim_that_the_cluster_applies_late", LIMIT, async () => {
  script({ acquire: () => "hang", explain: inTurn(UNKNOWN, UNKNOWN, HOLDS) });
  const holder = manager();
  const acquiring = assert.rejects(holder.acquire("job", { wait: "30s" }), ShutDown);
  await server.received("/acquire");
  assert.deepEqual(await holder.shutdown(), []);
  assert.deepEqual(released(), [TOKEN]);
  await acquiring;
});

test("claim_that_no_read_shows_is_unknown_after_a_shutdown", LIMIT, async () => {
  script({ acquire: () => "hang" });
  const holder = manager({ operationTimeout: "200ms" });
  const acquiring = assert.rejects(holder.acquire("job", { wait: "30s" }), Unknown);
  await server.received("/acquire");
  assert.deepEqual(unknown(await holder.shutdown()), ["job"]);
  await acquiring;
});

test("claim_whose_own_answer_is_unknown_is_unknown_after_a_shutdown", LIMIT, async () => {
  const closing = deferred<Reply>();
  script({ acquire: () => (server.of("/acquire").length === 1 ? closing.promise : problem(409, "held")) });
  const holder = manager({ operationTimeout: "5s" });
  const acquiring = assert.rejects(holder.acquire("job"), Unknown);
  await server.received("/acquire");
  const shutdown = holder.shutdown();
  closing.resolve("close");
  await shutdown;
  await acquiring;
});

test("claim_that_is_cancelled_before_the_cluster_knows_it_stays_unresolved", LIMIT, async () => {
  script({ acquire: () => "hang" });
  const reported = deferred<unknown>();
  const holder = manager({ operationTimeout: "200ms", onError: reported.resolve });
  const cancel = new AbortController();
  const acquiring = assert.rejects(holder.acquire("job", { wait: "30s", signal: cancel.signal }), /not needed/);
  await server.received("/acquire");
  cancel.abort(new Error("not needed any more"));
  await acquiring;
  const error = await reported.promise;
  assert.ok(error instanceof Unknown, `${error}`);
  script({ explain: () => HOLDS });
  assert.deepEqual(await holder.shutdown(), []);
  assert.deepEqual(released(), [TOKEN]);
});

/** Cancels an acquire whose claim keeps its place in the queue, and shuts the manager down. Returns what is left. */
async function leftAfterWithdrawal(withdraw: (waitMs: number) => Reply): Promise<string[]> {
  script({
    acquire: ({ body }) => (body.wait_ms > 1_000 ? "hang" : withdraw(body.wait_ms)),
    explain: () => standing({ status: "waits" }),
  });
  const holder = manager();
  const cancel = new AbortController();
  const acquiring = assert.rejects(holder.acquire("job", { wait: "30s", signal: cancel.signal }), /not needed/);
  await server.received("/acquire");
  cancel.abort(new Error("not needed any more"));
  await acquiring;
  return (await holder.shutdown()).map(({ name }) => name);
}

test("withdrawal_that_is_sent_again_leaves_the_queue", LIMIT, async () => {
  const left = await leftAfterWithdrawal((waitMs) => {
    if (server.of("/acquire").length === 2) {
      return problem(503, "no_leader");
    }
    // Without a wait, a waiter keeps its position.
    return waitMs >= 1 ? problem(409, "wait_timeout") : problem(409, "held");
  });
  assert.deepEqual(left, []);
  assert.deepEqual(
    server.of("/acquire").map(({ body }) => body.wait_ms === 1),
    [false, true, true],
  );
});

test("grant_of_a_withdrawing_claim_is_released", LIMIT, async () => {
  assert.deepEqual(await leftAfterWithdrawal(() => ({ body: lease("job", TOKEN) })), []);
  assert.deepEqual(released(), [TOKEN]);
});

test("unknown_claim_is_remembered_until_its_last_attempt_has_expired", LIMIT, async () => {
  const ttl = 1_000;
  script({
    acquire: () => {
      clock.advance(ttl);
      return "close";
    },
    explain: () => HOLDS,
  });
  const holder = manager({ operationTimeout: "500ms" });
  await assert.rejects(holder.acquire("job", { ttl }), Unknown);
  clock.advance(ttl);
  assert.deepEqual(await holder.shutdown(), []);
  assert.deepEqual(released(), [TOKEN]);
});

test("standing_that_is_absent_resolves_no_claim", LIMIT, async () => {
  const holder = manager({ operationTimeout: "5s" });
  const held = await holder.acquire("job");
  script({ explain: () => ({ body: { name: "job", held: [] } }) });
  await assert.rejects(held.check(), Unknown);
  assert.equal(held.isHeld(), true);
  await held.release();
  script({ acquire: inTurn("close", problem(409, "held")), explain: () => ({ body: { name: "job", held: [] } }) });
  await assert.rejects(holder.acquire("job"), Unknown);
  assert.deepEqual(unknown(await holder.shutdown()), ["job"]);
});

test("acquire_leaves_no_listener_on_its_signal", LIMIT, async () => {
  const holder = manager({ operationTimeout: "5s" });
  const { signal } = new AbortController();
  await (await holder.acquire("job", { signal })).release();
  script({ acquire: () => problem(409, "held") });
  await assert.rejects(holder.acquire("job", { signal }), { code: "held" });
  assert.equal(getEventListeners(signal, "abort").length, 0);
  script({ acquire: () => "hang" });
  const cancel = new AbortController();
  const acquiring = assert.rejects(holder.acquire("job", { signal: cancel.signal }), /not needed/);
  await server.received("/acquire", 3);
  cancel.abort(new Error("not needed any more"));
  await acquiring;
  assert.equal(getEventListeners(cancel.signal, "abort").length, 0);
  script();
});
