import { IncomingMessage } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { classifyResponse } from "./call.js";
import type { Endpoints } from "./endpoints.js";
import { Refused, Unavailable } from "./errors.js";
import type { RetryBudget } from "./retry.js";
import { parseEvents, type ServerSentEvent } from "./sse.js";
import type { Transport } from "./transport.js";
import type { LeaseEvent } from "./types.js";

/** Longest silence of a stream before the client opens another one. A node sends a heartbeat at least every 10 s. */
const SILENCE_TIMEOUT_MS = 30_000;
/** Pause before a broken stream is opened again. It prevents a busy loop if streams break at once. */
const RECONNECT_DELAY_MS = 200;
/** Without any node, the pause doubles up to this one. */
const LONGEST_RECONNECT_DELAY_MS = 2_000;
/**
 * Access control refuses a watch in this many rounds over all nodes before the watch fails: a node can know the rights of
 * a new token a little late.
 */
const DENIED_ROUNDS = 2;
/** Largest body of an error, in bytes. */
const MAX_PROBLEM_BYTES = 64 * 1024;

/** Options of a watch. */
export interface WatchOptions {
  /** Only names that start with this text. Default: all names. */
  prefix?: string;
  /** Start after this position ({@link Watch.position}). Default: from now on. */
  after?: string;
  /** Ends the watch: the next step throws the reason. */
  signal?: AbortSignal;
}

/** A stream of transitions. It returns each transition once and in order, across broken connections and failed nodes. */
export interface Watch extends AsyncIterableIterator<LeaseEvent>, AsyncDisposable {
  /** A new watch can continue after this position. `undefined` before the first answer of a node. */
  readonly position: string | undefined;
  /** Closes the stream. */
  return(): Promise<IteratorReturnResult<undefined>>;
}

export class EventWatch implements Watch {
  readonly #transport: Transport;
  readonly #endpoints: Endpoints;
  readonly #prefix: string | undefined;
  /** The total is the time to open the first stream. Later ones have no limit. */
  readonly #budget: RetryBudget;
  readonly #end = new AbortController();
  /** The signals that end the watch with their reason. */
  readonly #sources: readonly AbortSignal[];
  readonly #cancel = () => this.#end.abort();
  #isDone = false;
  #position: string | undefined;
  #stream: AsyncGenerator<ServerSentEvent> | undefined;
  /** The node of a stream that has sent nothing yet. */
  #silent: URL | undefined;
  /** Settles at the end of the last step: concurrent calls of `next` take their turns, as with a generator. */
  #last: Promise<unknown> = Promise.resolve();
  #hasBeenOpen = false;

  constructor(transport: Transport, endpoints: Endpoints, budget: RetryBudget, options: WatchOptions) {
    this.#transport = transport;
    this.#endpoints = endpoints;
    this.#budget = budget;
    this.#prefix = options.prefix;
    this.#position = options.after;
    this.#sources = options.signal === undefined ? [transport.closed] : [options.signal, transport.closed];
    for (const source of this.#sources) {
      source.addEventListener("abort", this.#cancel, { once: true });
    }
  }

  get position(): string | undefined {
    return this.#position;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<LeaseEvent, undefined>> {
    const next = this.#last.then(() => this.#next());
    this.#last = next.catch(() => undefined);
    return next;
  }

  async #next(): Promise<IteratorResult<LeaseEvent, undefined>> {
    try {
      while (!this.#isDone) {
        this.#sources.find((source) => source.aborted)?.throwIfAborted();
        const event = await this.#step();
        if (event !== undefined) {
          return { done: false, value: event };
        }
      }
    } catch (error) {
      if (!this.#isDone) {
        // As with a generator, an error is the end: the stream and the listeners would otherwise stay.
        await this.return();
        const stopped = this.#sources.find((source) => source.aborted);
        throw stopped === undefined ? error : stopped.reason;
      }
    }
    return { done: true, value: undefined };
  }

