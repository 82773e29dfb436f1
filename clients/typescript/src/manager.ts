import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { acquire, CLOSING, endedByShutdown, releaseAmbiguous, resolveLater } from "./claims.js";
import { Client } from "./client.js";
import { type Clock, systemClock } from "./clock.js";
import { Core, type NameRecord } from "./core.js";
import { ShutDown, Unavailable } from "./errors.js";
import { Keeper } from "./keeper.js";
import { type Lease, LeaseHandle, underLease } from "./lease.js";
import { Operations, sendRelease } from "./operations.js";
import {
  type AcquireOptions,
  type CallOptions,
  type ClientOptions,
  checkDrift,
  checkHolder,
  checkName,
  parseAcquire,
} from "./options.js";

/** Most characters of the host name in a default holder, which has at most 200 bytes. */
const MAX_HOST_CHARS = 60;
const DEFAULT_DRIFT_PERMILLE = 10;

/** Options of a {@link LeaseManager}. */
export interface ManagerOptions extends ClientOptions {
  /**
   * The holder of the manager's leases. Two managers with one holder can release each other's leases. Default: the host
   * name, the process id and a random part. Keep this default.
   */
  holder?: string;
  /**
   * The largest difference between the clock rates of this machine and the cluster, in thousandths. Each deadline is
   * earlier by this part of the ttl. 0 to 500. Default: 10, as in the configuration of the cluster.
   */
  driftPermille?: number;
  /** The clock of the deadlines, for tests. Default: {@link systemClock}. */
  clock?: Clock;
  /**
   * Called with errors that no caller gets: of releases at the end of a scope, and of abandoned acquires. The lease then
   * expires by its ttl. Default: `process.emitWarning` with the name `TenureWarning`. It also shows an error that
   * `onError` throws.
   */
  onError?: (error: unknown, lease: string) => void;
}

/** A lease that the cluster may still count as held or waiting after a shutdown. */
export interface LeftLease {
  readonly name: string;
  readonly error: unknown;
}

/**
 * A holder of leases. One loop renews all leases of a manager, with one request for up to 10,000. Create one per program.
 *
 * Creating a manager sends no request. Call {@link shutdown} at the end, or use `await using`. While a manager holds a
 * lease, it keeps the process alive.
 */
export class LeaseManager implements AsyncDisposable {
  /** Reads, watches and administration, through the same connections. */
  readonly client: Client;
  /** The holder under whose name this manager acquires leases. */
  readonly holder: string;
  readonly #core: Core;
  readonly #operations: Operations;
  readonly #acquires = new Set<Promise<unknown>>();

