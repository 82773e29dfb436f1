import { LeaseLost } from "./errors.js";
import type { Hold, LeaseState } from "./hold.js";
import { endable } from "./iterate.js";
import { type CallOptions, checkHolder, checkMetadata } from "./options.js";
import type { FencingToken } from "./token.js";

/**
 * One grant of a lease, for one part of the program: while it is not released, its manager gives no other `Lease` with
 * this name. The manager renews it in the background.
 *
 * The lease can be lost. {@link isHeld} and {@link remaining} read the clock, so they are exact: use them for decisions.
 * Signals and states can be late, because timers can be. No client stops a paused process from acting
 * late: send the token with every write, and let the resource check it.
 *
 * Release it at the end, with `await using`, with `finally`, or in {@link LeaseManager.with}. A lost lease, too: its end
 * allows the next acquire in this manager.
 */
export interface Lease extends AsyncDisposable {
  readonly name: string;
  /** The holder under whose name the manager acquired it. */
  readonly holder: string;
  /**
   * The fencing token of this grant. Send it with every write. It stays the same after the end of the lease: the
   * resource rejects it when it has seen a higher one.
   */
  readonly token: FencingToken;
  /** Whether the lease is held now. Reads the clock (about 20 µs) and sends no request. */
  isHeld(): boolean;
  /**
   * The time in milliseconds to the deadline without another renewal: 0 if the lease is not held, `Infinity` for an
   * infinite ttl.
   */
  remaining(): number;
  /**
   * Aborts with a {@link LeaseLost} when the lease ends: lost, released or handed over. Pass it on to the work. A
   * shutdown aborts it in {@link LeaseManager.with} while the lease is still held, and waits for the end of the work.
   */
  readonly signal: AbortSignal;
  /** Aborts when the renewals end: `grace` before the deadline, or together with {@link signal}. */
  readonly stopping: AbortSignal;
  /** The state by local knowledge. */
  readonly state: LeaseState;
  /**
   * Calls `listener` synchronously at each new state. Returns the function that unsubscribes it. The listener must not
   * block; an error that it throws becomes an uncaught exception.
   */
  onState(listener: (state: LeaseState) => void): () => void;
  /** The present state, then the newest one after each change. It ends after `lost` or `released`. */
  states(options?: CallOptions): AsyncIterableIterator<LeaseState>;
  /**
   * Releases the lease, so that the next holder gets it at once. Returns `false` if it was lost before. `isHeld` is
   * `false` before the request is sent.
   *
   * After {@link Unknown}, {@link Unavailable} or a cancellation, the lease is not held here, and the cluster may still
   * count it as held: call it again, acquire the name again, or let it expire.
   */
  release(options?: CallOptions): Promise<boolean>;
  /**
   * Hands the lease over to the waiter `to`, or to the first one. The lease is never free in between. Returns the new
   * holder, or `undefined` if the lease was lost before.
   *
   * After {@link Refused}, for instance as `no_such_waiter`, and {@link Unavailable} it is held as before. After
   * {@link Unknown} or a cancellation it is not held here.
   */
  handOver(options?: CallOptions & { to?: string }): Promise<string | undefined>;
  /**
   * Asks the cluster whether the grant is in force, and records a loss. Returns `false` if the lease is not held.
   * Throws {@link Unavailable} if no node answers; the state does not change then.
   */
  check(options?: CallOptions): Promise<boolean>;
  /**
   * Replaces the metadata of the grant. Returns `false` if the lease is not held. After an error it stays held, and the
   * update can be sent again.
   */
  updateMetadata(metadata: Readonly<Record<string, string>>, options?: CallOptions): Promise<boolean>;
  /** Releases the lease. An error goes to `onError` of the manager, because the lease expires by its ttl. */
  [Symbol.asyncDispose](): Promise<void>;
}

/** The operations of a manager on one of its leases. */
export interface LeaseOperations {
  readonly holder: string;
  release(hold: Hold, signal: AbortSignal | undefined): Promise<boolean>;
  handOver(hold: Hold, to: string | undefined, signal: AbortSignal | undefined): Promise<string | undefined>;
  check(hold: Hold, signal: AbortSignal | undefined): Promise<boolean>;
  updateMetadata(hold: Hold, metadata: Record<string, string>, signal: AbortSignal | undefined): Promise<boolean>;
  dispose(hold: Hold): Promise<void>;
}

