//! Access control through the Rust API of an embedded node.

use tenure::access::{AccessName, Right};
use tenure::api::{Code, Permission};
use tenure::client::CallError;

use crate::steady::strict;
use crate::trio::Plan;

strict!(embedded_node_changes_access_control);

/// The level at which the cluster has access control.
const LEVEL_OF_ACCESS_CONTROL: u32 = 2;

fn named(text: &str) -> AccessName {
    AccessName::new(text).expect("valid")
}

fn code<T: std::fmt::Debug>(answer: Result<T, CallError>) -> Code {
    match answer {
        Err(CallError::Refused(problem)) => problem.code,
        other => panic!("expected a refusal: {other:?}"),
    }
}

async fn embedded_node_changes_access_control() {
    let trio = Plan::new(&[]).start().await;
    let (leader, follower) = trio.leader_and_follower().await;
    trio.reached(LEVEL_OF_ACCESS_CONTROL).await;
    let hold = |prefix: &str| [Permission::new(Right::Hold, prefix)];
    follower.set_role(&named("worker"), &hold("jobs/")).await.expect("created at a follower");
    assert_eq!(code(follower.set_role(&named("worker"), &hold("jobs *")).await), Code::Invalid);
    assert_eq!(code(leader.set_principal(&named("ci"), &[named("absent")]).await), Code::NotFound);
    assert_eq!(code(leader.create_token(&named("ci"), None).await), Code::NotFound);
    leader.set_principal(&named("ci"), &[named("worker")]).await.expect("created");
    assert_eq!(code(leader.remove_role(&named("worker")).await), Code::AccessRefused, "a principal has it");
    let created = follower.create_token(&named("ci"), None).await.expect("created");
    assert!(created.token.starts_with("tenure_"), "the secret");
    leader.enable_access(true).await.expect("a program needs no administrator");

    let state = follower.access().await.expect("the state");
    assert!(state.enabled);
    assert_eq!(state.roles[0].permissions, hold("jobs/"));
    let principal = &state.principals[0];
    assert_eq!((principal.name.as_str(), principal.roles.as_slice()), ("ci", &["worker".to_owned()][..]));
    assert_eq!(principal.tokens.iter().map(|token| token.id.as_str()).collect::<Vec<_>>(), [created.id.as_str()]);
    let lease = follower.leases().lease("other").expect("valid");
    lease.acquire(tenure::Wait::No).await.expect("a program has all rights");

    assert_eq!(code(leader.revoke_token("x").await), Code::Invalid);
    assert_eq!(code(leader.revoke_token("0123456789abcdef").await), Code::NotFound);
    let revoked = follower.revoke_token(&created.id).await.expect("revoked");
    assert!(revoked.principals[0].tokens.is_empty());
    leader.remove_principal(&named("ci")).await.expect("removed");
    leader.remove_role(&named("worker")).await.expect("removed");
    let off = leader.enable_access(false).await.expect("off");
    assert!(!off.enabled && off.roles.is_empty() && off.principals.is_empty());
    trio.shutdown().await;
}
