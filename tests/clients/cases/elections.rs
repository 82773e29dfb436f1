//! Elections.

use serde_json::{Value, json};

use crate::case::{Case, Driver};
use crate::link::Path;
use crate::session::{at, token};
use crate::wait::{POLL, SOON};

const TTL_MS: u64 = 4_000;

async fn campaign(driver: &Driver, election: &str, candidate: &str) {
    campaign_with(driver, election, candidate, TTL_MS).await;
}

async fn campaign_with(driver: &Driver, election: &str, candidate: &str, ttl_ms: u64) {
    let command = json!({"op": "campaign", "election": election, "candidate": candidate, "ttl_ms": ttl_ms});
    driver.session.ask(command).await;
}

/// Waits until the driver sees this leader.
async fn sees(driver: &Driver, election: &str, expected: Value) {
    let seen = async {
        while driver.session.ask(json!({"op": "leader", "election": election})).await["leader"] != expected {
            tokio::time::sleep(POLL).await;
        }
    };
    tokio::time::timeout(SOON, seen).await.unwrap_or_else(|_| panic!("the driver does not see the leader {expected}"));
}

pub async fn election_has_one_leader(case: &Case) {
    let (first, second, election) = (case.driver("a").await, case.driver("b").await, case.name("election"));
    campaign(&first, &election, "one").await;
    let elected = first.session.event("elected", &election, |_| true).await;
    campaign(&second, &election, "two").await;
    for driver in [&first, &second] {
        sees(driver, &election, json!("one")).await;
    }
    assert!(second.session.events("elected", &election).is_empty(), "one leader at a time");
    first.session.ask(json!({"op": "resign", "election": election})).await;
    let next = second.session.event("elected", &election, |_| true).await;
    assert!(token(&next) > token(&elected), "{next} after {elected}");
    sees(&first, &election, json!("two")).await;
    second.session.ask(json!({"op": "resign", "election": election})).await;
    sees(&first, &election, Value::Null).await;
}

/// The drift is large, so that the time between the deadline and the expiry exceeds the delays of a busy machine.
pub async fn isolated_leader_is_deposed_first(case: &Case) {
    let first = case.driver_with("a", json!({"drift_permille": 100}), &[]).await;
    let (second, election) = (case.driver("b").await, case.name("election"));
    campaign_with(&first, &election, "one", 2_500).await;
    first.session.event("elected", &election, |_| true).await;
    campaign_with(&second, &election, "two", 2_500).await;
    first.link.set_all(Path::Frozen).await;
    let deposed = first.session.event("deposed", &election, |_| true).await;
    let elected = second.session.event("elected", &election, |_| true).await;
    assert!(at(&deposed) < at(&elected), "{deposed}, {elected}");
    first.link.set_all(Path::Open).await;
    sees(&first, &election, json!("two")).await;
}

pub async fn revoked_leader_is_elected_again(case: &Case) {
    let (driver, election) = (case.driver("a").await, case.name("election"));
    campaign(&driver, &election, "one").await;
    let elected = token(&driver.session.event("elected", &election, |_| true).await);
    case.revoke(&election, elected).await;
    let deposed = driver.session.event("deposed", &election, |_| true).await;
    assert_eq!(token(&deposed), elected, "{deposed}");
    driver.session.event("elected", &election, |event| token(event) > elected).await;
}
