// The driver of this client for the conformance suite: clients/conformance/README.md defines the lines.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import {
  type AcquireOptions,
  Election,
  type Lease,
  LeaseLost,
  LeaseManager,
  Refused,
  ShutDown,
  systemClock,
  Unavailable,
  Unknown,
} from "tenure";

/** A command of the suite. Each field is checked by the client. */
interface Command {
  readonly id: number;
  readonly acquire?: number;
  readonly op: string;
  readonly endpoints?: string[];
  readonly holder?: string;
  readonly operation_timeout_ms?: number;
  readonly drift_permille?: number;
  readonly token?: string;
  readonly ca?: string;
  readonly cert?: string;
  readonly key?: string;
  readonly lease?: string;
  readonly ttl_ms?: number | "infinite";
  readonly wait_ms?: number;
  readonly grace_ms?: number;
  readonly lock_delay_ms?: number;
  readonly limit?: number;
  readonly metadata?: Record<string, string>;
  readonly to?: string;
  readonly election?: string;
  readonly candidate?: string;
}

type Response = Record<string, unknown>;

const WORK_INTERVAL_MS = 10;
/** Longer than the resolution of the coarse clock, so that the precise one is exact afterwards. */
const CALIBRATION_MS = 25;
/** The metadata key with the name of a candidate. */
const CANDIDATE = "candidate";

const clock = systemClock();

class Driver {
  readonly #manager: LeaseManager;
  readonly #leases = new Map<string, Lease>();
  /** The acquires in progress, by the ids of their commands. */
  readonly #acquires = new Map<number, AbortController>();
  /** The options of the first command for a lease count. */
  readonly #options = new Map<string, AcquireOptions>();
  readonly #work = new Map<string, { stop: AbortController; ended: Promise<unknown> }>();
  readonly #elections = new Map<string, { election: Election; stop: AbortController; ended: Promise<unknown> }>();

