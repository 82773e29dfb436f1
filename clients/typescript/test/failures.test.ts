import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { setImmediate, setTimeout as sleep } from "node:timers/promises";
import {
  Election,
  type Leadership,
  type Lease,
  LeaseLost,
  LeaseManager,
  type ManagerOptions,
  Refused,
  Unavailable,
  Unknown,
} from "tenure";
import { parseGrant } from "#dist/grant.js";
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

test("only_the_word_infinite_has_no_deadline", () => {
  const lasting = (fields: object) => parseGrant(lease("job", TOKEN, fields))?.lasting;
  assert.equal(lasting({ ttl_ms: "infinite", expires_in_ms: null }), Number.POSITIVE_INFINITY);
  assert.equal(lasting({ ttl_ms: 3_000, expires_in_ms: null }), 3_000);
  assert.equal(lasting({ ttl_ms: 3_000, expires_in_ms: 1_000 }), 1_000);
  for (const ttl_ms of ["30000", "forever", null, undefined, true, [], -1]) {
    assert.equal(lasting({ ttl_ms, expires_in_ms: undefined }), undefined, JSON.stringify(ttl_ms));
  }
  assert.equal(lasting({ expires_in_ms: "1000" }), undefined);
  for (const invalid of [null, {}, [], "lease", lease("job", "-1"), lease("job", TOKEN, { token: 7 })]) {
    assert.equal(parseGrant(invalid), undefined, JSON.stringify(invalid));
  }
});

for (const [fault, body] of [
  ["empty", {}],
  ["null", null],
  ["text_as_ttl", lease("job", TOKEN, { ttl_ms: "30000" })],
  ["invalid_token", lease("job", "no token")],
] as const) {
  test(`claim_with_the_answer_${fault}_is_unknown`, async () => {
    script({
      acquire: () => ({ body }),
      explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
    });
    const holder = manager();
    await assert.rejects(holder.acquire("job"), Unknown);
    assert.equal(await holder.release("job"), true, "the manager remembers the grant");
    assert.equal(server.of("/release")[0]?.body.token, TOKEN);
  });
}

for (const [fault, body] of [
  ["empty", {}],
  ["null", null],
  ["text_as_results", { results: "x" }],
  ["null_as_result", { results: [null] }],
  ["empty_lease", { results: [{ name: "job", lease: {} }] }],
  ["text_as_ttl", { results: [{ name: "job", lease: lease("job", TOKEN, { ttl_ms: "30000" }) }] }],
] as const) {
  test(`renewal_with_the_answer_${fault}_has_failed`, async () => {
    const held = await manager().acquire("job");
    const deadline = clock.now() + held.remaining();
    script({ renew: () => ({ body }) });
    clock.advance(TTL / 3 + TTL / 30);
    await reached(held, "at_risk");
    assert.equal(held.remaining(), deadline - clock.now());
  });
}

test("invalid_answer_to_a_release_is_unknown", async () => {
  script({ release: () => ({ body: {} }), explain: () => "close" });
  const held = await manager({ operationTimeout: "5s" }).acquire("job");
  await assert.rejects(held.release(), Unknown);
});

test("release_of_a_forgotten_grant_is_unknown", async () => {
  let attempts = 0;
  script({
    release: () => (attempts++ === 0 ? "close" : { body: { released: false } }),
    explain: () => standing({ status: "unknown" }),
  });
  const held = await manager().acquire("job");
  await assert.rejects(held.release(), Unknown);
  assert.equal(held.isHeld(), false);
});

test("invalid_answer_to_a_hand_over_is_unknown", async () => {
  const held = await manager().acquire("job");
  script({ handover: () => ({ body: {} }) });
  await assert.rejects(held.handOver(), Unknown);
  assert.equal(held.isHeld(), false);
});

test("failed_release_allows_the_next_acquire", async () => {
  const holder = manager({ operationTimeout: "5s" });
  const held = await holder.acquire("job");
  script({ release: () => problem(503, "no_leader") });
  await assert.rejects(held.release(), Unavailable);
  script();
  const again = await holder.acquire("job");
  assert.equal(again.isHeld(), true);
  const order = server.requests.map(({ path }) => path).filter((path) => /acquire|release/.test(path));
  assert.match(order.at(-2) ?? "", /release/, "the old grant is released first");
  assert.equal(await held.release(), false);
  assert.equal(again.isHeld(), true);
});

