import type { components } from "./openapi.js";

/** An error document of the cluster, with a `code` for programs and a `detail` for people. */
export type Problem = components["schemas"]["Problem"];
/** A lease as the cluster sees it. Its `token` is a decimal string: `FencingToken.from(info.token)`. */
export type LeaseInfo = components["schemas"]["Lease"];
/** A transition of a lease, in a history or a watch. */
export type LeaseEvent = components["schemas"]["Event"];
/** The last transitions of a name, oldest first. */
export type History = components["schemas"]["History"];
/** The waiters for a lease, first one first. */
export type Queue = components["schemas"]["Queue"];
/** Why a lease is held or free, and the standing of one holder. A later server can send another `standing.status`. */
export type Explanation = components["schemas"]["Explanation"];
/** The view of one node of its cluster. */
export type ClusterInfo = components["schemas"]["Cluster"];
/** The version of a node. */
export type VersionInfo = components["schemas"]["Version"];

export type AcquireBody = components["schemas"]["Acquire"];
export type RenewBatch = components["schemas"]["RenewBatch"];
export type RenewResult = components["schemas"]["RenewResult"];
export type Renewed = components["schemas"]["Renewed"];
export type Released = components["schemas"]["Released"];
export type LeasePage = components["schemas"]["LeasePage"];
export type Standing = components["schemas"]["Standing"];

/** A problem that the client itself reports, in the form of a refusal by the cluster. */
export function localProblem(code: Problem["code"], detail: string): Problem {
  return { type: `urn:tenure:problem:${code}`, title: detail, status: 409, detail, code };
}
