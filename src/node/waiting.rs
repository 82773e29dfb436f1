//! Requests of this node that wait in a queue of the replicated state: who is to be woken, and who has gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::lease::{Change, DropCause, Effects, GrantCause, Lease, Lost, Machine, WaiterId};

/// What becomes of a wait.
#[derive(Clone, Debug)]
pub(super) enum Wake {
    Granted(Box<Lease>),
    /// Granted, and revoked by the very same entry.
    Ended(Lost),
    Dropped(DropCause),
}

/// Everybody who waits here.
pub(super) struct Waiting {
    waiting: Mutex<Waiters>,
    /// Waiters whose requests have all gone away before they were answered.
    gone: mpsc::UnboundedSender<WaiterId>,
}

#[derive(Default)]
struct Waiters {
    by_id: BTreeMap<WaiterId, Vec<(u64, oneshot::Sender<Wake>)>>,
    next_seat: u64,
}

/// One request's wait. Dropped before it was woken, it gives the place up, unless another request holds it too.
pub(super) struct Seat {
    waiting: Arc<Waiting>,
    id: WaiterId,
    seat: u64,
    wake: oneshot::Receiver<Wake>,
    in_queue: bool,
}

impl Waiting {
    /// The receiver tells which waiters are to leave the queue.
    pub fn new() -> (Arc<Waiting>, mpsc::UnboundedReceiver<WaiterId>) {
        let (gone, left) = mpsc::unbounded_channel();
        (Arc::new(Waiting { waiting: Mutex::default(), gone }), left)
    }

    /// Takes a seat. Before the acquire is proposed: a grant that comes at once must find it.
    pub fn sit(self: &Arc<Self>, id: WaiterId) -> Seat {
        let (sender, wake) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let seat = waiting.next_seat;
        waiting.next_seat += 1;
        waiting.by_id.entry(id.clone()).or_default().push((seat, sender));
        Seat { waiting: self.clone(), id, seat, wake, in_queue: false }
    }

    /// Everybody that somebody waits for here.
    pub fn ids(&self) -> Vec<WaiterId> {
        self.waiting.lock().by_id.keys().cloned().collect()
    }

    pub fn applied(&self, effects: &Effects, machine: &Machine) {
        let mut waiting = self.waiting.lock();
        if waiting.by_id.is_empty() {
            return;
        }
        for transition in &effects.transitions {
            if !matches!(transition.change, Change::Granted(GrantCause::Queue | GrantCause::HandOver)) {
                continue;
            }
            let id = WaiterId { name: transition.name.clone(), holder: transition.holder.clone() };
            let Some(seats) = waiting.by_id.remove(&id) else { continue };
            let held = machine.get(&id.name).map(|view| view.held).unwrap_or_default();
            let how = match held.into_iter().find(|lease| lease.token == transition.token) {
                Some(lease) => Wake::Granted(Box::new(lease)),
                None => Wake::Ended(machine.lost(&id.name, &id.holder, transition.token)),
            };
            wake(seats, &how);
        }
        for dropped in &effects.dropped {
            if let Some(seats) = waiting.by_id.remove(&dropped.waiter) {
                wake(seats, &Wake::Dropped(dropped.cause));
            }
        }
    }
}

fn wake(seats: Vec<(u64, oneshot::Sender<Wake>)>, how: &Wake) {
    for (_, seat) in seats {
        // Its request may have just gone.
        let _ = seat.send(how.clone());
    }
}

impl Seat {
    /// The acquire was answered with a place in the queue: from now on dropping the seat gives it up.
    pub fn is_in_queue(&mut self) {
        self.in_queue = true;
    }

    /// The place stays, whatever becomes of this seat: the request goes on elsewhere.
    pub fn keep_place(&mut self) {
        self.in_queue = false;
    }

    /// Waits to be woken; `None` if that can no longer happen here.
    pub async fn woken(&mut self) -> Option<Wake> {
        let wake = (&mut self.wake).await.ok();
        self.in_queue = false;
        wake
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut waiting = self.waiting.waiting.lock();
        let Some(seats) = waiting.by_id.get_mut(&self.id) else { return };
        seats.retain(|(seat, _)| *seat != self.seat);
        if !seats.is_empty() {
            return;
        }
        waiting.by_id.remove(&self.id);
        if self.in_queue {
            // The receiver is gone when the node is; then the queue's patience does the same.
            let _ = self.waiting.gone.send(self.id.clone());
        }
    }
}
