import {
  Agent,
  type ClientRequest,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
} from "node:http";
import { Agent as HttpsAgent, request as httpsRequest } from "node:https";
import { createSecureContext } from "node:tls";
import { sharedController } from "./abort.js";
import { ShutDown } from "./errors.js";
import { Slots } from "./slots.js";

/** Timeout of a connection attempt. A node that takes longer counts as unreachable. */
const CONNECT_TIMEOUT_MS = 1_000;
/** The client closes idle connections before a node does (after 60 s): a request at that moment would fail. */
const IDLE_TIMEOUT_MS = 20_000;
/** Largest response body, in bytes. */
const MAX_ANSWER_BYTES = 64 * 1024 * 1024;

/** Certificates for `https` endpoints, as PEM text or bytes. */
export interface TlsOptions {
  /** Trust only these CAs, instead of those of Node.js. */
  readonly ca?: string | Uint8Array | undefined;
  /** The certificate of this client. It needs `key`. */
  readonly cert?: string | Uint8Array | undefined;
  /** The key of `cert`. */
  readonly key?: string | Uint8Array | undefined;
}

/** A request before it is sent. */
export interface HttpRequest {
  readonly method: string;
  readonly url: URL;
  readonly headers?: Record<string, string> | undefined;
  /** JSON text. */
  readonly body?: string | undefined;
  readonly signal: AbortSignal;
}

/** A response with its whole body. */
export interface HttpResponse {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** The connection failed before the request was sent, so no node can have applied it. */
export class NotSent extends Error {}

/**
 * HTTP/1.1 with persistent connections, on `node:http` and `node:https`.
 *
 * The global `fetch` is no alternative. It ends each request after 300 s without response headers, which would end
 * longer waits. It takes no CA and no client certificate. It does not tell whether a failed request was sent.
 */
export class Transport {
  readonly #http = new Agent({ keepAlive: true, timeout: IDLE_TIMEOUT_MS });
  readonly #https: HttpsAgent;
  readonly #headers: Record<string, string>;
  readonly #closed = sharedController();
  /** The turns of the requests that wait neither for a lease nor for events. */
  readonly slots = new Slots();

  /** @throws RangeError if a certificate or its key is invalid. */
  constructor(tls: TlsOptions | undefined, accessToken: string | undefined) {
    this.#https = new HttpsAgent({ keepAlive: true, timeout: IDLE_TIMEOUT_MS, ...pem(tls) });
    this.#headers = accessToken === undefined ? {} : { authorization: `Bearer ${accessToken}` };
  }

  /**
   * Sends a request and reads the response.
   *
   * @throws {@link NotSent} if the request was certainly not sent, and the reason of the failure otherwise.
   */
  async exchange(request: HttpRequest): Promise<HttpResponse> {
    const response = await this.open(request);
    const chunks: Buffer[] = [];
    let bytes = 0;
    for await (const chunk of response as AsyncIterable<Buffer>) {
      bytes += chunk.length;
      if (bytes > MAX_ANSWER_BYTES) {
        throw new Error(`the response has more than ${MAX_ANSWER_BYTES} bytes`);
      }
      chunks.push(chunk);
    }
    return {
      status: response.statusCode ?? 0,
      headers: response.headers,
      body: Buffer.concat(chunks).toString("utf8"),
    };
  }

  /** Sends a request and returns the response before its body. The signal also ends the body. */
  open({ method, url, headers, body, signal }: HttpRequest): Promise<IncomingMessage> {
    const isSecure = url.protocol === "https:";
    const agent = isSecure ? this.#https : this.#http;
    const all: Record<string, string | number> = { accept: "application/json", ...this.#headers, ...headers };
    if (body !== undefined) {
      all["content-type"] = "application/json";
      all["content-length"] = Buffer.byteLength(body);
    }
    return new Promise((resolve, reject) => {
      let isConnected = false;
      let connectTimer: NodeJS.Timeout | undefined;
      const connected = () => {
        isConnected = true;
        clearTimeout(connectTimer);
      };
      const failed = (error: Error) => {
        clearTimeout(connectTimer);
        reject(isConnected ? error : new NotSent(error.message, { cause: error }));
      };
      let request: ClientRequest;
      try {
        request = (isSecure ? httpsRequest : httpRequest)(url, { method, headers: all, agent, signal });
      } catch (error) {
        failed(error as Error);
        return;
      }
      request.once("socket", (socket) => {
        if (request.reusedSocket) {
          connected();
        } else {
          // The limit begins with the attempt, and not while the request waits for the agent.
          connectTimer = setTimeout(() => {
            request.destroy(new Error(`no connection within ${CONNECT_TIMEOUT_MS} ms`));
          }, CONNECT_TIMEOUT_MS);
          // An abort after the end of the response destroys the socket. Without a listener, its error would end the process.
          socket.on("error", () => undefined);
          socket.once(isSecure ? "secureConnect" : "connect", connected);
        }
      });
      request.once("response", (response) => {
        // A reader of the body gets its errors. Without this listener, an error between two reads would end the process.
        response.on("error", () => undefined);
        resolve(response);
      });
      request.on("error", failed);
      // After an answer `101`, there is neither a response nor an error.
      request.once("close", () => failed(new Error("the connection was closed without an answer")));
      request.end(body);
    });
  }

  /** Aborts with {@link ShutDown} when the transport is closed. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  /** Closes the idle connections now, and each other one after its request. `destroy` of an agent closes all at once. */
  close(): void {
    this.#closed.abort(new ShutDown("the client is closed"));
    for (const agent of [this.#http, this.#https]) {
      agent.maxFreeSockets = 0;
      for (const socket of Object.values(agent.freeSockets).flat()) {
        socket?.destroy();
      }
    }
  }
}

function pem(tls: TlsOptions | undefined): Record<string, string | Buffer> {
  const given = Object.entries(tls ?? {}).filter(
    (entry): entry is [string, string | Uint8Array] => entry[1] !== undefined,
  );
  const texts = given.map(([name, text]) => [name, typeof text === "string" ? text : Buffer.from(text)]);
  const options = Object.fromEntries(texts);
  if (given.length > 0) {
    try {
      createSecureContext(options);
    } catch (error) {
      throw new RangeError(`invalid certificates: ${(error as Error).message}`, { cause: error });
    }
  }
  return options;
}
