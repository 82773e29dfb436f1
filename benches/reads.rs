//! Consistent reads at the leader, compared with `/livez`, the cheapest answer of the same server.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Cluster;
use crate::http::Connection;
use crate::load;

#[derive(Clone, Copy)]
pub enum Target {
    Livez,
    Leader,
    Linearizable,
}

pub async fn run(cluster: &Cluster, clients: usize, time: Duration, target: Target) -> Value {
    let leader = cluster.leader_address().await;
    let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
    let held = connection.post("/v1/leases/read/acquire", r#"{"holder":"owner","ttl_ms":600000}"#).await;
    assert_eq!(held.expect("an answer").status, 200);
    let (name, path) = match target {
        Target::Livez => ("reads-livez", "/livez"),
        Target::Leader => ("reads-leader", "/v1/leases/read"),
        Target::Linearizable => ("reads-linearizable", "/v1/leases/read?consistency=linearizable"),
    };
    load::run(cluster, name, clients, time, 1, |_, mut recorder| {
        let leader = leader.clone();
        async move {
            let mut connection = Connection::open(&leader).await.expect("the leader accepts connections");
            while recorder.is_running() {
                let start = Instant::now();
                let read = connection.get(path).await.expect("an answer");
                assert_eq!(read.status, 200);
                recorder.record(start);
            }
            recorder
        }
    })
    .await
}
