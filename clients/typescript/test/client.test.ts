import assert from "node:assert/strict";
import { getEventListeners, once } from "node:events";
import { IncomingMessage, type ServerResponse } from "node:http";
import { createServer } from "node:net";
import { afterEach, beforeEach, test } from "node:test";
import { Client, Election, LeaseManager, Refused, ShutDown, Unavailable, Unknown } from "tenure";
import { deferred, freeLeases, lease, problem, type Reply, ScriptedServer, TOKEN } from "./support/server.js";

let one: ScriptedServer;
let other: ScriptedServer;

beforeEach(async () => {
  [one, other] = [await ScriptedServer.start(() => "close"), await ScriptedServer.start(() => "close")];
});

afterEach(async () => {
  await Promise.all([one[Symbol.asyncDispose](), other[Symbol.asyncDispose]()]);
});

function client(): Client {
  return new Client({ endpoints: [one.url, other.url], operationTimeout: "1s" });
}

function version(text: string) {
  return { body: { version: text, data_format: 1 } };
}

test("node_that_answered_last_gets_the_next_request", async () => {
  one.handler = () => problem(503, "no_leader");
  other.handler = () => version("other");
  const asked = client();
  assert.equal((await asked.version()).version, "other");
  assert.equal((await asked.version()).version, "other");
  assert.deepEqual([one.requests.length, other.requests.length], [1, 2]);
});

test("refused_connection_is_not_done_and_tries_the_next_node", async () => {
  other.handler = () => ({ body: { revoked: 1 } });
  const { url } = one;
  await one[Symbol.asyncDispose]();
  // A revoke is sent once, so this attempt certainly sent nothing.
  assert.equal(await new Client({ endpoints: [url, other.url] }).revoke("job"), 1);
  one = await ScriptedServer.start(() => "close");
});

test("revoke_is_not_repeated_after_a_lost_answer", async () => {
  other.handler = () => ({ body: { revoked: 1 } });
  await assert.rejects(client().revoke("job/a", { reason: "stuck & old" }), Unknown);
  assert.equal(one.requests[0]?.path, "/v1/leases/job%2Fa?reason=stuck+%26+old");
  assert.equal(other.requests.length, 0);
});

test("node_that_failed_does_not_get_the_next_request", async () => {
  other.handler = () => version("other");
  const asked = client();
  await assert.rejects(asked.revoke("job"), Unknown);
  assert.equal((await asked.version()).version, "other");
  assert.equal(one.requests.length, 1);
});

test("access_token_is_sent_and_not_shown", async () => {
  one.handler = () => version("one");
  const accessToken = `tenure_${"a7".repeat(36)}`;
  const asked = new Client({ endpoints: one.url, accessToken });
  await asked.version();
  assert.equal(one.requests[0]?.headers.authorization, `Bearer ${accessToken}`);
  const { inspect } = await import("node:util");
  assert.ok(!inspect(asked, { depth: 9, showHidden: true }).includes("a7a7"));
});

test("unknown_fields_and_states_of_newer_servers_stay_readable", async () => {
  one.handler = () => ({ body: lease("job", TOKEN, { state: "frozen", from_a_newer_server: [1] }) });
  const info = await client().get("job");
  assert.deepEqual([info.state, info.token], ["frozen", TOKEN]);
  assert.deepEqual((info as unknown as { from_a_newer_server: number[] }).from_a_newer_server, [1]);
});

test("list_reads_page_after_page", async () => {
  one.handler = ({ path }) => {
    const cursor = new URL(path, "http://a").searchParams.get("cursor");
    return cursor === null
      ? { body: { leases: [lease("a", TOKEN)], cursor: "next" } }
      : { body: { leases: [lease("b", TOKEN)], cursor: null } };
  };
  const names = [];
  const options = { prefix: "jobs/", holder: "me", state: "active", consistency: "linearizable" } as const;
  for await (const { name } of client().list(options)) {
    names.push(name);
  }
  assert.deepEqual(names, ["a", "b"]);
  const query = new URL(one.requests[1]?.path ?? "", "http://a").searchParams;
  assert.deepEqual(Object.fromEntries(query), {
    prefix: "jobs/",
    holder: "me",
    state: "active",
    limit: "1000",
    cursor: "next",
    consistency: "linearizable",
  });
});

