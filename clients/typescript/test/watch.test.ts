import assert from "node:assert/strict";
import type { ServerResponse } from "node:http";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, LeaseManager, Refused, Unavailable, type Watch } from "tenure";
import { enableAccessControl, TestCluster, tenure } from "./support/cluster.js";
import { problem, type Reply, ScriptedServer } from "./support/server.js";

const NODES = [1, 2, 3];
/** In this time, a watch asks a node several times. */
const OUTAGE_MS = 4_000;
const READY: Reply = { body: { ready: true } };
const NOT_READY = problem(503, "not_ready");
const DENIED = problem(403, "forbidden");

let one: ScriptedServer;
let other: ScriptedServer;
let cluster: TestCluster;

before(async () => {
  cluster = await (await TestCluster.start(NODES.length)).ready();
});

after(() => cluster[Symbol.asyncDispose]());

beforeEach(async () => {
  [one, other] = [await ScriptedServer.start(() => "close"), await ScriptedServer.start(() => "close")];
});

afterEach(async () => {
  await Promise.all([one[Symbol.asyncDispose](), other[Symbol.asyncDispose]()]);
});

function client(): Client {
  return new Client({ endpoints: [one.url, other.url], operationTimeout: "1s" });
}

/** Lets a server answer watches in turn: with a reply, or a stream of one event. The last one answers all others. */
function script(server: ScriptedServer, ready: Reply, ...answers: (Reply | { event: string })[]): void {
  server.handler = ({ path }, response) => {
    if (path === "/readyz") {
      return ready;
    }
    const answer = (answers.length > 1 ? answers.shift() : answers[0]) ?? "close";
    if (typeof answer === "string" || !("event" in answer)) {
      return answer;
    }
    sendEvent(response, answer.event);
    return "hang";
  };
}

/** Sends an event, and ends the stream. */
function sendEvent(response: ServerResponse, name: string): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.end(`id: 7\nevent: granted\ndata: ${JSON.stringify({ event: "granted", name })}\n\n`);
}

async function refusal(watch: Watch): Promise<string> {
  const limit = AbortSignal.timeout(20_000);
  limit.addEventListener("abort", () => void watch.return());
  const error = await watch.next().then(
    () => undefined,
    (reason) => reason,
  );
  assert.ok(error instanceof Refused, `expected a refusal, not ${error}`);
  assert.equal((await watch.next()).done, true);
  return error.code;
}

test("denied_watch_fails_after_two_rounds", async () => {
  script(one, READY, DENIED);
  assert.equal(await refusal(client().watch()), "forbidden");
  assert.deepEqual([one.of("/v1/watch").length, other.of("/v1/watch").length], [2, 2]);
});

test("watch_finds_the_node_that_knows_a_new_token", async () => {
  script(one, READY, DENIED);
  script(other, READY, DENIED, { event: "a" });
  await using watch = client().watch();
  assert.equal((await watch.next()).value?.name, "a");
});

for (const [fault, ready] of [
  ["not_ready", NOT_READY],
  ["closed", "close"],
] as const) {
  test(`denial_of_a_node_that_is_${fault}_does_not_count`, async () => {
    script(one, ready, { event: "a" }, DENIED, DENIED, DENIED, { event: "b" }, DENIED);
    const watch = client().watch();
    assert.equal((await watch.next()).value?.name, "a");
    assert.equal((await watch.next()).value?.name, "b");
    script(one, READY, DENIED);
    assert.equal(await refusal(watch), "forbidden");
    script(one, ready, DENIED);
    await assert.rejects(client().watch().next(), Unavailable);
  });
}

test("watch_that_is_closed_after_the_end_of_its_stream_leaves_no_error", async () => {
  script(one, READY, { event: "a" });
  const watch = client().watch();
  assert.equal((await watch.next()).value?.name, "a");
  await watch.return();
  // An error of the socket would end the process.
  await sleep(50);
});

test("access_control_ends_a_watch_and_an_outage_does_not", async () => {
  const environment = { TENURE_ENDPOINTS: cluster.urls.join(",") };
  const root = await enableAccessControl(environment);
  const auth = (...words: string[]) => tenure(["auth", ...words], { ...environment, TENURE_ACCESS_TOKEN: root });
  await auth("role", "set", "reader", "--read", "open/");
  await auth("principal", "set", "reader", "--role", "reader");
  const accessToken = (await auth("token", "create", "reader")).trim();
  const endpoints = cluster.urls;
  const reader = new Client({ endpoints, accessToken });

  assert.equal(await refusal(new Client({ endpoints }).watch({ prefix: "open/" })), "unauthenticated");
  const unknown = new Client({ endpoints, accessToken: `tenure_${"a7".repeat(36)}` });
  assert.equal(await refusal(unknown.watch({ prefix: "open/" })), "unauthenticated");
  assert.equal(await refusal(reader.watch({ prefix: "closed/" })), "forbidden");

  const watch = reader.watch({ prefix: "open/" });
  const first = watch.next();
  while (watch.position === undefined) {
    await sleep(10);
  }
  for (const node of NODES) {
    cluster.signal(node, "SIGKILL");
  }
  // Alone, this node may not know the newest tokens.
  await cluster.restart(1);
  assert.equal(await Promise.race([first, sleep(OUTAGE_MS, "waits")]), "waits");
  await cluster.restart(2, 3);
  await cluster.ready();

  await using holder = new LeaseManager({ endpoints, accessToken: root });
  await holder.with("open/a", () => undefined);
  assert.equal((await first).value?.name, "open/a");
  assert.equal((await watch.next()).value?.event, "released");
  const [id = ""] = /[0-9a-f]{16}/.exec(await auth("token", "list", "reader")) ?? [];
  await auth("token", "revoke", id);
  assert.equal(await refusal(watch), "unauthenticated");
});
