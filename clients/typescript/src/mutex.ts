/** A lock for asynchronous code, first come, first served. */
export class Mutex {
  #isLocked = false;
  /** The owner has the lock in {@link keepDuring}. */
  #isKept = false;
  readonly #waiters = new Set<() => void>();
  /** Each ends a wait of {@link lockBriefly}. */
  readonly #briefWaits = new Set<() => void>();

  get isLocked(): boolean {
    return this.#isLocked;
  }

  tryLock(): boolean {
    if (this.#isLocked) {
      return false;
    }
    this.#isLocked = true;
    return true;
  }

  /**
   * Waits for the lock for at most `limit` milliseconds (`Infinity`: without a limit). Returns `false` if it is not free
   * in time.
   *
   * @throws The reason of `signal`, if it aborts first.
   */
  async lock(limit: number, signal?: AbortSignal): Promise<boolean> {
    return this.#lock(limit, signal, false);
  }

  /**
   * Waits for the lock, without a limit. Returns `false` if its owner keeps it for a long time.
   *
   * @throws The reason of `signal`, if it aborts first.
   */
  async lockBriefly(signal?: AbortSignal): Promise<boolean> {
    return this.#lock(Number.POSITIVE_INFINITY, signal, true);
  }

  /** Keeps the lock, which the caller has, until the work ends. Nothing in {@link lockBriefly} waits for that. */
  async keepDuring<T>(work: Promise<T>): Promise<T> {
    this.#isKept = true;
    for (const giveUp of this.#briefWaits) {
      giveUp();
    }
    try {
      return await work;
    } finally {
      this.#isKept = false;
    }
  }

  async #lock(limit: number, signal: AbortSignal | undefined, isBrief: boolean): Promise<boolean> {
    signal?.throwIfAborted();
    if (this.tryLock()) {
      return true;
    }
    if (isBrief && this.#isKept) {
      return false;
    }
    return new Promise<boolean>((resolve, reject) => {
      const stopWaiting = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", cancel);
        this.#waiters.delete(grant);
        this.#briefWaits.delete(giveUp);
      };
      const grant = () => {
        stopWaiting();
        resolve(true);
      };
      const cancel = () => {
        stopWaiting();
        reject(signal?.reason);
      };
      const giveUp = () => {
        stopWaiting();
        resolve(false);
      };
      const timer = Number.isFinite(limit) ? setTimeout(giveUp, limit) : undefined;
      signal?.addEventListener("abort", cancel);
      this.#waiters.add(grant);
      if (isBrief) {
        this.#briefWaits.add(giveUp);
      }
    });
  }

  /** Passes the lock on to the first waiter, if there is one. */
  unlock(): void {
    const [next] = this.#waiters;
    if (next === undefined) {
      this.#isLocked = false;
    } else {
      next();
    }
  }
}
