// Types of the package, as a strict program sees them.
import { type FencingToken, type Lease, LeaseLost, LeaseManager, type LeaseState, Refused } from "tenure";

export async function nightly(manager: LeaseManager, write: (token: FencingToken) => Promise<void>): Promise<string> {
  try {
    return await manager.with("nightly", { ttl: "30s", wait: "ttl" }, async (lease: Lease) => {
      await write(lease.token);
      return lease.name;
    });
  } catch (error) {
    if (error instanceof Refused && error.code === "held") {
      return `held by ${error.holder}`;
    }
    if (error instanceof LeaseLost) {
      return error.why satisfies string;
    }
    throw error;
  }
}

export function left(state: LeaseState): number {
  return "left" in state ? state.left : 0;
}

export async function scoped(): Promise<boolean> {
  await using manager = new LeaseManager({ endpoints: ["http://127.0.0.1:7101"], driftPermille: 20 });
  await using lease = await manager.acquire("job", { limit: 3 });
  // @ts-expect-error: a token is no number.
  const wrong: number = lease.token;
  return wrong > 0;
}
