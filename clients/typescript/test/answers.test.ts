import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { type Lease, LeaseManager, type ManagerOptions, Unknown } from "tenure";
import { parseGrant } from "#dist/grant.js";
import { ManualClock } from "./support/clock.js";
import { freeLeases, lease, type Replies, ScriptedServer, standing, TOKEN, TTL } from "./support/server.js";

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
  const held = await manager({ operationTimeout: "500ms" }).acquire("job");
  await assert.rejects(held.release(), Unknown);
});

test("invalid_answer_to_a_hand_over_is_unknown", async () => {
  const held = await manager().acquire("job");
  script({ handover: () => ({ body: {} }) });
  await assert.rejects(held.handOver(), Unknown);
  assert.equal(held.isHeld(), false);
});
