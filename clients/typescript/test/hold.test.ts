import assert from "node:assert/strict";
import { test } from "node:test";
import { FencingToken, LeaseLost } from "tenure";
import { Hold } from "#dist/hold.js";
import { batches } from "#dist/keeper.js";
import { ManualClock } from "./support/clock.js";

const TOKEN = FencingToken.from("281474976710661");

function holdAt(clock: ManualClock, options: { ttl?: number; grace?: number; sent?: number } = {}): Hold {
  const { ttl = 3_000, grace = 0, sent = clock.now() } = options;
  return new Hold({ name: "job", token: TOKEN, ttl, grace, drain: 0, sent, driftPermille: 10, clock });
}

test("holder_stops_first_by_the_drift_and_from_before_the_request", () => {
  const clock = new ManualClock();
  const sent = clock.now();
  clock.advance(500);
  const hold = holdAt(clock, { sent });
  assert.equal(hold.remaining(), 2_470, "the ttl less 1 % less the time of the request");
  clock.advance(2_469);
  assert.equal(hold.isHeld(), true);
  clock.advance(1);
  assert.equal(hold.isHeld(), false);
});

test("deadline_is_earlier_by_the_resolution_of_the_clock", () => {
  assert.equal(holdAt(new ManualClock(10)).remaining(), 2_960);
});

test("renewal_counts_from_its_send_time_and_never_backwards", () => {
  const clock = new ManualClock();
  const hold = holdAt(clock);
  clock.advance(1_000);
  hold.renewed(3_000, clock.now() - 200);
  assert.equal(hold.remaining(), 2_770);
  hold.renewed(100, clock.now());
  assert.equal(hold.remaining(), 2_770, "a shorter ttl does not shorten the grant");
});

test("renewals_of_many_holders_are_spread", () => {
  const clock = new ManualClock();
  const delays = Array.from({ length: 200 }, () => {
    const action = holdAt(clock).nextAction(clock.now(), 0);
    return action.kind === "check" ? action.at - clock.now() : Number.NaN;
  });
  assert.ok(Math.min(...delays) < 950, `${delays}`);
  assert.ok(Math.max(...delays) > 1_050, `${delays}`);
});

test("work_does_not_begin_after_the_release", async () => {
  const hold = holdAt(new ManualClock());
  hold.giveUp();
  let started = 0;
  await assert.rejects(
    hold.run(() => started++),
    { name: "LeaseLost", why: "released" },
  );
  assert.equal(started, 0);
});

test("renewal_after_the_deadline_does_not_restore_the_lease", () => {
  const clock = new ManualClock();
  const hold = holdAt(clock);
  clock.advance(2_970);
  hold.renewed(3_000, clock.now() - 1);
  assert.equal(hold.isHeld(), false);
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "nothing" });
  assert.deepEqual(hold.state, { status: "lost", token: TOKEN, why: "unreachable" });
});

test("renewal_is_due_after_a_third_of_the_ttl", () => {
  for (let round = 0; round < 50; round++) {
    const clock = new ManualClock();
    const hold = holdAt(clock);
    clock.advance(899);
    const action = hold.nextAction(clock.now(), 0);
    assert.ok(action.kind === "check" && action.at - clock.now() <= 201, JSON.stringify(action));
    clock.advance(202);
    assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "renew" });
  }
});

test("deadline_stays_in_force_during_a_renewal", () => {
  const clock = new ManualClock();
  const hold = holdAt(clock);
  const deadline = clock.now() + 2_970;
  hold.renewing();
  clock.advance(1_500);
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "check", at: deadline });
});

