import assert from "node:assert/strict";
import fs, { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Client, type Duration, Election, FencingToken, LeaseManager, systemClock } from "tenure";
import { BootClock } from "#dist/clock.js";
import { Core } from "#dist/core.js";
import { toMs } from "#dist/duration.js";
import { Endpoints } from "#dist/endpoints.js";
import { Mutex } from "#dist/mutex.js";
import { accessToken, checkHolder, checkName, endpointsOption, parseAcquire, tlsOptions } from "#dist/options.js";
import { parseEvents } from "#dist/sse.js";
import type { Transport } from "#dist/transport.js";
import { ManualClock } from "./support/clock.js";

const TOKEN = `tenure_${"a7".repeat(36)}`;

test("durations_are_milliseconds_or_text_with_a_unit", () => {
  const ms = (duration: Duration) => toMs("ttl", duration, 0, 86_400_000);
  assert.deepEqual([ms(250), ms("250ms"), ms("1.5s"), ms("2m"), ms("24h")], [250, 250, 1_500, 120_000, 86_400_000]);
  for (const bad of ["", "5", "s", "1d", "-1s", "1s ", "1e3s", "25h"] as Duration[]) {
    assert.throws(() => ms(bad), RangeError, bad as string);
  }
  assert.throws(() => ms(Number.NaN), /invalid ttl null: expected 0 ms to 86400000 ms/);
});

test("tokens_keep_all_digits_and_compare_by_value", () => {
  const largest = FencingToken.from("9223372036854775807");
  const small = FencingToken.from("9007199254740993");
  assert.equal(JSON.stringify({ token: largest }), '{"token":"9223372036854775807"}');
  assert.equal(`${small}`, "9007199254740993");
  assert.equal(small.toBigInt(), 9007199254740993n);
  assert.equal(small.toPadded(), "00009007199254740993");
  assert.equal(small.toPostgres(), "9007199254740993");
  assert.ok(small < largest && FencingToken.from("9") < FencingToken.from("10"));
  assert.ok(small.equals(FencingToken.from(9007199254740993n)));
  assert.ok(!small.equals(largest));
  for (const bad of ["", "-1", "1.0", "9223372036854775808", "1e3", " 1", -1n]) {
    assert.throws(() => FencingToken.from(bad), RangeError);
  }
});

test("padded_token_is_read_as_its_integer", () => {
  const token = FencingToken.from("281474976710661");
  assert.equal(FencingToken.from(token.toPadded()).toBigInt(), 281474976710661n);
  assert.equal(FencingToken.from("0".repeat(30)).toBigInt(), 0n);
  assert.equal(FencingToken.from(`000${2n ** 63n - 1n}`).toBigInt(), 2n ** 63n - 1n);
  for (const bad of ["10000000000000000000", "00009223372036854775808", "00000000000000000001\n"]) {
    assert.throws(() => FencingToken.from(bad), RangeError, bad);
  }
});

test("boot_clock_counts_suspend_and_never_runs_ahead", () => {
  let awake = 50.3;
  let suspended = 1_000;
  const clock = new BootClock(
    () => awake,
    () => Math.floor((awake + suspended) / 10) * 10,
    10,
  );
  const behind = () => awake + suspended - clock.now();
  let last = 0;
  for (let step = 0; step < 1_000; step++) {
    awake += 3.7;
    suspended += step === 500 ? 60_000 : 0;
    assert.ok(behind() >= -1e-6 && behind() < 10, `${behind()} ms`);
    assert.ok(clock.now() >= last);
    last = clock.now();
  }
});

test("system_clock_advances_with_the_time", async () => {
  const clock = systemClock();
  const before = performance.now();
  const first = clock.now();
  const between = performance.now();
  await new Promise((resolve) => setTimeout(resolve, 30));
  const least = performance.now() - between;
  const elapsed = clock.now() - first;
  const most = performance.now() - before + clock.resolution;
  assert.ok(elapsed >= least - 0.1 && elapsed <= most + 0.1, `${least} <= ${elapsed} <= ${most}`);
});

