import { readFileSync } from "node:fs";
import { DAY_MS, type Duration, toMs } from "./duration.js";
import type { TlsOptions } from "./transport.js";

const LARGEST_LIMIT = 10_000;
const LARGEST_DRIFT_PERMILLE = 500;
const SHORTEST_TTL_MS = 100;
/** Bounds of metadata: the entries, and the bytes of all keys and values. */
const MOST_METADATA_ENTRIES = 32;
const MOST_METADATA_BYTES = 4_096;
/** The ttl that the cluster uses by default. The wait `"ttl"` uses it if the options have no ttl. */
const DEFAULT_TTL_MS = 30_000;
const DEFAULT_DRAIN_MS = 30_000;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}$/;
/** The half of a pair of UTF-16. A text with one is no Unicode, so the cluster refuses it. */
const LONE_SURROGATE = /\p{Surrogate}/u;
const ACCESS_TOKEN = /^tenure_[0-9a-f]{72}$/;

/** How to reach a cluster. */
export interface ClientOptions {
  /**
   * URLs of the nodes, as a list or as text separated by commas. Default: the environment variable `TENURE_ENDPOINTS`,
   * else the nodes of `tenure dev`.
   */
  endpoints?: string | readonly string[];
  /**
   * The access token. Without TLS, each machine on the way can read it. Default: the first line of the file that
   * `TENURE_ACCESS_TOKEN_FILE` names, else `TENURE_ACCESS_TOKEN`.
   */
  accessToken?: string;
  /**
   * Certificates for `https` endpoints. Default: the files that `TENURE_CA`, `TENURE_CERT` and `TENURE_KEY` name. They
   * are read once.
   */
  tls?: TlsOptions;
  /**
   * The time limit of one request with its retries, without its wait for a lease or behind 64 other requests. 1 ms to
   * 24 h. Default: 5 s.
   */
  operationTimeout?: Duration;
}

/** Options of an acquire. */
export interface AcquireOptions {
  /**
   * How long the lease lasts without a renewal: 100 ms to 24 h, or `"infinite"`. A cluster can have narrower bounds.
   * Default: that of the cluster, 30 s.
   */
  ttl?: Duration | "infinite";
  /**
   * How long to wait in the queue, up to 24 h. `"ttl"`: for one ttl; by then the present holder has renewed its lease,
   * or the lease has expired. Default: 0, no wait.
   */
  wait?: Duration | "ttl";
  /**
   * The time that the work needs to stop, at most half the ttl. This long before the deadline, the renewals end and
   * {@link Lease.stopping} aborts. Default: 0.
   */
  grace?: Duration;
  /** After an expiry or a revoke, the cluster grants the lease to no holder for this time, up to 24 h. Default: 0. */
  lockDelay?: Duration;
  /** The largest number of concurrent holders, 1 to 10,000. It is the same for all holders of a name. Default: 1. */
  limit?: number;
  /** Key-value pairs that each client can read with the lease: at most 32 entries and 4,096 bytes. Default: empty. */
  metadata?: Readonly<Record<string, string>>;
  /**
   * How long {@link LeaseManager.shutdown} waits for the end of the work of {@link LeaseManager.with} or
   * {@link Election.lead}: up to 24 h. Default: 30 s.
   */
  drain?: Duration;
  /** Cancels the acquire, and its wait. A grant that comes too late is released in the background. */
  signal?: AbortSignal;
}

/** Options of a call that can be cancelled. */
export interface CallOptions {
  /**
   * Cancels the call, which then throws the reason of the signal. The cluster may have carried out a change all the
   * same.
   */
  signal?: AbortSignal;
}

/** The fields of an acquire, without the holder. */
export interface ClaimOptions {
  readonly ttl_ms?: number | "infinite";
  readonly lock_delay_ms?: number;
  readonly limit?: number;
  readonly metadata?: Record<string, string>;
}

/** Valid options of an acquire, in milliseconds. */
export interface ParsedAcquire {
  readonly claim: ClaimOptions;
  readonly wait: number;
  readonly grace: number;
  readonly drain: number;
  readonly signal: AbortSignal | undefined;
}

/** @throws RangeError if an option is outside the bounds of every cluster. */
export function parseAcquire(options: AcquireOptions): ParsedAcquire {
  const { ttl, limit, metadata } = options;
  const ttlMs = ttl === undefined || ttl === "infinite" ? ttl : toMs("ttl", ttl, SHORTEST_TTL_MS, DAY_MS);
  const longestGrace = typeof ttlMs === "number" ? ttlMs / 2 : DAY_MS;
  const lockDelay = toMs("lock delay", options.lockDelay ?? 0, 0, DAY_MS);
  if (limit !== undefined && !(Number.isInteger(limit) && limit >= 1 && limit <= LARGEST_LIMIT)) {
    throw new RangeError(`invalid limit ${limit}: expected 1 to ${LARGEST_LIMIT}`);
  }
  const claim = {
    ...(ttlMs === undefined ? {} : { ttl_ms: ttlMs }),
    ...(lockDelay === 0 ? {} : { lock_delay_ms: lockDelay }),
    ...(limit === undefined ? {} : { limit }),
    ...(metadata === undefined ? {} : { metadata: checkMetadata(metadata) }),
  };
  return {
    claim,
    wait: options.wait === "ttl" ? waitForTtl(ttlMs) : toMs("wait", options.wait ?? 0, 0, DAY_MS),
    grace: toMs("grace", options.grace ?? 0, 0, longestGrace),
    drain: toMs("drain", options.drain ?? DEFAULT_DRAIN_MS, 0, DAY_MS),
    signal: options.signal,
  };
}

