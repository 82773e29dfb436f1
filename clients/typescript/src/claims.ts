import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import type { Core, NameRecord } from "./core.js";
import { DAY_MS } from "./duration.js";
import { Refused, ShutDown, Unavailable, Unknown } from "./errors.js";
import { type Grant, parseGrant } from "./grant.js";
import { Hold } from "./hold.js";
import { sendRelease } from "./operations.js";
import type { ClaimOptions, ParsedAcquire } from "./options.js";
import { budgetWithin } from "./retry.js";
import { type LeaseInfo, localProblem } from "./types.js";

/** Pause between two checks of an abandoned claim that may still wait in the queue, in milliseconds. */
const RESOLVE_INTERVAL_MS = 5;
/** After this time, another request withdraws an abandoned claim that still waits. */
const WITHDRAW_AFTER_MS = 250;

/** Acquires a lease. The record stays locked for other acquires of this manager until the lease is released. */
export async function acquire(core: Core, record: NameRecord, options: ParsedAcquire): Promise<Hold> {
  const begun = core.clock.now();
  const left = () => Math.max(0, options.wait - (core.clock.now() - begun));
  const stop = linked(core.closing.signal, options.signal);
  try {
    if (!record.exclusive.tryLock() && !(await record.exclusive.lock(options.wait, stop.signal))) {
      const detail = "another lease object of this manager has the lease: release it, also after a loss";
      throw new Refused(localProblem("held", detail));
    }
    try {
      if (!(await record.operation.lock(left() + core.client.operationTimeout, stop.signal))) {
        throw new Refused(localProblem("wait_timeout", "another operation on this lease is in progress"));
      }
      // `claim` releases this lock, or passes it on to the background.
      const hold = await claim(core, record, { ...options, wait: left() }, stop.signal);
      record.hold = hold;
      return hold;
    } catch (error) {
      record.exclusive.unlock();
      throw error;
    }
  } catch (error) {
    // A wait for a lock throws the reason of the signal that ended it.
    throw error === CLOSING ? new ShutDown() : error;
  } finally {
    stop.unlink();
  }
}

/** The reason with which a shutdown aborts. */
export const CLOSING = new ShutDown();

async function claim(core: Core, record: NameRecord, options: ParsedAcquire, stop: AbortSignal): Promise<Hold> {
  let isPassedOn = false;
  try {
    stop.throwIfAborted();
    if (record.unreleased !== undefined) {
      // The cluster would answer with the token of the old grant. Work under that grant may still run, so the new work
      // must get a new token.
      await sendRelease(core, record, record.unreleased, stop);
      // A claim that is sent after an abort would wait until its answer arrives.
      stop.throwIfAborted();
    }
    // The clock is read before the request: the cluster starts the ttl later.
    const sent = core.clock.now();
    const claimed = new SentClaim(core, record, options);
    const granted = await record.operation.keepDuring(claimed.granted(core, record, sent, stop));
    if (granted === undefined || stop.aborted) {
      isPassedOn = !core.closing.signal.aborted;
      await abandon(core, record, claimed);
      throw stop.reason;
    }
    const hold = new Hold({
      name: record.name,
      token: granted.token,
      ttl: granted.lasting,
      sent: granted.sent,
      grace: options.grace,
      drain: options.drain,
      driftPermille: core.driftPermille,
      clock: core.clock,
    });
    if (!hold.isHeld()) {
      // The work must not begin. The next acquire or release of this name resolves the grant.
      throw new Unknown("the lease was granted, and its deadline passed before the answer arrived");
    }
    record.claimResolved();
    core.keeper.add(hold);
    return hold;
  } finally {
    if (!isPassedOn) {
      record.operation.unlock();
    }
  }
}

/** The time in milliseconds after which a grant has expired. */
function expiryOf(claim: ClaimOptions): number {
  return typeof claim.ttl_ms === "number"
    ? claim.ttl_ms
    : claim.ttl_ms === "infinite"
      ? Number.POSITIVE_INFINITY
      : DAY_MS;
}

/** A claim in flight. */
class SentClaim {
  readonly waits: boolean;
  /**
   * The cluster may have granted an earlier claim. A refusal of this claim does not prove the opposite: a waiter that
   * claims without a wait keeps its position in the queue.
   */
  readonly wasAmbiguous: boolean;
  /** The longest time from the send to the end of a grant, in milliseconds. */
  readonly longest: number;
  readonly #abort = new AbortController();
  readonly #answer: Promise<LeaseInfo>;
  isAnswered = false;