test("clock_without_the_file_of_the_uptime_has_whole_seconds", { skip: process.platform !== "linux" }, (context) => {
  assert.equal(systemClock().resolution, 10);
  const access = context.mock.method(fs, "accessSync", () => {
    throw new Error("no such file");
  });
  syncBuiltinESMExports();
  try {
    assert.equal(systemClock().resolution, 1_000);
  } finally {
    access.mock.restore();
    syncBuiltinESMExports();
  }
});

test("options_outside_every_bound_are_refused", () => {
  for (const bad of [
    { ttl: 99 },
    { ttl: "25h" },
    { limit: 0 },
    { limit: 10_001 },
    { limit: 1.5 },
    { wait: "25h" },
    { lockDelay: "25h" },
    { drain: "25h" },
    { wait: -1 },
    { lockDelay: -1 },
    { drain: -1 },
    { grace: -1 },
    { ttl: "9s", grace: 4_501 },
  ] as const) {
    assert.throws(() => parseAcquire(bad), RangeError, JSON.stringify(bad));
  }
  const good = parseAcquire({ ttl: "9s", grace: 4_500, wait: "ttl", lockDelay: "1s", limit: 3, metadata: { a: "b" } });
  assert.deepEqual(good.claim, { ttl_ms: 9_000, lock_delay_ms: 1_000, limit: 3, metadata: { a: "b" } });
  assert.deepEqual([good.wait, good.grace, good.drain], [9_000, 4_500, 30_000]);
  assert.equal(parseAcquire({ wait: "ttl" }).wait, 30_000);
  assert.equal(parseAcquire({ ttl: "infinite", wait: "ttl" }).wait, 86_400_000);
  for (const drift of [-1, 501, Number.NaN]) {
    assert.throws(() => new LeaseManager({ driftPermille: drift }), /invalid drift/, `${drift}`);
  }
  const holder = new LeaseManager();
  for (const refresh of [9, "25h"] as const) {
    assert.throws(() => new Election(holder, "job", { refresh }), /invalid refresh/, `${refresh}`);
  }
  assert.throws(() => new LeaseManager({ operationTimeout: 0 }), /invalid operation timeout 0/);
});

test("request_has_5_s_by_default", () => {
  assert.equal(new Client().operationTimeout, 5_000);
});

test("reads_with_an_invalid_holder_are_refused_before_a_request", async () => {
  const client = new Client({ endpoints: "127.0.0.1:9", operationTimeout: "100ms" });
  await assert.rejects(client.list({ holder: "" }).next(), RangeError);
  await assert.rejects(async () => client.explain("job", { holder: "" }), RangeError);
});

/** A core, the function that leaves a name held for a ttl, and the names that the core forgot. */
function coreWithLeftNames() {
  const clock = new ManualClock();
  const forgotten: string[] = [];
  const onError = (_: unknown, name: string) => void forgotten.push(name);
  const core = new Core({ clock, onError } as unknown as ConstructorParameters<typeof Core>[0]);
  const leave = (name: string, ttl: number) => {
    Object.assign(core.record(name), { unreleased: "7", forgetAt: clock.now() + ttl });
    clock.advance(1);
  };
  return { core, leave, forgotten };
}

test("names_that_may_be_left_held_are_kept_for_their_ttl", () => {
  const { core, leave, forgotten } = coreWithLeftNames();
  for (let number = 0; number < 5_000; number++) {
    leave(`job-${number}`, 60_000);
  }
  assert.deepEqual([core.records.length, forgotten], [5_000, []]);
});

test("names_that_may_be_left_held_are_bounded", () => {
  const { core, leave, forgotten } = coreWithLeftNames();
  leave("infinite", Number.POSITIVE_INFINITY);
  for (let number = 0; number < 5_000; number++) {
    leave(`job-${number}`, 0);
  }
  const names = core.records.map(({ name }) => name);
  assert.ok(names.length >= 1_000 && names.length < 2_100, `${names.length} names`);
  assert.ok(names.includes("infinite") && names.includes("job-4999"));
  assert.equal(forgotten.length + names.length, 5_001);
  assert.equal(forgotten[0], "job-0", "the oldest one comes first");
});

