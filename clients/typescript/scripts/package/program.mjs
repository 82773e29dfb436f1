// A program that has only the package: it holds a lease of a real node.
import { FencingToken, LeaseManager, Refused } from "tenure";
import { startNode } from "./node.mjs";

const node = await startNode(process.env.TENURE_BINARY);
const manager = new LeaseManager({ endpoints: node.url });
const other = new LeaseManager({ endpoints: node.url });
try {
  await manager.with("job", { ttl: "2s" }, async (lease) => {
    const refusal = await other.acquire("job").catch((error) => error);
    if (!(lease.token instanceof FencingToken && refusal instanceof Refused && refusal.holder === lease.holder)) {
      throw new Error(`unexpected refusal: ${refusal}`);
    }
  });
} finally {
  await Promise.all([manager.shutdown(), other.shutdown()]);
  await node.stop();
}
