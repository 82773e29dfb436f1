import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import {
  type AcquireOptions,
  LeaseManager,
  type LeftLease,
  type ManagerOptions,
  Refused,
  ShutDown,
  Unknown,
} from "tenure";
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

/** A manager that cancelled an acquire before the cluster knew the claim, which waits 30 s. */
async function afterUntracedClaim(claim: AcquireOptions = { ttl: "1s" }): Promise<LeaseManager> {
  script({ acquire: () => "hang" });
  const reported = deferred<unknown>();
  const holder = manager({ onError: reported.resolve });
  const cancel = new AbortController();
  const options = { ...claim, wait: "30s", signal: cancel.signal } as const;
  const acquiring = assert.rejects(holder.acquire("job", options), /not needed/);
  await server.received("/acquire");
  cancel.abort(new Error("not needed any more"));
  await acquiring;
  const error = await reported.promise;
  assert.ok(error instanceof Unknown, `${error}`);
  return holder;
}

test("claim_that_is_cancelled_before_the_cluster_knows_it_stays_unresolved", LIMIT, async () => {
  const holder = await afterUntracedClaim();
  script({ explain: () => HOLDS });
  assert.deepEqual(await holder.shutdown(), []);
  assert.deepEqual(released(), [TOKEN]);
});

test("cancelled_claim_that_no_read_shows_is_unknown_until_its_grant_would_end", LIMIT, async () => {
  const holder = await afterUntracedClaim();
  await assert.rejects(holder.release("job"), Unknown);
  clock.advance(32_000);
  assert.deepEqual(unknown(await holder.shutdown()), ["job"]);
  clock.advance(1_000);
  assert.deepEqual(await holder.shutdown(), []);
});

test("cancelled_claim_with_the_default_ttl_is_unknown_for_a_day", LIMIT, async () => {
  const holder = await afterUntracedClaim({});
  clock.advance(24 * 3_600_000);
  await assert.rejects(holder.release("job"), Unknown);
  // The wait in the queue and the time of the request are over, too.
  clock.advance(33_000);
  assert.equal(await holder.release("job"), false);
});

test("grant_of_a_later_claim_resolves_a_cancelled_one", LIMIT, async () => {
  const holder = await afterUntracedClaim();
  script();
  await (await holder.acquire("job")).release();
  script({ acquire: () => "close" });
  await assert.rejects(holder.acquire("job"), Unknown);
  assert.equal(await holder.release("job"), false, "its read shows that this claim was not granted");
});

test("acquire_waits_for_an_operation_no_longer_than_its_wait", LIMIT, async () => {
  script({
    acquire: () => "hang",
    explain: () => (server.of("/release").length === 0 ? HOLDS : "hang"),
    release: () => "hang",
  });
  const holder = manager();
  const cancel = new AbortController();
  const first = assert.rejects(holder.acquire("job", { wait: "30s", signal: cancel.signal }), /not needed/);
  await server.received("/acquire");
  const second = assert.rejects(holder.acquire("job", { wait: "10s" }), { code: "wait_timeout" });
  clock.advance(10_000);
  // The release of the first claim and the read after it have the lock, for more than one operation timeout.
  cancel.abort(new Error("not needed any more"));
  await Promise.all([first, second]);
  assert.equal(server.of("/acquire").length, 1);
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

for (const isRefused of [false, true]) {
  const when = isRefused ? "after_a_refused_claim" : "at_a_shutdown";
  test(`unknown_claim_is_resolved_long_after_its_ttl_${when}`, LIMIT, async () => {
    script({ acquire: () => "close", explain: () => HOLDS });
    const holder = manager();
    await assert.rejects(holder.acquire("job", { ttl: "1s" }), Unknown);
    // Without a majority, cluster time stands still.
    clock.advance(100_000);
    if (isRefused) {
      script({ acquire: () => problem(403, "forbidden"), explain: () => HOLDS });
      await assert.rejects(holder.acquire("job", { ttl: "1s" }), Refused);
    }
    assert.deepEqual(await holder.shutdown(), []);
    assert.deepEqual(released(), [TOKEN]);
  });
}

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
