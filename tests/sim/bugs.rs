//! Planted bugs. Tests check that the invariants catch them.

use tenure::testing::Safeguards;

/// The planted bugs of a run. The default has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlantedBugs {
    pub safeguards: Safeguards,
    /// The bug in the lease machine of each node.
    pub machine: Option<MachineBug>,
    /// Disks acknowledge a sync long before it is complete.
    pub early_syncs: bool,
    /// The monotonic clocks of nodes jump like wall clocks.
    pub jumping_clock: bool,
    /// The clocks of holders run at a rate of 0.8.
    pub slow_holder: bool,
    /// The clocks of holders stop while their machine is suspended.
    pub ignores_suspend: bool,
    /// Clients report an unknown outcome as a refusal.
    pub unknown_is_refused: bool,
    /// Reads with consistency `leader` are answered from the memory of any node.
    pub stale_reads: bool,
    /// Clients treat a refused renewal as successful.
    pub ignores_loss: bool,
    /// Clients report a release that they never send.
    pub unsent_release: bool,
    /// The resource accepts each write.
    pub no_fence: bool,
    /// Watches ignore the requested start position.
    pub late_watch: bool,
}

/// A bug in the lease machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineBug {
    /// The token index counts from the last installed snapshot of the replica.
    TokensFromSnapshot,
    /// Tokens come from the leader's wall clock.
    TokensFromClock,
    /// A release ends the current grant, although it names another token.
    ReleaseIgnoresToken,
    /// A waiter is granted the lease after its wait has ended.
    DeadWaiterGranted,
    /// A renewal restores an expired lease that has no holder.
    ExpiredRevived,
    /// A repeated acquire grants the lease again, with a new token.
    SecondToken,
}
