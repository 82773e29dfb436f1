//! The fault kinds.

use std::fmt;
use std::str::FromStr;

/// A fault of the cluster or of its lease holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    LeaderIsolated,
    Minority,
    OneWay,
    Bridge,
    Ring,
    Flapping,
    Loss,
    Delay,
    Kill,
    KillLeader,
    KillMinority,
    KillAll,
    RestartInPromise,
    Pause,
    PauseLeader,
    Suspend,
    SuspendLeader,
    RollingRestart,
    HolderPause,
    HolderKill,
    DiskFull,
    DiskBreaks,
    PowerCut,
    PowerCutMinority,
    PowerCutAll,
    WallJump,
    TimersInsideDrift,
    TimersBeyondDrift,
    MemberReplace,
    MemberAddRemove,
    Transfer,
}

impl Kind {
    pub const ALL: [Kind; 31] = [
        Kind::LeaderIsolated,
        Kind::Minority,
        Kind::OneWay,
        Kind::Bridge,
        Kind::Ring,
        Kind::Flapping,
        Kind::Loss,
        Kind::Delay,
        Kind::Kill,
        Kind::KillLeader,
        Kind::KillMinority,
        Kind::KillAll,
        Kind::RestartInPromise,
        Kind::Pause,
        Kind::PauseLeader,
        Kind::Suspend,
        Kind::SuspendLeader,
        Kind::RollingRestart,
        Kind::HolderPause,
        Kind::HolderKill,
        Kind::DiskFull,
        Kind::DiskBreaks,
        Kind::PowerCut,
        Kind::PowerCutMinority,
        Kind::PowerCutAll,
        Kind::WallJump,
        Kind::TimersInsideDrift,
        Kind::TimersBeyondDrift,
        Kind::MemberReplace,
        Kind::MemberAddRemove,
        Kind::Transfer,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::LeaderIsolated => "leader-isolated",
            Kind::Minority => "minority",
            Kind::OneWay => "one-way",
            Kind::Bridge => "bridge",
            Kind::Ring => "ring",
            Kind::Flapping => "flapping",
            Kind::Loss => "loss",
            Kind::Delay => "delay",
            Kind::Kill => "kill",
            Kind::KillLeader => "kill-leader",
            Kind::KillMinority => "kill-minority",
            Kind::KillAll => "kill-all",
            Kind::RestartInPromise => "restart-in-promise",
            Kind::Pause => "pause",
            Kind::PauseLeader => "pause-leader",
            Kind::Suspend => "suspend",
            Kind::SuspendLeader => "suspend-leader",
            Kind::RollingRestart => "rolling-restart",
            Kind::HolderPause => "holder-pause",
            Kind::HolderKill => "holder-kill",
            Kind::DiskFull => "disk-full",
            Kind::DiskBreaks => "disk-breaks",
            Kind::PowerCut => "power-cut",
            Kind::PowerCutMinority => "power-cut-minority",
            Kind::PowerCutAll => "power-cut-all",
            Kind::WallJump => "wall-jump",
            Kind::TimersInsideDrift => "timers-inside-drift",
            Kind::TimersBeyondDrift => "timers-beyond-drift",
            Kind::MemberReplace => "member-replace",
            Kind::MemberAddRemove => "member-add-remove",
            Kind::Transfer => "transfer",
        }
    }

    /// In a ring of three nodes every pair is connected, and a minority of three is a single node.
    pub fn needs_five(self) -> bool {
        matches!(self, Kind::Ring | Kind::KillMinority | Kind::PowerCutMinority)
    }

    pub fn needs_faketime(self) -> bool {
        matches!(self, Kind::WallJump | Kind::TimersInsideDrift | Kind::TimersBeyondDrift)
    }

    /// Whether the fault suspends the machine of a node.
    pub fn suspends(self) -> bool {
        matches!(self, Kind::Suspend | Kind::SuspendLeader)
    }

    /// Whether both faults may be active at once. Excluded are:
    ///
    /// - two faults that restart nodes: the end of one would undo the other;
    /// - a fault that takes all nodes down and one that needs a running node;
    /// - a suspend and a fault that resumes nodes or changes their clocks;
    /// - two changes of the members.
    pub fn is_compatible_with(self, other: Kind) -> bool {
        let takes_all_nodes = |kind| matches!(kind, Kind::KillAll | Kind::PowerCutAll | Kind::RollingRestart);
        let wakes =
            |kind: Kind| kind.suspends() || kind.needs_faketime() || matches!(kind, Kind::Pause | Kind::PauseLeader);
        self != other
            && !(self.suspends() && wakes(other))
            && !(other.suspends() && wakes(self))
            && !(self.ends_nodes() && other.ends_nodes())
            && !(self.changes_members() && other.changes_members())
            && !(takes_all_nodes(self) && other.needs_a_node())
            && !(takes_all_nodes(other) && self.needs_a_node())
    }

    /// Whether the fault adds a node and removes one.
    pub fn changes_members(self) -> bool {
        matches!(self, Kind::MemberReplace | Kind::MemberAddRemove)
    }

    /// Whether the fault ends node processes.
    pub fn ends_nodes(self) -> bool {
        self.needs_faketime()
            || matches!(
                self,
                Kind::Kill
                    | Kind::KillLeader
                    | Kind::KillMinority
                    | Kind::KillAll
                    | Kind::RestartInPromise
                    | Kind::RollingRestart
                    | Kind::DiskFull
                    | Kind::DiskBreaks
                    | Kind::PowerCut
                    | Kind::PowerCutMinority
                    | Kind::PowerCutAll
            )
    }

    fn needs_a_node(self) -> bool {
        self.suspends() || matches!(self, Kind::Pause | Kind::PauseLeader | Kind::LeaderIsolated | Kind::Transfer)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Kind, UnknownFault> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or_else(|| UnknownFault(text.to_owned()))
    }
}

/// The text names no fault.
#[derive(Debug, thiserror::Error)]
#[error("unknown fault {0:?}: expected one of {names}", names = Kind::ALL.map(Kind::as_str).join(", "))]
pub struct UnknownFault(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_parse_to_their_kind() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().parse::<Kind>().expect("its own name"), kind);
        }
        assert!("tornado".parse::<Kind>().is_err());
    }

    #[test]
    fn conflicting_faults_are_incompatible() {
        assert!(!Kind::Kill.is_compatible_with(Kind::PowerCut));
        assert!(!Kind::PowerCutAll.is_compatible_with(Kind::PauseLeader));
        assert!(!Kind::Loss.is_compatible_with(Kind::Loss));
        assert!(
            !Kind::SuspendLeader.is_compatible_with(Kind::Pause) && !Kind::WallJump.is_compatible_with(Kind::Suspend)
        );
        assert!(
            Kind::SuspendLeader.is_compatible_with(Kind::Kill)
                && !Kind::SuspendLeader.is_compatible_with(Kind::KillAll)
        );
        assert!(!Kind::MemberReplace.is_compatible_with(Kind::MemberAddRemove));
        assert!(Kind::MemberReplace.is_compatible_with(Kind::KillAll));
        assert!(Kind::PowerCutAll.is_compatible_with(Kind::Loss) && Kind::Minority.is_compatible_with(Kind::PowerCut));
    }
}
