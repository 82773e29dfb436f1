// Types of the API that the page uses, and of its own values. The browser does not load this file.

export interface Lease {
    name: string;
    holder: string;
    token: string;
    term: number;
    index: number;
    ttl_ms: number | "infinite";
    expires_in_ms: number | null;
    state: string;
    granted_at: string;
    renewed_at: string;
    renewals: number;
    metadata?: Record<string, string>;
    limit: number;
    lock_delay_ms: number;
    waiters: number;
    holders?: Lease[];
    holders_cursor?: string;
}

export interface LeasePage {
    leases: Lease[];
    cursor: string | null;
}

export interface LeaseEvent {
    event: string;
    index: number;
    part: number;
    name: string;
    holder: string;
    token: string;
    cause?: string;
    reason?: string;
    to?: string;
    at: string;
}

export interface Waiter {
    place: number;
    holder: string;
    since_at: string;
    waited_ms: number;
    expires_in_ms: number;
}

export interface Queue {
    name: string;
    total: number;
    waiters: Waiter[];
}

export interface Standing {
    status: string;
    lease?: Lease;
    cause?: string | null;
    waiter?: Waiter;
    event?: LeaseEvent;
}

export interface Explanation {
    name: string;
    summary: string;
    holders: number;
    held: Lease[];
    lock_delay_left_ms: number | null;
    next: Waiter | null;
    waiters: number;
    standing?: Standing;
}

export interface Member {
    id: number;
    role: string;
    state: string;
    http: string;
    peer: string;
    lag: number | null;
    last_contact_ms: number | null;
    certificate_expires_at: string | null;
    disk: string | null;
}

export interface LeaderChange {
    term: number;
    leader: number;
    at: string;
}

export interface Cluster {
    cluster_id: string;
    node: number;
    leader: number | null;
    quorum: boolean;
    term: number;
    applied: number;
    clock: { wall: string };
    feature_level: number;
    leader_changes: LeaderChange[];
    members: Member[];
}

export interface ProblemBody {
    title: string;
    status: number;
    detail: string;
    code: string;
    oldest?: number;
}

/** One grant in the table. */
export interface Row {
    /** Orders rows like the server: by name, then by token. */
    key: string;
    name: string;
    holder: string;
    token: string;
    state: string;
    /** `null`: not known yet, because an event has no ttl. */
    ttl: number | "infinite" | null;
    /** On the clock of `performance.now()`. `null`: infinite, ended, or not known yet. */
    expires: number | null;
    /** Milliseconds since 1970. */
    granted: number;
    waiters: number;
    /** The last log index that changed this row, as far as the page knows. */
    index: number;
    /** The part of that entry; `Infinity`: all of it. */
    part: number;
    /** The time of the last change by an event, on the clock of `performance.now()`. */
    changed: number;
}

export interface Filter {
    prefix: string;
    holder: string;
    states: Set<string>;
    sort: string;
    descending: boolean;
}

export interface Entry {
    at: number;
    kind: string;
    /** The name of a lease, if the entry is about one. */
    name?: string;
    text: string;
}
