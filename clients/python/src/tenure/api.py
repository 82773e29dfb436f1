"""The requests and responses of the HTTP API.

`generate.py` makes this file from the OpenAPI document of the server. Do not edit it. Values of later versions, such as
new states, events and error codes, are legal: all enumerations are plain strings here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired


Code: TypeAlias = str
"""
The error, for programs. Existing codes never change; later versions can add codes.
"""


DiskState: TypeAlias = str
"""
Whether the disk of a member works.
"""


EventKind: TypeAlias = str
"""
The kind of a transition.
"""


GrantCause: TypeAlias = str
"""
The cause of a grant.
"""


class HandOver(TypedDict):
    """
    Body of `POST /v1/leases/{name}/handover`.
    """

    holder: str
    """
    The holder.
    """
    to: NotRequired[str | None]
    """
    The waiter that gets the lease. Absent: the first confirmed waiter in the queue.
    """
    token: str
    """
    The token of the grant.
    """


class LeaderChange(TypedDict):
    """
    The start of a leader's term, as a node learned it.
    """

    at: str
    """
    When the node learned it.
    """
    leader: int
    """
    Id of the leader of that term.
    """
    term: int
    """
    The Raft term.
    """


LeaseState: TypeAlias = str
"""
The state of one holder's lease.
"""


LostReason: TypeAlias = str
"""
Why a holder does not have a lease with a token.
"""


MemberState: TypeAlias = str
"""
Whether a member of the cluster takes part in it.
"""


class NodeClock(TypedDict):
    """
    The clocks of a node when it answered. Two answers show the rate of its monotonic clock.
    """

    monotonic_ms: int
    """
    Milliseconds of the monotonic clock, which times leases, since a fixed point.
    """
    wall: str
    """
    The wall clock, for display only.
    """


class Problem(TypedDict):
    """
    The body of an error response, `application/problem+json`. The members after `code` depend on the code.
    """

    code: Code
    """
    The error, for programs.
    """
    detail: str
    """
    The details of this problem, with values.
    """
    holder: NotRequired[str | None]
    """
    `held`, `lost`: the current holder, if any.
    """
    leader: NotRequired[int | None]
    """
    `not_leader`: the leader's node id.
    """
    limit: NotRequired[int | None]
    """
    `limit_differs`: the current limit of the lease. `queue_full`, `too_many_leases`: the highest number of waiters
    or leases. `lease_full`: the highest number of bytes.
    """
    metadata_version: NotRequired[int | None]
    """
    `metadata_changed`: the current version.
    """
    oldest: NotRequired[int | None]
    """
    `compacted`: the oldest log index after which a watch can resume.
    """
    retry_after_ms: NotRequired[int | None]
    """
    Delay before a retry can succeed. Absent for a lease with an infinite ttl.
    """
    since: NotRequired[str | None]
    """
    `held`: the time of the current holder's grant.
    """
    status: int
    """
    The HTTP status.
    """
    title: str
    """
    A summary. All problems with this code have the same title.
    """
    token: NotRequired[str | None]
    """
    `held`: the current holder's token.
    """
    type: str
    """
    `urn:tenure:problem:` followed by the code.
    """
    waiters: NotRequired[int | None]
    """
    `held`: number of waiters.
    """
    why: NotRequired[LostReason | None]


class Release(TypedDict):
    """
    Body of `POST /v1/leases/{name}/release`.
    """

    holder: str
    """
    The holder.
    """
    token: str
    """
    The token of the grant.
    """


class Released(TypedDict):
    """
    Response to a release.
    """

    released: bool
    """
    `false`: the holder did not have the lease with that token, and nothing changed.
    """


class Revoked(TypedDict):
    """
    Response to a revoke.
    """

    revoked: int
    """
    Number of holders that lost the lease; 0 if it had none.
    """


Role: TypeAlias = str
"""
The Raft role of a node.
"""


class Standing4(TypedDict):
    """
    The holder neither has the lease nor waits, and the cluster remembers no end of its grants.
    """

    status: Literal["unknown"]


TtlMs: TypeAlias = int | Literal["infinite"]


class UpdateMetadata(TypedDict):
    """
    Body of `POST /v1/leases/{name}/metadata`.
    """

    holder: str
    """
    The holder.
    """
    metadata: NotRequired[dict[str, str]]
    """
    The new metadata: at most 32 entries and 4096 bytes, keys and values together.
    """
    token: str
    """
    The token of the grant.
    """
    version: int
    """
    The `metadata_version` that this update replaces.
    """


class Version(TypedDict):
    """
    Response of `/version`.
    """

    data_format: int
    """
    The newest data format that the node reads and writes.
    """
    version: str
    """
    The version of the node.
    """


class Waiter(TypedDict):
    """
    A waiter in a queue.
    """

    expires_in_ms: int
    """
    Time until its wait ends.
    """
    holder: str
    """
    The holder that waits.
    """
    place: int
    """
    Number of waiters before it.
    """
    since_at: str
    """
    The wall-clock time of the claim. For display only.
    """
    waited_ms: int
    """
    Time since the claim.
    """


class Acquire(TypedDict):
    """
    Body of `POST /v1/leases/{name}/acquire`.
    """

    holder: str
    """
    The claimant: 1 to 200 bytes of the caller's choice. A holder that acquires again keeps its token.
    """
    limit: NotRequired[int | None]
    """
    Most holders at once. Absent: 1.
    """
    lock_delay_ms: NotRequired[int | None]
    """
    Time after an expiry or a revoke of this grant in which the cluster does not grant the lease. Absent: 0.
    """
    metadata: NotRequired[dict[str, str]]
    """
    Metadata of the grant: at most 32 entries and 4096 bytes, keys and values together. A holder that acquires again
    does not change it.
    """
    ttl_ms: NotRequired[TtlMs]
    """
    Lifetime of the grant without a renewal. Absent: the cluster's default.
    """
    wait_ms: NotRequired[int | None]
    """
    Longest wait in the queue for a held lease. Absent: do not wait.
    """


class Event(TypedDict):
    """
    The grant or the end of a lease.
    """

    at: str
    """
    The wall-clock time of the log entry. For display only.
    """
    cause: NotRequired[GrantCause | None]
    event: EventKind
    """
    The kind of the transition.
    """
    holder: str
    """
    The holder that got the lease, or that had it.
    """
    index: int
    """
    Index of the log entry that caused it.
    """
    name: str
    """
    The name of the lease.
    """
    part: int
    """
    Position among the transitions of that entry, from 0.
    """
    reason: NotRequired[str | None]
    """
    The operator's reason for a revoke.
    """
    to: NotRequired[str | None]
    """
    The new holder after a hand-over.
    """
    token: str
    """
    The fencing token of the grant.
    """


class History(TypedDict):
    """
    The last transitions of a name, oldest first.
    """

    name: str
    """
    The name of the lease.
    """
    transitions: list[Event]
    """
    The transitions, oldest first.
    """


class Lease(TypedDict):
    """
    One holder's lease.
    """

    expires_in_ms: NotRequired[int | None]
    """
    Approximate time to the expiry, at least 0. A lease reads as held until a log entry expires it. `null`: infinite
    or ended.
    """
    granted_at: str
    """
    The wall-clock time of the grant. For display only.
    """
    holder: str
    """
    The holder.
    """
    holders: NotRequired[list[Lease] | None]
    """
    Current holders of a counted lease (`limit` above 1), in token order. The fields above describe the first one.
    At most 1,000 holders, and about 1 MiB; `holders_cursor` leads to the rest. Absent for a plain lease, and in
    lists, which have one entry per holder.
    """
    holders_cursor: NotRequired[str | None]
    """
    Present if the lease has more holders. Pass it as `cursor` to `GET /v1/leases`, with the name as `prefix` and
    the state `active`.
    """
    index: int
    """
    Log index of the grant.
    """
    limit: int
    """
    Most holders at once.
    """
    lock_delay_ms: int
    """
    Time after an expiry or a revoke of this grant in which the cluster does not grant the lease.
    """
    metadata: NotRequired[dict[str, str]]
    """
    Absent if empty, and in the response to a batched renewal.
    """
    metadata_version: NotRequired[int]
    """
    Number of metadata updates during this grant. The next update names it as `version`.
    """
    name: str
    """
    The name of the lease.
    """
    renewals: int
    """
    Number of renewals of this grant.
    """
    renewed_at: str
    """
    The wall-clock time of the last renewal or grant. For display only.
    """
    state: LeaseState
    """
    The state of the lease.
    """
    term: int
    """
    Raft term of the grant.
    """
    token: str
    """
    The fencing token of the grant: a 63-bit integer, ordered like (`term`, `index`).
    """
    ttl_ms: TtlMs
    """
    The ttl of the request that set the expiry.
    """
    waiters: int
    """
    Number of waiters.
    """


class LeasePage(TypedDict):
    """
    One page of a list.
    """

    cursor: NotRequired[str | None]
    """
    The `cursor` for the next page; `null` on the last page.
    """
    leases: list[Lease]
    """
    One entry for each holder. A page before the last one can be short or empty.
    """


class Member(TypedDict):
    """
    A member of the cluster.
    """

    certificate_expires_at: NotRequired[str | None]
    """
    When the certificate expires that the node presented in its last connection with the node that you asked; `null`
    without TLS, or before such a connection.
    """
    disk: NotRequired[DiskState | None]
    http: str
    """
    `host:port` for clients.
    """
    id: int
    """
    The id of the node.
    """
    lag: NotRequired[int | None]
    """
    Number of log entries behind the leader. Only the leader knows it; other nodes return `null`.
    """
    last_contact_ms: NotRequired[int | None]
    """
    Time since the leader sent the last message that it acknowledged. Without a quorum: since its last sign of life
    that the node that you asked knows of. `null`: unknown.
    """
    peer: str
    """
    `host:port` for other nodes.
    """
    role: Role
    """
    The Raft role of the node.
    """
    state: MemberState
    """
    As the leader sees it. Without a quorum: whether it answers the node that you asked.
    """


class Queue(TypedDict):
    """
    The waiters for a lease, first one first.
    """

    name: str
    """
    The name of the lease.
    """
    total: int
    """
    Number of all waiters.
    """
    waiters: list[Waiter]
    """
    The first 1,000 waiters.
    """


class RenewItem(TypedDict):
    """
    One lease of a batched renewal.
    """

    name: str
    """
    The name of the lease.
    """
    token: str
    """
    The token of the grant.
    """
    ttl_ms: NotRequired[TtlMs]
    """
    The ttl from now on. Absent: the ttl of the grant. A renewal never moves the expiry to an earlier time.
    """


class RenewResult(TypedDict):
    """
    Result of one renewal: exactly one of `lease` and `problem` is present.
    """

    lease: NotRequired[Lease | None]
    name: str
    """
    The name of the lease.
    """
    problem: NotRequired[Problem | None]


class Renewed(TypedDict):
    """
    Response to a batched renewal: one result for each lease, in the order of the request.
    """

    results: list[RenewResult]
    """
    The results, in the order of the request.
    """


class Standing1(TypedDict):
    """
    The relation of one holder to one lease.
    """

    cause: NotRequired[GrantCause | None]
    """
    The cause of its grant; `null` if the history has forgotten it.
    """
    lease: Lease
    status: Literal["holds"]


class Standing2(TypedDict):
    """
    The relation of one holder to one lease.
    """

    status: Literal["waits"]
    waiter: Waiter


class Standing3(TypedDict):
    """
    The holder had the lease; this event ended the last grant.
    """

    event: Event
    status: Literal["ended"]


Standing: TypeAlias = Standing1 | Standing2 | Standing3 | Standing4
"""
The relation of one holder to one lease.
"""


class Cluster(TypedDict):
    """
    Response of `/v1/cluster`: the view of one node.
    """

    applied: int
    """
    Index of the last log entry that this node applied.
    """
    clock: NodeClock
    """
    The clocks of this node.
    """
    cluster_id: str
    """
    The name of the cluster.
    """
    feature_level: int
    """
    What all members understand. It rises after an upgrade of all members.
    """
    leader: NotRequired[int | None]
    """
    `null` if the node reaches no leader.
    """
    leader_changes: NotRequired[list[LeaderChange]]
    """
    The last 32 leaders that this node has known since its start, oldest first.
    """
    members: list[Member]
    """
    The members of the cluster.
    """
    node: int
    """
    Id of the node that answered.
    """
    quorum: bool
    """
    Whether the node reaches a leader that a majority acknowledges. Without one, no lease changes.
    """
    term: int
    """
    The Raft term of this node.
    """


class Explanation(TypedDict):
    """
    The holders of a lease, its first waiter, and the standing of one holder.
    """

    held: list[Lease]
    """
    Current holders in token order: at most 1,000, and about 1 MiB.
    """
    holders: int
    """
    Number of holders.
    """
    lock_delay_left_ms: NotRequired[int | None]
    """
    How long claims still get `lock_delay` (expiry, revoke, restore, change of leader), or `null`.
    """
    name: str
    """
    The name of the lease.
    """
    next: NotRequired[Waiter | None]
    standing: NotRequired[Standing | None]
    summary: str
    """
    The explanation as text, for people.
    """
    waiters: int
    """
    Number of waiters.
    """


class RenewBatch(TypedDict):
    """
    Body of `POST /v1/renew`: at most 10,000 leases of one holder.
    """

    holder: str
    """
    The holder of all leases.
    """
    leases: list[RenewItem]
    """
    The leases to renew.
    """
