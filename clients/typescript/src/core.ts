import { sharedController } from "./abort.js";
import type { Client } from "./client.js";
import type { Clock } from "./clock.js";
import { Unknown } from "./errors.js";
import type { Hold } from "./hold.js";
import type { Keeper } from "./keeper.js";
import { Mutex } from "./mutex.js";
import type { ClaimOptions } from "./options.js";
import type { Standing } from "./types.js";

/** Number of records at which those without a use are removed. After a sweep, the next one follows at twice the rest. */
const MIN_SWEEP_SIZE = 64;
/** Above this number of open records, a sweep removes the oldest ones whose time is over. */
const MAX_OPEN = 1_000;
/** The name of the warnings of this package. */
const WARNING = "TenureWarning";

/** The local state of one name. */
export class NameRecord {
  readonly name: string;
  /** Leases of one manager exclude each other here: to the cluster they are one holder. */
  readonly exclusive = new Mutex();
  /** Serializes acquires, releases and hand-overs. */
  readonly operation = new Mutex();
  /** The lease that has `exclusive`. */
  hold: Hold | undefined;
  /** The cluster may have granted a claim whose answer did not arrive. */
  isAmbiguous = false;
  /** A claim was abandoned before the cluster knew it. Until `forgetAt`, a read without that claim proves nothing. */
  isUntraced = false;
  /** The options of the last claim. */
  claim: ClaimOptions = {};
  /** The token of a grant that ended here, and that the cluster may still count as held. */
  unreleased: string | undefined;
  /**
   * The ambiguous claim and the unreleased grant expire before this time of the manager's clock. Only the cluster knows
   * whether they have expired: without a majority, cluster time stands still.
   */
  forgetAt = 0;

  constructor(name: string) {
    this.name = name;
  }

  /** Whether the cluster may count this name as held or waiting by this manager, although no lease shows it. */
  get isOpen(): boolean {
    return this.isAmbiguous || this.unreleased !== undefined;
  }

  /** Whether a lease or an operation has this record. */
  get isLocked(): boolean {
    return this.exclusive.isLocked || this.operation.isLocked;
  }

  /** The outcome of the last claim is known. */
  claimResolved(): void {
    this.isAmbiguous = false;
    this.isUntraced = false;
  }
}

type CoreOptions = Pick<Core, "client" | "clock" | "holder" | "driftPermille" | "keeper"> & {
  readonly onError: OnError | undefined;
};

/** Gets an error that no caller gets, and the name of its lease. */
export type OnError = (error: unknown, lease: string) => void;

/** The state that a manager and its operations share. */
export class Core {
  readonly client: Client;
  readonly clock: Clock;
  readonly holder: string;
  readonly driftPermille: number;
  readonly keeper: Keeper;
  /** Aborted by a shutdown: no acquire succeeds from then on. */
  readonly closing = sharedController();
  /** Aborted when a shutdown has resolved the claims without an answer, as far as the cluster has answered. */
  readonly claimsResolved = sharedController();
  /** Reports an error that no caller gets. */
  readonly report: OnError;
  readonly #records = new Map<string, NameRecord>();
  readonly #background = new Set<Promise<void>>();
  #sweepAt = MIN_SWEEP_SIZE;

  constructor(options: CoreOptions) {
    this.client = options.client;
    this.clock = options.clock;
    this.holder = options.holder;
    this.driftPermille = options.driftPermille;
    this.keeper = options.keeper;
    this.report = (error, name) => void report(options.onError ?? warn, error, name);
  }

  /** The record of a name. A new one is kept while it is in use. */
  record(name: string): NameRecord {
    const known = this.#records.get(name);
    if (known !== undefined) {
      return known;
    }
    if (this.#records.size >= this.#sweepAt) {
      this.#sweep();
      this.#sweepAt = Math.max(MIN_SWEEP_SIZE, this.#records.size * 2);
    }
    const record = new NameRecord(name);
    this.#records.set(name, record);
    return record;
  }

  #sweep(): void {
    const unlocked = this.records.filter((record) => !record.isLocked);
    for (const record of unlocked.filter((record) => !record.isOpen)) {
      this.#records.delete(record.name);
    }
    const now = this.clock.now();
    const open = unlocked.filter((record) => record.isOpen);
    const over = open.filter((record) => record.forgetAt <= now).sort((one, other) => one.forgetAt - other.forgetAt);
    for (const record of over.slice(0, Math.max(0, open.length - MAX_OPEN))) {
      this.#records.delete(record.name);
      this.report(new Unknown("too many leases are left held: a shutdown will not name this one"), record.name);
    }
  }

  get records(): NameRecord[] {
    return [...this.#records.values()];
  }

  /** Runs work that no caller awaits. A shutdown awaits it. */
  inBackground(name: string, work: () => Promise<unknown>): void {
    const running: Promise<void> = work()
      .then(
        () => undefined,
        (error) => this.report(error, name),
      )
      .finally(() => this.#background.delete(running));
    this.#background.add(running);
  }

  async backgroundEnded(): Promise<void> {
    await Promise.all(this.#background);
  }

  /** The standing of this manager's holder with a lease. */
  standing(name: string, signal?: AbortSignal): Promise<Standing> {
    return this.client.standing(name, this.holder, signal);
  }
}

/** Calls `onError`. Its own error must not end the process or a shutdown. */
async function report(onError: OnError, error: unknown, name: string): Promise<void> {
  try {
    await onError(error, name);
  } catch (thrown) {
    warn(error, name);
    process.emitWarning(`onError failed: ${thrown}`, WARNING);
  }
}

function warn(error: unknown, name: string): void {
  process.emitWarning(`the cluster may still count the lease ${JSON.stringify(name)} as held: ${error}`, WARNING);
}