/** Metadata with this number of entries. */
function metadataOf(count: number): Record<string, string> {
  return Object.fromEntries(Array.from({ length: count }, (_, number) => [`key-${number}`, ""]));
}

test("metadata_has_the_bounds_of_the_api", () => {
  for (const good of [metadataOf(32), { ab: "é".repeat(2_047) }]) {
    assert.deepEqual(parseAcquire({ metadata: good }).claim.metadata, good);
  }
  assert.throws(() => parseAcquire({ metadata: metadataOf(33) }), /invalid metadata with 33 entries/);
  assert.throws(() => parseAcquire({ metadata: { a: "é".repeat(2_048) } }), /entries and 4097 bytes/);
});

test("text_that_is_no_unicode_is_refused", () => {
  assert.equal(checkHolder("\u{1f511}"), "\u{1f511}");
  for (const bad of ["\ud83d", "a\udd11b"]) {
    assert.throws(() => checkHolder(bad), RangeError);
    assert.throws(() => checkName(bad), RangeError);
    for (const metadata of [{ [bad]: "" }, { a: bad }]) {
      assert.throws(() => parseAcquire({ metadata }), RangeError);
    }
  }
});

test("metadata_that_is_no_plain_object_of_texts_is_refused", () => {
  const good = Object.assign(Object.create(null), { a: "b" });
  assert.deepEqual(parseAcquire({ metadata: good }).claim.metadata, { a: "b" });
  const holder = new LeaseManager();
  for (const bad of [new Map([["a", "b"]]), new (class {})(), ["a"], { a: 1 }]) {
    const metadata = bad as Record<string, string>;
    assert.throws(() => parseAcquire({ metadata }), /invalid metadata/);
    assert.throws(() => new Election(holder, "job", { metadata }), RangeError);
  }
});

test("metadata_of_a_leader_leaves_room_for_the_mark_of_an_established_one", () => {
  const holder = new LeaseManager();
  const lead = (count: number) => new Election(holder, "job", { metadata: metadataOf(count) });
  assert.equal(lead(31).name, "job");
  assert.throws(() => lead(32), RangeError);
});

test("names_and_holders_have_the_bounds_of_the_api", () => {
  for (const bad of ["", "-a", "a b", "é", "a".repeat(201)]) {
    assert.throws(() => checkName(bad), RangeError, bad);
  }
  assert.equal(checkName("a/b:c.d_e-f"), "a/b:c.d_e-f");
  for (const bad of ["", "a\n", "\u0085", "é".repeat(101)]) {
    assert.throws(() => checkHolder(bad), RangeError, bad);
  }
  const [one, other] = [new LeaseManager(), new LeaseManager()];
  assert.notEqual(one.holder, other.holder);
  assert.match(one.holder, new RegExp(`:${process.pid}:[0-9a-f]{8}$`));
});

test("endpoints_are_urls_or_hosts_with_ports", () => {
  const urls = (text: string | string[]) => new Endpoints(text).urls.map((url) => url.href);
  assert.deepEqual(urls(" http://127.0.0.1:7101/, node-2:7101 ,[::1]:7101, https://leases.example/tenure,"), [
    "http://127.0.0.1:7101/",
    "http://node-2:7101/",
    "http://[::1]:7101/",
    "https://leases.example/tenure/",
  ]);
  for (const bad of [
    "",
    ",",
    "http://u:p@a",
    "http://a?x=1",
    "http://a#x",
    "ftp://a",
    "http://",
    "a b",
    "a:0",
    "a:65536",
  ]) {
    assert.throws(() => new Endpoints(bad), RangeError, bad);
  }
  assert.throws(() => new Endpoints(Array(33).fill("node:7101")), /33 endpoints/);
});

test("password_of_an_endpoint_is_refused_and_not_shown", () => {
  for (const bad of ["http://u:secret@a:1", "u:secret@a:1", "HTTP://u:sec/ret@a", "http://u:secret@secret@a:b"]) {
    assert.throws(
      () => new Endpoints(bad),
      (error: Error) => {
        return error instanceof RangeError && /@a/.test(error.message) && !/u:|sec|ret@/.test(error.message);
      },
    );
  }
});

