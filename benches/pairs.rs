//! Pairs of acquire and release with distinct names. Each pair writes two log entries.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::load;

/// The times are those of the acquires.
pub async fn run(cluster: &Cluster, clients: usize, time: Duration) -> Value {
    let leader = cluster.leader_address().await;
    load::run(cluster, &format!("pairs-{clients}"), clients, time, 1, |client, mut recorder| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            let mut number = 0;
            while recorder.is_running() {
                let name = format!("pair-{clients}-{client}-{}", number % 1000);
                number += 1;
                let acquired = pair(&mut connection, &name, client).await;
                recorder.record(Instant::now() - acquired);
            }
            recorder
        }
    })
    .await
}

/// Acquires and releases a lease. Returns the time of the acquire.
pub async fn pair(connection: &mut Connection, name: &str, client: usize) -> Duration {
    let path = format!("/v1/leases/{name}");
    let start = Instant::now();
    let body = format!(r#"{{"holder":"c{client}","ttl_ms":30000}}"#);
    let held = connection.post(&format!("{path}/acquire"), &body).await.expect("an answer");
    assert_eq!(held.status, 200, "{}", String::from_utf8_lossy(&held.body));
    let acquired = start.elapsed();
    let body = format!(r#"{{"holder":"c{client}","token":"{}"}}"#, token(&held));
    let released = connection.post(&format!("{path}/release"), &body).await.expect("an answer");
    assert_eq!(released.status, 200);
    acquired
}
