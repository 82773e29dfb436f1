import { sharedController } from "./abort.js";
import type { Client } from "./client.js";
import type { Clock } from "./clock.js";
import { lossReason } from "./errors.js";
import { parseGrant } from "./grant.js";
import type { Hold } from "./hold.js";
import { budgetWithin } from "./retry.js";
import type { RenewResult } from "./types.js";

/**
 * Longest time between two checks while a lease is held, in milliseconds. Timers stop while the machine is suspended
 * and deadlines do not, so the keeper must read the clock often.
 */
const CHECK_INTERVAL_MS = 100;
/** Shortest timeout of a renewal, for very short ttls. */
const MIN_RENEWAL_TIMEOUT_MS = 50;
/** Limits of one request: the number of leases, and the bytes of a body without its last item. */
const MAX_BATCH = 10_000;
const MAX_BATCH_BYTES = 1_900_000;

/** The loop of a manager: it renews all held leases in batches and detects losses. */
export class Keeper {
  readonly #client: Client;
  readonly #clock: Clock;
  readonly #holder: string;
  readonly #holds = new Set<Hold>();
  readonly #stop = sharedController();
  #timer: NodeJS.Timeout | undefined;
  #planned = Number.POSITIVE_INFINITY;
  /** A check is about to run. */
  #isAwake = false;
  /** The renewals that the next batch sends, and the time of the next check. */
  readonly #due: Hold[] = [];
  #next = Number.POSITIVE_INFINITY;

  constructor(client: Client, clock: Clock, holder: string) {
    this.#client = client;
    this.#clock = clock;
    this.#holder = holder;
  }

  /** Keeps a grant until it ends. */
  add(hold: Hold): void {
    this.#holds.add(hold);
    hold.signal.addEventListener("abort", () => this.wake(), { once: true });
    this.wake();
  }

  /** Checks the leases soon. The timer keeps the process alive while a lease is held. */
  wake(): void {
    if (!this.#isAwake) {
      this.#isAwake = true;
      queueMicrotask(() => this.check());
    }
  }

  /** Ends the renewals. The holds have ended. */
  stop(): void {
    this.#stop.abort();
    clearTimeout(this.#timer);
  }

  /** Checks the leases now. */
  check(): void {
    this.#isAwake = false;
    clearTimeout(this.#timer);
    const now = this.#clock.now();
    const late = Math.max(0, now - this.#planned);
    const isDue = this.#actions(now, late);
    if (isDue) {
      for (const hold of this.#holds) {
        if (hold.canRenewEarly(now)) {
          this.#due.push(hold);
          hold.renewing();
        }
      }
      for (const batch of batches(this.#due.splice(0))) {
        void this.#renew(batch);
      }
      this.#actions(now, late);
    }
    if (this.#holds.size === 0) {
      // Without a held lease there is no planned check, so the next one cannot be late.
      this.#planned = Number.POSITIVE_INFINITY;
      return;
    }
    const pause = Math.min(Math.max(0, this.#next - now), CHECK_INTERVAL_MS);
    this.#planned = now + pause;
    this.#timer = setTimeout(() => this.check(), pause);
  }

  /** Does what is due at `now`, and collects the due renewals. Returns whether there are any. */
  #actions(now: number, late: number): boolean {
    this.#next = Number.POSITIVE_INFINITY;
    for (const hold of this.#holds) {
      const action = hold.nextAction(now, late);
      if (action.kind === "nothing") {
        this.#holds.delete(hold);
      } else if (action.kind === "check") {
        this.#next = Math.min(this.#next, action.at);
      } else {
        this.#due.push(hold);
        hold.renewing();
      }
    }
    return this.#due.length > 0;
  }

  async #renew(holds: readonly Hold[]): Promise<void> {
    const leases = holds.map((hold) => ({ name: hold.name, token: hold.token.toString() }));
    const shortest = Math.min(this.#client.operationTimeout, ...holds.map((hold) => hold.ttl / 3));
    const budget = budgetWithin(Math.max(MIN_RENEWAL_TIMEOUT_MS, shortest));
    // The clock is read before the request: the cluster starts the ttl later.
    const sent = this.#clock.now();
    let results: readonly RenewResult[] = [];
    try {
      const renewed = await this.#client.renewBatch({ holder: this.#holder, leases }, budget, this.#stop.signal);
      // An invalid answer is a failure like a lost one.
      if (Array.isArray(renewed.results) && renewed.results.length === holds.length) {
        results = renewed.results;
      }
    } catch {
      // Each hold records the failure below, and its state shows it.
    }
    holds.forEach((hold, index) => {
      apply(hold, results[index], sent);
    });
    this.wake();
  }
}

function apply(hold: Hold, result: RenewResult | undefined, sent: number): void {
  const grant = parseGrant(result?.lease);
  if (grant !== undefined) {
    hold.renewed(grant.lasting, sent);
  } else if (result?.problem?.why) {
    hold.renewalRefused(lossReason(result.problem.why));
  } else {
    hold.renewalFailed();
  }
}

/** Splits the renewals by the limits of one request. */
export function* batches(holds: readonly Hold[]): Generator<Hold[], void, undefined> {
  let batch: Hold[] = [];
  let bytes = 0;
  for (const hold of holds) {
    if (batch.length >= MAX_BATCH || bytes > MAX_BATCH_BYTES) {
      yield batch;
      batch = [];
      bytes = 0;
    }
    batch.push(hold);
    // The keys, quotes and commas of an item have 26 bytes. Names and tokens are ASCII.
    bytes += hold.name.length + hold.token.toString().length + 26;
  }
  if (batch.length > 0) {
    yield batch;
  }
}
