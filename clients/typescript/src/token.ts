const LARGEST = 2n ** 63n - 1n;

/**
 * A fencing token. Each new grant of a name has a higher token than all earlier grants of that name. Send it with every
 * write, so that the resource can reject the writes of earlier holders.
 *
 * A token is an integer of 63 bits, too large for a JavaScript number. In JSON and as text it is a decimal string. The
 * operators `<` and `>` compare two tokens correctly; use {@link equals} instead of `===`.
 */
export class FencingToken {
  readonly #value: bigint;

  private constructor(value: bigint) {
    this.#value = value;
  }

  /**
   * Reads a token from its decimal text, also with leading zeros, or from an integer.
   *
   * @throws RangeError if the value is not an integer from 0 to 2^63 - 1.
   */
  static from(value: string | bigint | FencingToken): FencingToken {
    if (value instanceof FencingToken) {
      return value;
    }
    const isInteger = typeof value === "bigint" || /^0*\d{1,19}$/.test(value);
    const integer = isInteger ? BigInt(value) : -1n;
    if (integer < 0n || integer > LARGEST) {
      throw new RangeError(`invalid fencing token ${JSON.stringify(String(value))}: expected 0 to ${LARGEST}`);
    }
    return new FencingToken(integer);
  }

  /** Whether both are the same token. */
  equals(other: FencingToken): boolean {
    return this.#value === other.#value;
  }

  /** The integer, for instance for a column of the type `BIGINT`. */
  toBigInt(): bigint {
    return this.#value;
  }

  /** The decimal text. */
  toString(): string {
    return this.#value.toString();
  }

  /** 20 digits with leading zeros, for stores that compare text. */
  toPadded(): string {
    return this.toString().padStart(20, "0");
  }

  /** The decimal string, so that `JSON.stringify` loses no digit. */
  toJSON(): string {
    return this.toString();
  }

  /** The parameter that the package `pg` sends: decimal text. */
  toPostgres(): string {
    return this.toString();
  }

  /** The integer, so that `<` and `>` compare tokens. */
  valueOf(): bigint {
    return this.#value;
  }

  /** The text that `console.log` shows. */
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return `FencingToken(${this.#value})`;
  }
}
