/** A lock for asynchronous code, first come, first served. */
export class Mutex {
  #isLocked = false;
  readonly #waiters = new Set<() => void>();

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
    signal?.throwIfAborted();
    if (this.tryLock()) {
      return true;
    }
    return new Promise<boolean>((resolve, reject) => {
      const stopWaiting = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", cancel);
        this.#waiters.delete(grant);
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
