import type { Core, NameRecord } from "./core.js";
import { isByOwnClock, lossReason, Refused, Unavailable, Unknown } from "./errors.js";
import type { Hold } from "./hold.js";
import type { LeaseOperations } from "./lease.js";
import { localProblem } from "./types.js";

/** Most attempts of one update of metadata. Only a late earlier update of this holder makes a second one necessary. */
const METADATA_ATTEMPTS = 5;

/** Releases a grant. If the answer is lost, the standing of the holder shows whether the release was applied. */
export async function sendRelease(
  core: Core,
  record: NameRecord,
  token: string,
  signal?: AbortSignal,
): Promise<boolean> {
  let released: boolean;
  try {
    released = await core.client.release(record.name, core.holder, token, signal);
  } catch (error) {
    const resolved = error instanceof Unknown ? await wasReleased(core, record, token) : undefined;
    if (resolved === undefined) {
      throw error;
    }
    released = resolved;
  }
  if (record.unreleased === token) {
    record.unreleased = undefined;
  }
  return released;
}

/** Whether a grant was released. `undefined` if it is in force, or if the cluster does not answer or has forgotten it. */
async function wasReleased(core: Core, record: NameRecord, token: string): Promise<boolean | undefined> {
  const standing = await core.standing(record.name).catch(() => undefined);
  switch (standing?.status) {
    case "holds":
      return standing.lease.token === token ? undefined : false;
    case "ended":
      return standing.event.token === token && standing.event.event === "released";
    case "waits":
      return false;
    default:
      return undefined;
  }
}

/** The operations on the leases of a manager. The operation lock of a name serializes them. */
export class Operations implements LeaseOperations {
  readonly #core: Core;

  constructor(core: Core) {
    this.#core = core;
  }

  get holder(): string {
    return this.#core.holder;
  }

