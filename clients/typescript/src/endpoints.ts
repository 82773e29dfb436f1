import type { Transport } from "./transport.js";
import type { ClusterInfo } from "./types.js";

/** The nodes of `tenure dev`. */
const DEFAULT_ENDPOINTS = "http://127.0.0.1:7101,http://127.0.0.1:7102,http://127.0.0.1:7103";
/** Largest number of endpoints of a client. */
const MAX_ENDPOINTS = 32;
/** Interval at which a client asks the cluster for its members, in milliseconds. */
const REFRESH_MS = 30_000;
/** The same, if an endpoint did not serve a request since the last time: it may have been replaced. */
const REFRESH_AFTER_FAILURE_MS = 2_000;
/** Longest wait for the members. */
const REFRESH_TIMEOUT_MS = 1_000;
/** The preference moves after callers have waited at a node for this time without an answer, in milliseconds. */
const LONGEST_SILENCE_MS = 250;

/**
 * The endpoints of a cluster. The node that answered last gets the next request.
 *
 * While a client sends requests or watches, it asks the cluster for its members every 30 s, and after 2 s if an endpoint
 * failed. It adds their addresses, so that it also reaches nodes that join later. It never drops the endpoints that it
 * was given.
 */
export class Endpoints {
  readonly #given: readonly URL[];
  #urls: readonly URL[];
  #preferred = 0;
  #refreshedAt = performance.now();
  #hasFailure = false;
  /** For how long callers waited at the preferred node since its last answer, until they left. */
  #silentFor = 0;

  /** @throws RangeError if there is no endpoint, more than 32, or an invalid one. */
  constructor(text: string | readonly string[] = DEFAULT_ENDPOINTS) {
    const words = (typeof text === "string" ? text.split(",") : text).map((word) => word.trim());
    this.#given = words.filter((word) => word !== "").map(parseUrl);
    if (this.#given.length < 1 || this.#given.length > MAX_ENDPOINTS) {
      throw new RangeError(`${this.#given.length} endpoints are given: expected 1 to ${MAX_ENDPOINTS}`);
    }
    this.#urls = this.#given;
  }

  get urls(): readonly URL[] {
    return this.#urls;
  }

  get preferred(): number {
    return this.#preferred;
  }

  prefer(index: number): void {
    this.#preferred = index;
    this.#silentFor = 0;
  }

  /** Moves the preference away from a node that failed, so that it does not cost each request its first attempt. */
  avoid(index: number, count: number): void {
    this.#hasFailure = true;
    // Another request may have set a better preference in the meantime.
    if (this.#preferred === index) {
      this.#preferred = (index + 1) % count;
      this.#silentFor = 0;
    }
  }

  /**
   * Counts the time in milliseconds after which a caller left an attempt. A caller with a short limit must not ask a node
   * that hangs each time.
   */
  left(index: number, count: number, waited: number): void {
    if (this.#preferred === index) {
      this.#silentFor += waited;
      if (this.#silentFor >= LONGEST_SILENCE_MS) {
        this.avoid(index, count);
      }
    }
  }

  /** Asks for the members of the cluster at `answered`, in the background, if the last request is long ago. */
  refresh(transport: Transport, answered: URL): void {
    const interval = this.#hasFailure ? REFRESH_AFTER_FAILURE_MS : REFRESH_MS;
    if (performance.now() - this.#refreshedAt >= interval) {
      this.#refreshedAt = performance.now();
      this.#hasFailure = false;
      // Without an answer, the endpoints stay as they are until the next refresh.
      this.#askForMembers(transport, answered).catch(() => undefined);
    }
  }

  async #askForMembers(transport: Transport, answered: URL): Promise<void> {
    const signal = AbortSignal.timeout(REFRESH_TIMEOUT_MS);
    const response = await transport.exchange({ method: "GET", url: new URL("v1/cluster", answered), signal });
    const cluster = JSON.parse(response.body) as Partial<ClusterInfo>;
    // A node that cannot answer does not show which members there are.
    if (response.status === 200 && Array.isArray(cluster.members)) {
      const members = cluster.members.map((member) => member.http);
      this.addMembers(answered, members);
    }
  }

  /** Sets the given endpoints and the other members. They have the scheme and the path of the node that answered. */
  addMembers(answered: URL, members: readonly string[]): void {
    const urls = [...this.#given];
    for (const address of members) {
      const url = memberUrl(answered, address);
      if (url !== undefined && urls.length < MAX_ENDPOINTS && !urls.some((known) => known.href === url.href)) {
        urls.push(url);
      }
    }
    this.#urls = urls;
  }
}

/** The URL of a member, or `undefined` if its address is not `host:port`. */
function memberUrl(answered: URL, address: string): URL | undefined {
  try {
    const url = parseUrl(`${answered.protocol}//${address}${answered.pathname}`);
    return url.pathname === answered.pathname ? url : undefined;
  } catch {
    return undefined;
  }
}

/** Parses an endpoint. `host:port` stands for `http://host:port`. */
function parseUrl(word: string): URL {
  const text = word.includes("://") ? word : `http://${word}`;
  // The message does not show a user and a password.
  const shown = word.replace(/^([a-z][a-z0-9+.-]*:\/\/)?.*@/is, "$1***@");
  const invalid = (why: string) => new RangeError(`invalid endpoint ${JSON.stringify(shown)}: ${why}`);
  if (!URL.canParse(text)) {
    throw invalid("expected a URL, or host:port");
  }
  const url = new URL(text);
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw invalid("expected the scheme http or https");
  }
  if (url.search !== "" || url.hash !== "" || url.username !== "" || url.password !== "") {
    throw invalid("expected only a scheme, a host, a port and a path");
  }
  if (url.port === "0") {
    throw invalid("expected a port from 1 to 65535");
  }
  if (!url.pathname.endsWith("/")) {
    // Without the final slash, a relative URL replaces the last part of the path.
    url.pathname += "/";
  }
  return url;
}