function waitForTtl(ttl: number | "infinite" | undefined): number {
  return ttl === "infinite" ? DAY_MS : (ttl ?? DEFAULT_TTL_MS);
}

/**
 * Returns a copy of the metadata.
 *
 * @throws RangeError if it is no plain object of texts, or has too many entries or bytes.
 */
export function checkMetadata(metadata: Readonly<Record<string, string>>): Record<string, string> {
  const texts = Object.entries(metadata).flat();
  if (!isPlain(metadata) || texts.some((text) => typeof text !== "string" || LONE_SURROGATE.test(text))) {
    throw new RangeError("invalid metadata: expected a plain object whose keys and values are valid Unicode");
  }
  const entries = texts.length / 2;
  const bytes = texts.reduce((sum, text) => sum + Buffer.byteLength(text), 0);
  if (entries > MOST_METADATA_ENTRIES || bytes > MOST_METADATA_BYTES) {
    const expected = `at most ${MOST_METADATA_ENTRIES} entries and ${MOST_METADATA_BYTES} bytes`;
    throw new RangeError(`invalid metadata with ${entries} entries and ${bytes} bytes: expected ${expected}`);
  }
  return { ...metadata };
}

/** Whether the own keys of a value are all that it has: not a `Map`, for instance, or an instance of a class. */
function isPlain(value: object): boolean {
  const prototype = Object.getPrototypeOf(value);
  // Objects of another realm have another `Object.prototype`.
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** @throws RangeError if the text is not the name of a lease. */
export function checkName(name: string): string {
  if (!NAME.test(name)) {
    const expected = "1 to 200 letters, digits and characters of `._:/-`, and a letter or digit first";
    throw new RangeError(`invalid lease name ${JSON.stringify(name)}: expected ${expected}`);
  }
  return name;
}

/** @throws RangeError if the text is not a valid holder. */
export function checkHolder(holder: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the API forbids them
  const hasControl = /[\u0000-\u001f\u007f-\u009f]/.test(holder);
  if (holder === "" || Buffer.byteLength(holder) > 200 || hasControl || LONE_SURROGATE.test(holder)) {
    const expected = "1 to 200 bytes of Unicode without control characters";
    throw new RangeError(`invalid holder ${JSON.stringify(holder)}: expected ${expected}`);
  }
  return holder;
}

/** @throws RangeError if the number is outside 0 to 500. */
export function checkDrift(permille: number): number {
  if (!(permille >= 0 && permille <= LARGEST_DRIFT_PERMILLE)) {
    throw new RangeError(`invalid drift ${permille} permille: expected 0 to ${LARGEST_DRIFT_PERMILLE}`);
  }
  return permille;
}

/** The access token from the options or the environment. */
export function accessToken(given: string | undefined): string | undefined {
  const text = given ?? tokenOfEnvironment();
  if (text !== undefined && !ACCESS_TOKEN.test(text)) {
    // The message does not show the text: it can be a mistyped secret.
    throw new RangeError('invalid access token: expected "tenure_" and 72 hexadecimal digits');
  }
  return text;
}

function tokenOfEnvironment(): string | undefined {
  const file = environment("TENURE_ACCESS_TOKEN_FILE");
  const text = file === undefined ? environment("TENURE_ACCESS_TOKEN") : readFileSync(file, "utf8");
  return text?.split("\n")[0]?.trim();
}

/** The certificates from the options or the environment. */
export function tlsOptions(given: TlsOptions | undefined): TlsOptions | undefined {
  const tls = given ?? tlsOfEnvironment();
  if ((tls?.cert === undefined) !== (tls?.key === undefined)) {
    throw new RangeError("a client certificate needs its key, and a key needs its certificate");
  }
  return tls;
}

function tlsOfEnvironment(): TlsOptions | undefined {
  const [ca, cert, key] = ["TENURE_CA", "TENURE_CERT", "TENURE_KEY"].map((name) => {
    const file = environment(name);
    return file === undefined ? undefined : readFileSync(file);
  });
  return ca === undefined && cert === undefined && key === undefined ? undefined : { ca, cert, key };
}

export function endpointsOption(given: string | readonly string[] | undefined): string | readonly string[] | undefined {
  return given ?? environment("TENURE_ENDPOINTS");
}

/** A variable that is set and not empty. */
function environment(name: string): string | undefined {
  return process.env[name] || undefined;
}
