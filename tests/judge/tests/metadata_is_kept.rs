//! A lost update of the metadata is found, and a refused one that had an effect.

use crate::judge::history::{Ended, Operation, RequestKind};
use crate::judge::metadata_is_kept::check;
use crate::judge::samples::{did, history, token};

fn update(version: u64, tag: &str, times: (u64, u64), ended: Ended) -> Operation {
    did("a", RequestKind::UpdateMetadata { token: token(5), version, tag: tag.to_owned() }, times, ended)
}

fn done(version: u64, tag: &str, times: (u64, u64)) -> Operation {
    update(version, tag, times, Ended::Updated { version: version + 1, tag: tag.to_owned() })
}

fn changed(version: u64, tag: &str, times: (u64, u64)) -> Operation {
    update(version, tag, times, Ended::Refused("metadata_changed".to_owned()))
}

fn judged(operations: &[Operation]) -> Result<(), String> {
    check(&history(operations, &[]))
}

#[test]
fn lost_update_is_caught() {
    let first = done(0, "x", (0, 10));
    judged(&[first.clone(), done(1, "y", (20, 30))]).expect("each replaces the version before");
    judged(&[first.clone(), done(0, "x", (20, 30))]).expect("it was sent twice");
    judged(&[first.clone(), done(0, "y", (20, 30))]).expect_err("both replaced version 0");
    judged(&[first.clone(), done(1, "y", (20, 30)), done(0, "x", (31, 40))]).expect_err("version 2 is lost");
    judged(&[first, done(1, "y", (20, 30)), done(0, "x", (25, 40))]).expect("it was done before the other");
    let answer = |version, tag: &str| update(0, "x", (0, 10), Ended::Updated { version, tag: tag.to_owned() });
    judged(&[answer(2, "x")]).expect_err("another version");
    judged(&[answer(1, "y")]).expect_err("the metadata of another update");
}

#[test]
fn refused_update_with_an_effect_is_caught() {
    judged(&[changed(0, "x", (0, 10))]).expect_err("version 0 is that of a new grant");
    judged(&[done(0, "x", (0, 10)), changed(1, "y", (20, 30))]).expect_err("version 1 was current");
    judged(&[changed(1, "y", (20, 30))]).expect("no client knows that version 1 was current");
    judged(&[done(0, "x", (0, 10)), changed(0, "y", (20, 30))]).expect("the other update replaced it");
    let unknown = |times| update(0, "x", times, Ended::Unknown);
    judged(&[unknown((0, 10)), changed(0, "y", (20, 30))]).expect("the other update may be done");
    judged(&[unknown((31, 40)), changed(0, "y", (20, 30))]).expect_err("the other update began later");
    judged(&[changed(0, "x", (0, 10)), changed(0, "y", (20, 30))]).expect_err("neither was done");
    let other_grant = RequestKind::UpdateMetadata { token: token(4), version: 0, tag: "x".to_owned() };
    let other_grant = did("a", other_grant, (0, 10), Ended::Unknown);
    judged(&[other_grant, changed(0, "y", (20, 30))]).expect_err("an update of another grant");
}
