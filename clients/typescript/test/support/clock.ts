import { setTimeout as sleep } from "node:timers/promises";
import type { Clock } from "tenure";

/** A client that stands still for 250 ms at its deadline says that it was suspended. */
const SHORTEST_SUSPEND_MS = 200;

/** Waits for the loss of a lease whose cluster does not answer. Returns the possible reasons. */
export async function reasonsAtTheDeadline(signal: AbortSignal): Promise<string[]> {
  let longestStall = 0;
  for (let before = performance.now(); !signal.aborted; ) {
    await sleep(10);
    const now = performance.now();
    longestStall = Math.max(longestStall, now - before);
    before = now;
  }
  return longestStall < SHORTEST_SUSPEND_MS ? ["unreachable"] : ["unreachable", "suspended"];
}

/** A clock that only the test moves. */
export class ManualClock implements Clock {
  readonly resolution: number;
  #now = 1_000_000;

  constructor(resolution = 0) {
    this.resolution = resolution;
  }

  now(): number {
    return this.#now;
  }

  advance(ms: number): void {
    this.#now += ms;
  }
}
