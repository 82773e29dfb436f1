import "./dispose.js";

export { Client, type ListOptions, type ReadOptions } from "./client.js";
export { type Clock, systemClock } from "./clock.js";
export type { Duration } from "./duration.js";
export { Election, type ElectionOptions, type Leader, type Leadership } from "./election.js";
export { LeaseLost, type LossReason, Refused, ShutDown, TenureError, Unavailable, Unknown } from "./errors.js";
export type { LeaseState } from "./hold.js";
export type { Lease } from "./lease.js";
export { LeaseManager, type LeftLease, type ManagerOptions } from "./manager.js";
export type { AcquireOptions, CallOptions, ClientOptions } from "./options.js";
export { FencingToken } from "./token.js";
export type { TlsOptions } from "./transport.js";
export type {
  ClusterInfo,
  Explanation,
  History,
  LeaseEvent,
  LeaseInfo,
  Problem,
  Queue,
  VersionInfo,
} from "./types.js";
export type { Watch, WatchOptions } from "./watch.js";
