import { send } from "./call.js";
import { DAY_MS, toMs } from "./duration.js";
import { Endpoints } from "./endpoints.js";
import { Unknown } from "./errors.js";
import {
  accessToken,
  type CallOptions,
  type ClientOptions,
  checkHolder,
  checkName,
  endpointsOption,
  tlsOptions,
} from "./options.js";
import { budgetWithin, type RetryBudget, type RetryPolicy } from "./retry.js";
import { Transport } from "./transport.js";
import type {
  AcquireBody,
  ClusterInfo,
  Explanation,
  History,
  LeaseInfo,
  LeasePage,
  Queue,
  Released,
  RenewBatch,
  Renewed,
  Standing,
  VersionInfo,
} from "./types.js";
import { EventWatch, type Watch, type WatchOptions } from "./watch.js";

const DEFAULT_TIMEOUT_MS = 5_000;
const PAGE_SIZE = 1_000;
/** Bounds of the interval between two probes of the node at which a claim waits, in milliseconds. */
const SHORTEST_PROBE_MS = 500;
const LONGEST_PROBE_MS = 10_000;

/** Options of a read. */
export interface ReadOptions extends CallOptions {
  /**
   * `leader` (default) and `linearizable` reads return current state; the latter needs no clocks. With `stale`, the node
   * that answers returns its own state, also without a leader.
   */
  consistency?: "leader" | "linearizable" | "stale";
}

/** Options of a list. */
export interface ListOptions extends ReadOptions {
  /** Only names that start with this text. */
  prefix?: string;
  /** Only leases of this holder. */
  holder?: string;
  /** Only these states, separated by commas, as in the HTTP API. Default: all. */
  state?: string;
}

/**
 * A client of a cluster for reads, watches and administration. {@link LeaseManager} holds leases; its `client` is one of
 * these.
 *
 * Reads return the JSON of the HTTP API unchanged, with the fields of newer servers. Tokens are decimal strings there:
 * `FencingToken.from(info.token)`.
 *
 * All requests throw {@link Refused}, {@link Unavailable}, or the reason of their signal. A change also throws
 * {@link Unknown}; a read only for an answer that is invalid. Creating a client sends no request.
 */
export class Client {
  readonly #transport: Transport;
  readonly #endpoints: Endpoints;
  readonly #timeout: number;

  /** @throws RangeError if an option is invalid, and the error of the file system for a file of the environment. */
  constructor(options: ClientOptions = {}) {
    this.#endpoints = new Endpoints(endpointsOption(options.endpoints));
    this.#transport = new Transport(tlsOptions(options.tls), accessToken(options.accessToken));
    this.#timeout = toMs("operation timeout", options.operationTimeout ?? DEFAULT_TIMEOUT_MS, 1, DAY_MS);
  }

  /** The time limit of one request with its retries, in milliseconds. */
  get operationTimeout(): number {
    return this.#timeout;
  }

  /** Reads a lease, or its last grant. Refused as `not_found` if the cluster remembers none. */
  async get(name: string, options: ReadOptions = {}): Promise<LeaseInfo> {
    const lease = await this.#readLeases<LeaseInfo>(leasePath(name), {}, options);
    const { holders = null } = lease;
    const areValid = (holders === null || isListOfLeases(holders)) && isCursor(lease.holders_cursor);
    check(isLease(lease) && areValid, "a lease", lease);
    let cursor = lease.holders_cursor;
    while (cursor) {
      const query = { prefix: name, state: "active", limit: String(PAGE_SIZE), cursor };
      const page = await this.#readPage(query, options);
      const longerName = page.leases.findIndex((held) => held.name !== name);
      lease.holders?.push(...(longerName < 0 ? page.leases : page.leases.slice(0, longerName)));
      cursor = longerName < 0 ? page.cursor : undefined;
    }
    delete lease.holders_cursor;
    return lease;
  }

  /**
   * Lists leases, ordered by name, one for each holder. The client reads page after page while the caller iterates. The
   * pages do not form one snapshot.
   */
  async *list(options: ListOptions = {}): AsyncGenerator<LeaseInfo, void, undefined> {
    const { prefix, state } = options;
    const holder = options.holder === undefined ? undefined : checkHolder(options.holder);
    let cursor: string | undefined;
    do {
      const query = { prefix: prefix || undefined, holder, state, limit: String(PAGE_SIZE), cursor };
      const page: LeasePage = await this.#readPage(query, options);
      yield* page.leases;
      cursor = page.cursor ?? undefined;
    } while (cursor !== undefined);
  }

