//! Renewals with one lease per request, and with many leases per request.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::{Connection, token};
use crate::load;

pub async fn single(cluster: &Cluster, clients: usize, time: Duration) -> Value {
    let leader = cluster.leader_address().await;
    load::run(cluster, "renew-single", clients, time, 1, |client, mut recorder| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            let (holder, name) = (format!("r{client}"), format!("renew-{client}"));
            let token = acquire(&mut connection, &holder, &name).await;
            let body = json!({"holder": holder, "token": token}).to_string();
            while recorder.is_running() {
                let start = Instant::now();
                let renewed = connection.post(&format!("/v1/leases/{name}/renew"), &body).await.expect("an answer");
                assert_eq!(renewed.status, 200);
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}

/// Each request renews `leases` leases. The result counts leases.
pub async fn batched(cluster: &Cluster, clients: usize, leases: u32, time: Duration) -> Value {
    let leader = cluster.leader_address().await;
    let name = format!("renew-batch-of-{leases}");
    load::run(cluster, &name, clients, time, leases, |client, mut recorder| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            let holder = format!("b{client}");
            let mut held = Vec::new();
            for lease in 0..leases {
                let name = format!("batch-{client}-{lease}");
                let token = acquire(&mut connection, &holder, &name).await;
                held.push(json!({"name": name, "token": token}));
            }
            let body = json!({"holder": holder, "leases": held}).to_string();
            while recorder.is_running() {
                let start = Instant::now();
                let renewed = connection.post("/v1/renew", &body).await.expect("an answer");
                assert_eq!(renewed.status, 200, "{}", String::from_utf8_lossy(&renewed.body));
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}

async fn acquire(connection: &mut Connection, holder: &str, name: &str) -> String {
    let body = json!({"holder": holder, "ttl_ms": 600_000}).to_string();
    let held = connection.post(&format!("/v1/leases/{name}/acquire"), &body).await.expect("an answer");
    assert_eq!(held.status, 200, "{}", String::from_utf8_lossy(&held.body));
    token(&held)
}
