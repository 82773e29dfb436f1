import type { components } from "./openapi.js";

type Schemas = components["schemas"];

/** An error document of the cluster, with a `code` for programs and a `detail` for people. */
export type Problem = Schemas["Problem"];
/** A lease as the cluster sees it. Its `token` is a decimal string: `FencingToken.from(info.token)`. */
export type LeaseInfo = Schemas["Lease"];
/** A transition of a lease, in a history or a watch. */
export type LeaseEvent = Schemas["Event"];
/** The last transitions of a name, oldest first. */
export type History = Schemas["History"];
/** The waiters for a lease, first one first. */
export type Queue = Schemas["Queue"];
/** Why a lease is held or free, and the standing of one holder. A later server can send another `standing.status`. */
export type Explanation = Schemas["Explanation"];
/** The view of one node of its cluster. */
export type ClusterInfo = Schemas["Cluster"];
/** The version of a node. */
export type VersionInfo = Schemas["Version"];

export type AcquireBody = Schemas["Acquire"];
export type RenewBatch = Schemas["RenewBatch"];
export type RenewResult = Schemas["RenewResult"];
export type Renewed = Schemas["Renewed"];
export type Released = Schemas["Released"];
export type LeasePage = Schemas["LeasePage"];
export type Standing = Schemas["Standing"];

/** A problem that the client itself reports, in the form of a refusal by the cluster. */
export function localProblem(code: Problem["code"], detail: string): Problem {
  return { type: `urn:tenure:problem:${code}`, title: detail, status: 409, detail, code };
}
