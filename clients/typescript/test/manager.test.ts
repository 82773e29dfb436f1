import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import {
  type Lease,
  LeaseLost,
  LeaseManager,
  type ManagerOptions,
  Refused,
  ShutDown,
  Unavailable,
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
  renewed,
  ScriptedServer,
  standing,
  TOKEN,
  TTL,
} from "./support/server.js";

let server: ScriptedServer;
let clock: ManualClock;
let managers: LeaseManager[];

function script(replies: Replies = {}): void {
  server.handler = freeLeases(replies);
}

function manager(options: ManagerOptions = {}): LeaseManager {
  const made = new LeaseManager({ endpoints: server.url, holder: "me", clock, operationTimeout: "2s", ...options });
  managers.push(made);
  return made;
}

/** Waits for a state of this kind. */
async function reached(held: Lease, status: string): Promise<void> {
  for await (const state of held.states()) {
    if (state.status === status) {
      return;
    }
  }
  assert.equal(held.state.status, status);
}

beforeEach(async () => {
  clock = new ManualClock();
  managers = [];
  server = await ScriptedServer.start(() => "hang");
  script();
});

afterEach(async () => {
  script();
  await Promise.all(managers.map((each) => each.shutdown()));
  await server[Symbol.asyncDispose]();
});

test("deadline_counts_from_before_the_request", async () => {
  script({
    acquire: () => {
      clock.advance(1_000);
      return { body: lease("job", TOKEN) };
    },
  });
  const held = await manager().acquire("job", { ttl: TTL });
  assert.equal(held.remaining(), TTL - 100 - 1_000, "less 1 % drift and the time of the request");
  assert.equal(held.token.toString(), TOKEN);
});

test("deadline_uses_the_smaller_of_ttl_and_expiry", async () => {
  script({ acquire: () => ({ body: lease("job", TOKEN, { expires_in_ms: 4_000 }) }) });
  const held = await manager({ driftPermille: 0 }).acquire("job");
  assert.equal(held.remaining(), 4_000);
});

test("resolution_of_the_clock_makes_the_deadline_earlier", async () => {
  clock = new ManualClock(10);
  assert.equal((await manager().acquire("job")).remaining(), TTL - 100 - 10);
});

test("one_request_renews_all_leases", async () => {
  const holder = manager();
  const names = ["a", "b", "c"];
  const leases = await Promise.all(names.map((name) => holder.acquire(name)));
  clock.advance(TTL / 3 + TTL / 30);
  const batch = await server.received("/v1/renew");
  assert.equal(batch.body.holder, "me");
  assert.deepEqual(batch.body.leases.map((item: { name: string }) => item.name).sort(), names);
  await server.received("/v1/renew");
  await Promise.all(leases.map((each) => renewedTo(each, TTL - 100)));
  assert.equal(server.of("/v1/renew").length, 1);
});

async function renewedTo(held: Lease, left: number): Promise<void> {
  while (held.remaining() !== left) {
    await new Promise<void>((resolve) => {
      const unsubscribe = held.onState(() => {
        unsubscribe();
        resolve();
      });
    });
  }
}

test("renewed_deadline_counts_from_before_the_request", async () => {
  const held = await manager().acquire("job");
  script({
    renew: (request) => {
      clock.advance(1_000);
      return { body: renewed(request) };
    },
  });
  clock.advance(4_000);
  await renewedTo(held, TTL - 100 - 1_000);
  assert.equal(server.of("/v1/renew").length, 1);
});

test("renewal_that_arrives_after_the_deadline_does_not_restore", async () => {
  const answer = deferred<Reply>();
  script({ renew: () => answer.promise });
  const held = await manager({ operationTimeout: "10s" }).acquire("job");
  clock.advance(4_000);
  const batch = await server.received("/v1/renew");
  clock.advance(TTL);
  assert.equal(held.isHeld(), false, "although the loop has not seen it yet");
  assert.equal(held.token.toString(), TOKEN, "also after the loss, so that it cannot hide another error");
  answer.resolve({ body: renewed(batch) });
  await reached(held, "lost");
  assert.equal(held.isHeld(), false);
  assert.equal(held.signal.aborted, true);
});

