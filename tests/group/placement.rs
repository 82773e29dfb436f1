//! The placement of names on members, and the names that a change moves.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tenure::group::Placement;
use tenure::testing::member;

fn placement<'a>(members: impl IntoIterator<Item = (&'a str, u32)>) -> Placement {
    Placement::new(members.into_iter().map(|(id, weight)| member(id, weight)))
}

fn owner<'a>(placement: &'a Placement, name: &str) -> &'a str {
    &placement.owner(name).expect("a member has a weight").id
}

fn counts(placement: &Placement, names: usize) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    (0..names).for_each(|n| *counts.entry(owner(placement, &format!("shard-{n}"))).or_default() += 1);
    counts
}

/// The values must never change, because members of two versions must agree. They come from an independent
/// implementation of the method in the guide.
#[test]
fn owners_never_change_between_versions() {
    let group = placement([("a", 1), ("b", 2), ("host-3", 5), ("gated", 0)]);
    let owners: Vec<&str> = (0..24).map(|n| owner(&group, &format!("partition-{n}"))).collect();
    assert_eq!(
        owners.join(" "),
        "a a a a host-3 host-3 host-3 host-3 host-3 b host-3 host-3 host-3 host-3 host-3 a host-3 host-3 host-3 host-3 host-3 a b host-3"
    );
}

#[test]
fn each_member_gets_the_share_of_its_weight() {
    const NAMES: usize = 40_000;
    for weights in [vec![1, 1, 1, 1], vec![1, 2, 5], vec![1, 1000], vec![3, 7, 90], vec![u32::MAX, u32::MAX / 2]] {
        let ids: Vec<String> = (0..weights.len()).map(|n| format!("host-{n}")).collect();
        let group = placement(ids.iter().map(String::as_str).zip(weights.iter().copied()));
        let counts = counts(&group, NAMES);
        let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        for (id, weight) in ids.iter().zip(&weights) {
            let share = f64::from(*weight) / total;
            let (mean, deviation) = (NAMES as f64 * share, (NAMES as f64 * share * (1.0 - share)).sqrt());
            let count = counts.get(id.as_str()).copied().unwrap_or(0) as f64;
            assert!((count - mean).abs() < 4.5 * deviation, "{weights:?} {id}: {count} of {mean} ± {deviation}");
        }
    }
}

#[test]
fn weight_0_owns_nothing() {
    let group = placement([("a", 1), ("gated", 0)]);
    assert_eq!(counts(&group, 1000), BTreeMap::from([("a", 1000)]));
    assert_eq!(group.owners("x", 5).len(), 1);
    assert_eq!(placement([("gated", 0)]).owner("x"), None);
    assert_eq!(Placement::default().owner("x"), None);
}

#[test]
fn ids_with_a_common_prefix_are_distinct() {
    let group = placement([("a", 1), ("a1", 1)]);
    let counts = counts(&group, 10_000);
    assert!(counts.values().all(|count| (4_500..5_500).contains(count)), "{counts:?}");
}

proptest! {
    #[test]
    fn leaving_member_moves_only_its_names(weights in weights(), goes in any::<prop::sample::Index>()) {
        let ids = ids(&weights);
        let goes = goes.index(weights.len());
        let before = placement(members(&ids, &weights));
        let after = placement(members(&ids, &weights).enumerate().filter(|(n, _)| *n != goes).map(|(_, m)| m));
        for name in names() {
            let (Some(was), is) = (before.owner(&name), after.owner(&name)) else { continue };
            if was.id == ids[goes] {
                prop_assert_eq!(is, before.owners(&name, 2).get(1).copied(), "the name moves to the next member");
            } else {
                prop_assert_eq!(Some(was), is);
            }
        }
    }

    #[test]
    fn greater_weight_moves_names_only_to_its_member(weights in weights(), grows in any::<prop::sample::Index>(), by in 1u32..9) {
        let ids = ids(&weights);
        let grows = grows.index(weights.len());
        let mut greater = weights.clone();
        greater[grows] += by;
        let (before, after) = (placement(members(&ids, &weights)), placement(members(&ids, &greater)));
        for name in names() {
            let is = owner(&after, &name);
            prop_assert!(is == ids[grows] || Some(is) == before.owner(&name).map(|was| was.id.as_str()));
        }
    }

    #[test]
    fn member_order_does_not_matter(weights in weights()) {
        let ids = ids(&weights);
        let forth = placement(members(&ids, &weights));
        let back = placement(members(&ids, &weights).collect::<Vec<_>>().into_iter().rev());
        for name in names() {
            prop_assert_eq!(forth.owners(&name, 3), back.owners(&name, 3));
        }
    }
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..8, 1..12)
}

fn ids(weights: &[u32]) -> Vec<String> {
    (0..weights.len()).map(|n| format!("host-{n}")).collect()
}

fn members<'a>(ids: &'a [String], weights: &'a [u32]) -> impl DoubleEndedIterator<Item = (&'a str, u32)> + 'a {
    let pairs: Vec<_> = ids.iter().map(String::as_str).zip(weights.iter().copied()).collect();
    pairs.into_iter()
}

fn names() -> impl Iterator<Item = String> {
    (0..200).map(|n| format!("name-{n}"))
}