test("reads_have_the_consistency_of_their_options", async () => {
  const lists = { held: [], transitions: [], waiters: [] };
  one.handler = ({ path }) =>
    path.startsWith("/v1/leases?")
      ? { body: { leases: [lease("a/b", "2")], cursor: null } }
      : { body: { ...lease("a/b", "1", { holders: [lease("a/b", "1")], holders_cursor: "next" }), ...lists } };
  const asked = client();
  const options = { consistency: "stale" } as const;
  await asked.get("a/b", options);
  await asked.history("a/b", options);
  await asked.queue("a/b", options);
  await asked.explain("a/b", { holder: "me", ...options });
  const paths = one.requests.map(({ path }) => path);
  assert.deepEqual(paths, [
    "/v1/leases/a%2Fb?consistency=stale",
    "/v1/leases?prefix=a%2Fb&state=active&limit=1000&cursor=next&consistency=stale",
    "/v1/leases/a%2Fb/history?consistency=stale",
    "/v1/leases/a%2Fb/queue?consistency=stale",
    "/v1/leases/a%2Fb/explain?holder=me&consistency=stale",
  ]);
});

test("get_reads_all_holders_of_a_counted_lease", async () => {
  one.handler = ({ path }) => {
    switch (new URL(path, "http://a").searchParams.get("cursor")) {
      case null:
        return { body: lease("job", TOKEN, { holders: [lease("job", "1")], holders_cursor: "next" }) };
      case "next":
        return { body: { leases: [lease("job", "2")], cursor: "more" } };
      default:
        return { body: { leases: [lease("job", "3"), lease("job-2", "4")], cursor: "end" } };
    }
  };
  const { holders, holders_cursor } = await client().get("job");
  assert.deepEqual([holders?.map(({ token }) => token), holders_cursor], [["1", "2", "3"], undefined]);
  assert.equal(one.requests.length, 3);
});

test("invalid_names_are_refused_before_a_request", async () => {
  assert.throws(() => client().history("no name"), RangeError);
  await assert.rejects(client().get("no name"), RangeError);
  assert.equal(one.requests.length, 0);
});

/** Starts a stream of events at the server, and keeps it open. */
function stream(response: ServerResponse, text: string): void {
  response.writeHead(200, { "content-type": "text/event-stream" });
  response.write(text);
}

function event(id: string, name: string, kind = "granted"): string {
  const data = { event: kind, index: 1, part: 0, name, holder: "me", token: TOKEN, at: "" };
  return `id: ${id}\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`;
}

test("watch_resumes_after_its_last_position_at_another_node", async () => {
  one.handler = (_, response) => {
    stream(response, `id: 10\n\n: alive\n\n${event("12.0", "a")}`);
    setImmediate(() => response.destroy());
    return "hang";
  };
  other.handler = ({ path }, response) => {
    assert.equal(path, "/v1/watch?prefix=job&after=12.0");
    stream(response, `${event("12", "b", "from_a_newer_server")}event: lagged\ndata: {"code":"lagged"}\n\n`);
    return "hang";
  };
  const watch = client().watch({ prefix: "job" });
  const first = await watch.next();
  assert.deepEqual([first.value?.name, watch.position], ["a", "12.0"]);
  one.handler = () => problem(503, "no_leader");
  const second = await watch.next();
  assert.deepEqual([second.value?.event, watch.position], ["from_a_newer_server", "12"]);
  await watch.return();
  assert.equal((await watch.next()).done, true);
});

test("watch_leaves_a_node_that_is_silent", { timeout: 30_000 }, async (context) => {
  const silences: { limit: number; end: () => void }[] = [];
  context.mock.method(IncomingMessage.prototype, "setTimeout", (limit: number, end: () => void) => {
    silences.push({ limit, end });
  });
  one.handler = (_, response) => {
    stream(response, event("10", "a"));
    return "hang";
  };
  other.handler = ({ path }, response) => {
    assert.equal(path, "/v1/watch?after=10");
    stream(response, event("11", "b"));
    return "hang";
  };
  const watch = client().watch();
  context.after(() => void watch.return());
  assert.equal((await watch.next()).value?.name, "a");
  one.handler = () => "close";
  assert.deepEqual(
    silences.map(({ limit }) => limit),
    [30_000],
  );
  silences[0]?.end();
  assert.equal((await watch.next()).value?.name, "b");
});

