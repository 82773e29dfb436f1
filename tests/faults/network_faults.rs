//! Loss and delay of the incoming packets of a node. The kernel sends them through a queue to a thread in this process.
//! The thread drops some packets and delays others. Packets with different delays change their order.
//!
//! The kernel passes all packets if no thread reads the queue (`--queue-bypass`), or if the queue is full.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nfq::{Message, Queue, Verdict};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::network;

/// The pause of the thread if no packet arrives. It limits the precision of delays.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The pause without a fault. No packet goes through the queue then.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);
/// The largest number of delayed packets.
const MAX_DELAYED: usize = 2_048;
/// The bytes of a packet that the kernel copies to this process. The kernel keeps the whole packet and sends it
/// unchanged.
const SEEN_BYTES: u16 = 64;

/// The loss and delay of the packets of a host. The default has neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// The probability of a loss, from 0 to 1.
    pub loss: f64,
    /// The range of the delay. Each packet has a random delay.
    pub delay: (Duration, Duration),
}

#[derive(Default)]
struct QueueState {
    faults: Option<NetworkFaults>,
    seed: u64,
    is_over: bool,
    seen: u64,
    failed: Option<String>,
}

/// The packet queue of a host's namespace. Dropping it ends its thread.
pub struct PacketQueue {
    state: Arc<Mutex<QueueState>>,
    thread: Option<JoinHandle<()>>,
}

impl PacketQueue {
    pub fn new(namespace: String) -> Result<PacketQueue> {
        let state = Arc::new(Mutex::new(QueueState::default()));
        let (shared, (ready, is_ready)) = (state.clone(), std::sync::mpsc::channel());
        let thread = std::thread::Builder::new().name(format!("packets of {namespace}")).spawn(move || {
            let opened = network::enter(&namespace).and_then(|()| open().context("cannot open the packet queue"));
            match opened {
                Ok(queue) => {
                    let _ = ready.send(Ok(()));
                    if let Err(error) = serve(queue, &shared) {
                        shared.lock().failed = Some(error.to_string());
                    }
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })?;
        is_ready.recv().context("the thread of the packet queue ended")??;
        Ok(PacketQueue { state, thread: Some(thread) })
    }

    /// Begins loss and delay. `seed` decides which packets are lost, and the delay of each packet.
    pub fn set(&self, faults: NetworkFaults, seed: u64) {
        let mut state = self.state.lock();
        state.faults = Some(faults);
        state.seed = seed;
    }

    pub fn clear(&self) {
        self.state.lock().faults = None;
    }

    /// The number of packets so far, or the error that ended the thread.
    pub fn seen(&self) -> Result<u64, String> {
        let state = self.state.lock();
        state.failed.clone().map_or(Ok(state.seen), Err)
    }
}

impl Drop for PacketQueue {
    fn drop(&mut self) {
        self.state.lock().is_over = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open() -> std::io::Result<Queue> {
    let mut queue = Queue::open()?;
    queue.bind(0)?;
    queue.set_copy_range(0, SEEN_BYTES)?;
    queue.set_fail_open(0, true)?;
    queue.set_queue_max_len(0, 2 * MAX_DELAYED as u32)?;
    queue.set_nonblocking(true);
    Ok(queue)
}

/// A delayed packet, and when the thread sends it.
struct DelayedPacket {
    due: Instant,
    number: u64,
    packet: Message,
}

impl PartialEq for DelayedPacket {
    fn eq(&self, other: &DelayedPacket) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for DelayedPacket {}

impl PartialOrd for DelayedPacket {
    fn partial_cmp(&self, other: &DelayedPacket) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedPacket {
    fn cmp(&self, other: &DelayedPacket) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

fn serve(mut queue: Queue, state: &Mutex<QueueState>) -> std::io::Result<()> {
    let mut delayed = BinaryHeap::new();
    let mut rng = StdRng::seed_from_u64(0);
    let (mut number, mut seed) = (0, 0);
    loop {
        let (faults, is_over) = {
            let mut state = state.lock();
            if state.seed != seed {
                seed = state.seed;
                rng = StdRng::seed_from_u64(seed);
            }
            state.seen = number;
            (state.faults, state.is_over)
        };
        // Without a fault, the thread sends all delayed packets.
        let now = Instant::now();
        while delayed.peek().is_some_and(|Reverse(first): &Reverse<DelayedPacket>| first.due <= now || faults.is_none())
        {
            let Reverse(first) = delayed.pop().expect("it was just seen");
            queue.verdict(first.packet)?;
        }
        if is_over && delayed.is_empty() {
            return Ok(());
        }
        let mut packet = match queue.recv() {
            Ok(packet) => packet,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(if faults.is_some() { POLL_INTERVAL } else { IDLE_INTERVAL });
                continue;
            }
            // The rule that queued the packet was removed, and the packet with it.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        number += 1;
        let NetworkFaults { loss, delay: (least, most) } = faults.unwrap_or_default();
        packet.set_verdict(if rng.random_bool(loss) { Verdict::Drop } else { Verdict::Accept });
        let late = if most > least { rng.random_range(least..most) } else { least };
        if late.is_zero() || packet.get_verdict() == Verdict::Drop || delayed.len() >= MAX_DELAYED {
            queue.verdict(packet)?;
        } else {
            delayed.push(Reverse(DelayedPacket { due: Instant::now() + late, number, packet }));
        }
    }
}
