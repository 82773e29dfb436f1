import assert from "node:assert/strict";
import { once } from "node:events";
import { afterEach, beforeEach, test } from "node:test";
import { Election, LeaseManager, type LeftLease, Refused } from "tenure";
import { ManualClock } from "./support/clock.js";
import { deferred, freeLeases, problem, ScriptedServer, TOKEN, TTL } from "./support/server.js";

let server: ScriptedServer;
let clock: ManualClock;
let holder: LeaseManager;

beforeEach(async () => {
  clock = new ManualClock();
  server = await ScriptedServer.start(freeLeases());
  holder = new LeaseManager({ endpoints: server.url, holder: "me", clock, operationTimeout: "2s" });
});

afterEach(async () => {
  await holder.shutdown();
  await server[Symbol.asyncDispose]();
});

type Work = (signal: AbortSignal, isHeld: () => boolean) => Promise<unknown>;

const CALLS: Record<string, (work: Work) => Promise<unknown>> = {
  with: (work) => holder.with("job", { ttl: TTL }, (held) => work(held.signal, () => held.isHeld())),
  lead: (work) => new Election(holder, "job").lead((leader) => work(leader.signal, () => leader.isLeader())),
};

for (const [call, run] of Object.entries(CALLS)) {
  test(`shutdown_renews_until_the_work_of_${call}_ends`, async () => {
    const [started, goesOn] = [deferred(), deferred()];
    const working = run(async (signal, isHeld) => {
      const stop = once(signal, "abort");
      started.resolve();
      await stop;
      await goesOn.promise;
      return isHeld();
    });
    await started.promise;
    const left = holder.shutdown();
    clock.advance(TTL / 3 + TTL / 30);
    await Promise.race([server.received("/v1/renew"), left]);
    assert.deepEqual(server.of("/release"), []);
    goesOn.resolve();
    assert.equal(await working, true, "the lease is held until the end of the work");
    assert.deepEqual(await left, []);
    assert.equal(server.of("/release").length, 1);
  });
}

function codes(left: LeftLease[]): string[][] {
  return left.map(({ name, error }) => [name, (error as Refused).code]);
}

for (const isLost of [false, true]) {
  test(`${isLost ? "lost" : "held"}_lease_is_not_released_under_its_work`, async () => {
    const [started, goesOn] = [deferred(), deferred()];
    const working = holder.with("job", { ttl: TTL, drain: 20 }, async ({ signal }) => {
      if (isLost) {
        const loss = once(signal, "abort");
        clock.advance(60_000);
        await loss;
      }
      started.resolve();
      await goesOn.promise;
      return "done";
    });
    await started.promise;
    assert.deepEqual(codes(await holder.shutdown()), [["job", "not_drained"]]);
    assert.deepEqual(codes(await holder.shutdown()), [["job", "not_drained"]]);
    assert.deepEqual(server.of("/release"), []);
    goesOn.resolve();
    if (isLost) {
      await assert.rejects(working, { name: "LeaseLost", why: "suspended" });
    } else {
      assert.equal(await working, "done");
    }
    await server.received("/release");
    assert.deepEqual(await holder.shutdown(), []);
    assert.equal(server.of("/release").length, 1);
  });
}

test("shutdown_waits_for_the_work_of_lead_for_the_drain_of_its_election", { timeout: 20_000 }, async () => {
  const [started, goesOn] = [deferred(), deferred()];
  const working = new Election(holder, "job", { drain: 20 }).lead(async () => {
    started.resolve();
    await goesOn.promise;
    return "done";
  });
  await started.promise;
  assert.deepEqual(codes(await holder.shutdown()), [["job", "not_drained"]]);
  goesOn.resolve();
  assert.equal(await working, "done");
});

test("shutdown_releases_a_lost_lease_once", async () => {
  await holder.acquire("job", { ttl: TTL });
  clock.advance(60_000);
  assert.deepEqual(await holder.shutdown(), []);
  assert.equal(server.of("/release").length, 1);
});

test("shutdown_releases_an_unreleased_grant_long_after_its_ttl", async () => {
  const held = await holder.acquire("job", { ttl: TTL });
  server.handler = freeLeases({ release: () => problem(418, "from_a_newer_server") });
  await assert.rejects(held.release(), Refused);
  // Without a majority, cluster time stands still.
  clock.advance(100 * TTL);
  assert.deepEqual(codes(await holder.shutdown()), [["job", "from_a_newer_server"]]);
  server.handler = freeLeases();
  assert.deepEqual(await holder.shutdown(), []);
  assert.deepEqual(
    server.of("/release").map(({ body }) => body.token),
    [TOKEN, TOKEN, TOKEN],
  );
});

test("shutdown_does_not_wait_for_work_without_its_lease", async () => {
  const [released, goesOn] = [deferred(), deferred()];
  const working = holder.with("job", async (held) => {
    await held.release();
    released.resolve();
    await goesOn.promise;
  });
  await released.promise;
  assert.deepEqual(await holder.shutdown(), []);
  goesOn.resolve();
  await working;
  assert.equal(server.of("/release").length, 1);
});
