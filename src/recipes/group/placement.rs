//! The placement of names on members.

use std::cmp::Ordering;

use super::Member;
use super::score::Score;

/// The placement of names on a set of members. Each process with the same members computes the same placement.
///
/// Each name belongs to one member, and the share of a member is proportional to its weight. When a member leaves, only
/// its names move. When a member joins, only its share moves. A member with weight 0 owns no names.
///
/// The placement is deterministic and does not depend on the machine. [The
/// guide](https://docs.rs/crate/tenure/latest/source/docs/election-and-groups.md) specifies the method, with test
/// values.
///
/// ```
/// # #[cfg(not(feature = "testing"))] fn main() {}
/// # #[cfg(feature = "testing")] fn main() {
/// use tenure::group::Placement;
/// use tenure::testing::member;
///
/// let both = Placement::new([member("a", 1), member("b", 1), member("gated", 0)]);
/// let owner = both.owner("partition-7").expect("two members have a weight").id.clone();
/// let first_two: Vec<_> = both.owners("partition-7", 2).into_iter().map(|member| &member.id).collect();
/// assert_eq!(first_two[0], &owner);
/// assert!(!first_two.contains(&&"gated".to_owned()));
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Placement {
    members: Vec<Member>,
}

impl Placement {
    /// A placement on these members, whether they are ready or not. Their ids must be distinct.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Placement {
        Placement { members: members.into_iter().collect() }
    }

    /// The member to which a name belongs. `None` if no member has a weight. The call takes less than 1 µs per member.
    pub fn owner(&self, name: &str) -> Option<&Member> {
        owner(&self.members, name)
    }

    /// The first `count` members for a name, in order of preference: a name belongs to the next member if the members
    /// before it leave. It is meant for replicas and standbys.
    pub fn owners(&self, name: &str, count: usize) -> Vec<&Member> {
        let mut scored = scored(&self.members, name).collect::<Vec<_>>();
        scored.sort_by(|one, other| compare(other, one));
        scored.into_iter().take(count).map(|(_, member)| member).collect()
    }
}

/// The member to which a name belongs.
pub(super) fn owner<'a>(members: impl IntoIterator<Item = &'a Member>, name: &str) -> Option<&'a Member> {
    scored(members, name).max_by(compare).map(|(_, member)| member)
}

fn scored<'a>(members: impl IntoIterator<Item = &'a Member>, name: &str) -> impl Iterator<Item = (Score, &'a Member)> {
    members.into_iter().filter_map(move |member| Some((Score::new(&member.id, member.weight, name)?, member)))
}

/// Compares by score. Of two equal scores, the member with the lesser id wins.
fn compare(one: &(Score, &Member), other: &(Score, &Member)) -> Ordering {
    one.0.cmp(&other.0).then_with(|| other.1.id.cmp(&one.1.id))
}