test("client_that_only_watches_finds_the_other_members", { timeout: 30_000 }, async (context) => {
  // Whole milliseconds: the sum and the difference of fractions can be shorter than the interval.
  let time = Math.ceil(performance.now());
  context.mock.method(performance, "now", () => time);
  const opened = deferred<ServerResponse>();
  one.handler = ({ path }, response) => {
    if (path === "/v1/cluster") {
      return { body: { members: [{ http: one.address }, { http: other.address }] } };
    }
    stream(response, event("10", "a"));
    opened.resolve(response);
    return "hang";
  };
  other.handler = (_, response) => {
    stream(response, event("11", "b"));
    return "hang";
  };
  const watch = new Client({ endpoints: one.url }).watch();
  context.after(() => void watch.return());
  assert.equal((await watch.next()).value?.name, "a");
  time += 30_000;
  const next = watch.next();
  const response = await opened.promise;
  response.write(": alive\n\n");
  await one.received("/v1/cluster");
  // The member that was given is gone.
  one.handler = () => "close";
  response.destroy();
  assert.equal((await next).value?.name, "b");
});

test("refused_watch_ends_with_the_reason", async () => {
  one.handler = () => problem(410, "compacted", { oldest: 7 });
  await assert.rejects(client().watch({ after: "1" }).next(), (error) => {
    return error instanceof Refused && error.code === "compacted" && error.problem.oldest === 7;
  });
});

test("watch_without_a_node_is_unavailable_at_its_begin", async () => {
  await assert.rejects(client().watch().next(), Unavailable);
});

test("cancelled_watch_throws_the_reason", async () => {
  one.handler = (_, response) => {
    stream(response, "id: 10\n\n");
    return "hang";
  };
  const cancel = new AbortController();
  const next = client().watch({ signal: cancel.signal }).next();
  await one.received("/v1/watch");
  cancel.abort(new Error("cancelled by the test"));
  await assert.rejects(next, /cancelled by the test/);
});

test("waiting_acquire_leaves_a_node_that_is_not_ready", async () => {
  const begun = performance.now();
  one.handler = ({ path }) => (path === "/readyz" ? problem(503, "not_ready") : "hang");
  other.handler = ({ path }) =>
    path.includes("/acquire") ? { body: lease("job", TOKEN) } : { body: { released: true } };
  const manager = new LeaseManager({ endpoints: [one.url, other.url] });
  const held = await manager.acquire("job", { ttl: "1s", wait: "20s" });
  assert.equal(held.isHeld(), true);
  const [before, after] = [one.of("/acquire")[0]?.body.wait_ms, other.of("/acquire")[0]?.body.wait_ms];
  assert.ok(before > 15_000 && before <= 20_000, `${before}`);
  assert.ok(after <= before - 400 && performance.now() - begun < 15_000, `${after}`);
  await manager.shutdown();
});

test("waiting_acquire_leaves_a_node_that_hangs", async () => {
  one.handler = () => "hang";
  other.handler = ({ path }) =>
    path.includes("/acquire") ? { body: lease("job", TOKEN) } : { body: { released: true } };
  const manager = new LeaseManager({ endpoints: [one.url, other.url] });
  const claim = manager.acquire("job", { ttl: "1s", wait: "20s" });
  await (await one.received("/acquire")).aborted;
  assert.equal((await claim).isHeld(), true);
  await manager.shutdown();
});

/** The number of listeners of a signal. */
function listeners(signal: AbortSignal): number {
  return getEventListeners(signal, "abort").length;
}

test("watch_that_ends_with_an_error_keeps_no_listener", async () => {
  one.handler = () => problem(410, "compacted", { oldest: 7 });
  const { signal } = new AbortController();
  const watch = client().watch({ after: "1", signal });
  await assert.rejects(watch.next(), Refused);
  assert.equal(listeners(signal), 0);
  assert.equal((await watch.next()).done, true, "as after an error of a generator");
});

test("aborted_watch_keeps_no_listener", async () => {
  const cancel = new AbortController();
  const watch = client().watch({ signal: cancel.signal });
  cancel.abort(new Error("cancelled by the test"));
  await assert.rejects(watch.next(), /cancelled by the test/);
  assert.equal(listeners(cancel.signal), 0);
});