  /** Reads the last transitions of a name, oldest first. */
  history(name: string, options: ReadOptions = {}): Promise<History> {
    const read = this.#readLeases<History>(leasePath(name, "/history"), {}, options);
    return read.then((history) => check(Array.isArray(history.transitions), "transitions", history));
  }

  /** Reads the first 1,000 waiters for a lease, and their number. */
  queue(name: string, options: ReadOptions = {}): Promise<Queue> {
    const read = this.#readLeases<Queue>(leasePath(name, "/queue"), {}, options);
    return read.then((queue) => check(Array.isArray(queue.waiters), "waiters", queue));
  }

  /** Explains why a lease is held or free. With `holder`, the answer has the `standing` of that holder. */
  explain(name: string, options: ReadOptions & { holder?: string } = {}): Promise<Explanation> {
    const holder = options.holder === undefined ? undefined : checkHolder(options.holder);
    const read = this.#readLeases<Explanation>(leasePath(name, "/explain"), { holder }, options);
    return read.then((explained) => check(isListOfLeases(explained.held), "the holders", explained));
  }

  /**
   * Watches transitions, for instance `for await (const event of client.watch({ prefix: "jobs/" }))`. The watch resumes
   * after broken connections, at any node. It waits while no node answers, except at its begin.
   *
   * The iteration throws {@link Refused}, for instance as `compacted` if the cluster no longer keeps the next events:
   * list the leases and start a new watch. The codes `unauthenticated` and `forbidden` also end a watch that was open:
   * nodes that know a leader have said so twice, and no other node serves the watch. The rights of a new token reach the
   * nodes one heartbeat interval late. It throws {@link Unavailable} if no node opens the first stream in time. An error
   * ends the watch.
   */
  watch(options: WatchOptions = {}): Watch {
    return new EventWatch(this.#transport, this.#endpoints, budgetWithin(this.#timeout), options);
  }

  /**
   * Revokes a lease: ends the grants of all its holders, and returns their number. The history keeps `reason`, at most
   * 500 bytes. The request is not sent again after a lost answer: a second revoke could hit the next holder.
   */
  async revoke(name: string, options: CallOptions & { reason?: string } = {}): Promise<number> {
    const query = { reason: options.reason };
    const call = { method: "DELETE", path: leasePath(name), query, policy: "never", signal: options.signal } as const;
    const { revoked } = await this.#send<{ revoked?: unknown }>(call);
    if (typeof revoked !== "number") {
      throw new Unknown("the answer to the revoke is invalid");
    }
    return revoked;
  }

  /** Reads the status of the cluster, as the node that answers sees it. */
  cluster(options: CallOptions = {}): Promise<ClusterInfo> {
    return this.#send({ method: "GET", path: "v1/cluster", policy: "read", signal: options.signal });
  }

  /** Reads the version of the node that answers. */
  version(options: CallOptions = {}): Promise<VersionInfo> {
    return this.#send({ method: "GET", path: "version", policy: "read", signal: options.signal });
  }

  /**
   * Closes the client. Requests in progress end as usual. Each watch and each later request throws {@link ShutDown}. The
   * shutdown of a {@link LeaseManager} closes its client.
   */
  close(): void {
    this.#transport.close();
  }

  /** Claims a lease, and waits in its queue for at most `wait` milliseconds. @internal */
  acquire(name: string, claim: AcquireBody, wait: number, signal: AbortSignal): Promise<LeaseInfo> {
    const body = (waited: number) => {
      // Without a wait, a waiter would keep its position: only the end of a wait leaves the queue.
      const left = Math.max(1, Math.round(wait - waited));
      return wait === 0 ? claim : { ...claim, wait_ms: left };
    };
    const queueWait = wait === 0 ? undefined : { longest: wait, probe: probeInterval(claim.ttl_ms) };
    const path = leasePath(name, "/acquire");
    return this.#sendForLease({ method: "POST", path, body, policy: "claim", wait: queueWait, signal });
  }

  /** Renews leases of one holder. The results have the order of the request. @internal */
  renewBatch(batch: RenewBatch, budget: RetryBudget, signal?: AbortSignal): Promise<Renewed> {
    const path = "v1/renew";
    return this.#sendForLease({ method: "POST", path, body: () => batch, policy: "renewal", budget, signal });
  }

  /** The standing of a holder with a lease. @internal */
  async standing(name: string, holder: string, signal?: AbortSignal): Promise<Standing> {
    const call = {
      method: "GET",
      path: leasePath(name, "/explain"),
      query: { holder },
      policy: "read",
      signal,
    } as const;
    const { standing } = await this.#sendForLease<Explanation>(call);
    if (!isStanding(standing)) {
      throw new Unknown("the answer has no standing of the holder");
    }
    return standing;
  }

  /** Releases a lease. @internal */
  async release(name: string, holder: string, token: string, signal?: AbortSignal): Promise<boolean> {
    const path = leasePath(name, "/release");
    const call = { method: "POST", path, body: () => ({ holder, token }), policy: "release", signal } as const;
    const { answer, ambiguous } = await this.#resolve<Released>(call);
    if (typeof answer.released !== "boolean") {
      throw new Unknown("the answer to the release is invalid");
    }
    if (!answer.released && ambiguous !== undefined) {
      // The first attempt may have released the lease.
      throw new Unknown(ambiguous);
    }
    return answer.released;
  }

  /** Hands a lease over, and returns the new holder. It is not sent again after a lost answer. @internal */
  async handOver(name: string, body: object, signal?: AbortSignal): Promise<string> {
    const next = await this.#post<LeaseInfo>(leasePath(name, "/handover"), body, "never", signal);
    if (typeof next.holder !== "string") {
      throw new Unknown("the answer to the hand-over is invalid");
    }
    return next.holder;
  }

  /** Replaces the metadata of a held lease. @internal */
  async updateMetadata(name: string, body: object, signal?: AbortSignal): Promise<void> {
    await this.#post(leasePath(name, "/metadata"), body, "claim", signal);
  }

  #post<T>(path: string, body: object, policy: RetryPolicy, signal: AbortSignal | undefined): Promise<T> {
    return this.#sendForLease({ method: "POST", path, body: () => body, policy, signal });
  }

