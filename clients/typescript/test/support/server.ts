import { once } from "node:events";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

/** A request that a scripted server received. */
export interface Received {
  readonly method: string;
  /** With the query. */
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they expect
  readonly body: any;
  /** Settles when the client closes the connection before the response. */
  readonly aborted: Promise<void>;
}

/** How a server responds: a status and a JSON body, no response at all, or the end of the connection. */
export type Reply = { status?: number; body: unknown; type?: string } | "hang" | "close";
export type Handler = (request: Received, response: ServerResponse) => Reply | Promise<Reply>;

/** A local server that responds as the test says. */
export class ScriptedServer implements AsyncDisposable {
  readonly requests: Received[] = [];
  readonly #server: Server;
  readonly #waiting = new Set<() => void>();
  handler: Handler;

  private constructor(handler: Handler) {
    this.handler = handler;
    this.#server = createServer((request, response) => void this.#serve(request, response));
  }

  static async start(handler: Handler): Promise<ScriptedServer> {
    const server = new ScriptedServer(handler);
    server.#server.listen(0, "127.0.0.1");
    await once(server.#server, "listening");
    return server;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  get url(): string {
    return `http://${this.address}`;
  }

  /** The requests whose path has this text. */
  of(text: string): Received[] {
    return this.requests.filter((request) => request.path.includes(text));
  }

  /** Waits until the server has received `count` requests whose path has this text. Returns the last of them. */
  async received(text: string, count = 1): Promise<Received> {
    while (this.of(text).length < count) {
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
    return this.of(text)[count - 1] as Received;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, "close");
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) {
      chunks.push(chunk as Buffer);
    }
    const text = Buffer.concat(chunks).toString();
    const received: Received = {
      method: request.method ?? "",
      path: request.url ?? "",
      headers: request.headers,
      body: text === "" ? undefined : JSON.parse(text),
      aborted: new Promise((resolve) => response.once("close", resolve)),
    };
    this.requests.push(received);
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const wake of waiting) {
      wake();
    }
    const reply = await this.handler(received, response);
    if (reply === "close") {
      request.socket.destroy();
    } else if (reply !== "hang") {
      response.writeHead(reply.status ?? 200, { "content-type": reply.type ?? "application/json" });
      response.end(JSON.stringify(reply.body));
    }
  }
}

export const TTL = 10_000;
export const TOKEN = "281474976710661";

/** A lease as a node sends it. */
export function lease(name: string, token: string, fields: object = {}): object {
  return {
    name,
    holder: "me",
    token,
    term: 1,
    index: 5,
    ttl_ms: TTL,
    expires_in_ms: TTL,
    state: "active",
    granted_at: "2026-01-01T00:00:00Z",
    renewed_at: "2026-01-01T00:00:00Z",
    renewals: 0,
    metadata_version: 0,
    limit: 1,
    lock_delay_ms: 0,
    waiters: 0,
    ...fields,
  };
}

/** For each action, the reply to its requests. */
export type Replies = Partial<Record<string, (request: Received) => Reply | Promise<Reply>>>;

/** Responds like a cluster in which each lease is free, unless `replies` has the action. */
export function freeLeases(replies: Replies = {}): Handler {
  return (request) => {
    const [, name = "", action = ""] = /^\/v1\/(?:leases\/([^/?]+)\/)?([a-z]+)/.exec(request.path) ?? [];
    const reply = replies[request.path === "/readyz" ? "readyz" : action];
    if (reply !== undefined) {
      return reply(request);
    }
    switch (action) {
      case "acquire":
        return { body: lease(name, TOKEN) };
      case "renew":
        return { body: renewed(request) };
      case "release":
        return { body: { released: true } };
      default:
        return standing({ status: "unknown" });
    }
  };
}

export function renewed(request: Received) {
  const leases = request.body.leases as { name: string; token: string }[];
  return { results: leases.map(({ name, token }) => ({ name, lease: lease(name, token) })) };
}

/** An explanation with this standing of the holder. */
export function standing(status: object): Reply {
  return { body: { name: "job", summary: "", holders: 0, held: [], waiters: 0, standing: status } };
}

/** A problem document. */
export function problem(status: number, code: string, fields: object = {}): Reply {
  const body = {
    type: `urn:tenure:problem:${code}`,
    title: code,
    status,
    detail: `${code} by the test`,
    code,
    ...fields,
  };
  return { status, body, type: "application/problem+json" };
}

/** Settles with a promise from outside. */
export function deferred<T = void>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve: (value: T) => void = () => undefined;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