  constructor(command: Command) {
    const { ca, cert, key, holder, token } = command;
    const pem = (path: string | undefined) => (path === undefined ? undefined : readFileSync(path));
    this.#manager = new LeaseManager({
      endpoints: command.endpoints ?? [],
      clock,
      ...(holder === undefined ? {} : { holder }),
      ...(token === undefined ? {} : { accessToken: token }),
      ...(ca === undefined ? {} : { tls: { ca: pem(ca), cert: pem(cert), key: pem(key) } }),
      ...(command.operation_timeout_ms === undefined ? {} : { operationTimeout: command.operation_timeout_ms }),
      ...(command.drift_permille === undefined ? {} : { driftPermille: command.drift_permille }),
    });
  }

  async run(command: Command): Promise<Response> {
    switch (command.op) {
      case "acquire":
        return outcome(() => this.#acquire(command));
      case "cancel":
        this.#acquires.get(command.acquire ?? -1)?.abort();
        return {};
      case "release":
        return outcome(() => this.#release(name(command)));
      case "hand_over":
        return outcome(() => this.#handOver(name(command), command.to));
      case "state":
        return this.#state(name(command));
      case "check":
        return outcome(() => this.#check(name(command)));
      case "work":
        return outcome(() => this.#startWork(command));
      case "stop_work":
        return this.#stopWork(name(command));
      case "campaign":
        return this.#campaign(command);
      case "resign":
        return this.#resign(command.election ?? "");
      case "leader":
        return this.#leader(command.election ?? "");
      case "clock":
        return { at_ns: now() };
      case "shutdown":
        return { left: (await this.#manager.shutdown()).map((left) => left.name) };
      default:
        throw new Error(`unknown command ${JSON.stringify(command.op)}`);
    }
  }

  async #acquire(command: Command): Promise<Response> {
    const lease = name(command);
    let held = await this.#stillHeld(lease);
    if (held !== undefined) {
      return { outcome: "held", token: held.token.toString() };
    }
    const { signal } = this.#cancellation(command);
    try {
      held = await this.#manager.acquire(lease, { ...this.#optionsOf(command), signal });
    } catch (error) {
      if (signal.aborted && error === signal.reason) {
        return { outcome: "cancelled" };
      }
      throw error;
    } finally {
      this.#acquires.delete(command.id);
    }
    this.#keep(held);
    return { outcome: "held", token: held.token.toString() };
  }

  #cancellation(command: Command): AbortController {
    const cancellation = new AbortController();
    this.#acquires.set(command.id, cancellation);
    return cancellation;
  }

  /** The lease of an earlier command. One that is not held is ended: it would exclude the next acquire. */
  async #stillHeld(lease: string): Promise<Lease | undefined> {
    const held = this.#leases.get(lease);
    if (held?.isHeld()) {
      return held;
    }
    await held?.release().catch(() => undefined);
    return undefined;
  }

  #optionsOf(command: Command): AcquireOptions {
    const lease = name(command);
    const { ttl_ms: ttl, grace_ms: grace, lock_delay_ms: lockDelay, limit, metadata } = command;
    const first = this.#options.get(lease) ?? {
      ...(ttl === undefined ? {} : { ttl }),
      ...(grace === undefined ? {} : { grace }),
      ...(lockDelay === undefined ? {} : { lockDelay }),
      ...(limit === undefined ? {} : { limit }),
      ...(metadata === undefined ? {} : { metadata }),
    };
    this.#options.set(lease, first);
    return { ...first, wait: command.wait_ms ?? 0 };
  }

  #keep(held: Lease): void {
    this.#leases.set(held.name, held);
    const report = ({ status, ...state }: Lease["state"]) => {
      const why = "why" in state ? { why: state.why } : {};
      write({ event: "state", lease: held.name, state: status, at_ns: now(), ...why });
    };
    report(held.state);
    held.onState(report);
  }

  async #release(lease: string): Promise<Response> {
    const held = this.#leases.get(lease);
    const wasHeld = held === undefined ? await this.#manager.release(lease) : await held.release();
    // An acquire after this grant can have an unknown outcome.
    const wasLeft = !wasHeld && held !== undefined && (await this.#manager.release(lease));
    return { outcome: "released", was_held: wasHeld || wasLeft };
  }

  async #handOver(lease: string, to: string | undefined): Promise<Response> {
    const held = this.#leases.get(lease);
    const next = await held?.handOver(to === undefined ? {} : { to });
    return next === undefined ? this.#lost(held) : { outcome: "handed_over", to: next };
  }

  async #check(lease: string): Promise<Response> {
    const held = this.#leases.get(lease);
    return (await held?.check()) ? { outcome: "held" } : this.#lost(held);
  }

  #lost(held: Lease | undefined): Response {
    const why = held?.state.status === "lost" ? held.state.why : "released";
    return { outcome: "lost", why };
  }

  #state(lease: string): Response {
    const held = this.#leases.get(lease);
    if (held === undefined) {
      return { state: "idle", held: false, at_ns: now() };
    }
    const { status, token, ...state } = held.state;
    const left = held.remaining();
    return {
      state: status,
      held: held.isHeld(),
      token: token.toString(),
      at_ns: now(),
      ...(left > 0 && Number.isFinite(left) ? { left_ms: left } : {}),
      ...("why" in state ? { why: state.why } : {}),
      ...("failures" in state ? { failures: state.failures } : {}),
    };
  }

  /** Responds with the outcome of the acquire, while the work runs. */
  async #startWork(command: Command): Promise<Response> {
    const lease = name(command);
    const earlier = await this.#stillHeld(lease);
    const stop = new AbortController();
    return new Promise((resolve, reject) => {
      const run = async (held: Lease) => {
        resolve({ outcome: "held", token: held.token.toString() });
        await work(held, stop.signal);
      };
      const runNew = (held: Lease) => {
        this.#keep(held);
        return run(held);
      };
      const ended =
        earlier === undefined
          ? this.#manager.with(lease, this.#optionsOf(command), runNew)
          : run(earlier).then(() => earlier.release());
      this.#work.set(lease, { stop, ended: ended.catch(reject) });
    });
  }

  async #stopWork(lease: string): Promise<Response> {
    const running = this.#work.get(lease);
    running?.stop.abort();
    await running?.ended;
    return {};
  }

  #campaign(command: Command): Response {
    const election = command.election ?? "";
    const stop = new AbortController();
    const made = new Election(this.#manager, election, {
      metadata: { [CANDIDATE]: command.candidate ?? this.#manager.holder },
      ...(command.ttl_ms === undefined ? {} : { ttl: command.ttl_ms }),
    });
    const ended = takePart(made, stop.signal).catch((error) => {
      if (!stop.signal.aborted && !(error instanceof ShutDown)) {
        process.stderr.write(`the campaign for ${election} ended: ${error}\n`);
      }
    });
    this.#elections.set(election, { election: made, stop, ended });
    return {};
  }

  async #resign(election: string): Promise<Response> {
    const running = this.#elections.get(election);
    running?.stop.abort();
    await running?.ended;
    return {};
  }

  async #leader(election: string): Promise<Response> {
    const known = this.#elections.get(election)?.election ?? new Election(this.#manager, election);
    const leader = await known.current();
    return { leader: leader === undefined ? null : (leader.metadata[CANDIDATE] ?? leader.holder) };
  }
}