test("failed_renewals_put_the_lease_at_risk_and_then_lose_it", async () => {
  script({ renew: () => problem(503, "no_leader") });
  const held = await manager().acquire("job", { ttl: TTL, grace: "2s" });
  clock.advance(3_700);
  await reached(held, "at_risk");
  assert.equal(held.stopping.aborted, false);
  clock.advance(4_300);
  await reached(held, "ending");
  assert.equal(held.stopping.aborted, true);
  assert.equal(held.isHeld(), true);
  assert.equal(held.signal.aborted, false);
  clock.advance(1_800);
  clock.advance(100);
  await reached(held, "lost");
  assert.ok(held.signal.reason instanceof LeaseLost);
});

test("jump_of_the_clock_means_suspended", async () => {
  const held = await manager().acquire("job");
  clock.advance(60_000);
  await reached(held, "lost");
  assert.equal((held.signal.reason as LeaseLost).why, "suspended");
});

test("release_after_a_jump_of_the_clock_reports_the_suspend", async () => {
  const held = await manager().acquire("job");
  clock.advance(60_000);
  await held.release();
  assert.equal((held.signal.reason as LeaseLost).why, "suspended");
});

test("reasons_of_the_cluster_reach_the_holder", async () => {
  const reasons = { revoked: "revoked", handed_over: "handed_over", unknown: "forgotten", restored: "restored" };
  const holder = manager();
  for (const [why, expected] of Object.entries({ ...reasons, from_a_newer_server: "other" })) {
    script({
      renew: () => ({ body: { results: [{ name: why, problem: { code: "lost", detail: "", status: 409, why } }] } }),
    });
    const held = await holder.acquire(why);
    clock.advance(3_700);
    await reached(held, "lost");
    assert.equal((held.signal.reason as LeaseLost).why, expected);
    assert.match((held.signal.reason as LeaseLost).message, new RegExp(`lease "${why}"`));
  }
});

test("acquire_without_an_answer_is_unknown_and_not_held", async () => {
  script({ acquire: () => "close" });
  const holder = manager({ operationTimeout: "5s" });
  await assert.rejects(holder.acquire("job"), Unknown);
  script({ explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }) });
  assert.equal(await holder.release("job"), true, "the claim was granted");
  assert.equal(server.of("/release")[0]?.body.token, TOKEN);
  assert.equal(await holder.release("job"), false);
});

test("acquire_refused_after_a_lost_answer_stays_unknown", async () => {
  let count = 0;
  script({ acquire: () => (count++ === 0 ? "close" : problem(409, "held", { holder: "other" })) });
  const refusal = await manager()
    .acquire("job")
    .catch((error: unknown) => error);
  assert.ok(refusal instanceof Unknown);
  assert.equal(refusal.last?.holder, "other");
});

test("refusal_has_the_code_and_the_holder", async () => {
  script({ acquire: () => problem(409, "held", { holder: "other", retry_after_ms: 250, from_a_newer_server: 1 }) });
  const refusal = await manager()
    .acquire("job")
    .catch((error: unknown) => error);
  assert.ok(refusal instanceof Refused);
  assert.deepEqual([refusal.code, refusal.holder, refusal.retryAfterMs], ["held", "other", 250]);
  script({ acquire: () => problem(418, "from_a_newer_server") });
  await assert.rejects(manager().acquire("job"), { name: "Refused", code: "from_a_newer_server" });
});

test("nodes_that_cannot_serve_are_unavailable", async () => {
  script({ acquire: () => problem(503, "no_leader") });
  await assert.rejects(manager({ operationTimeout: "5s" }).acquire("job"), Unavailable);
  const closed = await ScriptedServer.start(() => "hang");
  const { url } = closed;
  await closed[Symbol.asyncDispose]();
  await assert.rejects(manager({ endpoints: url, operationTimeout: "5s" }).acquire("job"), Unavailable);
});

test("cancelled_acquire_releases_a_late_grant", async () => {
  const answer = deferred<Reply>();
  script({
    acquire: () => answer.promise,
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
  });
  const cancel = new AbortController();
  const acquiring = manager().acquire("job", { signal: cancel.signal });
  await server.received("/acquire");
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(acquiring, /not needed any more/);
  answer.resolve({ body: lease("job", TOKEN) });
  assert.equal((await server.received("/release")).body.token, TOKEN);
});