test("probe_ends_with_its_claim", async () => {
  const grant = deferred<Reply>();
  one.handler = freeLeases({ acquire: () => grant.promise, readyz: () => "hang" });
  const manager = new LeaseManager({ endpoints: one.url });
  const claim = manager.acquire("job", { ttl: "6s", wait: "30s" });
  const probe = await one.received("/readyz");
  grant.resolve({ body: lease("job", TOKEN) });
  await claim;
  const before = performance.now();
  await probe.aborted;
  assert.ok(performance.now() - before < 1_000, "before its timeout of 2 s");
  await manager.shutdown();
});

test("request_in_progress_ends_as_usual_after_the_close", async () => {
  const answer = deferred<Reply>();
  one.handler = () => answer.promise;
  const asked = client();
  const reading = asked.version();
  await one.received("/version");
  asked.close();
  answer.resolve(version("one"));
  assert.equal((await reading).version, "one");
  assert.equal(other.requests.length, 0, "its connection was not closed");
});

test("closed_client_sends_no_request", async () => {
  one.handler = () => version("one");
  const asked = client();
  await asked.version();
  asked.close();
  await assert.rejects(asked.version(), ShutDown);
  await assert.rejects(asked.list().next(), ShutDown);
  await assert.rejects(asked.revoke("job"), /the client is closed/);
  await assert.rejects(asked.watch().next(), ShutDown);
  assert.equal(one.requests.length, 1);
});

test("open_watch_and_observer_end_with_the_close", async () => {
  one.handler = ({ path }, response) => {
    if (path.includes("/explain")) {
      return { body: { name: "job", summary: "", holders: 0, held: [], waiters: 0 } };
    }
    stream(response, "id: 10\n\n");
    return "hang";
  };
  const manager = new LeaseManager({ endpoints: one.url });
  const watching = manager.client.watch().next();
  const observed = new Election(manager, "job", { refresh: "1h" }).observe();
  assert.equal((await observed.next()).value, undefined);
  const changed = observed.next();
  await one.received("/v1/watch", 2);
  const ended = Promise.all([assert.rejects(watching, ShutDown), assert.rejects(changed, ShutDown)]);
  await manager.shutdown();
  await ended;
});

test("observer_sees_a_change_of_the_holder_at_once", { timeout: 30_000 }, async (context) => {
  let held: object[] = [];
  const opened = deferred<ServerResponse>();
  one.handler = ({ path }, response) => {
    if (path.includes("/explain")) {
      return { body: { name: "job", summary: "", holders: held.length, held, waiters: 0 } };
    }
    stream(response, "id: 10\n\n");
    opened.resolve(response);
    return "hang";
  };
  const manager = new LeaseManager({ endpoints: one.url });
  const stop = new AbortController();
  context.after(() => stop.abort());
  const observed = new Election(manager, "job", { refresh: "1h" }).observe({ signal: stop.signal });
  assert.equal((await observed.next()).value, undefined);
  const changed = observed.next();
  changed.catch(() => undefined);
  const response = await opened.promise;
  held = [lease("job", TOKEN)];
  response.write(event("11", "job"));
  assert.equal((await changed).value?.holder, "me");
  await manager.shutdown();
  stop.abort();
  await observed.return(undefined);
});

test("members_of_the_cluster_are_found_after_a_failure", async () => {
  const cluster = deferred();
  one.handler = ({ path }) => {
    if (path === "/v1/cluster") {
      cluster.resolve();
      return { body: { members: [{ http: one.address }, { http: other.address }] } };
    }
    return version("one");
  };
  other.handler = () => version("other");
  const gone = createServer().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const port = (gone.address() as { port: number }).port;
  await once(gone.close(), "close");
  const asked = new Client({ endpoints: [`127.0.0.1:${port}`, one.url], operationTimeout: "1s" });
  const begun = performance.now();
  while (one.of("/v1/cluster").length === 0) {
    await asked.version();
    await new Promise(setImmediate);
  }
  await cluster.promise;
  assert.ok(performance.now() - begun >= 1_900, "2 s after the failure");
  one.handler = () => problem(503, "shutting_down");
  assert.equal((await asked.version()).version, "other");
});
