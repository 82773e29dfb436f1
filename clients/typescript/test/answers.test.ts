import assert from "node:assert/strict";
import { generateKeyPairSync } from "node:crypto";
import type { ServerResponse } from "node:http";
import { afterEach, beforeEach, test } from "node:test";
import { Client, Election, type Lease, LeaseManager, Unavailable, Unknown } from "tenure";
import { NotSent, Transport } from "#dist/transport.js";
import {
  freeLeases,
  lease,
  type Received,
  type Reply,
  ScriptedServer,
  standing,
  TOKEN,
  TTL,
} from "./support/server.js";

/** A test whose request does not end fails after this time. */
const LIMIT = { timeout: 30_000 };
const CERTIFICATE = `-----BEGIN CERTIFICATE-----
MIIBeTCCAR+gAwIBAgIUAXIQZmF1D9ndz7EG5O/xVU4YCr4wCgYIKoZIzj0EAwIw
ETEPMA0GA1UEAwwGY2xpZW50MCAXDTI2MTEyOTEyNDEzM1oYDzIxMjYxMTA1MTI0
MTMzWjARMQ8wDQYDVQQDDAZjbGllbnQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAR9MTih9SlkAGioymh/SZmznUctSwpixRhlbAJwu+RZkHc9q5rZzkk9PuwCfbR+
T5tE5U9VSSp8pOewE98vWshMo1MwUTAdBgNVHQ4EFgQUppKYb3nv6eSTlK0qN6Hv
5Opqzn4wHwYDVR0jBBgwFoAUppKYb3nv6eSTlK0qN6Hv5Opqzn4wDwYDVR0TAQH/
BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiEA0g92vIyQzhbQvJRoGrikdMJLvjS6
msiEnk0f+P3YtMkCIH6VV8T35UxAtn/pnzsKFnYBPhzytOp+0DR7ZOmDRUSL
-----END CERTIFICATE-----
`;

let server: ScriptedServer;

beforeEach(async () => {
  server = await ScriptedServer.start(() => "close");
});

afterEach(async () => {
  await server[Symbol.asyncDispose]();
});

test("request_whose_answer_switches_protocols_ends", { timeout: 10_000 }, async (context) => {
  server.handler = (_: Received, response: ServerResponse) => {
    response.socket?.write("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n");
    return "hang";
  };
  const manager = new LeaseManager({ endpoints: server.url, operationTimeout: "1s" });
  context.after(() => void manager.shutdown());
  await assert.rejects(manager.client.version(), Unavailable);
  await assert.rejects(manager.acquire("job"), Unknown);
});

for (const [what, body, read] of [
  ["a_list", {}, (client) => client.list().next()],
  ["a_list_of_other_values", { leases: [null] }, (client) => client.list().next()],
  ["a_list_with_another_cursor", { leases: [], cursor: {} }, (client) => client.list().next()],
  ["a_lease", {}, (client) => client.get("job")],
  ["a_lease_with_other_holders", lease("job", TOKEN, { holders: {} }), (client) => client.get("job")],
  ["a_history", { transitions: {} }, (client) => client.history("job")],
  ["a_queue", { waiters: null }, (client) => client.queue("job")],
  ["an_explanation", {}, (client) => client.explain("job")],
  ["an_explanation_with_other_holders", { held: [7] }, (client) => client.explain("job")],
] as [string, object, (client: Client) => Promise<unknown>][]) {
  test(`invalid_answer_for_${what}_is_unknown`, LIMIT, async () => {
    server.handler = () => (server.requests.length > 1 ? "close" : { body });
    await assert.rejects(read(new Client({ endpoints: server.url })), Unknown);
  });
}

test("invalid_further_holders_of_a_lease_are_unknown", LIMIT, async () => {
  const first = lease("job", TOKEN, { holders: [], holders_cursor: "next" });
  server.handler = ({ path }) => ({ body: path.includes("cursor=") ? { leases: [{}] } : first });
  await assert.rejects(new Client({ endpoints: server.url }).get("job"), Unknown);
});

for (const [what, explained] of [
  ["the_lease", standing({ status: "holds" })],
  ["a_valid_token", standing({ status: "holds", lease: { token: "x" } })],
  ["the_last_event", standing({ status: "ended", event: {} })],
] as [string, Reply][]) {
  test(`check_without_${what}_is_unknown`, LIMIT, async () => {
    server.handler = freeLeases({ explain: () => explained });
    await using manager = new LeaseManager({ endpoints: server.url });
    const held: Lease = await manager.acquire("job", { ttl: TTL });
    await assert.rejects(held.check(), Unknown);
    assert.equal(held.isHeld(), true);
  });
}

test("leader_with_an_invalid_token_is_unknown", LIMIT, async () => {
  server.handler = () => ({ body: { held: [lease("job", "x")] } });
  await using manager = new LeaseManager({ endpoints: server.url });
  await assert.rejects(new Election(manager, "job").current(), Unknown);
});

test("key_of_another_certificate_is_refused", () => {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "prime256v1" });
  const key = privateKey.export({ type: "pkcs8", format: "pem" });
  const tls = { ca: CERTIFICATE, cert: CERTIFICATE, key };
  assert.throws(() => new Client({ endpoints: "https://a:1", tls }), /^RangeError: invalid certificates/);
  assert.throws(() => new LeaseManager({ tls }), RangeError);
  assert.ok(new Client({ endpoints: "https://a:1", tls: { ca: CERTIFICATE } }));
});

test("request_that_node_js_refuses_is_not_sent", LIMIT, async () => {
  const transport = new Transport(undefined, undefined);
  const request = { method: "GET", url: new URL(server.url), signal: new AbortController().signal };
  await assert.rejects(transport.exchange({ ...request, headers: { accept: "\n" } }), NotSent);
  assert.deepEqual(server.requests, []);
});
