import { setTimeout as sleep } from "node:timers/promises";
import { sharedController } from "./abort.js";
import type { Clock } from "./clock.js";
import { LeaseLost, type LossReason } from "./errors.js";
import type { FencingToken } from "./token.js";

/** Time between two renewals of an infinite lease, in milliseconds. They detect a revoke. */
const INFINITE_CHECK_MS = 10_000;
/** Bounds of the delay after a failed renewal, which is a twentieth of the ttl. */
const SHORTEST_RETRY_MS = 20;
const LONGEST_RETRY_MS = 1_000;
/** A keeper whose check is this late was suspended or starved. */
const SUSPEND_THRESHOLD_MS = 250;

/**
 * The state of a lease at its holder, by local knowledge. `left` is the time to the deadline in milliseconds when the
 * state began (`Infinity` for an infinite ttl); {@link Lease.remaining} has the time that is left now.
 */
export type LeaseState =
  /** Acquired or renewed. */
  | { readonly status: "held"; readonly token: FencingToken; readonly left: number }
  /** Held, but renewals fail. `failures` counts them since the last success. */
  | { readonly status: "at_risk"; readonly token: FencingToken; readonly left: number; readonly failures: number }
  /** Held, but no longer renewed: the grace has begun. Finish within `left`. */
  | { readonly status: "ending"; readonly token: FencingToken; readonly left: number; readonly why: LossReason }
  /** Lost. Drop unwritten work. */
  | { readonly status: "lost"; readonly token: FencingToken; readonly why: LossReason }
  /** Released or handed over by this process. */
  | { readonly status: "released"; readonly token: FencingToken };

/** The next action of the keeper for one lease. Times are times of the manager's clock. */
export type KeeperAction = { kind: "nothing" } | { kind: "check"; at: number } | { kind: "renew" };

export interface HoldOptions {
  readonly name: string;
  readonly token: FencingToken;
  /** The time that the grant certainly lasts, from `sent` on. `Infinity`: an infinite ttl. */
  readonly ttl: number;
  /** When the claim was sent. */
  readonly sent: number;
  /** How long before the deadline the renewals end. */
  readonly grace: number;
  /** How long a shutdown waits for the end of the work. */
  readonly drain: number;
  readonly driftPermille: number;
  readonly clock: Clock;
}

/**
 * One grant of a lease: its deadline, its renewal times and its state. No method sends a request.
 *
 * The deadline is the send time of the last successful request, plus the ttl, less the drift and the resolution of the
 * clock. The cluster starts the ttl later, so the holder stops first.
 */
export class Hold {
  readonly name: string;
  readonly token: FencingToken;
  readonly #clock: Clock;
  readonly #driftPermille: number;
  readonly #grace: number;
  readonly #drain: number;
  readonly #ended = sharedController();
  readonly #stopping = sharedController();
  readonly #listeners = new Set<(state: LeaseState) => void>();
  #ttl: number;
  #deadline: number;
  #nextRenewal: number;
  #isRenewing = false;
  #failures = 0;
  #ending: LossReason | undefined;
  /** A hand-over is in progress: another holder may have the lease already. */
  #isPaused = false;
  #isActive = true;
  /** Settles at the end of the work that {@link run} started. */
  #work: Promise<void> | undefined;
  #state: LeaseState;

  constructor(options: HoldOptions) {
    this.name = options.name;
    this.token = options.token;
    this.#clock = options.clock;
    this.#driftPermille = options.driftPermille;
    this.#grace = Math.min(options.grace, options.ttl / 2);
    this.#drain = options.drain;
    this.#ttl = options.ttl;
    this.#deadline = this.#deadlineOf(options.sent, options.ttl);
    this.#nextRenewal = nextRenewal(options.sent, options.ttl);
    this.#state = { status: "held", token: this.token, left: this.#left(options.clock.now()) };
  }

  get state(): LeaseState {
    return this.#state;
  }