test("cancelled_release_in_progress_ends_the_lease", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  script({ release: () => "hang" });
  const cancel = new AbortController();
  const releasing = held.release({ signal: cancel.signal });
  await server.received("/release");
  cancel.abort(new Error("cancelled by the test"));
  await assert.rejects(releasing, /cancelled by the test/);
  script();
  assert.equal((await holder.acquire("job")).isHeld(), true);
});

test("release_with_an_aborted_signal_ends_the_lease", async () => {
  const holder = manager();
  for (const end of ["release", "handOver"] as const) {
    const held = await holder.acquire("job");
    await assert.rejects(held[end]({ signal: AbortSignal.abort() }), { name: "AbortError" });
    assert.equal(held.isHeld(), false);
  }
  assert.equal((await holder.acquire("job")).isHeld(), true);
  assert.equal(server.of("/release").length, 2, "each acquire releases the grant before");
});

test("end_of_an_old_lease_waits_for_no_claim_in_flight", { timeout: 10_000 }, async () => {
  const holder = manager();
  const old = await holder.acquire("job");
  assert.equal(await old.release(), true);
  const grant = deferred<Reply>();
  script({ acquire: () => grant.promise });
  const acquiring = holder.acquire("job", { wait: "1m" });
  await server.received("/acquire", 2);
  assert.equal(await old.release(), false);
  assert.equal(await old.handOver(), undefined);
  assert.equal(await old.updateMetadata({ a: "b" }), false);
  assert.equal(await holder.release("job"), false);
  await old[Symbol.asyncDispose]();
  grant.resolve({ body: lease("job", TOKEN) });
  assert.equal((await acquiring).isHeld(), true);
  assert.equal(server.of("/release").length, 1);
});

test("end_of_an_old_lease_ends_its_wait_at_the_next_claim", { timeout: 10_000 }, async () => {
  const holder = manager();
  const old = await holder.acquire("job");
  script({ release: () => problem(418, "from_a_newer_server") });
  await assert.rejects(old.release(), Refused);
  const [released, grant] = [deferred<Reply>(), deferred<Reply>()];
  script({ release: () => released.promise, acquire: () => grant.promise });
  const acquiring = holder.acquire("job", { wait: "1m" });
  await server.received("/release", 2);
  // The acquire releases the old grant, and then claims.
  const releasing = old.release();
  released.resolve({ body: { released: true } });
  assert.equal(await releasing, false);
  grant.resolve({ body: lease("job", TOKEN) });
  assert.equal((await acquiring).isHeld(), true);
});

test("hand_over_with_a_lost_answer_allows_the_next_acquire", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  script({ handover: () => "close" });
  await assert.rejects(held.handOver(), Unknown);
  assert.equal((await holder.acquire("job")).isHeld(), true);
});

test("failed_resignation_allows_the_next_campaign", async () => {
  const election = new Election(manager({ operationTimeout: "5s" }), "job");
  const leadership = await election.campaign();
  script({ release: () => problem(503, "no_leader") });
  await assert.rejects(leadership.resign(), Unavailable);
  script();
  assert.equal((await election.campaign()).isLeader(), true);
});

/** The text of the next warnings of this package. */
async function warningsOf(run: () => Promise<unknown>, count: number): Promise<string[]> {
  const warnings: string[] = [];
  const complete = deferred();
  const add = (warning: Error) => {
    if (warning.name === "TenureWarning" && warnings.push(warning.message) === count) {
      complete.resolve();
    }
  };
  process.on("warning", add);
  try {
    await run();
    await complete.promise;
  } finally {
    process.off("warning", add);
  }
  return warnings;
}

test("failed_release_of_a_scope_is_a_warning_by_default", async () => {
  const holder = manager({ operationTimeout: "5s" });
  script({ release: () => problem(503, "no_leader") });
  const [warning] = await warningsOf(() => holder.with("job", () => "done"), 1);
  assert.match(warning ?? "", /count the lease "job" as held: Unavailable: .*no_leader by the test/);
});

test("onError_that_throws_does_not_end_the_process", async () => {
  for (const onError of [
    () => {
      throw new Error("by onError");
    },
    () => Promise.reject(new Error("by onError")),
  ]) {
    const holder = manager({ operationTimeout: "5s", onError });
    script();
    const held = await holder.acquire("job");
    clock.advance(60_000);
    await reached(held, "lost");
    script({ release: () => problem(503, "no_leader") });
    const warnings = await warningsOf(async () => {
      await held.release();
      assert.equal((await holder.shutdown()).length, 1);
    }, 2);
    assert.match(warnings[1] ?? "", /onError failed: Error: by onError/);
  }
});

