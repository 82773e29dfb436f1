import type { Clock } from "tenure";

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