  /** Aborts when the grant ends, for any reason. Before that, {@link endWork} aborts it. */
  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /** Aborts when the renewals end: at the begin of the grace, or together with `signal`. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** The ttl of the last successful request, in milliseconds. */
  get ttl(): number {
    return this.#ttl;
  }

  /** Whether the grant has not ended here. Its deadline may have passed: {@link isHeld} reads the clock. */
  get isActive(): boolean {
    return this.#isActive;
  }

  /** Whether a hand-over of this grant is in progress. */
  get isBeingHandedOver(): boolean {
    return this.isActive && this.#isPaused;
  }

  isHeld(now = this.#clock.now()): boolean {
    return this.isActive && !this.#isPaused && now < this.#deadline;
  }

  /** Time to the deadline in milliseconds: 0 if the lease is not held. */
  remaining(): number {
    const now = this.#clock.now();
    return this.isHeld(now) ? this.#left(now) : 0;
  }

  /** Why the grant ended. Valid after its end. */
  lossReason(): LossReason {
    return this.#state.status === "lost" ? this.#state.why : "released";
  }

  onState(listener: (state: LeaseState) => void): () => void {
    // A wrapper, so that one function can be subscribed twice.
    const subscribed = (state: LeaseState) => listener(state);
    this.#listeners.add(subscribed);
    return () => this.#listeners.delete(subscribed);
  }

  /**
   * Runs work under this grant. {@link endWork} waits for its end.
   *
   * @throws LeaseLost if a shutdown has released the lease before the work begins.
   */
  run<T>(work: () => T | PromiseLike<T>): Promise<T> {
    if (this.#state.status === "released") {
      return Promise.reject(new LeaseLost(this.name, this.token, "released"));
    }
    const running = (async () => work())();
    const ended = () => undefined;
    this.#work = running.then(ended, ended);
    return running;
  }

