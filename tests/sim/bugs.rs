//! Bugs that tests plant, to see that they are found.

use tenure::testing::Safeguards;

#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    pub safeguards: Safeguards,
    /// What is wrong with the lease machine of every node.
    pub machine: Option<MachineBug>,
    /// Disks that say "synced" long before they are.
    pub early_disk: bool,
    /// Nodes whose monotonic clock jumps as a wall clock does.
    pub wall_clock: bool,
    /// Holders whose clock runs at 0.8.
    pub slow_holder: bool,
    /// Holders whose clock stands still while their machine is suspended.
    pub deaf_to_suspend: bool,
    /// A client that takes "unknown" for "refused".
    pub unknown_is_refused: bool,
    /// A client that is told "leader", and is answered from any node's memory.
    pub stale_reads: bool,
    /// A client that takes a lost renewal for a good one.
    pub deaf_to_loss: bool,
    /// A client that believes to have released without asking anybody.
    pub false_release: bool,
    /// A resource that takes whatever comes.
    pub no_fence: bool,
    /// A watch that begins behind what it is asked for.
    pub late_watch: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineBug {
    /// Tokens count from the last snapshot that the replica came from.
    TokensFromSnapshot,
    /// Tokens are made from the leader's wall clock.
    TokensFromClock,
    /// Whoever releases a lease ends the grant that it has, and not the one that was meant.
    ReleaseIgnoresToken,
    /// A waiter is granted the lease when its wait is over.
    DeadWaiterGranted,
    /// A renewal brings a expired lease back, if nobody has it.
    ExpiredRevived,
    /// A holder that asks again is granted the lease again.
    SecondToken,
}
