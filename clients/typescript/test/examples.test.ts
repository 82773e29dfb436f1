import assert from "node:assert/strict";
import { type ChildProcess, type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface, type Interface } from "node:readline";
import type { Readable } from "node:stream";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { LeaseManager } from "tenure";
import { TestCluster } from "./support/cluster.js";

let cluster: TestCluster;
const children: ChildProcess[] = [];

before(async () => {
  cluster = await (await TestCluster.start(1)).ready();
});

after(async () => {
  // A failed test leaves its programs.
  for (const child of children) {
    child.kill("SIGKILL");
  }
  await cluster[Symbol.asyncDispose]();
});

interface Example {
  readonly child: ChildProcessByStdio<null, Readable, null>;
  readonly reader: Interface;
  /** All lines that the program has printed. */
  readonly lines: string[];
  readonly exit: Promise<unknown[]>;
}

function start(name: string): Example {
  const path = fileURLToPath(new URL(`../examples/${name}.js`, import.meta.url));
  const env = { ...process.env, TENURE_ENDPOINTS: cluster.urls.join(",") };
  const child = spawn(process.execPath, [path], { stdio: ["ignore", "pipe", "inherit"], env });
  children.push(child);
  const reader = createInterface({ input: child.stdout });
  const lines: string[] = [];
  reader.on("line", (text) => lines.push(text));
  return { child, reader, lines, exit: once(child, "exit") };
}

/** The first line that matches. Several lines can arrive at once, so each round looks at all lines. */
async function line({ reader, lines }: Example, wanted: RegExp): Promise<RegExpExecArray> {
  for (;;) {
    for (const text of lines) {
      const found = wanted.exec(text);
      if (found !== null) {
        return found;
      }
    }
    await once(reader, "line");
  }
}

interface Health {
  readonly leads: boolean;
  readonly token: string | null;
}

async function health(port: string): Promise<Health> {
  return (await (await fetch(`http://127.0.0.1:${port}/health`)).json()) as Health;
}

async function leading(port: string): Promise<Health> {
  for (;;) {
    const answer = await health(port);
    if (answer.leads) {
      return answer;
    }
  }
}

test("nightly_job_runs_once", async () => {
  const one = start("nightly");
  await line(one, /^page 1 with token \d+$/);
  await line(one, /^wrote 10 pages$/);
  assert.deepEqual(await one.exit, [0, null]);
  await using manager = new LeaseManager({ endpoints: cluster.urls });
  await using _held = await manager.acquire("nightly-report", { ttl: "10s", wait: "20s" });
  const other = start("nightly");
  assert.match((await line(other, /^not started: (.*)$/))[1] ?? "", /held by/);
  assert.deepEqual(await other.exit, [0, null]);
});

test("worker_hands_the_work_to_the_next_replica", async () => {
  const one = start("worker");
  const first = (await line(one, /^listening on (\d+)$/))[1] ?? "";
  const before = await leading(first);
  const other = start("worker");
  const second = (await line(other, /^listening on (\d+)$/))[1] ?? "";
  assert.deepEqual(await health(second), { leads: false, token: null });
  const end = line(one, /^shut down; 0 leases may be left$/);
  one.child.kill("SIGTERM");
  await end;
  assert.deepEqual(await one.exit, [0, null]);
  assert.ok(BigInt((await leading(second)).token ?? 0) > BigInt(before.token ?? 0));
  other.child.kill("SIGINT");
  assert.deepEqual(await other.exit, [0, null]);
});
