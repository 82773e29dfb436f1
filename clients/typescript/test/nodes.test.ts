import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import { type AddressInfo, Socket } from "node:net";
import { afterEach, beforeEach, test } from "node:test";
import { Client, LeaseManager, Unavailable, Unknown, type Watch } from "tenure";
import { ManualClock } from "./support/clock.js";
import { freeLeases, lease, type Reply, ScriptedServer, TOKEN, TTL } from "./support/server.js";

/** A test whose request does not end fails after this time. */
const LIMIT = { timeout: 30_000 };
/** An answer of another service, for instance the page of an ingress. */
const PAGE: Reply = { body: "<html>", type: "text/html" };

let one: ScriptedServer;
let other: ScriptedServer;

beforeEach(async () => {
  [one, other] = [await ScriptedServer.start(() => "close"), await ScriptedServer.start(() => "close")];
});

afterEach(async () => {
  await Promise.all([one[Symbol.asyncDispose](), other[Symbol.asyncDispose]()]);
});

function client(): Client {
  return new Client({ endpoints: [one.url, other.url], operationTimeout: "5s" });
}

/** Sends events, and keeps the stream open. */
function stream(response: ServerResponse, ...names: string[]): Reply {
  response.writeHead(200, { "content-type": "text/event-stream" });
  for (const name of names) {
    response.write(`id: 1${name}\nevent: granted\ndata: ${JSON.stringify({ event: "granted", name })}\n\n`);
  }
  return "hang";
}

for (const [fault, reply] of [
  ["a_page", PAGE],
  ["null", { body: null }],
  ["a_list", { body: [] }],
] as const) {
  test(`node_that_answers_with_${fault}_does_not_get_the_next_request`, LIMIT, async () => {
    one.handler = () => reply;
    other.handler = () => ({ body: { version: "other", data_format: 1 } });
    const asked = client();
    assert.equal((await asked.version()).version, "other");
    assert.equal((await asked.version()).version, "other");
    assert.deepEqual([one.requests.length, other.requests.length], [1, 2]);
  });
}

test("callers_with_a_short_limit_leave_a_node_that_hangs", LIMIT, async () => {
  one.handler = () => "hang";
  other.handler = () => ({ body: { version: "other", data_format: 1 } });
  const asked = client();
  let version: string | undefined;
  for (let call = 0; call < 10 && version === undefined; call++) {
    const answer = await asked.version({ signal: AbortSignal.timeout(300) }).catch(() => undefined);
    version = answer?.version;
  }
  assert.equal(version, "other");
});

test("watches_with_a_short_limit_leave_a_node_that_hangs", LIMIT, async () => {
  one.handler = () => "hang";
  other.handler = (_, response) => stream(response, "a");
  const asked = client();
  let name: string | undefined;
  for (let call = 0; call < 10 && name === undefined; call++) {
    await using watch = asked.watch({ signal: AbortSignal.timeout(300) });
    name = await next(watch).catch(() => undefined);
  }
  assert.equal(name, "a");
});

test("renewals_leave_a_node_whose_answers_are_invalid", LIMIT, async () => {
  one.handler = freeLeases({ renew: () => PAGE });
  other.handler = freeLeases();
  const clock = new ManualClock();
  const manager = new LeaseManager({ endpoints: [one.url, other.url], clock });
  const held = await manager.acquire("job", { ttl: TTL });
  for (const count of [1, 2]) {
    clock.advance(TTL * 0.4);
    await other.received("/v1/renew", count);
  }
  assert.equal(one.of("/v1/renew").length, 1);
  await held.release();
  await manager.shutdown();
});

test("revoke_without_a_number_is_unknown", LIMIT, async () => {
  one.handler = () => ({ body: { status: "ok" } });
  await assert.rejects(client().revoke("job"), Unknown);
});

/** The name of the next event. */
async function next(watch: Watch): Promise<string | undefined> {
  return (await watch.next()).value?.name;
}

for (const [fault, answer] of [
  ["a_page", () => PAGE],
  [
    "an_empty_stream",
    (response: ServerResponse): Reply => {
      response.writeHead(200, { "content-type": "text/event-stream" }).end();
      return "hang";
    },
  ],
] as const) {
  test(`watch_leaves_a_node_that_answers_with_${fault}`, LIMIT, async (context) => {
    one.handler = (_, response) => answer(response);
    other.handler = (_, response) => stream(response, "a");
    const watch = client().watch();
    context.after(() => void watch.return());
    assert.equal(await next(watch), "a");
  });
}

test("watch_without_a_stream_is_unavailable", LIMIT, async (context) => {
  one.handler = () => PAGE;
  const watch = new Client({ endpoints: one.url, operationTimeout: "100ms" }).watch();
  context.after(() => void watch.return());
  await assert.rejects(watch.next(), Unavailable);
});

test("concurrent_steps_of_a_watch_get_each_event_once", LIMIT, async () => {
  one.handler = (_, response) => stream(response, "a", "b", "c");
  await using watch = client().watch();
  assert.deepEqual(await Promise.all([next(watch), next(watch), next(watch)]), ["a", "b", "c"]);
  assert.equal(one.of("/v1/watch").length, 1);
});

test("waiting_acquire_leaves_a_host_that_accepts_no_connection", LIMIT, async (context) => {
  const { connect } = Socket.prototype;
  const silent = new URL(one.url).port;
  context.mock.method(Socket.prototype, "connect", function (this: Socket, ...given: unknown[]) {
    // The arguments of `net.connect` arrive as one list.
    const [options] = given.flat() as [{ port?: unknown }];
    const isSilent = String(options.port) === silent;
    return isSilent ? Object.assign(this, { connecting: true }) : Reflect.apply(connect, this, given);
  });
  other.handler = freeLeases();
  const manager = new LeaseManager({ endpoints: [one.url, other.url], operationTimeout: "20s" });
  const begun = performance.now();
  const held = await manager.acquire("job", { ttl: "60s", wait: "60s" });
  // Probes would find the dead host after 20 s.
  assert.ok(performance.now() - begun < 15_000, "a connection attempt has a limit of its own");
  await held.release();
  await manager.shutdown();
});

test("idle_connections_end_before_a_node_closes_them", LIMIT, async (context) => {
  const server = createServer((_, response) => response.end(JSON.stringify(lease("job", TOKEN))));
  // As a node, it does not tell when it closes an idle connection.
  server.keepAliveTimeout = 0;
  await once(server.listen(0, "127.0.0.1"), "listening");
  context.after(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const { setTimeout: setLimit } = Socket.prototype;
  const limits: number[] = [];
  context.mock.method(Socket.prototype, "setTimeout", function (this: Socket, limit: number, ended?: () => void) {
    if (this.remotePort === port && limit > 0) {
      limits.push(limit);
    }
    return setLimit.call(this, limit, ended);
  });
  const asked = new Client({ endpoints: `127.0.0.1:${port}` });
  await asked.get("job");
  while (limits.length === 0) {
    // The client keeps the connection after the answer.
    await new Promise(setImmediate);
  }
  asked.close();
  assert.ok(Math.max(...limits) < 60_000, `${limits} ms`);
});