  async release(hold: Hold, signal: AbortSignal | undefined): Promise<boolean> {
    // A cancellation before the lock, too, must end the lease here.
    return this.#locked(hold, undefined, false, async (record) => {
      try {
        return await this.#release(record, hold, signal);
      } finally {
        // After an error, too, the lease is not held here. The next acquire releases this grant first.
        this.#end(record, hold);
      }
    });
  }

  async #release(record: NameRecord, hold: Hold, signal: AbortSignal | undefined): Promise<boolean> {
    const token = hold.token.toString();
    if (hold.isActive && !hold.isHeld()) {
      // The keeper knows whether its check is late, and so why the lease ended.
      this.#core.keeper.check();
    }
    hold.endIfExpired();
    // The local grant ends first: this process must not count the lease as held after the cluster has released it.
    if (hold.giveUp()) {
      this.#keepUnreleased(record, hold);
      return sendRelease(this.#core, record, token, signal);
    }
    if (hold.state.status === "released") {
      // The release before failed.
      return record.unreleased === token ? sendRelease(this.#core, record, token, signal) : false;
    }
    if (isByOwnClock(hold.lossReason()) && record.hold === hold) {
      // The cluster may still count the lease as held. The work has ended, so other holders need not wait.
      this.#keepUnreleased(record, hold);
      this.#core.inBackground(hold.name, () => sendRelease(this.#core, record, token));
    }
    return false;
  }

  /** Ends the work of `with` or `lead`, then releases the lease. If the work does not end in time, nothing is sent. */
  async drain(hold: Hold): Promise<void> {
    const record = this.#core.record(hold.name);
    const isUnreleased = record.unreleased === hold.token.toString();
    const isLeft = hold.isActive || isUnreleased || isByOwnClock(hold.lossReason());
    if (!isLeft || (await hold.endWork())) {
      await this.release(hold, undefined);
      return;
    }
    if (hold.giveUp()) {
      // The end of the work releases this grant.
      this.#keepUnreleased(record, hold);
    }
    throw new Refused(localProblem("not_drained", "the work did not end in time: the lease expires by its ttl"));
  }

  async dispose(hold: Hold): Promise<void> {
    try {
      await this.release(hold, undefined);
    } catch (error) {
      this.#core.report(error, hold.name);
    }
  }

  async handOver(hold: Hold, to: string | undefined, signal: AbortSignal | undefined): Promise<string | undefined> {
    return this.#locked(hold, undefined, undefined, async (record) => {
      if (!hold.pause()) {
        return undefined;
      }
      const token = hold.token.toString();
      const body = { holder: this.#core.holder, token, ...(to === undefined ? {} : { to }) };
      let next: string;
      try {
        next = await this.#core.client.handOver(hold.name, body, signal);
      } catch (error) {
        if (error instanceof Refused && error.code === "lost") {
          hold.lose(lossReason(error.problem.why ?? "unknown"));
          return undefined;
        }
        if (error instanceof Refused || error instanceof Unavailable) {
          hold.resume();
          this.#core.keeper.wake();
        } else {
          // The outcome is unknown, or the call was cancelled.
          hold.giveUp();
          this.#keepUnreleased(record, hold);
          this.#end(record, hold);
        }
        throw error;
      }
      hold.giveUp();
      this.#end(record, hold);
      return next;
    });
  }

  async check(hold: Hold, signal: AbortSignal | undefined): Promise<boolean> {
    if (!hold.isActive) {
      return false;
    }
    const standing = await this.#core.standing(hold.name, signal);
    const token = hold.token.toString();
    const lose = (why: ReturnType<typeof lossReason>) => {
      // A hand-over in progress has ended the grant, or will learn of its end. Its own answer decides.
      if (!hold.isBeingHandedOver) {
        hold.lose(why);
      }
      return false;
    };
    switch (standing.status) {
      case "holds":
        return standing.lease.token === token ? hold.isHeld() : lose("forgotten");
      case "ended":
        return lose(standing.event.token === token ? endReason(standing.event.event) : "forgotten");
      case "waits":
      case "unknown":
        return lose("forgotten");
      default:
        throw new Unknown("the cluster is newer than this client, and answered with an unknown standing of the holder");
    }
  }

  async updateMetadata(
    hold: Hold,
    metadata: Record<string, string>,
    signal: AbortSignal | undefined,
  ): Promise<boolean> {
    return this.#locked(hold, signal, false, async () => {
      for (let attempt = 1; hold.isHeld(); attempt++) {
        const standing = await this.#core.standing(hold.name, signal);
        const token = hold.token.toString();
        if (standing.status !== "holds" || standing.lease.token !== token) {
          await this.check(hold, signal);
          return false;
        }
        const version = standing.lease.metadata_version;
        try {
          const body = { holder: this.#core.holder, token, version, metadata };
          await this.#core.client.updateMetadata(hold.name, body, signal);
          return hold.isHeld();
        } catch (error) {
          if (error instanceof Refused && error.code === "lost") {
            await this.check(hold, signal);
            return false;
          }
          const isConflict = error instanceof Refused && error.code === "metadata_changed";
          if (!isConflict || attempt === METADATA_ATTEMPTS) {
            throw error;
          }
        }
      }
      return false;
    });
  }

  /** Runs an operation with the lock. During a claim in flight this hold has ended, and the result is `ended`. */
  async #locked<T>(
    hold: Hold,
    signal: AbortSignal | undefined,
    ended: T,
    operation: (record: NameRecord) => Promise<T>,
  ): Promise<T> {
    const record = this.#core.record(hold.name);
    // The longest operation before this one takes a few requests. Each has its own limit.
    if (!(await record.operation.lockBriefly(signal))) {
      return ended;
    }
    try {
      return await operation(record);
    } finally {
      record.operation.unlock();
    }
  }

  #keepUnreleased(record: NameRecord, hold: Hold): void {
    record.unreleased = hold.token.toString();
    record.forgetAt = this.#core.clock.now() + hold.ttl;
  }

  /** Ends a lease for this manager: the next acquire of its name can begin. */
  #end(record: NameRecord, hold: Hold): void {
    if (record.hold === hold) {
      record.hold = undefined;
      record.exclusive.unlock();
    }
  }
}

/** The reason for the event that ended a grant. */
function endReason(event: string): ReturnType<typeof lossReason> {
  return event === "granted" ? "expired" : lossReason(event);
}
