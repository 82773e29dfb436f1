//! Planted bugs in disks, clocks, clients and resources. Tests check that the invariants catch them. The bugs of the
//! product are patches in `tests/mutants`.

/// The planted bugs of a run. The default has none.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlantedBugs {
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
    /// All principals send the access token of the first one.
    pub shared_credentials: bool,
    /// Nodes execute requests with revoked access tokens.
    pub revoked_access_works: bool,
    /// The operator restores a backup as if all holders of the lost cluster had stopped.
    pub restored_too_soon: bool,
}
