import { type ChildProcess, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import http from "node:http";
import https from "node:https";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { SecureContextOptions } from "node:tls";

const READY_WITHIN_MS = 20_000;

/** The path of the server's binary. */
export function binary(): string {
  const path = process.env.TENURE_BINARY;
  if (path === undefined) {
    throw new Error("TENURE_BINARY is not set: expected the path of the server's binary");
  }
  return path;
}

interface Node {
  readonly http: number;
  readonly peer: number;
  process: ChildProcess;
}

/** Real nodes on free loopback ports. */
export class TestCluster implements AsyncDisposable {
  readonly folder: string;
  readonly #nodes: Node[];
  readonly #scheme: string;

  private constructor(folder: string, nodes: Node[], scheme: string) {
    this.folder = folder;
    this.#nodes = nodes;
    this.#scheme = scheme;
  }

  /** Starts a cluster. `prepare` gets its folder and configuration before the start, and returns more configuration. */
  static async start(
    count: number,
    prepare: (folder: string, hosts: string) => Promise<string> = async () => "",
    scheme = "http",
  ): Promise<TestCluster> {
    const folder = await mkdtemp(join(tmpdir(), "tenure-test-"));
    const ports = await freePorts(count * 2);
    const config = join(folder, "cluster.toml");
    const pairs = Array.from(
      { length: count },
      (_, index) => ports.slice(index * 2, index * 2 + 2) as [number, number],
    );
    const tables = pairs.map(
      ([http, peer], index) => `[[node]]
id = ${index + 1}
http = "127.0.0.1:${http}"
peer = "127.0.0.1:${peer}"
data = "${folder}/data-${index + 1}"
`,
    );
    const text = `cluster = "test"\n${tables.join("")}`;
    await writeFile(config, text);
    await writeFile(config, text + (await prepare(folder, config)));
    const nodes = pairs.map(([http, peer], index) => ({ http, peer, process: serve(config, index + 1) }));
    return new TestCluster(folder, nodes, scheme);
  }

  get urls(): string[] {
    return this.#nodes.map(({ http }) => `${this.#scheme}://127.0.0.1:${http}`);
  }

  /** Waits until each node hears from a leader. */
  async ready(tls: SecureContextOptions = {}): Promise<this> {
    const giveUpAt = performance.now() + READY_WITHIN_MS;
    for (const url of this.urls) {
      while (!(await isReady(`${url}/readyz`, tls))) {
        if (performance.now() > giveUpAt) {
          throw new Error(`the node ${url} is not ready within ${READY_WITHIN_MS} ms`);
        }
        await sleep(50);
      }
    }
    return this;
  }

  /** Starts nodes again. They count from 1. */
  async restart(...ids: number[]): Promise<void> {
    for (const id of ids) {
      const node = this.#nodes[id - 1] as Node;
      await kill(node.process);
      node.process = serve(join(this.folder, "cluster.toml"), id);
    }
  }

  /** Sends a signal to a node, which counts from 1. */
  signal(id: number, signal: NodeJS.Signals): void {
    this.#nodes[id - 1]?.process.kill(signal);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#nodes.map(({ process: child }) => kill(child)));
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** Whether the node answers that it is ready. */
function isReady(url: string, tls: SecureContextOptions): Promise<boolean> {
  return new Promise((resolve) => {
    const get = url.startsWith("https:") ? https.get : http.get;
    const request = get(url, { ...tls, agent: false, timeout: 2_000 }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    request.on("timeout", () => request.destroy());
    request.on("error", () => resolve(false));
  });
}

/** Kills a process, and waits for its end. */
async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode === null && child.signalCode === null) {
    const exit = once(child, "exit");
    child.kill("SIGKILL");
    await exit;
  }
}

function serve(config: string, id: number): ChildProcess {
  const words = ["serve", "--config", config, "--node", String(id), "--log", "error"];
  return spawn(binary(), words, { stdio: ["ignore", "ignore", "inherit"] });
}

/** Runs a command of the server's binary and returns its output. */
export async function tenure(words: string[], environment: Record<string, string> = {}): Promise<string> {
  const child = spawn(binary(), words, {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, ...environment },
  });
  let output = "";
  child.stdout.on("data", (chunk: Buffer) => {
    output += chunk.toString();
  });
  const [code] = (await once(child, "close")) as [number];
  if (code !== 0) {
    throw new Error(`tenure ${words.join(" ")} exited with ${code}`);
  }
  return output;
}

/** Turns access control on. Returns the token of an administrator. */
export async function enableAccessControl(environment: Record<string, string>): Promise<string> {
  const auth = (...words: string[]) => tenure(["auth", ...words], environment);
  // The cluster refuses the change until all members have said that they support it.
  const giveUpAt = performance.now() + READY_WITHIN_MS;
  for (;;) {
    try {
      await auth("role", "set", "admin", "--admin");
      break;
    } catch (error) {
      if (performance.now() > giveUpAt) {
        throw error;
      }
      await sleep(100);
    }
  }
  await auth("principal", "set", "root", "--role", "admin");
  const token = (await auth("token", "create", "root")).trim();
  await tenure(["auth", "enable"], { ...environment, TENURE_ACCESS_TOKEN: token });
  return token;
}

/**
 * The ports of nodes lie below the first port for outgoing connections (`net.ipv4.ip_local_port_range`, from 32768): no
 * connection may take the port of a node that is down for a moment.
 */
const [FIRST_PORT, END_OF_PORTS] = [10_240, 32_768];

/** Different ports that are free. */
export async function freePorts(count: number): Promise<number[]> {
  const ports = new Set<number>();
  while (ports.size < count) {
    const port = randomInt(FIRST_PORT, END_OF_PORTS);
    if (!ports.has(port) && (await isFree(port))) {
      ports.add(port);
    }
  }
  return [...ports];
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  try {
    await once(server.listen(port, "127.0.0.1"), "listening");
  } catch {
    return false;
  }
  await once(server.close(), "close");
  return true;
}
