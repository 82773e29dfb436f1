//! Watchers of all leases. Each watcher starts at another node, and moves to the node of the next host after an error or a random
//! time. It must receive every transition once and in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tenure::api::{Code, EventId};
use tenure::client::{CallError, Endpoints, Remote};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::judge::Broken;
use super::recorder::now;
use super::security::Security;
use super::world::World;

/// How long a watcher uses one node.
const STAY_AT_NODE: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(12));
/// The pause before the next node after an error.
const PAUSE: Duration = Duration::from_millis(100);

/// The time limit of a request to one node.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the watchers.
pub fn start(world: &Arc<World>, security: &Security, seed: u64, tasks: &mut JoinSet<()>) {
    for number in 0..world.watchers {
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(2_000).wrapping_add(number));
        tasks.spawn(watch(world.clone(), number, security.clone(), rng));
    }
}

async fn watch(world: Arc<World>, number: u64, security: Security, mut rng: StdRng) {
    let watcher = number as usize;
    let mut remotes: HashMap<u64, Remote> = HashMap::new();
    let mut after = EventId { index: 0, part: None };
    // The oldest index of each host whose node refused the position as compacted.
    let mut compacted: BTreeMap<u64, u64> = BTreeMap::new();
    let mut host = number;
    loop {
        host = next(&world.hosts.lock(), host);
        let remote = remotes.entry(host).or_insert_with(|| remote(&security, host));
        let until = Instant::now() + rng.random_range(STAY_AT_NODE.0..STAY_AT_NODE.1);
        let mut stream = remote.watch("", Some(after));
        let ended = loop {
            let next = tokio::select! {
                next = tokio::time::timeout_at(until, stream.next()) => next,
                () = world.stop.cancelled() => return,
            };
            match next {
                Ok(Ok(event)) => {
                    compacted.clear();
                    let saw = world.log.lock().saw(watcher, event, now());
                    if let Err(how) = saw {
                        world.break_promise(Broken::of_cluster("watch_complete", how));
                    }
                }
                Ok(Err(error)) => break Some(error),
                Err(_) => break None,
            }
        };
        after = stream.position().unwrap_or(after);
        if let Some(CallError::Refused(problem)) = &ended
            && problem.code == Code::Compacted
        {
            compacted.insert(host, problem.oldest.unwrap_or(after.index));
            if world.hosts.lock().iter().all(|host| compacted.contains_key(host)) {
                // No node keeps the log at this position. The watcher records the gap and continues behind it.
                let oldest = std::mem::take(&mut compacted).into_values().min().expect("one for each node");
                world.log.lock().compacted(watcher, oldest);
                after = EventId { index: oldest, part: None };
            }
        }
        if ended.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The host after this one, in the order of their numbers.
fn next(hosts: &BTreeSet<u64>, host: u64) -> u64 {
    let first = || hosts.first().expect("a cluster has members");
    *hosts.range(host + 1..).next().unwrap_or_else(first)
}

fn remote(security: &Security, host: u64) -> Remote {
    let endpoints: Endpoints = security.url(host).parse().expect("a valid URL");
    security.remote(endpoints).expect("the token is valid").with_timeout(TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watcher_goes_around_the_hosts() {
        let hosts = BTreeSet::from([1, 3, 4]);
        assert_eq!([0, 1, 2, 3, 4, 9].map(|host| next(&hosts, host)), [1, 3, 3, 4, 1, 1]);
    }
}