test("cancelled_wait_leaves_the_queue", async () => {
  let status: object = { status: "unknown" };
  script({ acquire: () => "hang", explain: () => standing(status) });
  const cancel = new AbortController();
  const acquiring = manager().acquire("job", { wait: "1m", signal: cancel.signal });
  const claim = await server.received("/acquire");
  cancel.abort();
  await assert.rejects(acquiring, { name: "AbortError" });
  await server.received("/explain", 3);
  status = { status: "waits", waiter: {} };
  await claim.aborted;
  status = { status: "unknown" };
  await managers[0]?.shutdown();
  assert.equal(server.of("/release").length, 0);
});

test("many_acquires_cause_no_warning_about_listeners", async () => {
  const warnings: Error[] = [];
  const warn = (warning: Error) => warnings.push(warning);
  process.on("warning", warn);
  const holder = manager();
  const leases = await Promise.all(Array.from({ length: 20 }, (_, number) => holder.acquire(`job-${number}`)));
  for (const { signal } of Array(20).fill(leases[0]) as Lease[]) {
    signal.addEventListener("abort", () => undefined);
  }
  await new Promise(setImmediate);
  process.off("warning", warn);
  assert.deepEqual(warnings, []);
});

test("aborted_signal_sends_no_request", async () => {
  await assert.rejects(manager().acquire("job", { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.equal(server.requests.length, 0);
});

test("grant_after_a_long_wait_is_renewed_first", async () => {
  script({
    acquire: () => {
      clock.advance(TTL / 3 + 1);
      return { body: lease("job", TOKEN) };
    },
  });
  const held = await manager().acquire("job", { wait: "1m" });
  assert.equal(server.of("/v1/renew").length, 1);
  assert.equal(held.remaining(), TTL - 100);
});

test("grant_that_ended_during_a_long_wait_is_refused", async () => {
  script({
    acquire: () => {
      clock.advance(TTL);
      return { body: lease("job", TOKEN) };
    },
    renew: () => ({
      body: { results: [{ name: "job", problem: { code: "lost", detail: "lost", status: 409, why: "expired" } }] },
    }),
  });
  await assert.rejects(manager().acquire("job", { wait: "1m" }), { name: "Refused", code: "lost" });
});

test("work_does_not_begin_after_the_deadline_of_its_grant", async () => {
  let begun = 0;
  script({
    acquire: () => {
      clock.advance(TTL / 3 + 1);
      return { body: lease("job", TOKEN) };
    },
    renew: (request) => {
      clock.advance(TTL + 1);
      return { body: renewed(request) };
    },
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
  });
  const holder = manager();
  await assert.rejects(
    holder.with("job", { wait: "1m" }, () => begun++),
    Unknown,
  );
  assert.equal(begun, 0, "the work has begun");
  // The cluster can still count the lease as held.
  script({ explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }) });
  await holder.release("job");
  assert.equal((await server.received("/release")).body.token, TOKEN);
});

test("cancelled_renewal_of_a_late_grant_releases_it", async () => {
  script({
    acquire: () => {
      clock.advance(TTL / 3 + 1);
      return { body: lease("job", TOKEN) };
    },
    renew: () => "hang",
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
  });
  const cancel = new AbortController();
  const acquiring = manager({ operationTimeout: "1h" }).acquire("job", { wait: "1m", signal: cancel.signal });
  await server.received("/v1/renew");
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(acquiring, /not needed any more/);
  assert.equal((await server.received("/release")).body.token, TOKEN);
});

test("second_lease_object_of_a_manager_is_refused_as_held", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  await assert.rejects(holder.acquire("job"), { code: "held" });
  const waiting = holder.acquire("job", { wait: "10s" });
  assert.equal(await held.release(), true);
  assert.equal((await waiting).isHeld(), true);
  assert.equal(await held.release(), false, "it was released before");
  assert.equal(server.of("/release").length, 1);
});

