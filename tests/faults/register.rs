//! A resource outside the cluster. Holders write to it over a socket, and it enforces fencing tokens with
//! [`tenure::fence`]. The judge checks all accepted writes again by the log of the cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure::fence::HighWater;
use tenure::token::FencingToken;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::judge::fenced_register::{AcceptedWrites, check_granted};
use super::judge::{Broken, Transition, holder_stops_first};
use super::world::World;

/// A write request of a holder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Write {
    pub name: String,
    pub holder: String,
    pub token: u64,
    /// The time before the holder found that it holds the lease, by the clock that the run uses, too.
    pub looked_at: Duration,
}

/// The writes with one token. A refused write also shows that its holder believed to hold the lease.
#[derive(Clone, Debug)]
struct TokenWrites {
    holder: String,
    token: FencingToken,
    /// The last and the first time at which the holder believed to hold the lease.
    last: Duration,
    first: Duration,
}

#[derive(Default)]
struct Resource {
    mark: Option<HighWater>,
    accepted: AcceptedWrites,
    /// By token.
    by_token: BTreeMap<u64, TokenWrites>,
}

impl Resource {
    /// Records that a holder believed to hold the lease.
    fn believed(&mut self, write: &Write, token: FencingToken) {
        let (holder, looked_at) = (write.holder.clone(), write.looked_at);
        let new = TokenWrites { holder, token, last: looked_at, first: looked_at };
        let token_writes = self.by_token.entry(write.token).or_insert(new);
        token_writes.last = token_writes.last.max(looked_at);
        token_writes.first = token_writes.first.min(looked_at);
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct WriteCounts {
    pub accepted: u64,
    pub refused: u64,
    /// Writes that were accepted after a write with a higher token. The number must stay 0.
    pub stale: u64,
    /// Pairs of holders that believed to hold the lease at the same time. The number must stay 0.
    pub overlaps: u64,
}

#[derive(Default)]
pub struct Register {
    resources: BTreeMap<String, Resource>,
    figures: WriteCounts,
}

impl Register {
    /// Checks the token of a write. Returns whether the write is accepted.
    fn write(&mut self, write: &Write) -> bool {
        let Ok(token) = FencingToken::try_from(write.token) else { return false };
        let resource = self.resources.entry(write.name.clone()).or_default();
        resource.believed(write, token);
        match resource.mark.unwrap_or(HighWater::NONE).offer(token) {
            Ok(mark) => resource.mark = Some(mark),
            Err(_) => {
                self.figures.refused += 1;
                return false;
            }
        }
        self.accepted(write, token);
        true
    }

    /// Records an accepted write.
    fn accepted(&mut self, write: &Write, token: FencingToken) {
        let resource = self.resources.entry(write.name.clone()).or_default();
        self.figures.accepted += 1;
        self.figures.stale += u64::from(resource.accepted.accept(token, &write.holder).is_err());
    }

    /// Checks the writes of a lease by its log, and that no two holders believed to hold it at the same time. Keeps only
    /// the writes of the last token.
    ///
    /// A holder reads the clock before it looks at its lease, and it looks at a new lease only after the grant. So the
    /// recorded times of two holders overlap only if their beliefs do.
    pub fn judge(&mut self, name: &str, log: &[Transition]) -> Vec<Broken> {
        let Some(resource) = self.resources.get_mut(name) else { return Vec::new() };
        let mut found = Vec::new();
        for token_writes in resource.by_token.values() {
            let TokenWrites { holder, token, last, .. } = token_writes;
            let fenced = check_granted(log, *token, holder);
            found.extend(fenced.err().map(|how| Broken::of_lease("fenced_register", name, how)));
            let stopped = holder_stops_first::check(log, *token, *last, token_writes);
            found.extend(stopped.err().map(|how| Broken::of_lease("holder_stops_first", name, how)));
        }
        let by_token: Vec<&TokenWrites> = resource.by_token.values().collect();
        for pair in by_token.windows(2).filter(|pair| pair[1].first < pair[0].last) {
            self.figures.overlaps += 1;
            let how = format!("{:?} and {:?} overlap", pair[0], pair[1]);
            found.push(Broken::of_lease("holder_stops_first", name, how));
        }
        while resource.by_token.len() > 1 {
            resource.by_token.pop_first();
        }
        found
    }

    pub fn figures(&self) -> WriteCounts {
        self.figures
    }
}

/// Accepts connections at a socket until the run stops.
pub fn serve(
    world: &Arc<World>,
    register: &Arc<Mutex<Register>>,
    socket: &Path,
    tasks: &mut JoinSet<()>,
) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    let (world, register) = (world.clone(), register.clone());
    tasks.spawn(async move {
        let mut writers = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    writers.spawn(serve_holder(stream, register.clone()));
                },
                _ = writers.join_next(), if !writers.is_empty() => {}
                () = world.stop.cancelled() => return,
            }
        }
    });
    Ok(())
}