  #readLeases<T>(path: string, query: Record<string, string | undefined>, options: ReadOptions): Promise<T> {
    const all = { ...query, consistency: options.consistency };
    return this.#send({ method: "GET", path, query: all, policy: "read", signal: options.signal });
  }

  async #readPage(query: Record<string, string | undefined>, options: ReadOptions): Promise<LeasePage> {
    const page = await this.#readLeases<LeasePage>("v1/leases", query, options);
    return check(isListOfLeases(page.leases) && isCursor(page.cursor), "a page of leases", page);
  }

  async #send<T>(call: UnlimitedCall): Promise<T> {
    this.#transport.closed.throwIfAborted();
    return this.#sendForLease(call);
  }

  /** Sends a request of a manager, also after the close: a second shutdown and a repeated release need it. */
  async #sendForLease<T>(call: UnlimitedCall): Promise<T> {
    return (await this.#resolve<T>(call)).answer;
  }

  #resolve<T>(call: UnlimitedCall) {
    return send<T>(this.#transport, this.#endpoints, { budget: budgetWithin(this.#timeout), ...call });
  }
}

type Call = Parameters<typeof send>[2];
/** A call that uses the budget of the client, unless it has its own. */
type UnlimitedCall = Omit<Call, "budget"> & { readonly budget?: RetryBudget };

/** @throws {@link Unknown} if an answer does not have the shape that the API promises. */
function check<T>(isValid: boolean, expected: string, answer: T): T {
  if (!isValid) {
    throw new Unknown(`the answer is invalid: expected ${expected}`);
  }
  return answer;
}

function isLease(value: LeaseInfo | undefined): boolean {
  return typeof value?.name === "string" && typeof value.token === "string";
}

function isListOfLeases(value: unknown): boolean {
  return Array.isArray(value) && value.every(isLease);
}

function isCursor(value: unknown): boolean {
  return value === undefined || value === null || typeof value === "string";
}

/** Whether the answer has the token that the client compares. Newer servers can send another status. */
function isStanding(standing: Standing | null | undefined): standing is Standing {
  switch (standing?.status) {
    case "holds":
      return isToken(standing.lease?.token);
    case "ended":
      return isToken(standing.event?.token) && typeof standing.event.event === "string";
    default:
      return typeof standing?.status === "string";
  }
}

function isToken(value: unknown): boolean {
  return typeof value === "string" && /^\d+$/.test(value);
}

/** The path of a lease. Of the characters of a name, only the slash has a meaning in a path. */
function leasePath(name: string, action = ""): string {
  return `v1/leases/${checkName(name).replaceAll("/", "%2F")}${action}`;
}

/** The interval of readiness probes for a claim with this ttl, in milliseconds. */
export function probeInterval(ttl: number | string | undefined): number {
  const third = typeof ttl === "number" ? Math.floor(ttl / 3) : LONGEST_PROBE_MS;
  return Math.min(Math.max(third, SHORTEST_PROBE_MS), LONGEST_PROBE_MS);
}