test("second_lease_object_has_one_wait_for_the_manager_and_the_queue", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  const waiting = holder.acquire("job", { wait: "10s" });
  clock.advance(4_000);
  assert.equal(await held.release(), true);
  await waiting;
  const wait = server.of("/acquire")[1]?.body.wait_ms;
  assert.ok(wait > 5_000 && wait <= 6_000, `${wait}`);
});

test("states_end_with_the_lease", { timeout: 10_000 }, async () => {
  const held = await manager().acquire("job");
  const statuses: string[] = [];
  const ended = (async () => {
    for await (const { status } of held.states()) {
      statuses.push(status);
    }
  })();
  await held.release();
  await ended;
  assert.deepEqual(statuses, ["held", "released"]);
});

test("acquire_after_a_loss_releases_the_old_grant_first", async () => {
  script({ release: () => problem(503, "no_leader") });
  const holder = manager({ operationTimeout: "5s" });
  const held = await holder.acquire("job");
  clock.advance(60_000);
  await reached(held, "lost");
  await assert.rejects(holder.acquire("job"), { code: "held" }, "its work may still run");
  assert.equal(await held.release(), false);
  await server.received("/release");
  await assert.rejects(holder.acquire("job"), Unavailable);
  script();
  const again = await holder.acquire("job");
  assert.equal(again.isHeld(), true);
  const order = server.requests.map(({ path }) => path).filter((path) => /acquire|release/.test(path));
  assert.match(order.at(-2) ?? "", /release/);
});

test("failed_release_is_not_held_and_can_be_repeated", async () => {
  script({ release: () => "close", explain: () => "close" });
  const held = await manager({ operationTimeout: "5s" }).acquire("job");
  await assert.rejects(held.release(), Unknown);
  assert.equal(held.isHeld(), false);
  assert.equal(held.state.status, "released");
  script();
  assert.equal(await held.release(), true);
});

test("lost_answer_to_a_release_is_resolved_by_the_history", async () => {
  let count = 0;
  script({
    release: () => (count++ === 0 ? "close" : { body: { released: false } }),
    explain: () => standing({ status: "ended", event: { event: "released", token: TOKEN } }),
  });
  const held = await manager().acquire("job");
  assert.equal(await held.release(), true);
});

test("holder_gives_up_before_the_release_is_sent", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  script({
    release: () => {
      assert.equal(held.isHeld(), false);
      return { body: { released: true } };
    },
  });
  assert.equal(await held.release(), true);
  assert.equal((held.signal.reason as LeaseLost).why, "released");
});

test("with_runs_the_work_and_releases_the_lease", async () => {
  const holder = manager();
  assert.equal(await holder.with("job", { ttl: TTL }, (held) => held.token.toString()), TOKEN);
  assert.equal(server.of("/release").length, 1);
  await assert.rejects(
    holder.with("job", () => Promise.reject(new Error("the work failed"))),
    /the work failed/,
  );
  assert.equal(server.of("/release").length, 2);
});

test("with_aborts_the_work_at_the_loss", async () => {
  const holder = manager();
  const working = holder.with("job", async ({ signal }) => {
    clock.advance(60_000);
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  });
  await assert.rejects(working, { name: "LeaseLost", why: "suspended" });
});

test("with_drops_a_result_that_comes_after_the_deadline", async () => {
  const working = manager().with("job", () => {
    clock.advance(60_000);
    return "too late";
  });
  await assert.rejects(working, LeaseLost);
  const failing = manager().with("other", () => {
    clock.advance(60_000);
    throw new Error("the work failed");
  });
  await assert.rejects(failing, (error: LeaseLost) => (error.cause as Error).message === "the work failed");
});

test("with_returns_the_result_if_the_release_fails", async () => {
  const errors: unknown[] = [];
  const holder = manager({ operationTimeout: "5s", onError: (error) => errors.push(error) });
  script({ release: () => problem(503, "no_leader") });
  assert.equal(await holder.with("job", () => "done"), "done");
  assert.ok(errors[0] instanceof Unavailable);
});

test("scope_releases_the_lease_and_shuts_the_manager_down", async () => {
  {
    await using holder = manager();
    await using held = await holder.acquire("job");
    assert.equal(held.isHeld(), true);
  }
  assert.equal(server.of("/release").length, 1);
});