/// Serves a connection. Each line requests one write, and one line answers it.
async fn serve_holder(stream: UnixStream, register: Arc<Mutex<Register>>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(asked) = serde_json::from_str::<Write>(&line) else { return };
        let answer = if register.lock().write(&asked) { "written\n" } else { "stale\n" };
        if write.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::samples::{expired, granted, token};

    fn write(holder: &str, index: u64, ms: u64) -> Write {
        let looked_at = Duration::from_millis(ms);
        Write { name: "job".into(), holder: holder.into(), token: token(index).as_u64(), looked_at }
    }

    #[test]
    fn stale_write_is_refused_and_detected() {
        let mut register = Register::default();
        assert!(register.write(&write("a", 5, 10)) && register.write(&write("b", 9, 20)));
        assert!(!register.write(&write("a", 5, 30)));
        assert_eq!((register.figures().accepted, register.figures().refused, register.figures().stale), (2, 1, 0));
        // A register without the fence.
        register.accepted(&write("a", 5, 30), token(5));
        register.accepted(&write("c", 9, 30), token(9));
        assert_eq!(register.figures().stale, 2);
    }

    #[test]
    fn write_without_a_grant_in_the_log_is_detected() {
        let log = [granted(5, "a", 5), expired(100, "a", 5, 8), granted(110, "b", 9)];
        let broken = |writes: &[Write]| {
            let mut register = Register::default();
            writes.iter().for_each(|write| assert!(register.write(write)));
            register.judge("job", &log).into_iter().map(|broken| broken.promise).collect::<Vec<_>>()
        };
        assert!(broken(&[write("a", 5, 90), write("b", 9, 120)]).is_empty());
        assert_eq!(broken(&[write("a", 5, 101)]), ["holder_stops_first"]);
        assert_eq!(broken(&[write("x", 7, 90)]), ["fenced_register"], "the token was never granted");
        assert_eq!(broken(&[write("x", 5, 90)]), ["fenced_register"], "the grant has another holder");
    }

    #[test]
    fn overlap_of_two_holders_is_detected() {
        // The watchers received the expiry late, so it does not show that holder a stopped too late.
        let log = [granted(5, "a", 5), expired(60, "a", 5, 8), granted(61, "b", 9)];
        let judged = |writes: &[Write]| {
            let mut register = Register::default();
            for write in writes {
                register.write(write);
            }
            let broken: Vec<_> = register.judge("job", &log).into_iter().map(|broken| broken.promise).collect();
            (broken, register.figures().overlaps)
        };
        assert_eq!(judged(&[write("a", 5, 10), write("a", 5, 40), write("b", 9, 40)]), (Vec::new(), 0));
        assert_eq!(judged(&[write("a", 5, 50), write("b", 9, 40)]), (vec!["holder_stops_first"], 1));
        let paused = [write("a", 5, 10), write("b", 9, 40), write("a", 5, 39)];
        assert_eq!(judged(&paused), (Vec::new(), 0), "a paused holder looked earlier, and its write was refused");
        let refused = [write("a", 5, 10), write("b", 9, 40), write("a", 5, 41)];
        assert_eq!(judged(&refused), (vec!["holder_stops_first"], 1), "the belief behind a refused write counts");
        let mut register = Register::default();
        assert!(register.write(&write("a", 5, 10)) && register.write(&write("b", 9, 40)));
        assert!(register.judge("job", &log).is_empty() && !register.write(&write("a", 5, 50)));
        assert_eq!(register.judge("job", &log).len(), 1, "a belief after an earlier judgement");
    }
}
