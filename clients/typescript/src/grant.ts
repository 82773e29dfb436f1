import { FencingToken } from "./token.js";

/** The part of a grant that a holder needs. */
export interface Grant {
  readonly token: FencingToken;
  /**
   * The time in milliseconds that the grant certainly lasts, from the moment when the request was sent. `Infinity`: an
   * infinite ttl.
   */
  readonly lasting: number;
}

/**
 * Reads a grant from the lease of an answer. `undefined`: the answer is invalid. An invalid ttl must not count as an
 * infinite one, because the holder would then never stop.
 */
export function parseGrant(lease: unknown): Grant | undefined {
  const { token, ttl_ms: ttl, expires_in_ms: left } = (lease ?? {}) as Record<string, unknown>;
  const lasting = ttl === "infinite" ? Number.POSITIVE_INFINITY : shorter(ttl, left ?? ttl);
  if (lasting === undefined || typeof token !== "string") {
    return undefined;
  }
  try {
    return { token: FencingToken.from(token), lasting };
  } catch {
    return undefined;
  }
}

/** The rest can be less than the ttl: a claim or a renewal with a shorter ttl does not restart a longer one. */
function shorter(ttl: unknown, left: unknown): number | undefined {
  return isTime(ttl) && isTime(left) ? Math.min(ttl, left) : undefined;
}

function isTime(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value) && value >= 0;
}
