//! The processor time of idle nodes.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::percentiles::round;

pub async fn run(cluster: &Cluster, time: Duration) -> Value {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = cluster.cpu();
    tokio::time::sleep(time).await;
    let used = (cluster.cpu() - before).as_secs_f64() / time.as_secs_f64();
    json!({"workload": "idle", "nodes": 3, "percent_of_a_core_each": round(used / 3.0 * 100.0)})
}