/** Reports each step of the work until the lease is lost or ends, or the suite stops it. */
async function work(held: Lease, stopped: AbortSignal): Promise<void> {
  let why: string | undefined;
  held.stopping.addEventListener("abort", () => {
    why ??= held.isHeld() ? "ending" : "lost";
  });
  while (why === undefined && !stopped.aborted) {
    const at_ns = now();
    if (!held.isHeld()) {
      why = "lost";
      break;
    }
    write({ event: "work", lease: held.name, token: held.token.toString(), at_ns });
    await sleep(WORK_INTERVAL_MS);
  }
  write({ event: "work_ended", lease: held.name, at_ns: now(), why: why ?? "stopped" });
}

/** Campaigns again after each loss, until `stop`. */
async function takePart(election: Election, stop: AbortSignal): Promise<void> {
  while (!stop.aborted) {
    const leadership = await election.campaign({ signal: stop });
    const token = leadership.token.toString();
    let last = now();
    write({ event: "elected", election: election.name, token, at_ns: last });
    // The clock is read before the client is asked: at this time it led.
    for (let at_ns = now(); leadership.isLeader(); at_ns = now()) {
      last = at_ns;
      if (stop.aborted) {
        break;
      }
      await sleep(WORK_INTERVAL_MS, undefined, { signal: stop }).catch(() => undefined);
    }
    write({ event: "deposed", election: election.name, token, at_ns: last });
    await leadership[Symbol.asyncDispose]();
  }
}

/** The response for the result of a lease: an outcome, never an error. */
async function outcome(run: () => Promise<Response>): Promise<Response> {
  try {
    return await run();
  } catch (error) {
    if (error instanceof Refused) {
      return { outcome: "refused", code: error.code };
    }
    if (error instanceof RangeError) {
      return { outcome: "refused", code: "invalid" };
    }
    if (error instanceof Unknown) {
      return { outcome: "unknown" };
    }
    if (error instanceof Unavailable) {
      return { outcome: "unavailable" };
    }
    if (error instanceof ShutDown) {
      return { outcome: "shut_down" };
    }
    if (error instanceof LeaseLost) {
      return { outcome: "lost", why: error.why };
    }
    throw error;
  }
}

function name(command: Command): string {
  if (command.lease === undefined) {
    throw new Error(`the command ${command.op} needs the field "lease"`);
  }
  return command.lease;
}

/** Nanoseconds of the clock of the client. */
function now(): number {
  return Math.round(clock.now() * 1e6);
}

function write(line: Response): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

let driver: Driver | undefined;

async function handle(command: Command): Promise<void> {
  try {
    if (command.op === "open") {
      driver = new Driver(command);
      write({ id: command.id });
      return;
    }
    if (driver === undefined) {
      throw new Error('the first command must be "open"');
    }
    write({ id: command.id, ...(await driver.run(command)) });
  } catch (error) {
    write({ id: command.id, error: String(error) });
  }
  if (command.op === "shutdown") {
    process.stdout.write("", () => process.exit(0));
  }
}

const calibrateUntil = performance.now() + CALIBRATION_MS;
while (performance.now() < calibrateUntil) {
  clock.now();
}
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => void handle(JSON.parse(line) as Command));
// At the end of its input a driver exits without a shutdown, like a program that crashes.
lines.on("close", () => process.stdout.write("", () => process.exit(0)));