  async return(): Promise<IteratorReturnResult<undefined>> {
    this.#isDone = true;
    for (const source of this.#sources) {
      source.removeEventListener("abort", this.#cancel);
    }
    this.#end.abort();
    return { done: true, value: undefined };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.return();
  }

  /** Reads one block of the stream, or opens a stream. Returns the transition, if the block has one. */
  async #step(): Promise<LeaseEvent | undefined> {
    if (this.#stream === undefined) {
      const { response, endpoint } = await this.#connect();
      this.#stream = parseEvents(this.#chunks(response, endpoint));
      this.#silent = endpoint;
      this.#hasBeenOpen = true;
      return undefined;
    }
    // All received events are returned before a stream is opened again, so the position has each of them.
    const received = await this.#stream.next().catch(() => ({ done: true as const, value: undefined }));
    if (received.done) {
      this.#stream = undefined;
      // A node sends its position first.
      const { urls } = this.#endpoints;
      const index = urls.findIndex(({ href }) => href === this.#silent?.href);
      if (index >= 0) {
        this.#endpoints.avoid(index, urls.length);
      }
      await sleep(RECONNECT_DELAY_MS, undefined, { signal: this.#end.signal });
      return undefined;
    }
    this.#silent = undefined;
    const { id, event, data } = received.value;
    // `lagged` has a problem as its data. The node then ends the stream, and the client resumes after the last position.
    const transition = data === undefined || event === "lagged" ? undefined : parseEvent(data);
    this.#position = id ?? this.#position;
    return transition;
  }

  /** The chunks of the body, until its end, an error or a long silence. */
  async *#chunks(response: IncomingMessage, endpoint: URL): AsyncGenerator<Uint8Array, void, undefined> {
    response.setTimeout(SILENCE_TIMEOUT_MS, () => response.destroy(new Error("the stream is silent")));
    for await (const chunk of response as AsyncIterable<Buffer>) {
      // A client that only watches sends no other request that would ask for the members.
      this.#endpoints.refresh(this.#transport, endpoint);
      yield chunk;
    }
  }

  async #connect(): Promise<{ response: IncomingMessage; endpoint: URL }> {
    const began = performance.now();
    // For each node, why its last attempt failed.
    const reasons = new Map<number, string>();
    let pause = RECONNECT_DELAY_MS;
    for (let deniedRounds = 0; ; ) {
      // Other requests of this client can find members during an outage.
      const { urls, preferred } = this.#endpoints;
      let denied: Refused | undefined;
      for (let number = 0; number < urls.length; number++) {
        const index = (preferred + number) % urls.length;
        const endpoint = urls[index] as URL;
        const asked = performance.now();
        const opened = await this.#connectTo(endpoint);
        if (opened instanceof IncomingMessage) {
          this.#endpoints.prefer(index);
          return { response: opened, endpoint };
        }
        if (this.#end.signal.aborted) {
          this.#endpoints.left(index, urls.length, performance.now() - asked);
        }
        this.#end.signal.throwIfAborted();
        if (opened instanceof Refused) {
          denied = opened;
          reasons.set(index, `${endpoint.href}: ${opened.message}`);
        } else {
          this.#endpoints.avoid(index, urls.length);
          reasons.set(index, opened);
        }
        if (!this.#hasBeenOpen && performance.now() - began >= this.#budget.total) {
          throw new Unavailable([...new Set(reasons.values())].join("; "));
        }
      }
      deniedRounds = denied === undefined ? 0 : deniedRounds + 1;
      if (denied !== undefined && deniedRounds === DENIED_ROUNDS) {
        throw denied;
      }
      await sleep(pause, undefined, { signal: this.#end.signal });
      pause = Math.min(2 * pause, LONGEST_RECONNECT_DELAY_MS);
    }
  }

  /**
   * Opens a stream at a node. Otherwise returns why it has none: as {@link Refused} if access control refuses the watch.
   *
   * @throws {@link Refused} if each node refuses it.
   */
  async #connectTo(endpoint: URL): Promise<IncomingMessage | Refused | string> {
    const url = new URL("v1/watch", endpoint);
    if (this.#prefix !== undefined && this.#prefix !== "") {
      url.searchParams.set("prefix", this.#prefix);
    }
    if (this.#position !== undefined) {
      url.searchParams.set("after", this.#position);
    }
    const cut = new AbortController();
    const cancel = () => cut.abort();
    this.#end.signal.addEventListener("abort", cancel);
    const timer = setTimeout(cancel, this.#budget.attempt);
    const forget = () => this.#end.signal.removeEventListener("abort", cancel);
    let isOpen = false;
    try {
      const headers = { accept: "text/event-stream" };
      const response = await this.#transport.open({ method: "GET", url, headers, signal: cut.signal });
      // Another service at this address may answer, too.
      const isStream = response.headers["content-type"]?.startsWith("text/event-stream") ?? false;
      if (response.statusCode === 200 && isStream) {
        isOpen = true;
        response.once("close", forget);
        return response;
      }
      return await this.#refusal(endpoint, response, cut.signal);
    } catch (error) {
      if (error instanceof Refused) {
        throw error;
      }
      return `${endpoint.href}: ${(error as Error).message}`;
    } finally {
      clearTimeout(timer);
      if (!isOpen) {
        forget();
      }
    }
  }

  /** Why a node opened no stream, as in {@link #connectTo}. */
  async #refusal(endpoint: URL, response: IncomingMessage, signal: AbortSignal): Promise<Refused | string> {
    let body = "";
    for await (const chunk of response as AsyncIterable<Buffer>) {
      body += chunk.toString();
      if (body.length > MAX_PROBLEM_BYTES) {
        break;
      }
    }
    const status = response.statusCode ?? 0;
    const ended = classifyResponse(endpoint, status, body);
    if (ended.kind !== "refused") {
      return ended.kind === "done" ? `${endpoint.href} answered ${status}` : ended.why;
    }
    const refused = new Refused(ended.problem);
    if (refused.code !== "unauthenticated" && refused.code !== "forbidden") {
      // Another node, or a later attempt, refuses it, too: `compacted`, for instance.
      throw refused;
    }
    // A restarted node has an old state of access control until it hears from a leader.
    const ready = await this.#transport.exchange({ method: "GET", url: new URL("readyz", endpoint), signal });
    return ready.status === 503 ? `${endpoint.href} is not ready: ${refused.message}` : refused;
  }
}

/** A transition, or `undefined` for data that only a newer client understands. */
function parseEvent(data: string): LeaseEvent | undefined {
  try {
    const event = JSON.parse(data) as LeaseEvent | null;
    return typeof event?.event === "string" && typeof event.name === "string" ? event : undefined;
  } catch {
    return undefined;
  }
}
