import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { type Problem, Refused, Unavailable, Unknown } from "tenure";
import { classifyResponse } from "#dist/call.js";
import { probeInterval } from "#dist/client.js";
import { type Attempt, type AttemptContext, attempts, budgetWithin, type RetryPolicy } from "#dist/retry.js";
import { deferred } from "./support/server.js";

const ENDPOINT = new URL("http://node/");

function problem(code: string, status = 409): Problem {
  return { type: "", title: "", status, detail: `${code} by the test`, code };
}

const done: Attempt<string> = { kind: "done", value: "done" };
const unknown: Attempt<string> = { kind: "unknown", why: "no answer" };
const notDone: Attempt<string> = { kind: "not_done", why: "no leader" };
const refused: Attempt<string> = { kind: "refused", problem: problem("held") };

/** Runs a request whose attempts end like this. The last one repeats. */
async function request(policy: RetryPolicy, ...ends: Attempt<string>[]) {
  return requestWithin(10_000, policy, ...ends);
}

async function requestWithin(total: number, policy: RetryPolicy, ...ends: Attempt<string>[]) {
  let number = 0;
  const options = { policy, budget: { attempt: 5, total }, nodes: 2 };
  const run = attempts<string>(options, async () => ends[Math.min(number++, ends.length - 1)] as Attempt<string>);
  return run.then(
    ({ answer, ambiguous }) => ({ answer, ambiguous, number }),
    (error: Error) => ({ error, number }),
  );
}

test("late_grant_resolves_a_claim", async () => {
  assert.deepEqual(await request("claim", unknown, done), { answer: "done", ambiguous: "no answer", number: 2 });
});

test("late_refusal_resolves_a_renewal_but_not_a_claim", async () => {
  for (const policy of ["claim", "release"] as const) {
    const { error } = (await request(policy, unknown, refused)) as { error: Error };
    assert.ok(error instanceof Unknown && error.last?.code === "held", policy);
    assert.match(error.message, /unknown: no answer; a later attempt was refused: held by the test/);
  }
  for (const policy of ["renewal", "read"] as const) {
    const { error } = (await request(policy, unknown, refused)) as { error: Error };
    assert.ok(error instanceof Refused && error.code === "held", policy);
  }
});

test("refusal_after_attempts_that_were_not_applied_is_refused", async () => {
  const { error, number } = (await request("claim", notDone, refused)) as { error: Error; number: number };
  assert.ok(error instanceof Refused);
  assert.equal(number, 2);
});

test("request_without_an_answer_is_unknown_and_a_read_unavailable", async () => {
  const of = async (policy: RetryPolicy, ...ends: Attempt<string>[]) =>
    ((await requestWithin(60, policy, ...ends)) as { error: Error }).error;
  assert.ok((await of("claim", unknown, notDone)) instanceof Unknown);
  assert.ok((await of("read", unknown)) instanceof Unavailable);
  const error = await of("claim", notDone);
  assert.ok(error instanceof Unavailable);
  assert.equal(error.message, "no node could serve the request: no leader");
});

test("one_shot_request_is_not_repeated_after_a_lost_answer", async () => {
  const { error, number } = (await request("never", unknown, done)) as { error: Error; number: number };
  assert.ok(error instanceof Unknown);
  assert.equal(number, 1);
  assert.deepEqual(await request("never", notDone, notDone, done), { answer: "done", ambiguous: undefined, number: 3 });
});

test("renewal_accepts_an_answer_after_the_attempt_limit", async () => {
  const slow = async ({ number, signal }: AttemptContext): Promise<Attempt<number>> => {
    await sleep(number === 0 ? 60 : 10_000, undefined, { signal }).catch(() => undefined);
    return { kind: "done", value: number };
  };
  const options = { policy: "renewal", budget: { attempt: 20, total: 5_000 }, nodes: 3 } as const;
  assert.deepEqual(await attempts(options, slow), { answer: 0, ambiguous: undefined }, "the first attempt continues");
});

