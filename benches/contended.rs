//! Many clients try to acquire one held lease.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::load;

pub async fn run(cluster: &Cluster, clients: usize, time: Duration) -> Value {
    let leader = cluster.leader_address().await;
    let mut holder = Connection::open(&leader).await.expect("the leader accepts connections");
    let held = holder.post("/v1/leases/contended/acquire", r#"{"holder":"owner","ttl_ms":600000}"#).await;
    assert_eq!(held.expect("an answer").status, 200);
    load::run(cluster, "contended-denials", clients, time, 1, |client, mut recorder| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            let body = format!(r#"{{"holder":"c{client}","ttl_ms":30000}}"#);
            while recorder.is_running() {
                let start = Instant::now();
                let denied = connection.post("/v1/leases/contended/acquire", &body).await.expect("an answer");
                assert_eq!(denied.status, 409);
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}
