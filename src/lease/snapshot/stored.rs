//! The stored types, and their conversions.
//!
//! **Disks and connections carry these types, so their fields are frozen** in number, order and type. The same holds
//! for the types of the fields: tokens, names, `Change`, `Limits`. A new layout needs a new variant at the end of
//! [`StoredRecord`], or a new header. The old ones stay readable.

use serde::{Deserialize, Serialize};

use super::BadSnapshot;
use crate::lease::ended::Ended;
use crate::lease::history::Event;
use crate::lease::holders::Grant;
use crate::lease::queue::{QueueEntry, WaitRequest};
use crate::lease::{Change, LeaseState, Limits};
use crate::token::FencingToken;
use crate::types::{AccessName, ClusterMs, HolderId, LeaseName, Metadata, Ttl};

/// The version of [`SnapshotHeader`] that this code writes.
pub(super) const HEADER_VERSION: u32 = 3;

/// The start of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    pub version: u32,
    pub now: ClusterMs,
    /// Position of the last applied entry.
    pub applied: Option<FencingToken>,
    pub limits: Limits,
    /// Number of names that follow.
    pub names: u64,
    /// Cluster time of the first entry of the current term; 0 if unknown.
    pub term_began: ClusterMs,
    /// After a restore: the last millisecond without grants.
    pub no_grants_until: Option<ClusterMs>,
}

/// The start of a snapshot of version 2. This build reads it and does not write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeaderV2 {
    pub version: u32,
    pub now: ClusterMs,
    pub applied: Option<FencingToken>,
    pub limits: Limits,
    pub names: u64,
    pub term_began: ClusterMs,
}

/// The start of a snapshot of version 1. This build reads it and does not write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeaderV1 {
    pub version: u32,
    pub now: ClusterMs,
    pub applied: Option<FencingToken>,
    pub limits: Limits,
    pub records: u64,
}

