import { setTimeout as sleep } from "node:timers/promises";
import type { Duration } from "./duration.js";
import { DAY_MS, toMs } from "./duration.js";
import { LeaseLost, Refused, ShutDown, Unavailable, Unknown } from "./errors.js";
import { endable } from "./iterate.js";
import { type LeaseHandle, lossOf, underLease } from "./lease.js";
import type { LeaseManager } from "./manager.js";
import { type AcquireOptions, type CallOptions, checkMetadata, checkName } from "./options.js";
import { FencingToken } from "./token.js";
import type { LeaseInfo } from "./types.js";

/** Longest wait of one claim in the queue. A longer campaign claims again, at the end of the queue. */
const QUEUE_WAIT = "60s";
/** Pause before another claim or read, after the cluster was unavailable or had no room, in milliseconds. */
const RETRY_DELAY_MS = 500;
/** Keys of the metadata that Tenure uses itself. */
const OWN_KEYS = "tenure.";
/** The metadata key of an established leader. Its value is the token, so that it marks only this leadership. */
const ESTABLISHED_KEY = "tenure.established";
const LARGEST_TOKEN = "9223372036854775807";

/** Options of an {@link Election}. */
export interface ElectionOptions extends Pick<AcquireOptions, "ttl" | "grace" | "lockDelay" | "drain"> {
  /** Data that observers see when this candidate leads, for example its address. Keys do not start with `tenure.`. */
  metadata?: Readonly<Record<string, string>>;
  /** The longest time between two reads of an observer, 10 ms to 24 h. Default: 1 s. */
  refresh?: Duration;
}

/** A leader as other processes see it. */
export interface Leader {
  readonly holder: string;
  /** Higher than the token of each earlier leader. */
  readonly token: FencingToken;
  /** Whether the leader has fenced its resources: until then, an earlier leader may still be able to write. */
  readonly isEstablished: boolean;
  readonly metadata: Readonly<Record<string, string>>;
}

/**
 * One term of a leader. It can be lost: check {@link isLeader}, and pass {@link signal} on to the work. Send the token
 * with every write. {@link resign} at the end, also after a loss.
 */
export interface Leadership extends AsyncDisposable {
  /** The fencing token of this term, also after its end. */
  readonly token: FencingToken;
  /** Whether this process is the leader, by local knowledge. */
  isLeader(): boolean;
  /** Aborts with a {@link LeaseLost} when the leadership ends, for any reason. See {@link Lease.signal}. */
  readonly signal: AbortSignal;
  /** Aborts when the renewals end: `grace` before the deadline, or together with {@link signal}. */
  readonly stopping: AbortSignal;
  /**
   * Fences all earlier leaders, then publishes this leader as established. Before `fence` returns, it must write the
   * token to **every** resource that a leader changes. Returns its result. Calling it again is harmless.
   *
   * @throws {@link LeaseLost}: this process is not the leader any more.
   * @throws The error of `fence`, or of the request that publishes it: this process is still the leader, and can try
   * again.
   */
  establish<T>(fence: (token: FencingToken) => T | PromiseLike<T>, options?: CallOptions): Promise<T>;
  /** Resigns, like {@link Lease.release}. Returns `false` if the leadership was lost before. */
  resign(options?: CallOptions): Promise<boolean>;
  /** Hands the leadership over to a waiting candidate, like {@link Lease.handOver}. */
  handOver(options?: CallOptions & { to?: string }): Promise<string | undefined>;
}

/**
 * A candidate or an observer of an election. The holder of the lease `name` is the leader. Creating it sends no request.
 *
 * A paused process can believe that it is still the leader after its replacement: {@link Leadership.establish} protects
 * the resources from its writes.
 */
export class Election {
  /** The name of the lease. */
  readonly name: string;
  readonly #manager: LeaseManager;
  readonly #options: ElectionOptions;
  readonly #refresh: number;