test("failed_renewal_is_retried_after_a_twentieth_until_the_grace", () => {
  const clock = new ManualClock();
  const hold = holdAt(clock, { grace: 500 });
  clock.advance(1_200);
  hold.renewing();
  hold.renewalFailed();
  assert.deepEqual(hold.state, { status: "at_risk", token: TOKEN, left: 1_770, failures: 1 });
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "check", at: clock.now() + 150 });
  clock.advance(150);
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "renew" });
  clock.advance(1_120);
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "check", at: clock.now() + 500 });
  assert.deepEqual(hold.state, { status: "ending", token: TOKEN, left: 500, why: "unreachable" });
  assert.equal(hold.stopping.aborted, true);
  assert.equal(hold.signal.aborted, false);
  assert.equal(hold.isHeld(), true);
  hold.renewed(3_000, clock.now());
  assert.equal(hold.remaining(), 500, "a late renewal does not end the grace");
});

test("retry_delay_is_20_ms_to_1_s", () => {
  for (const [ttl, delay] of [
    [200, 20],
    [60_000, 1_000],
  ] as const) {
    const clock = new ManualClock();
    const hold = holdAt(clock, { ttl });
    hold.renewalFailed();
    assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "check", at: clock.now() + delay });
  }
});

test("late_check_at_the_deadline_means_suspended", () => {
  for (const [late, why] of [
    [249, "unreachable"],
    [250, "suspended"],
  ] as const) {
    const clock = new ManualClock();
    const hold = holdAt(clock);
    clock.advance(2_970);
    hold.nextAction(clock.now(), late);
    assert.deepEqual(hold.state, { status: "lost", token: TOKEN, why });
  }
});

test("loss_changes_the_state_before_the_signal", () => {
  const hold = holdAt(new ManualClock());
  const seen: string[] = [];
  hold.onState((state) => seen.push(`${state.status} ${hold.isHeld()}`));
  hold.signal.addEventListener("abort", () => seen.push(`aborted in ${hold.state.status}`));
  hold.lose("revoked");
  hold.lose("expired");
  assert.deepEqual(seen, ["lost false", "aborted in lost"]);
  assert.ok(hold.signal.reason instanceof LeaseLost);
  assert.equal(hold.signal.reason.why, "revoked");
  assert.equal(hold.stopping.aborted, true);
});

test("infinite_lease_has_no_deadline_and_is_checked_every_10_s", () => {
  const clock = new ManualClock(10);
  const hold = holdAt(clock, { ttl: Number.POSITIVE_INFINITY, grace: 1_000 });
  assert.equal(hold.remaining(), Number.POSITIVE_INFINITY);
  clock.advance(8_999);
  assert.equal(hold.nextAction(clock.now(), 0).kind, "check");
  clock.advance(2_002);
  assert.deepEqual(hold.nextAction(clock.now(), 0), { kind: "renew" });
  clock.advance(86_400_000);
  assert.equal(hold.isHeld(), true);
});

test("paused_lease_is_not_held_until_it_resumes", () => {
  const clock = new ManualClock();
  const hold = holdAt(clock);
  assert.equal(hold.pause(), true);
  assert.equal(hold.isHeld(), false);
  hold.resume();
  assert.equal(hold.isHeld(), true);
  clock.advance(3_000);
  assert.equal(hold.pause(), false, "its deadline has passed");
});

test("batches_respect_the_limits_of_a_request", () => {
  const clock = new ManualClock();
  const named = (name: string) =>
    new Hold({ name, token: TOKEN, ttl: 3_000, grace: 0, drain: 0, sent: 0, driftPermille: 10, clock });
  const short = Array.from({ length: 10_001 }, () => named("job"));
  assert.deepEqual(
    [...batches(short)].map((batch) => batch.length),
    [10_000, 1],
  );
  const long = Array.from({ length: 9_999 }, () => named("j".repeat(200)));
  const bodies = [...batches(long)].map((batch) => JSON.stringify(batch.map(({ name, token }) => ({ name, token }))));
  assert.equal(bodies.length, 2);
  assert.ok(bodies.every((body) => body.length < 2 * 1024 * 1024 - 1_000));
  assert.deepEqual([...batches([])], []);
});
