import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { TestCluster } from "./support/cluster.js";

const DRIVER = fileURLToPath(new URL("../conformance/driver.js", import.meta.url));

type Line = Record<string, unknown>;

let cluster: TestCluster;
const drivers: DriverProcess[] = [];

before(async () => {
  cluster = await (await TestCluster.start(1)).ready();
});

after(async () => {
  // A failed test leaves its drivers.
  for (const { child } of drivers) {
    child.kill("SIGKILL");
  }
  await cluster[Symbol.asyncDispose]();
});

/** A driver in its own process. */
class DriverProcess {
  readonly child = spawn(process.execPath, [DRIVER], { stdio: ["pipe", "pipe", "inherit"] });
  readonly exit = once(this.child, "exit");
  readonly lines: Line[] = [];
  readonly #waiting = new Set<() => void>();
  #id = 0;

  constructor() {
    drivers.push(this);
    createInterface({ input: this.child.stdout }).on("line", (line) => {
      this.lines.push(JSON.parse(line) as Line);
      for (const wake of this.#waiting) {
        wake();
      }
      this.#waiting.clear();
    });
  }

  /** Sends a command and returns its response without the id. */
  async send(op: string, fields: Line = {}): Promise<Line> {
    const id = ++this.#id;
    this.child.stdin.write(`${JSON.stringify({ id, op, ...fields })}\n`);
    const { id: _, ...response } = await this.line((line) => line.id === id);
    return response;
  }

  /** Waits for a line. */
  async line(isWanted: (line: Line) => boolean): Promise<Line> {
    for (;;) {
      const found = this.lines.find(isWanted);
      if (found !== undefined) {
        return found;
      }
      await new Promise<void>((resolve) => this.#waiting.add(resolve));
    }
  }
}

test("driver_carries_out_each_command", async () => {
  const [one, other] = [new DriverProcess(), new DriverProcess()];
  assert.match(String((await one.send("clock")).error), /first command/);
  assert.deepEqual(await one.send("open", { endpoints: cluster.urls, holder: "one" }), {});
  assert.deepEqual(
    await other.send("open", { endpoints: cluster.urls, holder: "other", operation_timeout_ms: 2_000 }),
    {},
  );

  assert.deepEqual((await one.send("state", { lease: "job" })).state, "idle");
  const held = await one.send("acquire", { lease: "job", ttl_ms: 5_000 });
  assert.equal(held.outcome, "held");
  assert.equal((await one.send("acquire", { lease: "job" })).token, held.token, "an acquire is idempotent");
  const state = await one.send("state", { lease: "job" });
  assert.deepEqual([state.state, state.held, state.token], ["held", true, held.token]);
  assert.ok(typeof state.left_ms === "number" && state.left_ms <= 4_950);
  assert.deepEqual(await one.send("check", { lease: "job" }), { outcome: "held" });
  assert.deepEqual(await other.send("acquire", { lease: "job" }), { outcome: "refused", code: "held" });

  const waiting = other.send("acquire", { lease: "job", ttl_ms: 5_000, wait_ms: 10_000 });
  let handedOver: Line;
  do {
    handedOver = await one.send("hand_over", { lease: "job" });
  } while (handedOver.code === "no_such_waiter");
  assert.deepEqual(handedOver, { outcome: "handed_over", to: "other" });
  assert.equal((await waiting).outcome, "held");
  assert.deepEqual(await other.send("release", { lease: "job" }), { outcome: "released", was_held: true });
  assert.deepEqual(await other.send("release", { lease: "job" }), { outcome: "released", was_held: false });
  assert.equal((await other.send("check", { lease: "job" })).outcome, "lost");

  const work = await one.send("work", { lease: "work", ttl_ms: 5_000 });
  assert.equal(work.outcome, "held");
  const step = await one.line((line) => line.event === "work");
  assert.deepEqual([step.lease, step.token], ["work", work.token]);
  assert.deepEqual(await one.send("stop_work", { lease: "work" }), {});
  assert.equal((await one.line((line) => line.event === "work_ended")).why, "stopped");
  const states = one.lines.filter((line) => line.event === "state" && line.lease === "work");
  assert.deepEqual([states[0]?.state, states.at(-1)?.state], ["held", "released"]);

  assert.deepEqual(await one.send("campaign", { election: "boss", candidate: "first", ttl_ms: 5_000 }), {});
  await one.line((line) => line.event === "elected");
  assert.deepEqual(await other.send("leader", { election: "boss" }), { leader: "first" });
  await other.send("campaign", { election: "boss", candidate: "second", ttl_ms: 5_000 });
  assert.deepEqual(await one.send("resign", { election: "boss" }), {});
  await one.line((line) => line.event === "deposed");
  await other.line((line) => line.event === "elected");
  assert.deepEqual(await one.send("leader", { election: "boss" }), { leader: "second" });

  assert.ok(Number.isInteger((await one.send("clock")).at_ns));
  assert.match(String((await one.send("dance")).error), /unknown command "dance"/);
  assert.deepEqual(await one.send("shutdown"), { left: [] });
  assert.deepEqual(await one.exit, [0, null]);
  other.child.stdin.end();
  assert.deepEqual(await other.exit, [0, null]);
});

test("driver_reports_a_loss_at_the_deadline", async () => {
  await using alone = await (await TestCluster.start(1)).ready();
  const driver = new DriverProcess();
  await driver.send("open", { endpoints: alone.urls });
  assert.equal((await driver.send("work", { lease: "job", ttl_ms: 4_000 })).outcome, "held");
  alone.signal(1, "SIGSTOP");
  const ended = await driver.line((line) => line.event === "work_ended");
  assert.equal(ended.why, "lost");
  const lost = await driver.line((line) => line.event === "state" && line.state === "lost");
  // A driver that does not run for 250 ms at the deadline says that it was suspended.
  assert.ok(lost.why === "unreachable" || lost.why === "suspended", `${lost.why}`);
  const last = driver.lines.filter((line) => line.event === "work").at(-1);
  assert.ok(Number(last?.at_ns) <= Number(ended.at_ns));
  assert.equal((await driver.send("state", { lease: "job" })).held, false);
  driver.child.stdin.end();
  assert.deepEqual(await driver.exit, [0, null]);
});