export class LeaseHandle implements Lease {
  readonly #operations: LeaseOperations;
  readonly #hold: Hold;

  constructor(operations: LeaseOperations, hold: Hold) {
    this.#operations = operations;
    this.#hold = hold;
  }

  get name(): string {
    return this.#hold.name;
  }

  get holder(): string {
    return this.#operations.holder;
  }

  get token(): FencingToken {
    return this.#hold.token;
  }

  isHeld(): boolean {
    return this.#hold.isHeld();
  }

  remaining(): number {
    return this.#hold.remaining();
  }

  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  get stopping(): AbortSignal {
    return this.#hold.stopping;
  }

  get state(): LeaseState {
    return this.#hold.state;
  }

  onState(listener: (state: LeaseState) => void): () => void {
    return this.#hold.onState(listener);
  }

  states(options: CallOptions = {}): AsyncGenerator<LeaseState, void, undefined> {
    return endable((end) => this.#states(options, end));
  }

  async *#states(options: CallOptions, end: AbortSignal): AsyncGenerator<LeaseState, void, undefined> {
    const { signal } = options;
    let wake = () => {};
    const changed = () => wake();
    const unsubscribe = this.onState(changed);
    signal?.addEventListener("abort", changed);
    end.addEventListener("abort", changed);
    try {
      for (let shown: LeaseState | undefined; ; ) {
        signal?.throwIfAborted();
        const state = this.#hold.state;
        if (state !== shown) {
          shown = state;
          yield state;
        } else if (!this.#hold.isActive) {
          return;
        } else if (end.aborted) {
          return;
        } else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    } finally {
      unsubscribe();
      signal?.removeEventListener("abort", changed);
    }
  }

  release(options: CallOptions = {}): Promise<boolean> {
    return this.#operations.release(this.#hold, options.signal);
  }

  async handOver(options: CallOptions & { to?: string } = {}): Promise<string | undefined> {
    const to = options.to === undefined ? undefined : checkHolder(options.to);
    return this.#operations.handOver(this.#hold, to, options.signal);
  }

  check(options: CallOptions = {}): Promise<boolean> {
    return this.#operations.check(this.#hold, options.signal);
  }

  async updateMetadata(metadata: Readonly<Record<string, string>>, options: CallOptions = {}): Promise<boolean> {
    return this.#operations.updateMetadata(this.#hold, checkMetadata(metadata), options.signal);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.#operations.dispose(this.#hold);
  }

  /** Whether a hand-over by this process is in progress. */
  get isBeingHandedOver(): boolean {
    return this.#hold.isBeingHandedOver;
  }

  /** Runs work under this lease. A shutdown waits for its end. */
  run<T>(work: () => T | PromiseLike<T>): Promise<T> {
    return this.#hold.run(work);
  }
}

/**
 * Why a lease is not held any more. `undefined` if it is held, or if this process released it or hands it over.
 */
export function lossOf(lease: LeaseHandle, cause?: unknown): LeaseLost | undefined {
  const { state } = lease;
  if (lease.isHeld() || lease.isBeingHandedOver || state.status === "released") {
    return undefined;
  }
  if (cause instanceof LeaseLost && cause.lease === lease.name) {
    return cause;
  }
  const options = cause === undefined ? {} : { cause };
  return new LeaseLost(lease.name, state.token, state.status === "lost" ? state.why : "unreachable", options);
}

/** Runs work under a lease and releases the lease. At a loss it throws the {@link LeaseLost} after the work has ended. */
export async function underLease<T>(lease: LeaseHandle, work: () => T | PromiseLike<T>): Promise<T> {
  let loss: LeaseLost | undefined;
  try {
    const done = await lease.run(work);
    loss = lossOf(lease);
    if (loss === undefined) {
      return done;
    }
  } catch (error) {
    throw lossOf(lease, error) ?? error;
  } finally {
    await lease[Symbol.asyncDispose]();
  }
  throw loss;
}