test("renewal_accepts_an_answer_that_arrives_in_a_pause", { timeout: 30_000 }, async () => {
  const paused = deferred();
  const late = async ({ number }: AttemptContext): Promise<Attempt<number>> => {
    if (number > 0) {
      // The pause begins before the next turn of the event loop.
      setImmediate(() => paused.resolve());
      return { kind: "not_done", why: "no leader" };
    }
    await paused.promise;
    return { kind: "done", value: number };
  };
  const options = { policy: "renewal", budget: { attempt: 20, total: 5_000 }, nodes: 1 } as const;
  assert.deepEqual(await attempts(options, late), { answer: 0, ambiguous: undefined });
});

test("renewal_tries_another_node_while_one_hangs", async () => {
  const hangs = async ({ number, signal }: AttemptContext): Promise<Attempt<number>> => {
    if (number === 0) {
      await sleep(10_000, undefined, { signal }).catch(() => undefined);
    }
    return number === 1 ? { kind: "not_done", why: "no leader" } : { kind: "done", value: number };
  };
  const options = { policy: "renewal", budget: { attempt: 20, total: 5_000 }, nodes: 3 } as const;
  assert.equal((await attempts(options, hangs)).answer, 2);
});

test("attempt_starts_only_with_its_full_time", async () => {
  const budget = { attempt: 300, total: 1_000 };
  let begun = 0;
  const run = attempts({ policy: "claim", budget, nodes: 3 }, async ({ elapsed, limit }) => {
    begun += 1;
    assert.ok(elapsed + limit <= budget.total, `${elapsed} + ${limit}`);
    await sleep(250);
    return notDone;
  });
  await assert.rejects(run, Unavailable);
  assert.ok(begun >= 2 && begun <= 3, `${begun}`);
});

test("cancellation_ends_the_attempts_with_its_reason", async () => {
  const cancel = new AbortController();
  const options = { policy: "claim", budget: budgetWithin(10_000), nodes: 1, signal: cancel.signal } as const;
  const run = attempts<string>(options, async ({ signal }) => {
    cancel.abort(new Error("cancelled by the test"));
    assert.equal(signal.aborted, true);
    return unknown;
  });
  await assert.rejects(run, /cancelled by the test/);
});

test("attempt_takes_two_fifths_of_the_time_and_at_most_2_s", () => {
  assert.deepEqual(
    [500, 5_000, 60_000].map((total) => budgetWithin(total).attempt),
    [200, 2_000, 2_000],
  );
});

test("problem_codes_map_to_attempt_results", () => {
  const kind = (code: string, status: number) =>
    classifyResponse(ENDPOINT, status, JSON.stringify(problem(code, 200))).kind;
  for (const code of ["no_leader", "not_ready", "shutting_down", "too_busy", "failed", "not_leader"]) {
    assert.equal(kind(code, 503), "not_done", code);
  }
  for (const code of ["outcome_unknown", "internal"]) {
    assert.equal(kind(code, 504), "unknown", code);
  }
  for (const code of ["held", "lost", "queue_full", "not_found", "invalid"]) {
    assert.equal(kind(code, 409), "refused", code);
  }
  assert.equal(kind("unsupported", 501), "refused");
  assert.equal(kind("from_a_newer_server", 500), "unknown");
  assert.equal(kind("from_a_newer_server", 499), "refused");
});

test("answer_of_a_proxy_leaves_the_outcome_unknown", () => {
  for (const body of ["<html>", "null", "{}", "[]", ""]) {
    assert.equal(classifyResponse(ENDPOINT, 502, body).kind, "unknown", body);
  }
});

test("waiting_claim_probes_every_third_of_its_ttl", () => {
  assert.deepEqual(
    [100, 1_500, 15_000, 60_000, "infinite", undefined].map(probeInterval),
    [500, 500, 5_000, 10_000, 10_000, 10_000],
  );
});