  /** @throws RangeError if the name or an option is invalid. */
  constructor(manager: LeaseManager, name: string, options: ElectionOptions = {}) {
    this.name = checkName(name);
    this.#manager = manager;
    this.#options = options;
    this.#refresh = toMs("refresh", options.refresh ?? "1s", 10, DAY_MS);
    const own = Object.keys(options.metadata ?? {}).find((key) => key.startsWith(OWN_KEYS));
    if (own !== undefined) {
      throw new RangeError(`invalid metadata key ${JSON.stringify(own)}: keys with ${OWN_KEYS} are reserved`);
    }
    checkMetadata(options.metadata ?? {});
    // An established leader has one more entry.
    checkMetadata({ ...options.metadata, [ESTABLISHED_KEY]: LARGEST_TOKEN });
  }

  /**
   * Waits until this candidate is elected, through changes of the leader and outages of the cluster. One claim waits at
   * most 60 s; then the candidate joins the queue again at its end. A cancellation leaves the queue.
   *
   * @throws Only errors that a longer wait cannot resolve: {@link Refused}, {@link ShutDown}, {@link Unknown} after a
   * shutdown, and the reason of the signal.
   */
  campaign(options: CallOptions = {}): Promise<Leadership> {
    return this.#campaign(options);
  }

  async #campaign(options: CallOptions): Promise<HeldLeadership> {
    try {
      return await this.#claimUntilElected(options);
    } catch (error) {
      throw await this.#manager.endCampaign(this.name, error);
    }
  }

  async #claimUntilElected(options: CallOptions): Promise<HeldLeadership> {
    const { refresh: _, ...lease } = this.#options;
    for (;;) {
      try {
        const held = await this.#manager.acquireHandle(this.name, { ...lease, wait: QUEUE_WAIT, ...options });
        return new HeldLeadership(held, this.#options);
      } catch (error) {
        if (this.#manager.isShutDown || !isRetryable(error)) {
          throw error;
        }
        if (!(error instanceof Refused && error.code === "wait_timeout")) {
          await sleep(RETRY_DELAY_MS, undefined, options).catch(() => options.signal?.throwIfAborted());
        }
      }
    }
  }

  /**
   * Campaigns, runs `work` as the leader, and resigns. Returns the result of `work`. At a loss, `leadership.signal`
   * aborts; `lead` waits until `work` ends, and throws {@link LeaseLost}. A shutdown ends `work` as in
   * {@link LeaseManager.with}.
   */
  async lead<T>(work: (leadership: Leadership) => T | PromiseLike<T>, options: CallOptions = {}): Promise<T> {
    const leadership = await this.#campaign(options);
    return underLease(leadership.lease, () => work(leadership));
  }

  /** Reads the leader from the committed state; `undefined`: there is none. Throws {@link Unavailable}, {@link Unknown}. */
  async current(options: CallOptions = {}): Promise<Leader | undefined> {
    const { held } = await this.#manager.client.explain(this.name, options);
    const active = held.find((lease) => lease.state === "active");
    return active && toLeader(active);
  }

  /**
   * The leader, then each change, for instance `for await (const leader of election.observe())`. `undefined`: there is
   * no leader. Each value is a current read, and tokens never fall. An observer can miss a leader between two reads.
   * While no node gives a valid answer, the iteration waits. After a shutdown it throws {@link ShutDown}.
   */
  observe(options: CallOptions = {}): AsyncGenerator<Leader | undefined, void, undefined> {
    return endable((end) => this.#observe(options, end));
  }

  async *#observe(options: CallOptions, end: AbortSignal): AsyncGenerator<Leader | undefined, void, undefined> {
    const stop = new AbortController();
    const cancel = () => stop.abort(options.signal?.reason);
    options.signal?.addEventListener("abort", cancel);
    end.addEventListener("abort", cancel);
    let wake = () => {};
    const watching = this.#watch(() => wake(), stop.signal);
    let shown: string | undefined;
    let highest: FencingToken | undefined;
    try {
      for (;;) {
        options.signal?.throwIfAborted();
        const changed = new Promise<void>((resolve) => {
          wake = resolve;
        });
        let pause = this.#refresh;
        try {
          const leader = await this.current({ signal: stop.signal });
          const isOlder = leader !== undefined && highest !== undefined && leader.token < highest;
          const text = JSON.stringify(leader ?? null);
          if (!isOlder && text !== shown) {
            shown = text;
            highest = leader?.token ?? highest;
            yield leader;
          }
        } catch (error) {
          options.signal?.throwIfAborted();
          if (end.aborted) {
            return;
          }
          if (!(error instanceof Unavailable || error instanceof Unknown)) {
            throw error;
          }
          pause = Math.min(RETRY_DELAY_MS, pause);
        }
        const timeout = new AbortController();
        await Promise.race([changed, sleep(pause, undefined, { signal: timeout.signal, ref: true })]);
        timeout.abort();
      }
    } finally {
      options.signal?.removeEventListener("abort", cancel);
      stop.abort();
      await watching;
    }
  }

  /** Calls `changed` at each transition of the lease, and at the cancellation. Reads cover what the stream misses. */
  async #watch(changed: () => void, signal: AbortSignal): Promise<void> {
    signal.addEventListener("abort", changed);
    while (!signal.aborted) {
      try {
        for await (const event of this.#manager.client.watch({ prefix: this.name, signal })) {
          if (event.name === this.name) {
            changed();
          }
        }
      } catch (error) {
        if (error instanceof ShutDown) {
          // The next read ends the observer.
          changed();
          return;
        }
        await sleep(RETRY_DELAY_MS, undefined, { signal }).catch(() => undefined);
      }
    }
  }
}