test("shutdown_ends_waits_and_releases_leases", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  let status: object = { status: "waits", waiter: {} };
  script({ acquire: () => "hang", explain: () => standing(status) });
  const waiting = holder.acquire("queue", { wait: "1m" });
  const claim = await server.received("/queue/acquire");
  const left = holder.shutdown();
  void claim.aborted.then(() => {
    status = { status: "unknown" };
  });
  await assert.rejects(waiting, ShutDown);
  assert.deepEqual(await left, []);
  assert.equal(held.isHeld(), false);
  assert.equal(server.of("/job/release").length, 1);
  await assert.rejects(holder.acquire("job"), ShutDown);
});

test("refused_withdrawal_leaves_the_claim_unresolved", async () => {
  const holder = manager();
  script({
    acquire: (request) => (request.body.wait_ms === 1 ? problem(403, "forbidden") : "hang"),
    explain: () => standing({ status: "waits", waiter: {} }),
  });
  const waiting = holder.acquire("queue", { wait: "1m" });
  await server.received("/queue/acquire");
  const left = holder.shutdown();
  await assert.rejects(waiting, Unknown);
  assert.deepEqual(
    (await left).map(({ name, error }) => [name, error instanceof Refused]),
    [["queue", true]],
  );
});

test("shutdown_names_the_leases_that_may_be_left", async () => {
  const holder = manager({ operationTimeout: "5s" });
  await holder.acquire("job");
  script({ release: () => problem(503, "no_leader") });
  const left = await holder.shutdown();
  assert.deepEqual(
    left.map(({ name, error }) => [name, error instanceof Unavailable]),
    [["job", true]],
  );
  script();
  assert.deepEqual(await holder.shutdown(), [], "a second call tries again");
});

test("refused_hand_over_keeps_the_lease", async () => {
  const held = await manager().acquire("job");
  await assert.rejects(held.handOver({ to: "" }), RangeError);
  script({ handover: () => problem(409, "no_such_waiter") });
  await assert.rejects(held.handOver({ to: "other" }), { code: "no_such_waiter" });
  assert.equal(held.isHeld(), true);
  script({ handover: () => "close" });
  await assert.rejects(held.handOver(), Unknown);
  assert.equal(held.isHeld(), false);
});

test("check_records_the_end_at_the_cluster", async () => {
  const held = await manager().acquire("job");
  script({ explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }) });
  assert.equal(await held.check(), true);
  script({ explain: () => standing({ status: "from_a_newer_server" }) });
  await assert.rejects(held.check(), Unknown);
  assert.equal(held.isHeld(), true);
  script({ explain: () => standing({ status: "ended", event: { event: "revoked", token: TOKEN } }) });
  assert.equal(await held.check(), false);
  assert.deepEqual([held.state.status, (held.signal.reason as LeaseLost).why], ["lost", "revoked"]);
});

test("metadata_conflict_is_retried", async () => {
  const held = await manager().acquire("job");
  let version = 0;
  script({
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN, { metadata_version: version }) }),
    metadata: ({ body }) => (body.version === 1 ? { body: {} } : problem(409, "metadata_changed", { v: version++ })),
  });
  assert.equal(await held.updateMetadata({ zone: "b" }), true);
  assert.deepEqual(
    server.of("/metadata").map(({ body }) => body.version),
    [0, 1],
  );
});

test("metadata_above_the_bounds_is_not_sent", async () => {
  const held = await manager().acquire("job");
  await assert.rejects(held.updateMetadata({ zone: "b".repeat(4_093) }), RangeError);
  assert.equal(server.of("/metadata").length, 0);
});

test("listener_that_throws_does_not_harm_the_renewals", async () => {
  const thrown = deferred<Error>();
  const listeners = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.once("uncaughtException", thrown.resolve);
  const held = await manager().acquire("job");
  const unsubscribe = held.onState(() => {
    unsubscribe();
    throw new Error("by the listener");
  });
  clock.advance(3_700);
  assert.match((await thrown.promise).message, /by the listener/);
  for (const listener of listeners) {
    process.on("uncaughtException", listener);
  }
  assert.equal(held.remaining(), TTL - 100);
});
