import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Election, LeaseManager } from "tenure";
import { freeLeases, ScriptedServer, TTL } from "./support/server.js";

/** The next change would come later. */
const LIMIT = { timeout: 10_000 };

let server: ScriptedServer;

beforeEach(async () => {
  server = await ScriptedServer.start(freeLeases({ watch: () => "hang" }));
});

afterEach(async () => {
  await server[Symbol.asyncDispose]();
});

test("return_ends_a_pending_step_of_states", LIMIT, async () => {
  await using manager = new LeaseManager({ endpoints: server.url });
  const held = await manager.acquire("job", { ttl: TTL });
  const states = held.states();
  assert.equal((await states.next()).value.status, "held");
  const pending = states.next();
  await states.return?.();
  assert.deepEqual(await pending, { done: true, value: undefined });
  assert.deepEqual(await states.next(), { done: true, value: undefined });
  assert.equal(held.isHeld(), true);
});

test("return_ends_a_pending_step_of_observe", LIMIT, async () => {
  await using manager = new LeaseManager({ endpoints: server.url });
  const leaders = new Election(manager, "job", { refresh: "10s" }).observe();
  assert.deepEqual(await leaders.next(), { done: false, value: undefined });
  const pending = leaders.next();
  await server.received("/watch");
  const late = sleep(5_000, "late", { ref: false });
  assert.notEqual(await Promise.race([leaders.return(), late]), "late");
  assert.deepEqual(await pending, { done: true, value: undefined });
});

test("return_ends_a_read_of_observe", LIMIT, async () => {
  server.handler = () => "hang";
  await using manager = new LeaseManager({ endpoints: server.url, operationTimeout: "24h" });
  const leaders = new Election(manager, "job").observe();
  const pending = leaders.next();
  await server.received("/explain");
  await leaders.return();
  assert.deepEqual(await pending, { done: true, value: undefined });
});