test("members_follow_the_given_endpoints", () => {
  const endpoints = new Endpoints("http://a:1/tenure,b:1");
  const answered = endpoints.urls[0] as URL;
  const urls = () => endpoints.urls.map((url) => url.href);
  endpoints.addMembers(answered, ["a:1", "c:1", "not an address", "u:p@d:1", "d:1/e", "d:1?e", "d:1#e", "d:0", ""]);
  assert.deepEqual(urls(), ["http://a:1/tenure/", "http://b:1/", "http://c:1/tenure/"]);
  endpoints.addMembers(answered, ["d:1"]);
  assert.deepEqual(urls(), ["http://a:1/tenure/", "http://b:1/", "http://d:1/tenure/"], "node c was removed");
  endpoints.addMembers(
    answered,
    Array.from({ length: 40 }, (_, node) => `node-${node}:1`),
  );
  assert.equal(urls().length, 32);
});

test("refresh_without_the_members_keeps_the_known_ones", async (context) => {
  const endpoints = new Endpoints("a:1");
  const answered = endpoints.urls[0] as URL;
  endpoints.addMembers(answered, ["b:1"]);
  // Whole milliseconds: the sum and the difference of fractions can be shorter than the interval.
  let time = Math.ceil(performance.now());
  context.mock.method(performance, "now", () => time);
  const refreshed = async (status: number, body: unknown) => {
    const transport = { exchange: async () => ({ status, headers: {}, body: JSON.stringify(body) }) };
    time += 30_000;
    endpoints.refresh(transport as unknown as Transport, answered);
    await new Promise(setImmediate);
    return endpoints.urls.map((url) => url.host);
  };
  for (const [status, body] of [
    [503, { code: "not_ready" }],
    [429, { members: [] }],
    [200, {}],
    [200, { members: "x" }],
  ] as const) {
    assert.deepEqual(await refreshed(status, body), ["a:1", "b:1"], JSON.stringify(body));
  }
  assert.deepEqual(await refreshed(200, { members: [{ http: "c:1" }] }), ["a:1", "c:1"]);
});

test("members_are_asked_after_30_s_and_2_s_after_a_failure", (context) => {
  let time = Math.ceil(performance.now());
  context.mock.method(performance, "now", () => time);
  const endpoints = new Endpoints("a:1,b:1");
  let asked = 0;
  const exchange = async () => ({ status: 503, headers: {}, body: `{ "asked": ${asked++} }` });
  const askedAfter = (ms: number) => {
    time += ms;
    endpoints.refresh({ exchange } as unknown as Transport, endpoints.urls[0] as URL);
    return asked;
  };
  assert.deepEqual([askedAfter(29_000), askedAfter(1_000)], [0, 1]);
  endpoints.avoid(0, 2);
  assert.deepEqual([askedAfter(1_900), askedAfter(100)], [1, 2]);
  assert.deepEqual([askedAfter(29_000), askedAfter(1_000)], [2, 3]);
});

test("time_of_cancelled_attempts_counts_until_the_next_answer", () => {
  const endpoints = new Endpoints("a:1,b:1");
  const preferredAfter = (index: number) => {
    endpoints.left(index, 2, 100);
    return endpoints.preferred;
  };
  assert.deepEqual([preferredAfter(0), preferredAfter(0)], [0, 0]);
  endpoints.prefer(0);
  assert.deepEqual([preferredAfter(0), preferredAfter(0)], [0, 0]);
  assert.equal(preferredAfter(1), 0, "the time at another node does not count");
  assert.equal(preferredAfter(0), 1);
  assert.deepEqual([preferredAfter(1), preferredAfter(1), preferredAfter(1)], [1, 1, 0]);
});

