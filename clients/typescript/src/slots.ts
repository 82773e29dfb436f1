import { Unavailable } from "./errors.js";

/**
 * The most requests at a time that wait neither for a lease nor for events. Each has its own connection, and a process
 * may have few open files. Further requests wait for one of these.
 */
export const MAX_PARALLEL = 64;

/** The turns of the requests of one client, first come, first served. */
export class Slots {
  #free = MAX_PARALLEL;
  readonly #waiting = new Set<() => void>();
  #answeredAt = Number.NEGATIVE_INFINITY;

  /** When a node answered the last request, by `performance.now`. */
  get answeredAt(): number {
    return this.#answeredAt;
  }

  /** Records that a node has answered a request. */
  answered(): void {
    this.#answeredAt = performance.now();
  }

  /**
   * Waits until fewer than {@link MAX_PARALLEL} requests run, as long as the nodes answer requests of this client.
   *
   * @throws {@link Unavailable} if they have answered none for `patience` milliseconds, and the reason of `signal`, if it
   * aborts first.
   */
  async take(patience: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    if (this.#free > 0) {
      this.#free -= 1;
      return;
    }
    const began = performance.now();
    await new Promise<void>((resolve, reject) => {
      let timer: NodeJS.Timeout | undefined;
      const stopWaiting = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", cancel);
        this.#waiting.delete(run);
      };
      const run = () => {
        stopWaiting();
        resolve();
      };
      const cancel = () => {
        stopWaiting();
        reject(signal?.reason);
      };
      const check = () => {
        const left = Math.max(began, this.#answeredAt) + patience - performance.now();
        if (left > 0) {
          timer = setTimeout(check, left);
        } else {
          stopWaiting();
          const silence = `${MAX_PARALLEL} earlier requests had no answer for ${Math.round(patience)} ms`;
          reject(new Unavailable(`not sent: ${silence}`));
        }
      };
      signal?.addEventListener("abort", cancel);
      this.#waiting.add(run);
      check();
    });
  }

  /** Ends a request. The first one that waits begins. */
  release(): void {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#free += 1;
    } else {
      next();
    }
  }
}
