//! Acquire, then release, of distinct names: two log entries' worth of durable writes for each pair.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::load;

/// Times are those of the acquire alone.
pub async fn run(cluster: &Cluster, clients: usize, time: Duration) -> Value {
    let leader = cluster.leader_address().await;
    load::run(cluster, &format!("pairs-{clients}"), clients, time, 1, |client, mut tally| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader takes connections");
            let mut pair = 0;
            while tally.goes_on() {
                let path = format!("/v1/leases/pair-{clients}-{client}-{}", pair % 1000);
                pair += 1;
                let start = Instant::now();
                let body = format!(r#"{{"holder":"c{client}","ttl_ms":30000}}"#);
                let held = connection.post(&format!("{path}/acquire"), &body).await.expect("answered");
                assert_eq!(held.status, 200, "{}", String::from_utf8_lossy(&held.body));
                let acquired = start.elapsed();
                let body = format!(r#"{{"holder":"c{client}","token":"{}"}}"#, token(&held));
                let released = connection.post(&format!("{path}/release"), &body).await.expect("answered");
                assert_eq!(released.status, 200);
                tally.count(Instant::now() - acquired);
            }
            tally
        }
    })
    .await
}
