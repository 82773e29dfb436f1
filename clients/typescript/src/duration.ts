/**
 * A duration: milliseconds as a number, or text with a unit, for instance `"500ms"`, `"30s"`, `"5m"` or `"24h"`.
 */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h"}`;

const UNITS = new Map([
  ["ms", 1],
  ["s", 1_000],
  ["m", 60_000],
  ["h", 3_600_000],
]);

/** The longest ttl, wait and lock delay. */
export const DAY_MS = 24 * 3_600_000;

/**
 * Whole milliseconds of a duration between `least` and `most`.
 *
 * @throws RangeError if the text is no duration, or the value is outside the bounds.
 */
export function toMs(option: string, duration: Duration, least: number, most: number): number {
  const value = typeof duration === "number" ? duration : parse(duration);
  if (!Number.isFinite(value) || value < least || value > most) {
    throw new RangeError(`invalid ${option} ${JSON.stringify(duration)}: expected ${least} ms to ${most} ms`);
  }
  return Math.round(value);
}

function parse(text: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(text) ?? [];
  return Number(digits) * (UNITS.get(unit ?? "") ?? Number.NaN);
}