class HeldLeadership implements Leadership {
  readonly lease: LeaseHandle;
  readonly #options: ElectionOptions;

  constructor(lease: LeaseHandle, options: ElectionOptions) {
    this.lease = lease;
    this.#options = options;
  }

  get token(): FencingToken {
    return this.lease.token;
  }

  isLeader(): boolean {
    return this.lease.isHeld();
  }

  get signal(): AbortSignal {
    return this.lease.signal;
  }

  get stopping(): AbortSignal {
    return this.lease.stopping;
  }

  async establish<T>(fence: (token: FencingToken) => T | PromiseLike<T>, options: CallOptions = {}): Promise<T> {
    const { token } = this;
    const loss = lossOf(this.lease);
    // During a hand-over that the cluster may refuse, the update waits for its end.
    if (loss !== undefined || this.lease.state.status === "released") {
      throw loss ?? new LeaseLost(this.lease.name, token, "released");
    }
    const fenced = await fence(token);
    const metadata = { ...this.#options.metadata, [ESTABLISHED_KEY]: token.toString() };
    if (!(await this.lease.updateMetadata(metadata, options))) {
      throw lossOf(this.lease) ?? new LeaseLost(this.lease.name, token, "released");
    }
    return fenced;
  }

  resign(options: CallOptions = {}): Promise<boolean> {
    return this.lease.release(options);
  }

  handOver(options: CallOptions & { to?: string } = {}): Promise<string | undefined> {
    return this.lease.handOver(options);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.lease[Symbol.asyncDispose]();
  }
}

/** Whether another claim may succeed after this error. */
function isRetryable(error: unknown): boolean {
  if (!(error instanceof Refused)) {
    return error instanceof Unknown || error instanceof Unavailable;
  }
  const codes = [
    "held",
    "lock_delay",
    "wait_timeout",
    "wait_abandoned",
    "queue_full",
    "lease_full",
    "too_many_leases",
    "lost",
  ];
  return codes.includes(error.code);
}

function toLeader(lease: LeaseInfo): Leader {
  let token: FencingToken;
  try {
    token = FencingToken.from(lease.token);
  } catch {
    throw new Unknown("the answer has an invalid token of the leader");
  }
  const entries = Object.entries(lease.metadata ?? {}).filter(([key]) => !key.startsWith(OWN_KEYS));
  return {
    holder: lease.holder,
    token,
    isEstablished: lease.metadata?.[ESTABLISHED_KEY] === lease.token,
    metadata: Object.fromEntries(entries),
  };
}