  /** @throws RangeError if an option is invalid, and the error of the file system for a file of the environment. */
  constructor(options: ManagerOptions = {}) {
    this.holder = checkHolder(options.holder ?? defaultHolder());
    this.client = new Client(options);
    const clock = options.clock ?? systemClock();
    this.#core = new Core({
      client: this.client,
      clock,
      holder: this.holder,
      driftPermille: checkDrift(options.driftPermille ?? DEFAULT_DRIFT_PERMILLE),
      keeper: new Keeper(this.client, clock, this.holder),
      onError: options.onError,
    });
    this.#operations = new Operations(this.#core);
  }

  /**
   * Acquires a lease. The manager renews it until it is released or lost.
   *
   * A lease object excludes others: while this manager has one with the same name, a second acquire waits like in the
   * queue, and is then refused as `held`.
   *
   * @throws {@link Refused}: not acquired, for instance `held` (by `error.holder`) or `wait_timeout`.
   * @throws {@link Unknown}: the cluster may have granted it, but it is not held here. Acquire again, or
   * {@link LeaseManager.release} it; otherwise it expires.
   * @throws {@link Unavailable}, {@link ShutDown}: not acquired.
   * @throws RangeError for an invalid name or option; the reason of the signal after a cancellation.
   */
  acquire(name: string, options: AcquireOptions = {}): Promise<Lease> {
    return this.acquireHandle(name, options);
  }

  /** @internal */
  async acquireHandle(name: string, options: AcquireOptions): Promise<LeaseHandle> {
    const record = this.#core.record(checkName(name));
    const parsed = parseAcquire(options);
    parsed.signal?.throwIfAborted();
    if (this.isShutDown) {
      throw new ShutDown();
    }
    const acquiring = acquire(this.#core, record, parsed);
    this.#acquires.add(acquiring);
    try {
      return new LeaseHandle(this.#operations, await acquiring);
    } finally {
      this.#acquires.delete(acquiring);
    }
  }

  /**
   * Acquires a lease, runs `work`, and releases the lease. Returns the result of `work`.
   *
   * No client can stop JavaScript code. At a loss, `lease.signal` aborts, and `with` waits until `work` ends: pass the
   * signal on, and check `lease.isHeld()` in long steps. `options.signal` cancels the acquire only.
   *
   * {@link shutdown}, too, aborts `lease.signal`. It releases the lease after the end of `work`, and waits at most
   * `options.drain` for that. After a longer `work`, `with` returns its result, although the lease may have expired. Do
   * not await a shutdown in `work`: it would wait for its own caller.
   *
   * @throws {@link LeaseLost} if the lease was lost before `work` ended. Its `cause` is the error of `work`, if it threw
   * another one.
   * @throws The errors of {@link acquire}, then `work` did not start; and the error of `work`.
   */
  with<T>(name: string, work: (lease: Lease) => T | PromiseLike<T>): Promise<T>;
  with<T>(name: string, options: AcquireOptions, work: (lease: Lease) => T | PromiseLike<T>): Promise<T>;
  async with<T>(
    name: string,
    ...rest: [(lease: Lease) => T | PromiseLike<T>] | [AcquireOptions, (lease: Lease) => T | PromiseLike<T>]
  ): Promise<T> {
    const [options, work] = rest.length === 1 ? [{}, rest[0]] : rest;
    const lease = await this.acquireHandle(name, options);
    return underLease(lease, () => work(lease));
  }

  /**
   * Releases a lease by its name: one that this manager holds, or one that an acquire or a release with the outcome
   * {@link Unknown} may have left at the cluster. Returns whether it was held. While an acquire of this manager waits
   * for the lease, the result is `false`, and that acquire goes on.
   *
   * The errors are those of {@link Lease.release}.
   */
  async release(name: string, options: CallOptions = {}): Promise<boolean> {
    const record = this.#core.record(checkName(name));
    if (record.hold !== undefined) {
      return this.#operations.release(record.hold, options.signal);
    }
    return this.#releaseOpen(record, options.signal);
  }

  /**
   * Leaves all queues, releases all leases and ends the renewals. Returns the leases that the cluster may still count as
   * held or waiting, with the errors. They expire by their ttl; a second call tries again.
   *
   * First it ends the work of {@link with} and {@link Election.lead}: it aborts the signal of the lease, renews the lease
   * until the work has ended, and then releases it. If the work does not end within `drain`, the lease is not released.
   * The result has its name with {@link Refused} as `not_drained`. Do not await this call in such work.
   *
   * A waiting acquire throws {@link ShutDown} after the cluster has confirmed that it left the queue, else
   * {@link Unknown}. Each later acquire throws `ShutDown`, and so do the watches and later reads of {@link client}.
   */
  async shutdown(): Promise<LeftLease[]> {
    const core = this.#core;
    core.closing.abort(CLOSING);
    // The queues come first: the next holder of a released lease could be an abandoned claim of this manager.
    await Promise.allSettled(this.#acquires);
    await core.backgroundEnded();
    const resolving = core.records.map((record) => leftAfter(record, () => this.#resolveClaim(record)));
    const unresolved = (await Promise.all(resolving)).filter((left) => left !== undefined);
    core.claimsResolved.abort();
    const releasing = core.records.map((record) => leftAfter(record, () => this.#releaseGrant(record)));
    const unreleased = (await Promise.all(releasing)).filter((left) => left !== undefined);
    core.keeper.stop();
    this.client.close();
    return [...unresolved, ...unreleased];
  }

  /** Shuts the manager down. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.shutdown();
  }

  /** Whether `shutdown` was called. @internal */
  get isShutDown(): boolean {
    return this.#core.closing.signal.aborted;
  }

  /**
   * The error of a campaign that ended with `error`. The cluster may have granted an earlier claim whose outcome is
   * unknown: a shutdown resolves it, else the background. @internal
   */
  async endCampaign(name: string, error: unknown): Promise<unknown> {
    const record = this.#core.record(name);
    if (this.isShutDown && (error instanceof ShutDown || error instanceof Unavailable)) {
      return endedByShutdown(this.#core, record, error);
    }
    resolveLater(this.#core, record);
    return error;
  }

  /** Releases what the cluster may count as held by this manager, although no lease object has it. */
  async #releaseOpen(record: NameRecord, signal: AbortSignal | undefined): Promise<boolean> {
    if (!(await record.operation.lockBriefly(signal))) {
      return false;
    }
    try {
      if (record.unreleased !== undefined) {
        return await sendRelease(this.#core, record, record.unreleased, signal);
      }
      return record.isAmbiguous && (await releaseAmbiguous(this.#core, record));
    } finally {
      record.operation.unlock();
    }
  }

  async #resolveClaim(record: NameRecord): Promise<void> {
    if (record.isAmbiguous) {
      await this.#releaseOpen(record, undefined);
    }
  }

  async #releaseGrant(record: NameRecord): Promise<void> {
    if (record.hold !== undefined) {
      await this.#operations.drain(record.hold);
      // The release of a lost lease runs there.
      await this.#core.backgroundEnded();
    }
    if (record.unreleased !== undefined) {
      await this.#releaseOpen(record, undefined);
    }
  }
}

/** The name and the error of a lease that a shutdown could not release. `undefined` after a success. */
async function leftAfter(record: NameRecord, run: () => Promise<void>): Promise<LeftLease | undefined> {
  try {
    await run();
    return undefined;
  } catch (error) {
    return { name: record.name, error };
  }
}

/** The host name, the process id and a random part, so that two managers are never one holder by accident. */
function defaultHolder(): string {
  const host = hostname()
    .replace(/[^\x20-\x7e]/g, "")
    .slice(0, MAX_HOST_CHARS);
  return `${host}:${process.pid}:${randomBytes(4).toString("hex")}`;
}
