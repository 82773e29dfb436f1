import { accessSync, constants } from "node:fs";
import { uptime } from "node:os";

/** The clock of the deadlines. Tests can inject their own. */
export interface Clock {
  /** Milliseconds since a fixed point. The value never decreases, and it counts the time in suspend. */
  now(): number;
  /** How far a reading can be behind the true time, in milliseconds. Each deadline is earlier by this time. */
  readonly resolution: number;
}

/**
 * The clock of this platform.
 *
 * - Linux: `CLOCK_BOOTTIME`, which counts suspend, through `/proc/uptime`. The resolution is 10 ms.
 * - macOS and Windows: `process.hrtime`. libuv reads `mach_continuous_time` and the performance counter, which count
 *   suspend.
 * - Other systems: `process.hrtime`, which need not count suspend.
 */
export function systemClock(): Clock {
  return process.platform === "linux" ? new BootClock(awake, () => uptime() * 1_000, uptimeResolution()) : AWAKE_CLOCK;
}

const AWAKE_CLOCK: Clock = { now: awake, resolution: 0 };

/** libuv reads `/proc/uptime`, which has hundredths of a second. Without that file it reports whole seconds. */
function uptimeResolution(): number {
  try {
    accessSync("/proc/uptime", constants.R_OK);
    return 10;
  } catch {
    return 1_000;
  }
}

function awake(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

/**
 * A precise clock that counts suspend, from a coarse one that does and a precise one that does not.
 *
 * The coarse clock is rounded down, so its lead over the precise clock is a lower bound of the time in suspend. The
 * greatest lead so far plus the precise clock is never ahead of the true time, and behind it by less than the
 * resolution of the coarse clock.
 */
export class BootClock implements Clock {
  readonly resolution: number;
  readonly #awake: () => number;
  readonly #coarse: () => number;
  #lead = Number.NEGATIVE_INFINITY;

  constructor(awake: () => number, coarse: () => number, resolution: number) {
    this.#awake = awake;
    this.#coarse = coarse;
    this.resolution = resolution;
  }

  now(): number {
    const coarse = this.#coarse();
    // The precise clock is read last: a delay between the two readings makes the lead smaller, which is safe.
    const precise = this.#awake();
    this.#lead = Math.max(this.#lead, coarse - precise);
    return precise + this.#lead;
  }
}
