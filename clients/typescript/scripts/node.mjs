// A cluster of one node on free loopback ports, for the generator.
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const READY_WITHIN_MS = 30_000;

/** Starts a node and waits until it is ready. */
export async function startNode(binary) {
  const folder = await mkdtemp(join(tmpdir(), "tenure-"));
  const [http, peer] = await Promise.all([freePort(), freePort()]);
  const config = join(folder, "cluster.toml");
  await writeFile(
    config,
    `cluster = "generate"
[[node]]
id = 1
http = "127.0.0.1:${http}"
peer = "127.0.0.1:${peer}"
data = "${folder}/data"
`,
  );
  const child = spawn(binary, ["serve", "--config", config, "--node", "1"], { stdio: ["ignore", "ignore", "inherit"] });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const url = `http://127.0.0.1:${http}`;
  const stop = async () => {
    child.kill("SIGTERM");
    await ended;
    await rm(folder, { recursive: true, force: true });
  };
  const giveUpAt = performance.now() + READY_WITHIN_MS;
  while (!(await isReady(url))) {
    if (performance.now() > giveUpAt || child.exitCode !== null) {
      await stop();
      throw new Error(`the node at ${url} is not ready within ${READY_WITHIN_MS} ms`);
    }
    await sleep(50);
  }
  return { url, stop };
}

async function isReady(url) {
  try {
    return (await fetch(`${url}/readyz`)).ok;
  } catch {
    return false;
  }
}

function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
