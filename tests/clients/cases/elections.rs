//! Elections.

use serde_json::{Value, json};

use crate::case::{Case, Driver};
use crate::session::token;
use crate::wait::SOON;

const TTL_MS: u64 = 1_500;

async fn campaign(driver: &Driver, election: &str, candidate: &str) {
    let command = json!({"op": "campaign", "election": election, "candidate": candidate, "ttl_ms": TTL_MS});
    driver.session.ask(command).await;
}

/// Waits until the driver sees this leader.
async fn sees(driver: &Driver, election: &str, expected: Value) {
    let seen = async {
        while driver.session.ask(json!({"op": "leader", "election": election})).await["leader"] != expected {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
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

pub async fn revoked_leader_is_elected_again(case: &Case) {
    let (driver, election) = (case.driver("a").await, case.name("election"));
    campaign(&driver, &election, "one").await;
    let elected = token(&driver.session.event("elected", &election, |_| true).await);
    case.revoke(&election, elected).await;
    let deposed = driver.session.event("deposed", &election, |_| true).await;
    assert_eq!(token(&deposed), elected, "{deposed}");
    driver.session.event("elected", &election, |event| token(event) > elected).await;
}