  /** Asks the work to end, and waits for that. The grant stays in force. Returns `false` if it does not end in time. */
  async endWork(): Promise<boolean> {
    if (this.#work === undefined) {
      return true;
    }
    this.#abort(new LeaseLost(this.name, this.token, "released"));
    const timeout = new AbortController();
    try {
      const isLate = sleep(this.#drain, false, { signal: timeout.signal });
      return await Promise.race([this.#work.then(() => true), isLate]);
    } finally {
      timeout.abort();
    }
  }

  /** Applies a successful renewal that was sent at `sent`. */
  renewed(ttl: number, sent: number): void {
    this.#isRenewing = false;
    const now = this.#clock.now();
    if (!this.isHeld(now) || this.#ending !== undefined) {
      // Too late: a caller of `isHeld` or a listener may have seen the end of the grant already.
      return;
    }
    this.#ttl = ttl;
    this.#failures = 0;
    // A renewal never moves the deadline backwards.
    this.#deadline = Math.max(this.#deadline, this.#deadlineOf(sent, ttl));
    this.#nextRenewal = nextRenewal(sent, ttl);
    this.#setState({ status: "held", token: this.token, left: this.#left(now) });
  }

  /** Records a renewal that had no conclusive answer. */
  renewalFailed(): void {
    this.#isRenewing = false;
    const now = this.#clock.now();
    this.#failures += 1;
    this.#nextRenewal = now + Math.min(Math.max(this.#ttl / 20, SHORTEST_RETRY_MS), LONGEST_RETRY_MS);
    if (this.isHeld(now) && this.#ending === undefined) {
      const failures = this.#failures;
      this.#setState({ status: "at_risk", token: this.token, left: this.#left(now), failures });
    }
  }

  /** Applies the refusal of a renewal. */
  renewalRefused(why: LossReason): void {
    if (why === "handed_over" && this.isBeingHandedOver) {
      // The hand-over in progress has succeeded, if it is that one. Its own answer decides.
      this.renewalFailed();
    } else {
      this.lose(why);
    }
  }

  /** Ends the grant as lost. */
  lose(why: LossReason): void {
    this.#end({ status: "lost", token: this.token, why }, why);
  }

  /** Ends the grant here. The caller sends the release to the cluster after that. Returns `false` if it has ended. */
  giveUp(): boolean {
    return this.#end({ status: "released", token: this.token }, "released");
  }

  /**
   * Ends the grant if its deadline has passed and the keeper has not seen that yet. Otherwise, a claim could get a new
   * grant while the work of this one has no signal.
   */
  endIfExpired(): void {
    if (this.isActive && !this.isHeld()) {
      this.lose(this.#ending ?? "unreachable");
    }
  }

  /** Marks the lease as not held during a hand-over. Returns `false` if it is not held. */
  pause(): boolean {
    const isHeld = this.isHeld();
    this.#isPaused ||= isHeld;
    return isHeld;
  }

  /** Restores the grant after a refused hand-over. */
  resume(): void {
    this.#isPaused = false;
  }

  /** Marks a renewal as sent. */
  renewing(): void {
    this.#isRenewing = true;
  }

  /** Whether a batch that is sent now can include this lease, although its renewal is not due yet. */
  canRenewEarly(now: number): boolean {
    const soon = (Number.isFinite(this.#ttl) ? this.#ttl / 3 : INFINITE_CHECK_MS) / 2;
    const isFree = this.isHeld(now) && !this.#isRenewing && this.#ending === undefined;
    return isFree && now + soon >= this.#nextRenewal;
  }

  /** The next action at `now`. `late` is the delay of this check behind its planned time. */
  nextAction(now: number, late: number): KeeperAction {
    if (!this.isActive) {
      return { kind: "nothing" };
    }
    if (this.#deadline <= now) {
      this.lose(late >= SUSPEND_THRESHOLD_MS ? "suspended" : (this.#ending ?? "unreachable"));
      return { kind: "nothing" };
    }
    const stop = this.#deadline - this.#grace;
    if (now >= stop) {
      this.#startGrace(now);
      return { kind: "check", at: this.#deadline };
    }
    if (this.#isRenewing || this.#isPaused) {
      return { kind: "check", at: stop };
    }
    return now < this.#nextRenewal ? { kind: "check", at: Math.min(this.#nextRenewal, stop) } : { kind: "renew" };
  }

  #startGrace(now: number): void {
    if (this.#ending === undefined) {
      this.#ending = "unreachable";
      // The state changes before the signal: code that the signal starts reads `ending`.
      this.#setState({ status: "ending", token: this.token, left: this.#left(now), why: this.#ending });
      this.#stopping.abort(
        new Error(`the lease ${JSON.stringify(this.name)} ends at its deadline: its renewals failed`),
      );
    }
  }

  #end(state: LeaseState, why: LossReason): boolean {
    if (!this.isActive) {
      return false;
    }
    // A listener of the state must not read `isHeld` as true.
    this.#isActive = false;
    this.#deadline = Number.NEGATIVE_INFINITY;
    this.#setState(state);
    this.#abort(new LeaseLost(this.name, this.token, why));
    this.#listeners.clear();
    return true;
  }

  #abort(reason: LeaseLost): void {
    this.#stopping.abort(reason);
    this.#ended.abort(reason);
  }

  #setState(state: LeaseState): void {
    this.#state = state;
    for (const listener of this.#listeners) {
      try {
        listener(state);
      } catch (error) {
        // As in an `EventTarget`: a listener that throws does not harm the renewals, and its error is not lost.
        process.nextTick(() => {
          throw error;
        });
      }
    }
  }

  #left(now: number): number {
    return this.#deadline - now;
  }

  #deadlineOf(sent: number, ttl: number): number {
    return sent + ttl - (Number.isFinite(ttl) ? (ttl * this.#driftPermille) / 1_000 + this.#clock.resolution : 0);
  }
}

/** A third of the ttl after `sent`, with 10 % jitter, so that holders do not renew at the same moment. */
function nextRenewal(sent: number, ttl: number): number {
  const third = Number.isFinite(ttl) ? ttl / 3 : INFINITE_CHECK_MS;
  return sent + third * (0.9 + Math.random() * 0.2);
}