/// A stored name, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredRecord {
    /// A whole name of any size. This build reads it and does not write it.
    V1(RecordV1),
    /// A name with the first part of its items.
    V2(RecordV2),
    /// The next part of the previous record's name.
    More(MoreV2),
    /// Owners of holders and waiters of the previous record's name.
    Owners(OwnersV1),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordV2 {
    pub(super) name: LeaseName,
    pub(super) limit: u32,
    pub(super) last_grant: u64,
    pub(super) delay_until: Option<ClusterMs>,
    /// Totals of all parts.
    pub(super) counts: CountsV2,
    pub(super) part: PartV2,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoreV2 {
    pub(super) name: LeaseName,
    pub(super) part: PartV2,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnersV1 {
    pub(super) name: LeaseName,
    /// In the order of the holders.
    pub(super) owners: Vec<(HolderId, AccessName)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CountsV2 {
    pub held: u64,
    pub waiting: u64,
    pub ended: u64,
    pub history: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartV2 {
    pub held: Vec<GrantV2>,
    pub waiting: Vec<QueueEntryV2>,
    pub ended: Vec<EndedV2>,
    pub history: Vec<EventV1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueEntryV2 {
    pub ticket: u64,
    pub holder: HolderId,
    pub ttl: Ttl,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    pub until: ClusterMs,
    pub confirmed_until: ClusterMs,
    pub confirmed_term: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GrantV2 {
    pub grant: GrantV1,
    pub metadata_version: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedV2 {
    pub grant: GrantV2,
    pub limit: u32,
    pub state: LeaseState,
    pub at: ClusterMs,
    pub index: u64,
    pub part: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordV1 {
    pub(super) name: LeaseName,
    pub(super) limit: u32,
    pub(super) last_grant: u64,
    pub(super) delay_until: Option<ClusterMs>,
    pub(super) held: Vec<GrantV1>,
    pub(super) waiting: Vec<QueueEntryV1>,
    pub(super) ended: Vec<EndedV1>,
    pub(super) history: Vec<EventV1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GrantV1 {
    pub holder: HolderId,
    pub token: FencingToken,
    pub ttl: Ttl,
    pub deadline: Option<ClusterMs>,
    pub granted_at: ClusterMs,
    pub granted_wall_ms: u64,
    pub renewed_at: ClusterMs,
    pub renewed_wall_ms: u64,
    pub renewals: u64,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct QueueEntryV1 {
    pub ticket: u64,
    pub holder: HolderId,
    pub ttl: Ttl,
    pub lock_delay_ms: u64,
    pub metadata: Metadata,
    pub since: ClusterMs,
    pub since_wall_ms: u64,
    pub until: ClusterMs,
    pub confirmed_until: ClusterMs,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedV1 {
    pub grant: GrantV1,
    pub limit: u32,
    pub state: LeaseState,
    pub at: ClusterMs,
    pub index: u64,
    pub part: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EventV1 {
    pub index: u64,
    pub part: u32,
    pub holder: HolderId,
    pub token: FencingToken,
    pub change: Change,
    pub at: ClusterMs,
    pub wall_ms: u64,
}

impl TryFrom<SnapshotHeaderV1> for SnapshotHeader {
    type Error = BadSnapshot;

    fn try_from(header: SnapshotHeaderV1) -> Result<SnapshotHeader, BadSnapshot> {
        match header {
            SnapshotHeaderV1 { version: 1, now, applied, limits, records: names } => {
                SnapshotHeaderV2 { version: 2, now, applied, limits, names, term_began: 0 }.try_into()
            }
            SnapshotHeaderV1 { version, .. } => Err(BadSnapshot::Version(version)),
        }
    }
}

impl TryFrom<SnapshotHeaderV2> for SnapshotHeader {
    type Error = BadSnapshot;

    fn try_from(header: SnapshotHeaderV2) -> Result<SnapshotHeader, BadSnapshot> {
        match header {
            SnapshotHeaderV2 { version: 2, now, applied, limits, names, term_began } => {
                let (version, no_grants_until) = (HEADER_VERSION, None);
                Ok(SnapshotHeader { version, now, applied, limits, names, term_began, no_grants_until })
            }
            SnapshotHeaderV2 { version, .. } => Err(BadSnapshot::Version(version)),
        }
    }
}

impl GrantV2 {
    pub fn new(grant: &Grant) -> GrantV2 {
        GrantV2 { grant: GrantV1::new(grant), metadata_version: grant.metadata_version }
    }

    pub fn into_grant(self) -> Grant {
        Grant { metadata_version: self.metadata_version, ..self.grant.into_grant() }
    }
}

impl From<GrantV1> for GrantV2 {
    fn from(grant: GrantV1) -> GrantV2 {
        GrantV2 { grant, metadata_version: 0 }
    }
}

impl GrantV1 {
    fn new(grant: &Grant) -> GrantV1 {
        let Grant {
            holder,
            token,
            ttl,
            deadline,
            granted_at,
            granted_wall_ms,
            renewed_at,
            renewed_wall_ms,
            renewals,
            lock_delay_ms,
            metadata,
            metadata_version: _,
        } = grant.clone();
        GrantV1 {
            holder,
            token,
            ttl,
            deadline,
            granted_at,
            granted_wall_ms,
            renewed_at,
            renewed_wall_ms,
            renewals,
            lock_delay_ms,
            metadata,
        }
    }

    fn into_grant(self) -> Grant {
        Grant {
            holder: self.holder,
            token: self.token,
            ttl: self.ttl,
            deadline: self.deadline,
            granted_at: self.granted_at,
            granted_wall_ms: self.granted_wall_ms,
            renewed_at: self.renewed_at,
            renewed_wall_ms: self.renewed_wall_ms,
            renewals: self.renewals,
            lock_delay_ms: self.lock_delay_ms,
            metadata: self.metadata,
            metadata_version: 0,
        }
    }
}

impl QueueEntryV2 {
    pub fn new(ticket: u64, waiter: &QueueEntry) -> QueueEntryV2 {
        let WaitRequest { holder, ttl, lock_delay_ms, metadata } = waiter.request.clone();
        let QueueEntry { since, since_wall_ms, until, confirmed_until, confirmed_term, .. } = *waiter;
        QueueEntryV2 {
            ticket,
            holder,
            ttl,
            lock_delay_ms,
            metadata,
            since,
            since_wall_ms,
            until,
            confirmed_until,
            confirmed_term,
        }
    }

    pub fn into_entry(self) -> QueueEntry {
        let QueueEntryV2 { holder, ttl, lock_delay_ms, metadata, .. } = self;
        let QueueEntryV2 { since, since_wall_ms, until, confirmed_until, confirmed_term, .. } = self;
        let request = WaitRequest { holder, ttl, lock_delay_ms, metadata };
        QueueEntry { request, since, since_wall_ms, until, confirmed_until, confirmed_term }
    }
}

impl From<QueueEntryV1> for QueueEntryV2 {
    fn from(waiter: QueueEntryV1) -> QueueEntryV2 {
        let QueueEntryV1 { ticket, holder, ttl, lock_delay_ms, metadata, since, since_wall_ms, until, confirmed_until } =
            waiter;
        QueueEntryV2 {
            ticket,
            holder,
            ttl,
            lock_delay_ms,
            metadata,
            since,
            since_wall_ms,
            until,
            confirmed_until,
            confirmed_term: 0,
        }
    }
}

impl From<EndedV1> for EndedV2 {
    fn from(ended: EndedV1) -> EndedV2 {
        let EndedV1 { grant, limit, state, at, index, part } = ended;
        EndedV2 { grant: grant.into(), limit, state, at, index, part }
    }
}

impl EndedV2 {
    pub fn new(ended: &Ended) -> EndedV2 {
        let Ended { ref grant, limit, state, at, index, part } = *ended;
        EndedV2 { grant: GrantV2::new(grant), limit, state, at, index, part }
    }

    pub fn into_ended(self) -> Ended {
        let EndedV2 { grant, limit, state, at, index, part } = self;
        Ended { grant: grant.into_grant(), limit, state, at, index, part }
    }
}

impl EventV1 {
    pub fn new(event: &Event) -> EventV1 {
        let Event { index, part, holder, token, change, at, wall_ms } = event.clone();
        EventV1 { index, part, holder, token, change, at, wall_ms }
    }

    pub fn into_event(self) -> Event {
        let EventV1 { index, part, holder, token, change, at, wall_ms } = self;
        Event { index, part, holder, token, change, at, wall_ms }
    }
}
