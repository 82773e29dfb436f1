//! Which member a name belongs to.

use std::cmp::Ordering;

use super::Member;
use super::score::Score;

/// Where names belong among some members. Every process with the same members comes to the same answer.
///
/// Each name belongs to one member, and each member gets names in the ratio of its weight. When a member goes, only its
/// names move; when one comes, it takes its share and nothing else moves. A member of weight 0 owns nothing. No part of
/// it is random or depends on the machine; the method is written down, with values that never change, in
/// [the guide](https://docs.rs/crate/tenure/latest/source/docs/election-and-groups.md).
///
/// ```
/// # use tenure::group::Member;
/// # fn member(id: &str, weight: u32) -> Member {
/// #     let since = serde_json::from_str("\"2026-01-31T12:00:00.000Z\"").expect("a time");
/// #     let token = tenure::token::FencingToken { term: 1, index: 1 };
/// #     Member { id: id.into(), weight, is_ready: true, metadata: Default::default(), token, holder: id.into(), since }
/// # }
/// use tenure::group::Placement;
///
/// let both = Placement::new([member("a", 1), member("b", 1), member("gated", 0)]);
/// let owner = both.owner("partition-7").expect("somebody has a weight").id.clone();
/// let first_two: Vec<_> = both.owners("partition-7", 2).into_iter().map(|member| &member.id).collect();
/// assert_eq!(first_two[0], &owner);
/// assert!(!first_two.contains(&&"gated".to_owned()));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Placement {
    members: Vec<Member>,
}

impl Placement {
    /// Among these members, whether they are ready or not. No two of them may have the same id.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Placement {
        Placement { members: members.into_iter().collect() }
    }

    /// The member that a name belongs to. `None`: nobody has a weight. Takes less than a microsecond for each member.
    pub fn owner(&self, name: &str) -> Option<&Member> {
        owner(&self.members, name)
    }

    /// The first `count` members that a name would belong to, one after the other if those before were gone: for
    /// replicas, and stand-bys.
    pub fn owners(&self, name: &str, count: usize) -> Vec<&Member> {
        let mut scored = scored(&self.members, name).collect::<Vec<_>>();
        scored.sort_by(|one, other| compare(other, one));
        scored.into_iter().take(count).map(|(_, member)| member).collect()
    }
}

/// The member among these that a name belongs to.
pub(super) fn owner<'a>(members: impl IntoIterator<Item = &'a Member>, name: &str) -> Option<&'a Member> {
    scored(members, name).max_by(compare).map(|(_, member)| member)
}

fn scored<'a>(members: impl IntoIterator<Item = &'a Member>, name: &str) -> impl Iterator<Item = (Score, &'a Member)> {
    members.into_iter().filter_map(move |member| Some((Score::new(&member.id, member.weight, name)?, member)))
}

/// Of equal scores, the one with the lesser id is greater.
fn compare(one: &(Score, &Member), other: &(Score, &Member)) -> Ordering {
    one.0.cmp(&other.0).then_with(|| other.1.id.cmp(&one.1.id))
}
