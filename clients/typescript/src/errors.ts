import type { FencingToken } from "./token.js";
import type { Problem } from "./types.js";

/**
 * The base of all errors of requests and leases. Invalid options are a `RangeError`. A cancelled call throws the reason
 * of its signal.
 */
export abstract class TenureError extends Error {
  /** The name of the class. It is stable, also in minified code. */
  abstract override readonly name: "Refused" | "Unknown" | "Unavailable" | "ShutDown" | "LeaseLost";
}

/** Not done: the cluster refused the request and gave the reason. */
export class Refused extends TenureError {
  override readonly name = "Refused";
  /** The problem document of the cluster. */
  readonly problem: Problem;

  constructor(problem: Problem) {
    super(problem.detail);
    this.problem = problem;
  }

  /**
   * The error code, for instance `held` or `wait_timeout`. Codes never change; later servers can add codes.
   */
  get code(): Problem["code"] {
    return this.problem.code;
  }

  /** The current holder, if the code is `held` or `lost`. */
  get holder(): string | undefined {
    return this.problem.holder ?? undefined;
  }

  /** The delay in milliseconds before a retry can succeed, if the cluster knows it. */
  get retryAfterMs(): number | undefined {
    return this.problem.retry_after_ms ?? undefined;
  }
}

/** Done, not done, or done later: an answer was lost. Sending the request again is safe. */
export class Unknown extends TenureError {
  override readonly name = "Unknown";
  /** The refusal of a later attempt. It does not prove that the earlier attempt was not applied. */
  readonly last: Problem | undefined;

  constructor(why: string, last?: Problem) {
    const refusal = last === undefined ? "" : `; a later attempt was refused: ${last.detail}`;
    super(`the outcome is unknown: ${why}${refusal}`);
    this.last = last;
  }
}

/** Not done: the client reached no node, or no node could serve the request in time. */
export class Unavailable extends TenureError {
  override readonly name = "Unavailable";

  constructor(why: string) {
    super(`no node could serve the request: ${why}`);
  }
}

/** Not done: the manager is shut down, or the client is closed. */
export class ShutDown extends TenureError {
  override readonly name = "ShutDown";

  constructor(why = "the lease manager is shut down") {
    super(why);
  }
}

/**
 * Why a lease ended. By the cluster: `expired`, `revoked`, `handed_over`, `released` (by another user of this holder, or
 * by `release`), `forgotten` (no record of the grant), `restored` (from a backup). By the local clock: `unreachable` (no
 * renewal before the deadline), `suspended` (the process did not run at the deadline). `other`: a reason of a newer
 * server.
 */
export type LossReason =
  | "unreachable"
  | "suspended"
  | "expired"
  | "revoked"
  | "handed_over"
  | "released"
  | "forgotten"
  | "restored"
  | "other";

const LOSSES: Record<LossReason, string> = {
  unreachable: "it could not be renewed in time",
  suspended: "this process did not run at its deadline",
  expired: "it expired",
  revoked: "an operator revoked it",
  handed_over: "it was handed over",
  released: "it was released",
  forgotten: "the cluster does not remember it",
  restored: "the cluster was restored from a backup",
  other: "the cluster ended it for a reason that this version does not know",
};

/** The lease is not held any more. It is also the reason of {@link Lease.signal}. */
export class LeaseLost extends TenureError {
  override readonly name = "LeaseLost";
  /** The name of the lease. */
  readonly lease: string;
  /** The token of the grant that ended. */
  readonly token: FencingToken;
  /** Why the lease ended. */
  readonly why: LossReason;

  constructor(lease: string, token: FencingToken, why: LossReason, options?: ErrorOptions) {
    super(`the lease ${JSON.stringify(lease)} is not held any more: ${LOSSES[why]}`, options);
    this.lease = lease;
    this.token = token;
    this.why = why;
  }
}

/** Whether only the local clock ended the lease. The cluster may then still count it as held. */
export function isByOwnClock(why: LossReason): boolean {
  return why === "unreachable" || why === "suspended";
}

/** The reason for a word of the cluster: the `why` of a problem, or the kind of an event. */
export function lossReason(word: string): LossReason {
  switch (word) {
    case "expired":
    case "revoked":
    case "handed_over":
    case "released":
    case "restored":
      return word;
    case "unknown":
      return "forgotten";
    default:
      return "other";
  }
}