test("lost_leadership_is_not_established", async () => {
  const leadership = await new Election(manager(), "job").campaign();
  clock.advance(60_000);
  let fenced = 0;
  await assert.rejects(
    leadership.establish(() => fenced++),
    { name: "LeaseLost", why: "unreachable" },
  );
  assert.equal(fenced, 0);
  assert.equal(leadership.token.toString(), TOKEN);
  assert.equal(await leadership.resign(), false);
  await assert.rejects(
    leadership.establish(() => fenced++),
    LeaseLost,
  );
});

/**
 * Replies like a cluster with one lease. It applies the first claim of "me" late: after it has refused the second attempt
 * of that claim, and the next claim.
 */
function lateGrant(refusal: Reply): Replies {
  let holder: string | undefined;
  let attempts = 0;
  return {
    acquire: ({ body }) => {
      if (body.holder !== "me") {
        return holder === undefined ? { body: lease("job", TOKEN) } : problem(409, "held", { holder });
      }
      attempts++;
      if (attempts <= 2) {
        return attempts === 1 ? "close" : problem(409, "held");
      }
      holder = "me";
      return refusal;
    },
    release: () => {
      const released = holder !== undefined;
      holder = undefined;
      return { body: { released } };
    },
    explain: () =>
      standing(holder === undefined ? { status: "unknown" } : { status: "holds", lease: lease("job", TOKEN) }),
  };
}

for (const [code, refusal, error] of [
  ["no_leader", problem(503, "no_leader"), Unavailable],
  ["forbidden", problem(403, "forbidden"), Refused],
  ["held", problem(409, "held"), Refused],
] as const) {
  for (const [end, result] of [
    ["release", true],
    ["shutdown", []],
  ] as const) {
    test(`${end}_resolves_an_unknown_claim_before_one_with_${code}`, async () => {
      script(lateGrant(refusal));
      const holder = manager({ operationTimeout: "1s" });
      await assert.rejects(holder.acquire("job", { ttl: "infinite" }), Unknown);
      await assert.rejects(holder.acquire("job", { ttl: TTL }), error);
      // The first claim has no end, although the second one has.
      clock.advance(2 * TTL);
      const other = manager({ holder: "other" });
      await assert.rejects(other.acquire("job"), { code: "held" });
      assert.deepEqual(end === "release" ? await holder.release("job") : await holder.shutdown(), result);
      assert.equal((await other.acquire("job")).isHeld(), true);
    });
  }
}

test("cancelled_claim_resolves_an_earlier_unknown_claim", { timeout: 30_000 }, async () => {
  const answer = deferred<Reply>();
  const attempts = ["close", problem(409, "held"), answer.promise] as const;
  script({
    acquire: () => attempts[server.of("/acquire").length - 1] ?? "hang",
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
  });
  const holder = manager();
  await assert.rejects(holder.acquire("job"), Unknown);
  const cancel = new AbortController();
  const acquiring = holder.acquire("job", { signal: cancel.signal });
  await server.received("/acquire", 3);
  cancel.abort(new Error("not needed any more"));
  await assert.rejects(acquiring, /not needed any more/);
  answer.resolve(problem(403, "forbidden"));
  assert.equal((await server.received("/release")).body.token, TOKEN);
  assert.equal(await holder.release("job"), false);
});

test("no_claim_is_sent_after_an_abort", async () => {
  const holder = manager({ operationTimeout: "5s" });
  const held = await holder.acquire("job");
  script({ release: () => problem(503, "no_leader") });
  await assert.rejects(held.release(), Unavailable);
  const answer = deferred<Reply>();
  let releases = 0;
  script({
    release: () => (releases++ === 0 ? "close" : { body: { released: false } }),
    explain: () => answer.promise,
  });
  const cancel = new AbortController();
  const acquiring = holder.acquire("job", { signal: cancel.signal });
  await server.received("/explain");
  cancel.abort(new Error("not needed any more"));
  answer.resolve(standing({ status: "ended", event: { event: "released", token: TOKEN } }));
  await assert.rejects(acquiring, /not needed any more/);
  assert.equal(server.of("/acquire").length, 1);
});

