import { setTimeout as sleep } from "node:timers/promises";
import { Refused, type TenureError, Unavailable, Unknown } from "./errors.js";
import type { Problem } from "./types.js";

/** Bounds of the pause after a round over all nodes, in milliseconds. It doubles with each round; jitter halves it at most. */
const FIRST_PAUSE_MS = 25;
const LAST_PAUSE_MS = 400;
/** Longest single attempt, without its wait for a lease, in milliseconds. */
const LONGEST_ATTEMPT_MS = 2_000;

/**
 * Whether a request is sent again after a lost answer, and whether a later answer resolves the outcome.
 *
 * - `read`: retried. Its outcome is never unknown, because it changes nothing.
 * - `renewal`: retried. A later answer resolves it, because a lost lease stays lost. A slow attempt continues in parallel
 *   with the next one: a slow answer must not cost a lease that the cluster has renewed.
 * - `claim`: retried, because it is idempotent. A later grant resolves it. A later refusal does not, because the first
 *   attempt may still be applied.
 * - `release`: retried, because its token names one grant. `released: false` after a lost answer does not resolve it.
 * - `never`: not retried after a lost answer, because a second one could hit the next holder.
 */
export type RetryPolicy = "read" | "renewal" | "claim" | "release" | "never";

/** The time limits of one request, in milliseconds. */
export interface RetryBudget {
  /** Of one attempt, so that one silent node cannot use up the total. */
  readonly attempt: number;
  /** Of all attempts, without the wait for a lease. No attempt starts with less than its full time. */
  readonly total: number;
}

/** A budget with this total. One attempt has two fifths of it, at most 2 s. */
export function budgetWithin(total: number): RetryBudget {
  return { attempt: Math.min((total * 2) / 5, LONGEST_ATTEMPT_MS), total };
}

/** The result of one attempt. */
export type Attempt<T> =
  | { kind: "done"; value: T }
  | { kind: "refused"; problem: Problem }
  | { kind: "not_done"; why: string }
  | { kind: "unknown"; why: string };

/** The number and the time limit of an attempt. */
export interface AttemptContext {
  /** From 0. */
  readonly number: number;
  /** Milliseconds since the start of the first attempt. */
  readonly elapsed: number;
  /** The longest time of this attempt, in milliseconds. */
  readonly limit: number;
  /** Aborts when the request is resolved or cancelled. */
  readonly signal: AbortSignal;
}

/** The answer to a request, and why an earlier attempt may have been applied, too. */
export interface Resolved<T> {
  readonly answer: T;
  readonly ambiguous: string | undefined;
}

export interface AttemptOptions {
  readonly policy: RetryPolicy;
  readonly budget: RetryBudget;
  /** The longest wait for a lease, in milliseconds. It extends the limit of each attempt and the total. */
  readonly wait?: number | undefined;
  /** The number of nodes. The attempts go to them in turn. */
  readonly nodes: number;
  readonly signal?: AbortSignal | undefined;
}

/**
 * Runs attempts until one of them resolves the request or the budget is used up.
 *
 * @throws The reason of the signal if it aborts. The outcome of a change is then unknown.
 */
export async function attempts<T>(
  options: AttemptOptions,
  attempt: (context: AttemptContext) => Promise<Attempt<T>>,
): Promise<Resolved<T>> {
  const { policy, budget, nodes, signal } = options;
  signal?.throwIfAborted();
  const end = new AbortController();
  const cancel = () => end.abort(signal?.reason);
  signal?.addEventListener("abort", cancel);
  try {
    return await run(policy, budget, options.wait ?? 0, nodes, end.signal, attempt);
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener("abort", cancel);
    end.abort();
  }
}

