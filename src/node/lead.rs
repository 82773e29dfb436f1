//! This node's time as a leader: from when it may propose, and the cluster time it stamps proposals with.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::lease::Stamp;
use crate::types::ClusterMs;

/// One term of leadership, once all that earlier leaders committed is applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lead {
    pub term: u64,
    /// Cluster time of the state when this lead began ...
    base: ClusterMs,
    /// ... and this node's clock then.
    since: Duration,
}

/// Cluster time as this node extends it while it leads.
#[derive(Clone)]
pub(super) struct LeadClock {
    clock: Arc<dyn Clock>,
    lead: Arc<watch::Sender<Option<Lead>>>,
}

impl LeadClock {
    pub fn new(clock: Arc<dyn Clock>) -> LeadClock {
        LeadClock { clock, lead: Arc::new(watch::Sender::new(None)) }
    }

    /// Takes over in `term`: time goes on from the state's last value. What passed since it was committed is unknown
    /// here, and leases live longer by it, never shorter.
    pub fn begin(&self, term: u64, state_now: ClusterMs) -> Lead {
        let lead = Lead { term, base: state_now, since: self.clock.elapsed() };
        self.lead.send_replace(Some(lead));
        lead
    }

    pub fn end(&self) {
        self.lead.send_if_modified(|lead| lead.take().is_some());
    }

    pub fn lead(&self) -> Option<Lead> {
        *self.lead.borrow()
    }

    pub fn changes(&self) -> watch::Receiver<Option<Lead>> {
        self.lead.subscribe()
    }

    pub fn now(&self, lead: &Lead) -> ClusterMs {
        lead.base + self.clock.elapsed().saturating_sub(lead.since).as_millis() as u64
    }

    pub fn stamp(&self, lead: &Lead) -> Stamp {
        Stamp { now: self.now(lead), wall_ms: self.clock.wall_ms() }
    }

    /// How long until cluster time reaches `at`.
    pub fn until(&self, lead: &Lead, at: ClusterMs) -> Duration {
        let reached = lead.since + Duration::from_millis(at.saturating_sub(lead.base));
        reached.saturating_sub(self.clock.elapsed())
    }
}