test("renewal_refused_by_the_own_hand_over_is_no_loss", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  const other = await holder.acquire("other");
  const [renewal, handOver] = [deferred<Reply>(), deferred<Reply>()];
  script({ renew: () => renewal.promise, handover: () => handOver.promise });
  clock.advance(TTL / 3 + TTL / 30);
  const batch = await server.received("/v1/renew");
  const handed = held.handOver();
  await server.received("/handover");
  const [, kept] = renewed(batch).results;
  assert.equal(kept?.name, "other");
  const refusal = { code: "lost", detail: "lost", status: 409, why: "handed_over" };
  const applied = new Promise((resolve) => other.onState(resolve));
  renewal.resolve({ body: { results: [{ name: "job", problem: refusal }, kept] } });
  await applied;
  handOver.resolve({ body: lease("job", TOKEN, { holder: "next" }) });
  assert.equal(await handed, "next");
  assert.equal(held.state.status, "released");
});

for (const isWith of [true, false]) {
  const call = isWith ? "with" : "lead";
  test(`end_of_the_work_of_${call}_during_its_hand_over_is_no_loss`, { timeout: 30_000 }, async () => {
    const handOver = deferred<Reply>();
    script({ handover: () => handOver.promise });
    const holder = manager();
    let handed: Promise<string | undefined> | undefined;
    const work = async (held: { handOver: Lease["handOver"] }) => {
      handed = held.handOver();
      await server.received("/handover");
      return "done";
    };
    const working = isWith ? holder.with("job", work) : new Election(holder, "job").lead(work);
    await server.received("/handover");
    // The end of the work waits for the answer, without a loss.
    await Promise.race([working, sleep(50)]);
    handOver.resolve({ body: lease("job", TOKEN, { holder: "next" }) });
    assert.equal(await working, "done");
    assert.equal(await handed, "next");
    assert.deepEqual(server.of("/release"), []);
  });
}

for (const status of [{ status: "ended", event: { event: "handed_over", token: TOKEN } }, { status: "unknown" }]) {
  test(`check_during_the_own_hand_over_is_no_loss_if_the_standing_is_${status.status}`, async () => {
    const held = await manager().acquire("job");
    const handOver = deferred<Reply>();
    script({ handover: () => handOver.promise, explain: () => standing(status) });
    const handed = held.handOver();
    await server.received("/handover");
    assert.equal(await held.check(), false);
    handOver.resolve({ body: lease("job", TOKEN, { holder: "next" }) });
    assert.equal(await handed, "next");
    assert.equal(held.state.status, "released");
  });
}

test("unavailable_hand_over_keeps_the_lease", async (context) => {
  const holder = manager();
  const held = await holder.acquire("job");
  // The published types have no internal methods.
  const client = holder.client as unknown as { handOver(): Promise<string> };
  context.mock.method(client, "handOver", () => Promise.reject(new Unavailable("no leader")));
  await assert.rejects(held.handOver(), Unavailable);
  assert.equal(held.isHeld(), true);
  assert.equal(held.signal.aborted, false);
});

test("unreleased_grant_is_remembered_among_many_names", async () => {
  const holder = manager();
  const held = await holder.acquire("job");
  script({ release: () => problem(418, "from_a_newer_server") });
  await assert.rejects(held.release(), Refused);
  script();
  clock.advance(100 * TTL);
  for (let number = 0; number < 70; number++) {
    const other = await holder.acquire(`other-${number}`);
    assert.equal(await other.release(), true);
  }
  const before = server.requests.length;
  await holder.acquire("job");
  assert.deepEqual(
    server.requests.slice(before).map(({ path }) => path),
    ["/v1/leases/job/release", "/v1/leases/job/acquire"],
  );
});

test("observer_never_goes_back_to_an_older_leader", { timeout: 30_000 }, async () => {
  const reads = ["7", undefined, "6", "8"];
  script({
    explain: () => {
      const token = reads.length > 1 ? reads.shift() : reads[0];
      return { body: { name: "job", held: token === undefined ? [] : [lease("job", token)] } };
    },
    watch: () => "hang",
  });
  const observed = new Election(manager(), "job", { refresh: "10ms" }).observe();
  const leaders = [];
  for (let number = 0; number < 3; number++) {
    leaders.push((await observed.next()).value?.token.toString());
  }
  assert.deepEqual(leaders, ["7", undefined, "8"]);
  await observed.return(undefined);
});

test("deadline_that_passes_in_a_suspend_is_seen_soon", { timeout: 30_000 }, async () => {
  const ttl = 300_000;
  script({ acquire: () => ({ body: lease("job", TOKEN, { ttl_ms: ttl, expires_in_ms: ttl }) }) });
  const held = await manager().acquire("job", { ttl });
  const ended = reached(held, "lost");
  // The keeper plans its next check before this.
  await setImmediate();
  // Timers stop in a suspend, so nothing wakes the keeper.
  clock.advance(3_600_000);
  await ended;
});

