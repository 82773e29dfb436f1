import { setTimeout as sleep } from "node:timers/promises";
import type { Endpoints } from "./endpoints.js";
import {
  type Attempt,
  type AttemptContext,
  attempts,
  classifyProblem,
  type Resolved,
  type RetryBudget,
  type RetryPolicy,
} from "./retry.js";
import { NotSent, type Transport } from "./transport.js";
import type { Problem } from "./types.js";

/** A request to the cluster before it is sent. */
export interface Call {
  readonly method: "GET" | "POST" | "DELETE";
  /** Path relative to the endpoint, without a leading slash. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | undefined>> | undefined;
  /** Creates the body of an attempt. The argument is the time since the start of the first attempt. */
  readonly body?: ((elapsed: number) => unknown) | undefined;
  readonly policy: RetryPolicy;
  readonly budget: RetryBudget;
  /** The wait for a lease, if the request has one. */
  readonly wait?: QueueWait | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** A wait for a lease, in milliseconds. */
export interface QueueWait {
  readonly longest: number;
  /** The interval between readiness probes of the node, and the timeout of one probe. */
  readonly probe: number;
}

/**
 * Sends a request until an attempt resolves it or the budget is used up. The budget begins when fewer than
 * `MAX_PARALLEL` other requests run.
 */
export async function send<T>(transport: Transport, endpoints: Endpoints, call: Call): Promise<Resolved<T>> {
  // A renewal has a deadline, and a wait for a lease is long: neither waits for other requests.
  if (call.wait !== undefined || call.policy === "renewal") {
    return sendNow(transport, endpoints, call);
  }
  await transport.slots.take(call.budget.total, call.signal);
  try {
    return await sendNow(transport, endpoints, call);
  } finally {
    transport.slots.release();
  }
}

async function sendNow<T>(transport: Transport, endpoints: Endpoints, call: Call): Promise<Resolved<T>> {
  const { urls, preferred } = endpoints;
  const { policy, budget, signal } = call;
  const options = { policy, budget, wait: call.wait?.longest, nodes: urls.length, signal };
  const { answer, ambiguous } = await attempts<object>(options, async (context) => {
    const index = (preferred + context.number) % urls.length;
    const url = urls[index] as URL;
    const began = performance.now();
    const ended = await attemptAt(transport, url, call, context);
    if (ended.kind === "done" || ended.kind === "refused") {
      transport.slots.answered();
      endpoints.prefer(index);
      endpoints.refresh(transport, url);
    } else if (!context.signal.aborted) {
      endpoints.avoid(index, urls.length);
    } else if (call.wait === undefined && policy !== "renewal") {
      // A wait has its own probes, and the end of a renewal aborts its other attempts.
      endpoints.left(index, urls.length, performance.now() - began);
    }
    return ended;
  });
  return { answer: answer as T, ambiguous };
}

async function attemptAt(
  transport: Transport,
  endpoint: URL,
  call: Call,
  context: AttemptContext,
): Promise<Attempt<object>> {
  const url = new URL(call.path, endpoint);
  for (const [name, value] of Object.entries(call.query ?? {})) {
    if (value !== undefined) {
      url.searchParams.set(name, value);
    }
  }
  const cut = new AbortController();
  let why: string | undefined;
  const cutOff = (reason: string) => {
    why ??= reason;
    cut.abort();
  };
  const timer = setTimeout(() => cutOff(`no answer within ${Math.round(context.limit)} ms`), context.limit);
  const cancel = () => cutOff("cancelled");
  context.signal.addEventListener("abort", cancel);
  if (context.signal.aborted) {
    cancel();
  }
  if (call.wait !== undefined) {
    probeUntilNotReady(transport, endpoint, call.wait.probe, cut.signal).then(cutOff, () => undefined);
  }
  try {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body(context.elapsed));
    const response = await transport.exchange({ method: call.method, url, body, signal: cut.signal });
    return classifyResponse(endpoint, response.status, response.body);
  } catch (error) {
    const text = `${endpoint.href}: ${why ?? (error as Error).message}`;
    return { kind: error instanceof NotSent ? "not_done" : "unknown", why: text };
  } finally {
    clearTimeout(timer);
    context.signal.removeEventListener("abort", cancel);
    cut.abort();
  }
}

/**
 * Probes the readiness of the node while the request waits for a lease. Returns why the wait must continue at another
 * node. A stopped or partitioned node closes no connection, so the open request alone does not show that it is alive.
 */
async function probeUntilNotReady(
  transport: Transport,
  endpoint: URL,
  interval: number,
  signal: AbortSignal,
): Promise<string> {
  for (;;) {
    await sleep(interval, undefined, { signal });
    const limit = new AbortController();
    const cancel = () => limit.abort();
    const timer = setTimeout(cancel, interval);
    // A probe ends with its request: it would otherwise keep the process alive.
    signal.addEventListener("abort", cancel);
    try {
      const url = new URL("readyz", endpoint);
      const { status } = await transport.exchange({ method: "GET", url, signal: limit.signal });
      if (status === 503) {
        return "the node is not ready";
      }
    } catch (error) {
      return limit.signal.aborted
        ? `the node did not answer the readiness probe within ${interval} ms`
        : (error as Error).message;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", cancel);
    }
  }
}

/** Classifies a response. The status line counts, and not the status in the body. */
export function classifyResponse(endpoint: URL, status: number, body: string): Attempt<object> {
  const document = parseObject(body);
  if (status >= 200 && status < 300) {
    // Another node can have a valid answer.
    const invalid = { kind: "unknown", why: `${endpoint.href}: the answer is invalid` } as const;
    return document === undefined ? invalid : { kind: "done", value: document };
  }
  const problem = parseProblem(status, document);
  if (problem === undefined) {
    // A proxy between the client and the node answered. It cannot know whether the node applied the request.
    return { kind: "unknown", why: `${endpoint.href} answered ${status} without a problem document` };
  }
  return classifyProblem(problem, endpoint.href);
}

function parseProblem(status: number, document: object | undefined): Problem | undefined {
  const problem = document as Problem | undefined;
  return typeof problem?.code === "string" ? { ...problem, detail: problem.detail ?? problem.code, status } : undefined;
}

/** The JSON object, or `undefined` for any other text. */
function parseObject(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
