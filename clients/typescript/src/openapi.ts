// Generated from the server's OpenAPI document by scripts/generate.mjs. Do not edit: run `npm run generate`.
export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description Response of `/v1/access`: the state of access control. It has no secrets. */
        AccessControl: {
            /** @description Whether requests need a credential. */
            enabled: boolean;
            /** @description All principals in the order of their names. */
            principals: components["schemas"]["Principal"][];
            /** @description All roles in the order of their names. */
            roles: components["schemas"]["RoleDefinition"][];
        };
        /** @description The name of a principal or of a role: `[A-Za-z0-9][A-Za-z0-9._:@-]*`, at most [`MAX_ACCESS_NAME_BYTES`] bytes. */
        AccessName: string;
        /** @description Body of `POST /v1/leases/{name}/acquire`. */
        Acquire: {
            /** @description The claimant: 1 to 200 bytes of the caller's choice. A holder that acquires again keeps its token. */
            holder: string;
            /**
             * Format: int32
             * @description Most holders at once. Absent: 1.
             */
            limit?: number | null;
            /**
             * Format: int64
             * @description Time after an expiry or a revoke of this grant in which the cluster does not grant the lease. Absent: 0.
             */
            lock_delay_ms?: number | null;
            /**
             * @description Metadata of the grant: at most 32 entries and 4096 bytes, keys and values together. A holder that acquires again
             *     does not change it.
             */
            metadata?: {
                [key: string]: string;
            };
            /** @description Lifetime of the grant without a renewal. Absent: the cluster's default. */
            ttl_ms?: components["schemas"]["TtlMs"];
            /**
             * Format: int64
             * @description Longest wait in the queue for a held lease. Absent: do not wait.
             */
            wait_ms?: number | null;
        };
        /** @description Body of `POST /v1/cluster/members`. */
        AddMember: {
            /** @description `host:port` of the public listener, as clients reach it. */
            http: string;
            /**
             * Format: int64
             * @description An id that no node of this cluster ever had.
             */
            id: number;
            /** @description `host:port` of the peer listener, as other nodes reach it. */
            peer: string;
        };
        /** @description Body of `POST /v1/cluster/members/{id}/addresses`. */
        Addresses: {
            /** @description `host:port` of the public listener, as clients reach it. */
            http: string;
            /** @description `host:port` of the peer listener, as other nodes reach it. */
            peer: string;
        };
        /** @description Response of `/v1/cluster`: the view of one node. */
        Cluster: {
            /**
             * Format: int64
             * @description Index of the last log entry that this node applied.
             */
            applied: number;
            /** @description The clocks of this node. */
            clock: components["schemas"]["NodeClock"];
            /** @description The name of the cluster. */
            cluster_id: string;
            /**
             * Format: int32
             * @description What all members understand. It rises after an upgrade of all members.
             */
            feature_level: number;
            /**
             * Format: int64
             * @description `null` if the node reaches no leader.
             */
            leader?: number | null;
            /** @description The last 32 leaders that this node has known since its start, oldest first. */
            leader_changes?: components["schemas"]["LeaderChange"][];
            /** @description The members of the cluster. */
            members: components["schemas"]["Member"][];
            /**
             * Format: int64
             * @description Id of the node that answered.
             */
            node: number;
            /** @description Whether the node reaches a leader that a majority acknowledges. Without one, no lease changes. */
            quorum: boolean;
            /**
             * Format: int64
             * @description The Raft term of this node.
             */
            term: number;
        };
        /**
         * @description The error, for programs. Existing codes never change; later versions can add codes.
         * @enum {string}
         */
        Code: "invalid" | "unauthenticated" | "forbidden" | "not_found" | "method_not_allowed" | "body_timeout" | "held" | "lock_delay" | "wait_timeout" | "wait_abandoned" | "limit_differs" | "should_not_hold" | "not_drained" | "lost" | "metadata_changed" | "no_such_waiter" | "change_in_progress" | "member_refused" | "member_lags" | "access_refused" | "compacted" | "too_large" | "unsupported_media_type" | "queue_full" | "lease_full" | "too_many_leases" | "too_busy" | "not_leader" | "lagged" | "internal" | "unsupported" | "no_leader" | "not_ready" | "failed" | "shutting_down" | "outcome_unknown" | (string & {});
        /** @description Response to the creation of an access token. */
        CreatedToken: {
            /**
             * Format: date-time
             * @description When the leader revokes it; absent for a token that does not expire.
             */
            expires_at?: string | null;
            /** @description The public id. */
            id: string;
            /** @description The principal of the token. */
            principal: string;
            /** @description The secret. The cluster stores only its hash, and never shows it again. */
            token: string;
        };
        /**
         * @description Whether the disk of a member works.
         * @enum {string}
         */
        DiskState: "ok" | "stalled" | (string & {});
        /** @description The grant or the end of a lease. */
        Event: {
            /**
             * Format: date-time
             * @description The wall-clock time of the log entry. For display only.
             */
            at: string;
            cause?: components["schemas"]["GrantCause"] | null;
            /** @description The kind of the transition. */
            event: components["schemas"]["EventKind"];
            /** @description The holder that got the lease, or that had it. */
            holder: string;
            /**
             * Format: int64
             * @description Index of the log entry that caused it.
             */
            index: number;
            /** @description The name of the lease. */
            name: string;
            /**
             * Format: int32
             * @description Position among the transitions of that entry, from 0.
             */
            part: number;
            /** @description The operator's reason for a revoke. */
            reason?: string | null;
            /** @description The new holder after a hand-over. */
            to?: string | null;
            /**
             * @description The fencing token of the grant.
             * @example 281474976710661
             */
            token: string;
        };
        /**
         * @description The kind of a transition.
         * @enum {string}
         */
        EventKind: "granted" | "expired" | "released" | "revoked" | "handed_over" | "restored" | (string & {});
        /** @description The holders of a lease, its first waiter, and the standing of one holder. */
        Explanation: {
            /** @description Current holders in token order: at most 1,000, and about 1 MiB. */
            held: components["schemas"]["Lease"][];
            /**
             * Format: int32
             * @description Number of holders.
             */
            holders: number;
            /**
             * Format: int64
             * @description How long claims still get `lock_delay` (expiry, revoke, restore, change of leader), or `null`.
             */
            lock_delay_left_ms?: number | null;
            /** @description The name of the lease. */
            name: string;
            next?: components["schemas"]["Waiter"] | null;
            standing?: components["schemas"]["Standing"] | null;
            /** @description The explanation as text, for people. */
            summary: string;
            /**
             * Format: int32
             * @description Number of waiters.
             */
            waiters: number;
        };
        /**
         * @description The cause of a grant.
         * @enum {string}
         */
        GrantCause: "asked" | "queue" | "hand_over" | (string & {});
        /** @description Body of `POST /v1/leases/{name}/handover`. */
        HandOver: {
            /** @description The holder. */
            holder: string;
            /** @description The waiter that gets the lease. Absent: the first confirmed waiter in the queue. */
            to?: string | null;
            /**
             * @description The token of the grant.
             * @example 281474976710661
             */
            token: string;
        };
        /** @description The last transitions of a name, oldest first. */
        History: {
            /** @description The name of the lease. */
            name: string;
            /** @description The transitions, oldest first. */
            transitions: components["schemas"]["Event"][];
        };
        /** @description The start of a leader's term, as a node learned it. */
        LeaderChange: {
            /**
             * Format: date-time
             * @description When the node learned it.
             */
            at: string;
            /**
             * Format: int64
             * @description Id of the leader of that term.
             */
            leader: number;
            /**
             * Format: int64
             * @description The Raft term.
             */
            term: number;
        };
        /** @description One holder's lease. */
        Lease: {
            /**
             * Format: int64
             * @description Approximate time to the expiry, at least 0. A lease reads as held until a log entry expires it. `null`: infinite
             *     or ended.
             */
            expires_in_ms?: number | null;
            /**
             * Format: date-time
             * @description The wall-clock time of the grant. For display only.
             */
            granted_at: string;
            /** @description The holder. */
            holder: string;
            /**
             * @description Current holders of a counted lease (`limit` above 1), in token order. The fields above describe the first one.
             *     At most 1,000 holders, and about 1 MiB; `holders_cursor` leads to the rest. Absent for a plain lease, and in
             *     lists, which have one entry per holder.
             */
            holders?: components["schemas"]["Lease"][] | null;
            /**
             * @description Present if the lease has more holders. Pass it as `cursor` to `GET /v1/leases`, with the name as `prefix` and
             *     the state `active`.
             */
            holders_cursor?: string | null;
            /**
             * Format: int64
             * @description Log index of the grant.
             */
            index: number;
            /**
             * Format: int32
             * @description Most holders at once.
             */
            limit: number;
            /**
             * Format: int64
             * @description Time after an expiry or a revoke of this grant in which the cluster does not grant the lease.
             */
            lock_delay_ms: number;
            /** @description Absent if empty, and in the response to a batched renewal. */
            metadata?: {
                [key: string]: string;
            };
            /**
             * Format: int64
             * @description Number of metadata updates during this grant. The next update names it as `version`.
             */
            metadata_version?: number;
            /** @description The name of the lease. */
            name: string;
            /**
             * Format: int64
             * @description Number of renewals of this grant.
             */
            renewals: number;
            /**
             * Format: date-time
             * @description The wall-clock time of the last renewal or grant. For display only.
             */
            renewed_at: string;
            /** @description The state of the lease. */
            state: components["schemas"]["LeaseState"];
            /**
             * Format: int64
             * @description Raft term of the grant.
             */
            term: number;
            /**
             * @description The fencing token of the grant: a 63-bit integer, ordered like (`term`, `index`).
             * @example 281474976710661
             */
            token: string;
            /** @description The ttl of the request that set the expiry. */
            ttl_ms: components["schemas"]["TtlMs"];
            /**
             * Format: int32
             * @description Number of waiters.
             */
            waiters: number;
        };
        /** @description One page of a list. */
        LeasePage: {
            /** @description The `cursor` for the next page; `null` on the last page. */
            cursor?: string | null;
            /** @description One entry for each holder. A page before the last one can be short or empty. */
            leases: components["schemas"]["Lease"][];
        };
        /**
         * @description The state of one holder's lease.
         * @enum {string}
         */
        LeaseState: "active" | "expired" | "released" | "revoked" | "handed_over" | "restored" | (string & {});
        /**
         * @description Why a holder does not have a lease with a token.
         * @enum {string}
         */
        LostReason: "expired" | "released" | "revoked" | "handed_over" | "unknown" | "restored" | (string & {});
        /** @description A member of the cluster. */
        Member: {
            /**
             * Format: date-time
             * @description When the certificate expires that the node presented in its last connection with the node that you asked; `null`
             *     without TLS, or before such a connection.
             */
            certificate_expires_at?: string | null;
            disk?: components["schemas"]["DiskState"] | null;
            /** @description `host:port` for clients. */
            http: string;
            /**
             * Format: int64
             * @description The id of the node.
             */
            id: number;
            /**
             * Format: int64
             * @description Number of log entries behind the leader. Only the leader knows it; other nodes return `null`.
             */
            lag?: number | null;
            /**
             * Format: int64
             * @description Time since the leader sent the last message that it acknowledged. Without a quorum: since its last sign of life
             *     that the node that you asked knows of. `null`: unknown.
             */
            last_contact_ms?: number | null;
            /** @description `host:port` for other nodes. */
            peer: string;
            /** @description The Raft role of the node. */
            role: components["schemas"]["Role"];
            /** @description As the leader sees it. Without a quorum: whether it answers the node that you asked. */
            state: components["schemas"]["MemberState"];
        };
        /**
         * @description Whether a member of the cluster takes part in it.
         * @enum {string}
         */
        MemberState: "ok" | "lagging" | "unreachable" | (string & {});
        /** @description Response to a change of the members: the members after it, as the leader sees them. */
        Members: {
            /** @description The members of the cluster. */
            members: components["schemas"]["Member"][];
        };
        /** @description The clocks of a node when it answered. Two answers show the rate of its monotonic clock. */
        NodeClock: {
            /**
             * Format: int64
             * @description Milliseconds of the monotonic clock, which times leases, since a fixed point.
             */
            monotonic_ms: number;
            /**
             * Format: date-time
             * @description The wall clock, for display only.
             */
            wall: string;
        };
        /** @description A right on all lease names that begin with a prefix. */
        Permission: {
            /** @description The prefix; empty for all names. `admin` has none. */
            prefix?: string;
            /** @description The right. */
            right: components["schemas"]["Right"];
        };
        /** @description A principal: a program, a person or a team. */
        Principal: {
            /** @description The name. A client certificate with the URI `tenure://CLUSTER/client/NAME` belongs to the principal with this name. */
            name: string;
            /** @description The names of its roles. */
            roles: string[];
            /** @description Its access tokens, without their secrets. */
            tokens: components["schemas"]["TokenInfo"][];
        };
        /** @description The body of an error response, `application/problem+json`. The members after `code` depend on the code. */
        Problem: {
            /** @description The error, for programs. */
            code: components["schemas"]["Code"];
            /** @description The details of this problem, with values. */
            detail: string;
            /** @description `held`, `lost`: the current holder, if any. */
            holder?: string | null;
            /**
             * Format: int64
             * @description `not_leader`: the leader's node id.
             */
            leader?: number | null;
            /**
             * Format: int64
             * @description `limit_differs`: the current limit of the lease. `queue_full`, `too_many_leases`: the highest number of waiters
             *     or leases. `lease_full`: the highest number of bytes.
             */
            limit?: number | null;
            /**
             * Format: int64
             * @description `metadata_changed`: the current version.
             */
            metadata_version?: number | null;
            /**
             * Format: int64
             * @description `compacted`: the oldest log index after which a watch can resume.
             */
            oldest?: number | null;
            /**
             * Format: int64
             * @description Delay before a retry can succeed. Absent for a lease with an infinite ttl.
             */
            retry_after_ms?: number | null;
            /**
             * Format: date-time
             * @description `held`: the time of the current holder's grant.
             */
            since?: string | null;
            /**
             * Format: int32
             * @description The HTTP status.
             */
            status: number;
            /** @description A summary. All problems with this code have the same title. */
            title: string;
            /** @description `held`: the current holder's token. */
            token?: string | null;
            /** @description `urn:tenure:problem:` followed by the code. */
            type: string;
            /**
             * Format: int32
             * @description `held`: number of waiters.
             */
            waiters?: number | null;
            why?: components["schemas"]["LostReason"] | null;
        };
        /** @description The waiters for a lease, first one first. */
        Queue: {
            /** @description The name of the lease. */
            name: string;
            /**
             * Format: int32
             * @description Number of all waiters.
             */
            total: number;
            /** @description The first 1,000 waiters. */
            waiters: components["schemas"]["Waiter"][];
        };
        /** @description Body of `POST /v1/leases/{name}/release`. */
        Release: {
            /** @description The holder. */
            holder: string;
            /**
             * @description The token of the grant.
             * @example 281474976710661
             */
            token: string;
        };
        /** @description Response to a release. */
        Released: {
            /** @description `false`: the holder did not have the lease with that token, and nothing changed. */
            released: boolean;
        };
        /** @description Body of `POST /v1/leases/{name}/renew`. */
        Renew: {
            /** @description The holder. */
            holder: string;
            /**
             * @description The token of the grant.
             * @example 281474976710661
             */
            token: string;
            /** @description The ttl from now on. Absent: the ttl of the grant. A renewal never moves the expiry to an earlier time. */
            ttl_ms?: components["schemas"]["TtlMs"];
        };
        /** @description Body of `POST /v1/renew`: at most 10,000 leases of one holder. */
        RenewBatch: {
            /** @description The holder of all leases. */
            holder: string;
            /** @description The leases to renew. */
            leases: components["schemas"]["RenewItem"][];
        };
        /** @description One lease of a batched renewal. */
        RenewItem: {
            /** @description The name of the lease. */
            name: string;
            /**
             * @description The token of the grant.
             * @example 281474976710661
             */
            token: string;
            /** @description The ttl from now on. Absent: the ttl of the grant. A renewal never moves the expiry to an earlier time. */
            ttl_ms?: components["schemas"]["TtlMs"];
        };
        /** @description Result of one renewal: exactly one of `lease` and `problem` is present. */
        RenewResult: {
            lease?: components["schemas"]["Lease"] | null;
            /** @description The name of the lease. */
            name: string;
            problem?: components["schemas"]["Problem"] | null;
        };
        /** @description Response to a batched renewal: one result for each lease, in the order of the request. */
        Renewed: {
            /** @description The results, in the order of the request. */
            results: components["schemas"]["RenewResult"][];
        };
        /** @description Body of `POST /v1/cluster/members/{id}/replace`. */
        ReplaceMember: {
            /**
             * Format: int64
             * @description The member that becomes a voter in its place.
             */
            with: number;
        };
        /** @description Response to a revoke. */
        Revoked: {
            /**
             * Format: int32
             * @description Number of holders that lost the lease; 0 if it had none.
             */
            revoked: number;
        };
        /**
         * @description A right of a role. Logs and snapshots hold the position of a variant: append new ones at the end.
         * @enum {string}
         */
        Right: "read" | "hold" | "operate" | "admin" | (string & {});
        /**
         * @description The Raft role of a node.
         * @enum {string}
         */
        Role: "leader" | "follower" | "learner" | (string & {});
        /** @description A role. */
        RoleDefinition: {
            /** @description The name. */
            name: string;
            /** @description The rights of a principal with this role. */
            permissions: components["schemas"]["Permission"][];
        };
        /** @description Body of `PUT /v1/access/principals/{access}`. */
        SetPrincipal: {
            /** @description The names of all its roles. */
            roles: components["schemas"]["AccessName"][];
        };
        /** @description Body of `PUT /v1/access/roles/{access}`. */
        SetRole: {
            /** @description All permissions of the role. */
            permissions: components["schemas"]["Permission"][];
        };
        /** @description The relation of one holder to one lease. */
        Standing: {
            /** @description The cause of its grant; `null` if the history has forgotten it. */
            cause?: null | components["schemas"]["GrantCause"];
            lease: components["schemas"]["Lease"];
            /** @enum {string} */
            status: "holds";
        } | {
            /** @enum {string} */
            status: "waits";
            waiter: components["schemas"]["Waiter"];
        } | {
            event: components["schemas"]["Event"];
            /** @enum {string} */
            status: "ended";
        } | {
            /** @enum {string} */
            status: "unknown";
        };
        /**
         * @description Selects leases of a list by state.
         * @enum {string}
         */
        StateFilter: "active" | "renewed" | "expired" | "released" | "revoked" | "handed_over" | "restored" | (string & {});
        /** @description An access token without its secret. */
        TokenInfo: {
            /**
             * Format: date-time
             * @description The time of its creation.
             */
            created_at: string;
            /**
             * Format: date-time
             * @description When the leader revokes it; absent for a token that does not expire.
             */
            expires_at?: string | null;
            /** @description The public id: 16 hexadecimal digits. */
            id: string;
        };
        /** @description Body of `POST /v1/cluster/transfer`. */
        Transfer: {
            /**
             * Format: int64
             * @description The voter that becomes the leader. Absent: the one that lacks the fewest log entries.
             */
            to?: number | null;
        };
        /** @description Response to a transfer of the leadership. */
        Transferred: {
            /**
             * Format: int64
             * @description The leader before the transfer.
             */
            from: number;
            /**
             * Format: int64
             * @description The leader after the transfer.
             */
            leader: number;
        };
        TtlMs: number | "infinite";
        /** @description Body of `POST /v1/leases/{name}/metadata`. */
        UpdateMetadata: {
            /** @description The holder. */
            holder: string;
            /** @description The new metadata: at most 32 entries and 4096 bytes, keys and values together. */
            metadata?: {
                [key: string]: string;
            };
            /**
             * @description The token of the grant.
             * @example 281474976710661
             */
            token: string;
            /**
             * Format: int64
             * @description The `metadata_version` that this update replaces.
             */
            version: number;
        };
        /** @description Response of `/version`. */
        Version: {
            /**
             * Format: int32
             * @description The newest data format that the node reads and writes.
             */
            data_format: number;
            /** @description The version of the node. */
            version: string;
        };
        /** @description A waiter in a queue. */
        Waiter: {
            /**
             * Format: int64
             * @description Time until its wait ends.
             */
            expires_in_ms: number;
            /** @description The holder that waits. */
            holder: string;
            /**
             * Format: int32
             * @description Number of waiters before it.
             */
            place: number;
            /**
             * Format: date-time
             * @description The wall-clock time of the claim. For display only.
             */
            since_at: string;
            /**
             * Format: int64
             * @description Time since the claim.
             */
            waited_ms: number;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