test("renewal_ends_with_a_third_of_the_ttl", { timeout: 10_000 }, async () => {
  const ttl = 600;
  script({
    acquire: () => ({ body: lease("job", TOKEN, { ttl_ms: ttl, expires_in_ms: ttl }) }),
    renew: () => "hang",
  });
  const held = await manager({ operationTimeout: "20s" }).acquire("job", { ttl });
  clock.advance(250);
  await reached(held, "at_risk");
  script();
});

test("established_leader_keeps_its_metadata", async () => {
  const leadership = await new Election(manager(), "job", { metadata: { address: "a" } }).campaign();
  script({
    explain: () => standing({ status: "holds", lease: lease("job", TOKEN) }),
    metadata: () => ({ body: {} }),
  });
  await leadership.establish(() => undefined);
  assert.deepEqual(server.of("/metadata")[0]?.body.metadata, { address: "a", "tenure.established": TOKEN });
});

interface Called {
  readonly client: LeaseManager["client"];
  readonly holder: LeaseManager;
  readonly held: Lease;
  readonly leadership: Leadership;
  readonly signal: AbortSignal;
}

/** Each call, and the path of its request. */
const CALLS: [call: string, path: string, start: (called: Called) => Promise<unknown>][] = [
  ["get", "/v1/leases/read", ({ client, signal }) => client.get("read", { signal })],
  ["history", "/history", ({ client, signal }) => client.history("read", { signal })],
  ["queue", "/queue", ({ client, signal }) => client.queue("read", { signal })],
  ["explain", "/explain", ({ client, signal }) => client.explain("read", { signal })],
  ["list", "/v1/leases?", ({ client, signal }) => client.list({ signal }).next()],
  ["revoke", "/v1/leases/read", ({ client, signal }) => client.revoke("read", { signal })],
  ["cluster", "/v1/cluster", ({ client, signal }) => client.cluster({ signal })],
  ["version", "/version", ({ client, signal }) => client.version({ signal })],
  ["release_by_name", "/release", ({ holder, signal }) => holder.release("job", { signal })],
  ["check", "/explain", ({ held, signal }) => held.check({ signal })],
  ["update_metadata", "/explain", ({ held, signal }) => held.updateMetadata({ a: "b" }, { signal })],
  ["establish", "/explain", ({ leadership, signal }) => leadership.establish(() => "fenced", { signal })],
  ["resign", "/release", ({ leadership, signal }) => leadership.resign({ signal })],
  ["hand_over", "/handover", ({ leadership, signal }) => leadership.handOver({ signal })],
  ["lead", "new/acquire", ({ holder, signal }) => new Election(holder, "new").lead(() => undefined, { signal })],
  ["current", "/explain", ({ holder, signal }) => new Election(holder, "led").current({ signal })],
];

for (const [call, path, start] of CALLS) {
  test(`cancelled_${call}_throws_the_reason`, { timeout: 30_000 }, async () => {
    const holder = manager({ operationTimeout: "10s" });
    const held = await holder.acquire("job");
    const leadership = await new Election(holder, "led").campaign();
    server.handler = () => "hang";
    const cancel = new AbortController();
    const calling = start({ client: holder.client, holder, held, leadership, signal: cancel.signal });
    await server.received(path);
    cancel.abort(new Error("cancelled by the test"));
    await assert.rejects(calling, /cancelled by the test/);
  });
}

test("cancelled_states_throw_the_reason", { timeout: 10_000 }, async () => {
  const held = await manager().acquire("job");
  const cancel = new AbortController();
  const states = held.states({ signal: cancel.signal });
  assert.equal((await states.next()).value?.status, "held");
  const next = states.next();
  cancel.abort(new Error("cancelled by the test"));
  await assert.rejects(next, /cancelled by the test/);
});

for (const [fault, reply] of [
  ["without_a_leader", problem(503, "no_leader")],
  ["with_invalid_answers", { body: {} }],
] as const) {
  test(`observer_waits_at_a_cluster_${fault}`, { timeout: 30_000 }, async () => {
    script({ explain: () => reply, watch: () => "hang" });
    const observed = new Election(manager({ operationTimeout: "200ms" }), "job", { refresh: "10ms" }).observe();
    const first = observed.next();
    // One read has fewer attempts. The race ends with the error of an observer that does not wait.
    await Promise.race([server.received("/explain", 30), first]);
    script({ explain: () => standing({ status: "unknown" }), watch: () => "hang" });
    assert.deepEqual(await first, { done: false, value: undefined });
    await observed.return(undefined);
  });
}