async function run<T>(
  policy: RetryPolicy,
  budget: RetryBudget,
  wait: number,
  nodes: number,
  signal: AbortSignal,
  attempt: (context: AttemptContext) => Promise<Attempt<T>>,
): Promise<Resolved<T>> {
  const began = performance.now();
  const total = budget.total + wait;
  const usesRemainingTime = policy === "never" || policy === "renewal";
  const wholeAttempt = (elapsed: number) => budget.attempt + Math.max(0, wait - elapsed);
  const results = new AttemptResults<T>(policy);
  const inFlight = new Map<number, Promise<Ended<T>>>();
  const take = ({ number, result }: Ended<T>) => {
    // Only this removes an attempt: it can end during a pause, when nothing waits for it.
    inFlight.delete(number);
    return results.add(number % nodes, result);
  };
  let pause = FIRST_PAUSE_MS;
  for (let number = 0; ; number++) {
    const elapsed = performance.now() - began;
    const limit = usesRemainingTime ? Math.max(0, total - elapsed) : wholeAttempt(elapsed);
    const started = attempt({ number, elapsed, limit, signal }).then((result) => ({ number, result }));
    inFlight.set(number, started);
    const ended = policy === "renewal" ? await first(inFlight.values(), budget.attempt) : await started;
    signal.throwIfAborted();
    const resolved = ended && take(ended);
    if (resolved !== undefined) {
      return resolved;
    }
    if (ended !== undefined && (number + 1) % nodes === 0) {
      await sleep(pause * (0.5 + Math.random() / 2), undefined, { signal });
      pause = Math.min(pause * 2, LAST_PAUSE_MS);
    }
    const now = performance.now() - began;
    if (now + (policy === "never" ? 0 : wholeAttempt(now)) >= total) {
      break;
    }
  }
  while (inFlight.size > 0) {
    const ended = await Promise.race(inFlight.values());
    signal.throwIfAborted();
    const resolved = take(ended);
    if (resolved !== undefined) {
      return resolved;
    }
  }
  throw results.error();
}

interface Ended<T> {
  /** Of the attempt. */
  readonly number: number;
  readonly result: Attempt<T>;
}

/** The first attempt that ends, or `undefined` if none ends within `limit` milliseconds. */
async function first<T>(inFlight: Iterable<Promise<Ended<T>>>, limit: number): Promise<Ended<T> | undefined> {
  const timeout = new AbortController();
  try {
    return await Promise.race([...inFlight, sleep(limit, undefined, { signal: timeout.signal })]);
  } finally {
    timeout.abort();
  }
}

/** The combined result of the finished attempts. */
class AttemptResults<T> {
  readonly #policy: RetryPolicy;
  /** Why an attempt may have been applied, if there is such an attempt. */
  #ambiguous: string | undefined;
  /** For each node, why its last attempt that was not applied failed. */
  readonly #notDone = new Map<number, string>();

  constructor(policy: RetryPolicy) {
    this.#policy = policy;
  }

  /** Adds the result of an attempt at this node. Returns the answer, or throws the error, if the request is resolved. */
  add(node: number, result: Attempt<T>): Resolved<T> | undefined {
    switch (result.kind) {
      case "done":
        return { answer: result.value, ambiguous: this.#ambiguous };
      case "refused":
        throw this.#refusal(result.problem);
      case "not_done":
        this.#notDone.set(node, result.why);
        return undefined;
      case "unknown":
        if (this.#policy === "read") {
          this.#notDone.set(node, result.why);
        } else if (this.#policy === "never") {
          throw new Unknown(result.why);
        } else {
          this.#ambiguous = result.why;
        }
        return undefined;
    }
  }

  /** The error of a request that no attempt resolved. */
  error(): TenureError {
    if (this.#ambiguous !== undefined) {
      return new Unknown(this.#ambiguous);
    }
    return new Unavailable([...new Set(this.#notDone.values())].join("; "));
  }

  #refusal(problem: Problem): TenureError {
    const isOpen = this.#policy === "claim" || this.#policy === "release";
    return isOpen && this.#ambiguous !== undefined ? new Unknown(this.#ambiguous, problem) : new Refused(problem);
  }
}

/** Classifies a problem: whether the attempt was refused, not applied, or has an unknown outcome. */
export function classifyProblem(problem: Problem, endpoint: string): Attempt<never> {
  const why = `${endpoint}: ${problem.detail}`;
  switch (problem.code) {
    case "no_leader":
    case "not_ready":
    case "shutting_down":
    case "too_busy":
    case "failed":
    case "not_leader":
      return { kind: "not_done", why };
    case "outcome_unknown":
    case "internal":
      return { kind: "unknown", why };
    case "unsupported":
      return { kind: "refused", problem };
    default:
      // Only a newer server sends another code with such a status.
      return problem.status >= 500 ? { kind: "unknown", why } : { kind: "refused", problem };
  }
}
