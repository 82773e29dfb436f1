//! The codes that a node may refuse a request of the clients with. Their requests are valid, their principal has all
//! rights on leases, and all claims of a name have one limit. No bound of a cluster is near.

use super::judge::history::{Ended, Operation, RequestKind};

/// Of every request: it did not reach a node that can serve it now. Clients report `unreachable` themselves.
const OF_ALL: [&str; 7] =
    ["unreachable", "no_leader", "not_ready", "shutting_down", "failed", "too_busy", "body_timeout"];

fn of_request(what: &RequestKind) -> &'static [&'static str] {
    match what {
        RequestKind::Acquire { wait_ms: None, .. } => &["held", "lock_delay"],
        RequestKind::Acquire { wait_ms: Some(_), .. } => {
            &["held", "lock_delay", "wait_timeout", "wait_abandoned", "lost"]
        }
        RequestKind::Renew { .. } => &["lost"],
        RequestKind::HandOver { .. } => &["lost", "no_such_waiter"],
        RequestKind::UpdateMetadata { .. } => &["lost", "metadata_changed"],
        // Clients record a read of an unknown lease as one without a holder.
        RequestKind::Release { .. } | RequestKind::Revoke | RequestKind::Read => &[],
    }
}

/// Fails if a request was refused with another code.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let is_wrong = |operation: &&Operation| match &operation.ended {
        Ended::Refused(code) => !OF_ALL.iter().chain(of_request(&operation.what)).any(|legal| legal == code),
        _ => false,
    };
    match operations.iter().find(is_wrong) {
        Some(operation) => Err(format!("{operation:?} has a code that no node may answer")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::samples::{acquire, acquired, did, token};

    #[test]
    fn refusal_with_a_code_of_another_request_is_detected() {
        let waits = RequestKind::Acquire { ttl_ms: Some(1_000), limit: 1, wait_ms: Some(50), lock_delay_ms: 0 };
        let renew = RequestKind::Renew { token: token(5) };
        let hand_over = RequestKind::HandOver { token: token(5), to: None };
        let update = RequestKind::UpdateMetadata { token: token(5), version: 0, tag: "a".to_owned() };
        let release = RequestKind::Release { token: token(5) };
        let refused = |what: &RequestKind, code: &str| {
            let operations = [acquired("a", (0, 10), 5), did("a", what.clone(), (20, 30), Ended::Refused(code.into()))];
            check(&operations).is_err()
        };
        for (what, expected, wrong) in [
            (&acquire(), "lock_delay", "lost"),
            (&waits, "lost", "queue_full"),
            (&renew, "lost", "held"),
            (&hand_over, "no_such_waiter", "metadata_changed"),
            (&update, "metadata_changed", "lease_full"),
            (&release, "unreachable", "lost"),
            (&RequestKind::Revoke, "too_busy", "not_found"),
            (&RequestKind::Read, "failed", "not_found"),
        ] {
            assert!(!refused(what, expected), "{what:?} may be refused with {expected}");
            for code in [wrong, "forbidden", "unauthenticated", "invalid", "limit_differs", "too_large", "new_code"] {
                assert!(refused(what, code), "{what:?} was refused with {code}");
            }
        }
        let unknown = did("a", renew, (20, 30), Ended::Unknown);
        check(&[acquired("a", (0, 10), 5), unknown]).expect("no request was refused");
    }
}