test("credentials_come_from_the_environment", () => {
  const folder = mkdtempSync(join(tmpdir(), "tenure-"));
  const file = (name: string, text: string) => {
    writeFileSync(join(folder, name), text);
    return join(folder, name);
  };
  try {
    process.env.TENURE_ACCESS_TOKEN = TOKEN;
    assert.equal(accessToken(undefined), TOKEN);
    process.env.TENURE_ACCESS_TOKEN_FILE = file("token", `tenure_${"b8".repeat(36)}\nmore\n`);
    assert.equal(accessToken(undefined), `tenure_${"b8".repeat(36)}`, "the file comes first");
    assert.equal(accessToken(TOKEN), TOKEN, "the option comes before the environment");
    process.env.TENURE_CA = file("ca.pem", "ca");
    assert.deepEqual(tlsOptions(undefined), { ca: Buffer.from("ca"), cert: undefined, key: undefined });
    process.env.TENURE_CERT = file("client.pem", "cert");
    assert.throws(() => tlsOptions(undefined), /needs its key/);
    process.env.TENURE_KEY = file("client.key", "key");
    assert.deepEqual(tlsOptions(undefined)?.key, Buffer.from("key"));
    assert.deepEqual(tlsOptions({ ca: "given" }), { ca: "given" });
    process.env.TENURE_ENDPOINTS = "a:1";
    assert.equal(endpointsOption(undefined), "a:1");
    assert.equal(endpointsOption("b:1"), "b:1");
  } finally {
    for (const name of ["ACCESS_TOKEN", "ACCESS_TOKEN_FILE", "CA", "CERT", "KEY", "ENDPOINTS"]) {
      delete process.env[`TENURE_${name}`];
    }
    rmSync(folder, { recursive: true });
  }
});

test("mistyped_access_token_is_refused_and_not_shown", () => {
  assert.throws(
    () => accessToken("tenure_secret"),
    (error: Error) => error instanceof RangeError && !error.message.includes("secret"),
  );
});

test("mutex_is_first_come_first_served", async () => {
  const mutex = new Mutex();
  const order: string[] = [];
  assert.equal(await mutex.lock(1_000), true);
  const waiting = ["a", "b"].map((name) => mutex.lock(1_000).then(() => order.push(name)));
  assert.equal(await mutex.lock(1), false, "a wait ends at its limit");
  const cancel = new AbortController();
  const cancelled = mutex.lock(1_000, cancel.signal);
  cancel.abort(new Error("cancelled"));
  await assert.rejects(cancelled, /cancelled/);
  mutex.unlock();
  await waiting[0];
  assert.deepEqual(order, ["a"]);
  mutex.unlock();
  await waiting[1];
  mutex.unlock();
  assert.deepEqual([order, mutex.isLocked], [["a", "b"], false]);
});

test("events_do_not_depend_on_the_chunk_size", async () => {
  const text = ': alive\n\nretry: 5\nid: 7.0\nevent: granted\ndata: {"a":1}\n\nid:8\r\n\r\ndata: aé\ndata: b\n\n';
  const bytes = new TextEncoder().encode(text);
  const expected = [
    { id: "7.0", event: "granted", data: '{"a":1}' },
    { id: "8", event: undefined, data: undefined },
    { id: undefined, event: undefined, data: "aé\nb" },
  ];
  for (let size = 1; size < bytes.length; size++) {
    const found = [];
    for await (const event of parseEvents(chunksOf(bytes, size))) {
      found.push(event);
    }
    assert.deepEqual(found, expected, `in chunks of ${size} bytes`);
  }
});

test("line_separators_of_unicode_hide_no_event", async () => {
  const data = JSON.stringify({ event: "granted", name: "a", holder: "x\u2028y\u2029z" });
  const bytes = new TextEncoder().encode(`id: 7\ndata: ${data}\n\n`);
  const found = [];
  for await (const event of parseEvents(chunksOf(bytes, bytes.length))) {
    found.push(event);
  }
  assert.deepEqual(found, [{ id: "7", event: undefined, data }]);
});

test("endless_event_is_not_kept", async () => {
  const endless = parseEvents(chunksOf(new Uint8Array(2 * 1024 * 1024).fill(120), 65_536));
  await assert.rejects(endless.next(), /more than 1048576 characters/);
});

async function* chunksOf(bytes: Uint8Array, size: number): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < bytes.length; at += size) {
    yield bytes.subarray(at, at + size);
  }
}