  constructor(core: Core, record: NameRecord, { claim, wait }: ParsedAcquire) {
    this.waits = wait > 0;
    const now = core.clock.now();
    this.longest = expiryOf(claim) + wait + core.client.operationTimeout;
    this.wasAmbiguous = record.isAmbiguous;
    // Until the answer arrives, the cluster may have granted the claim.
    record.isAmbiguous = true;
    record.claim = claim;
    record.forgetAt = Math.max(this.wasAmbiguous ? record.forgetAt : now, now + this.longest);
    const body = { holder: core.holder, ...claim };
    this.#answer = core.client.acquire(record.name, body, wait, this.#abort.signal).finally(() => {
      this.isAnswered = true;
    });
    // Each reader of the answer handles its error. Without a reader there is none.
    this.#answer.catch(() => undefined);
  }

  /** The confirmed grant, or `undefined` if `stop` aborts first. */
  async granted(core: Core, record: NameRecord, sent: number, stop: AbortSignal): Promise<SentGrant | undefined> {
    try {
      const lease = await this.#answerOrStop(stop);
      if (lease === undefined) {
        return undefined;
      }
      const grant = parseGrant(lease);
      if (grant === undefined) {
        throw new Unknown("the answer to the claim is invalid");
      }
      return await confirm(core, record, grant, sent, stop);
    } catch (error) {
      if (stop.aborted) {
        return undefined;
      }
      if ((error instanceof Refused || error instanceof Unavailable) && !this.wasAmbiguous) {
        record.claimResolved();
      }
      throw error;
    }
  }

  async #answerOrStop(stop: AbortSignal): Promise<LeaseInfo | undefined> {
    let cancel = () => {};
    const stopped = new Promise<undefined>((resolve) => {
      cancel = () => resolve(undefined);
      stop.addEventListener("abort", cancel);
    });
    try {
      return await Promise.race([this.#answer, stopped]);
    } finally {
      stop.removeEventListener("abort", cancel);
    }
  }

  /** The answer, or `undefined` if it does not arrive within `limit` milliseconds. Throws the error of the request. */
  async answerWithin(limit: number): Promise<LeaseInfo | undefined> {
    const timeout = new AbortController();
    try {
      return await Promise.race([this.#answer, sleep(limit, undefined, { signal: timeout.signal })]);
    } finally {
      timeout.abort();
    }
  }

  /** Closes the connection, which withdraws a waiting claim. */
  abort(): void {
    this.#abort.abort();
  }
}

interface SentGrant extends Grant {
  /** When the request was sent from which the deadline counts. */
  readonly sent: number;
}

/**
 * Ends a claim that its caller has abandoned: releases its grant, or withdraws it from the queue. After a shutdown the
 * caller waits for that. After a cancellation it runs in the background, with the operation lock.
 */
async function abandon(core: Core, record: NameRecord, sent: SentClaim): Promise<void> {
  if (!core.closing.signal.aborted) {
    core.inBackground(record.name, async () => {
      try {
        await withdraw(core, record, sent);
      } finally {
        record.operation.unlock();
      }
    });
    return;
  }
  try {
    await withdraw(core, record, sent);
  } catch (error) {
    throw new Unknown(`${NOT_WITHDRAWN}: ${error}`);
  }
}

const NOT_WITHDRAWN = "the manager was shut down, and the cluster did not confirm that the claim was withdrawn";

/** The error of a campaign that a shutdown ended with `error`, after the shutdown has resolved earlier claims. */
export async function endedByShutdown(core: Core, record: NameRecord, error: unknown): Promise<unknown> {
  const { signal } = core.claimsResolved;
  if (!signal.aborted) {
    await once(signal, "abort");
  }
  return record.isAmbiguous ? new Unknown(NOT_WITHDRAWN) : error;
}

async function withdraw(core: Core, record: NameRecord, sent: SentClaim): Promise<void> {
  let isKnown = false;
  let ownError: unknown;
  try {
    isKnown = sent.waits && (await untilKnown(core, record, sent));
    if (!sent.waits || sent.isAnswered) {
      // A claim that does not wait gets its answer soon, and the cluster could still grant it after an abort.
      isKnown = (await sent.answerWithin(core.client.operationTimeout)) !== undefined;
    }
  } catch (error) {
    isKnown = true;
    ownError = error;
    // The refusal of this claim does not prove that an earlier one was not granted.
    if ((error instanceof Refused || error instanceof Unavailable) && !sent.wasAmbiguous) {
      record.claimResolved();
      return;
    }
  } finally {
    sent.abort();
  }
  if (!isKnown) {
    record.isUntraced = true;
    // The claim may have waited for its turn, and been sent late.
    record.forgetAt = Math.max(record.forgetAt, core.clock.now() + sent.longest);
    throw new Unknown("the cluster did not show the claim before its connection was closed");
  }
  const released = await releaseAmbiguous(core, record);
  if (ownError instanceof Unknown && !released && core.closing.signal.aborted) {
    // The cluster may apply the claim after the read, and the caller must know that.
    throw ownError;
  }
}

/**
 * Waits until the cluster knows the claim, or has answered it. Returns `false` if it does not in time. An abort before
 * that proves nothing: the cluster may apply the claim later.
 */
async function untilKnown(core: Core, record: NameRecord, sent: SentClaim): Promise<boolean> {
  const giveUpAt = performance.now() + core.client.operationTimeout;
  while (!sent.isAnswered && performance.now() < giveUpAt) {
    const standing = await core.standing(record.name).catch(() => undefined);
    if (standing?.status === "holds" || standing?.status === "waits") {
      return true;
    }
    await sleep(RESOLVE_INTERVAL_MS);
  }
  return sent.isAnswered;
}

/** Releases the grant of an earlier claim whose outcome is unknown. A shutdown resolves such claims itself. */
export function resolveLater(core: Core, record: NameRecord): void {
  const isUnresolved = () => record.hold === undefined && record.isAmbiguous;
  if (!isUnresolved() || core.closing.signal.aborted) {
    return;
  }
  core.inBackground(record.name, async () => {
    await record.operation.lock(Number.POSITIVE_INFINITY);
    try {
      if (isUnresolved()) {
        await releaseAmbiguous(core, record);
      }
    } finally {
      record.operation.unlock();
    }
  });
}

/** Resolves a claim without an answer: releases its grant, or withdraws it if it still waits. Whether it had a grant. */
export async function releaseAmbiguous(core: Core, record: NameRecord): Promise<boolean> {
  const withdrawAt = performance.now() + WITHDRAW_AFTER_MS;
  for (;;) {
    const standing = await core.standing(record.name);
    if (standing.status === "holds" || standing.status === "waits") {
      record.isUntraced = false;
    }
    switch (standing.status) {
      case "holds": {
        const released = await sendRelease(core, record, standing.lease.token);
        record.claimResolved();
        return released;
      }
      case "waits":
        // The cluster may grant the claim before its node withdraws it.
        if (performance.now() >= withdrawAt) {
          const released = await leaveQueue(core, record);
          record.claimResolved();
          return released;
        }
        await sleep(RESOLVE_INTERVAL_MS);
        break;
      case "ended":
      case "unknown":
        if (record.isUntraced && core.clock.now() < record.forgetAt) {
          throw new Unknown("the cluster may still apply an abandoned claim, which no read has shown");
        }
        record.claimResolved();
        return false;
      default:
        throw new Unknown("the cluster is newer than this client, and answered with an unknown standing of the holder");
    }
  }
}

/**
 * Leaves the queue: sends another claim with the shortest wait. The cluster commits the end of that wait. After another
 * refusal, the holder may still wait.
 */
async function leaveQueue(core: Core, record: NameRecord): Promise<boolean> {
  try {
    const body = { holder: core.holder, ...record.claim };
    const lease = await core.client.acquire(record.name, body, 1, new AbortController().signal);
    return await sendRelease(core, record, lease.token);
  } catch (error) {
    if (!(error instanceof Refused)) {
      throw error;
    }
    if (["wait_timeout", "wait_abandoned"].includes(error.code)) {
      return false;
    }
    if (["ended", "unknown"].includes((await core.standing(record.name)).status)) {
      return false;
    }
    throw error;
  }
}

/**
 * Renews a grant after a long wait. The time of the grant is then known only within the wait, so the deadline counts
 * from the renewal.
 */
async function confirm(
  core: Core,
  record: NameRecord,
  grant: Grant,
  sent: number,
  stop: AbortSignal,
): Promise<SentGrant> {
  const again = core.clock.now();
  if (again - sent <= grant.lasting / 3) {
    return { ...grant, sent };
  }
  const leases = [{ name: record.name, token: grant.token.toString() }];
  let result: { lease?: LeaseInfo | null; problem?: Refused["problem"] | null } | undefined;
  try {
    const budget = budgetWithin(core.client.operationTimeout);
    result = (await core.client.renewBatch({ holder: core.holder, leases }, budget, stop)).results[0];
  } catch (error) {
    // After any error here the grant may still be in force.
    throw new Unknown(`the lease was granted, and its renewal failed: ${error}`);
  }
  const renewed = parseGrant(result?.lease);
  if (renewed !== undefined) {
    return { token: grant.token, lasting: renewed.lasting, sent: again };
  }
  if (result?.problem) {
    throw new Refused(result.problem);
  }
  throw new Unknown("the lease was granted, and the answer to its renewal is invalid");
}

/** A signal that aborts with the first of two, and the function that unlinks it. */
function linked(one: AbortSignal, other: AbortSignal | undefined): { signal: AbortSignal; unlink: () => void } {
  const both = new AbortController();
  const sources = other === undefined ? [one] : [one, other];
  const listeners = sources.map((source) => ({ source, abort: () => both.abort(source.reason) }));
  for (const { source, abort } of listeners) {
    source.addEventListener("abort", abort);
    if (source.aborted) {
      abort();
    }
  }
  const unlink = () => {
    for (const { source, abort } of listeners) {
      source.removeEventListener("abort", abort);
    }
  };
  return { signal: both.signal, unlink };
}
