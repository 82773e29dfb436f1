//! The delay between the ttl of an abandoned lease and the moment at which another client knows that it is free.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::{Client, Result, WrongAnswer};
use crate::percentiles::round;

const TTL: Duration = Duration::from_secs(2);
/// Time between two samples. It is no divisor of the tick of any system, so the samples start at different phases.
const STEP: Duration = Duration::from_millis(37);

/// The delay counts from before the request is sent. The ttl starts slightly later, so the result is never too small.
pub async fn run<C: Client>(node: String, samples: u32) -> Result<Value> {
    let mut running = JoinSet::new();
    for sample in 0..samples {
        let node = node.clone();
        let name = format!("abandoned-{}-{sample}", std::process::id());
        running.spawn(async move { C::abandon(&node, &name, TTL).await });
        tokio::time::sleep(STEP).await;
    }
    let mut delays = Vec::new();
    while let Some(after) = running.join_next().await {
        let after = after.expect("the task does not panic")?;
        let early = || WrongAnswer(format!("free after {after:?}: expected at least {TTL:?}"));
        let delay = after.checked_sub(TTL).ok_or_else(early)?;
        delays.push(round(delay.as_secs_f64() * 1e3));
    }
    Ok(json!({ "operations": samples, "ttl_ms": TTL.as_millis() as u64, "samples_ms": delays }))
}
