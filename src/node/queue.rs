//! Commands that wait for an entry of the log, in two lines.
//!
//! What keeps or frees a lease is *urgent* and goes first: a holder that cannot renew loses what it has, while a
//! claim that is refused can be made again. What asks for more is *ordinary*. It is bounded by time: it is refused at
//! the door when it would have to wait for too long, and later if it then did wait for too long all the same. Both
//! lines are bounded in number and bytes as well.
//!
//! No clock is read here: the caller says when it is.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::Command;

/// Commands in one entry.
const MAX_COMMANDS: usize = 1024;
/// Commands that wait in one line.
const MAX_WAITING: usize = 32_768;
/// Bytes of commands that wait in one line.
const MAX_WAITING_BYTES: usize = 32 << 20;
/// An ordinary command that would have to wait for longer is refused at once.
const MAX_EXPECTED_WAIT: Duration = Duration::from_millis(400);
/// An ordinary command that has waited for this long is refused: what came before it took longer than expected.
const MAX_WAIT: Duration = Duration::from_millis(800);

/// Which line a command waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Urgent,
    Ordinary,
}

impl Class {
    pub fn of(command: &Command) -> Class {
        match command {
            Command::Renew { .. }
            | Command::Release { .. }
            | Command::HandOver { .. }
            | Command::KeepWaiting { .. }
            | Command::LeaveQueue { .. }
            | Command::Tick
            | Command::SetLimits(_) => Class::Urgent,
            Command::Acquire(_) | Command::Revoke { .. } => Class::Ordinary,
        }
    }
}

/// Why a command is not taken. Certainly not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// It would have to wait for too long.
    TooSlow,
    /// As many wait as may, or as many bytes.
    TooMany,
}

pub(super) struct Queue<J> {
    urgent: Line<J>,
    ordinary: Line<J>,
    pace: Pace,
    /// Largest sum of the weights of an entry's commands.
    entry_bytes: usize,
    /// Entries that may be on their way at once.
    in_flight: u32,
}

/// A command that waits, or has waited.
pub(super) struct Waiting<J> {
    pub class: Class,
    pub since: Instant,
    pub weight: usize,
    pub job: J,
}

impl<J> Queue<J> {
    pub fn new(entry_bytes: usize, in_flight: usize) -> Queue<J> {
        let pace = Pace::default();
        Queue { urgent: Line::default(), ordinary: Line::default(), pace, entry_bytes, in_flight: in_flight as u32 }
    }

    pub fn is_empty(&self) -> bool {
        self.urgent.waiting.is_empty() && self.ordinary.waiting.is_empty()
    }

    /// How many wait in a line.
    pub fn len(&self, class: Class) -> usize {
        match class {
            Class::Urgent => self.urgent.waiting.len(),
            Class::Ordinary => self.ordinary.waiting.len(),
        }
    }

    /// Takes a command in, at the end of its line.
    pub fn push(&mut self, class: Class, weight: usize, job: J, now: Instant) -> Result<(), Full> {
        if class == Class::Ordinary && self.expected_wait(now) > MAX_EXPECTED_WAIT {
            return Err(Full::TooSlow);
        }
        let line = self.line(class);
        if line.waiting.len() >= MAX_WAITING || line.bytes + weight > MAX_WAITING_BYTES {
            return Err(Full::TooMany);
        }
        line.bytes += weight;
        line.waiting.push_back(Waiting { class, since: now, weight, job });
        Ok(())
    }

    /// Takes commands back, in front of those that came later, whatever the bounds.
    pub fn push_again(&mut self, again: Vec<Waiting<J>>) {
        for waiting in again.into_iter().rev() {
            let line = self.line(waiting.class);
            line.bytes += waiting.weight;
            line.waiting.push_front(waiting);
        }
    }

    /// The commands of the next entry: the urgent ones first. Leaves out those of the ordinary line that `is_wanted`
    /// says nobody waits for any more. Empty if there are none.
    pub fn take_entry(&mut self, is_wanted: impl Fn(&J) -> bool) -> Vec<Waiting<J>> {
        let mut entry = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.urgent.take_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
            entry.push(next);
        }
        if !self.urgent.waiting.is_empty() {
            return entry;
        }
        while let Some(next) = self.ordinary.take_if_fits(entry.len(), &mut bytes, self.entry_bytes) {
            if is_wanted(&next.job) {
                entry.push(next);
            } else {
                bytes -= next.weight;
            }
        }
        entry
    }

    /// Ordinary commands that have waited for too long, taken out.
    pub fn take_late(&mut self, now: Instant) -> Vec<J> {
        let mut late = Vec::new();
        while self.ordinary.oldest().is_some_and(|since| now - since >= MAX_WAIT) {
            late.extend(self.ordinary.pop().map(|waiting| waiting.job));
        }
        late
    }

    /// When the next ordinary command will have waited for too long.
    pub fn next_late(&self) -> Option<Instant> {
        self.ordinary.oldest().map(|since| since + MAX_WAIT)
    }

    /// An entry went on its way.
    pub fn entry_sent(&mut self, now: Instant) {
        self.pace.on_their_way.push_back(now);
    }

    /// The entry that went on its way then came through, or was given up.
    pub fn entry_done(&mut self, sent: Instant, now: Instant) {
        if let Some(place) = self.pace.on_their_way.iter().position(|at| *at == sent) {
            self.pace.on_their_way.remove(place);
        }
        self.pace.last = now - sent;
    }

    /// Everything that waits, taken out.
    pub fn take_all(&mut self) -> Vec<J> {
        let lines = [&mut self.urgent, &mut self.ordinary];
        let waiting = lines.into_iter().flat_map(|line| std::mem::take(line).waiting);
        waiting.map(|waiting| waiting.job).collect()
    }

    /// How long an ordinary command that comes now will wait for its entry to come through, as far as the entries
    /// before it tell.
    fn expected_wait(&self, now: Instant) -> Duration {
        let (commands, bytes) =
            (self.len(Class::Urgent) + self.len(Class::Ordinary), self.urgent.bytes + self.ordinary.bytes);
        let entries = (commands / MAX_COMMANDS).max(bytes / self.entry_bytes) as u32;
        self.pace.entry(now) * (entries / self.in_flight + 1)
    }

    fn line(&mut self, class: Class) -> &mut Line<J> {
        match class {
            Class::Urgent => &mut self.urgent,
            Class::Ordinary => &mut self.ordinary,
        }
    }
}

/// First come, first served.
struct Line<J> {
    waiting: VecDeque<Waiting<J>>,
    bytes: usize,
}

impl<J> Default for Line<J> {
    fn default() -> Line<J> {
        Line { waiting: VecDeque::new(), bytes: 0 }
    }
}

impl<J> Line<J> {
    fn pop(&mut self) -> Option<Waiting<J>> {
        let first = self.waiting.pop_front()?;
        self.bytes -= first.weight;
        Some(first)
    }

    fn oldest(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.since)
    }

    /// The next one, if an entry that has `count` commands of so many `bytes` takes it. An empty one takes any.
    fn take_if_fits(&mut self, count: usize, bytes: &mut usize, entry_bytes: usize) -> Option<Waiting<J>> {
        let first = self.waiting.front()?;
        let fits = count < MAX_COMMANDS && (count == 0 || *bytes + first.weight <= entry_bytes);
        fits.then(|| self.pop()).flatten().inspect(|taken| *bytes += taken.weight)
    }
}

/// How long entries take: the last one, or the oldest that is on its way, if that is longer already. So a disk that
/// hangs is noticed while it hangs.
#[derive(Default)]
struct Pace {
    last: Duration,
    on_their_way: VecDeque<Instant>,
}

impl Pace {
    fn entry(&self, now: Instant) -> Duration {
        let oldest = self.on_their_way.front().map_or(Duration::ZERO, |sent| now - *sent);
        self.last.max(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: usize = 100;
    const ENTRY_BYTES: usize = 64 << 10;
    /// Commands of that weight in an entry.
    const ENTRY: usize = ENTRY_BYTES / WEIGHT;
    const IN_FLIGHT: usize = 2;

    fn queue<J>() -> Queue<J> {
        Queue::new(ENTRY_BYTES, IN_FLIGHT)
    }

    fn entry<J>(queue: &mut Queue<J>) -> Vec<J> {
        queue.take_entry(|_| true).into_iter().map(|waiting| waiting.job).collect()
    }

    #[test]
    fn urgent_commands_go_first_and_each_line_keeps_its_order() {
        let (mut queue, now) = (queue(), Instant::now());
        for (class, job) in [(Class::Ordinary, "a"), (Class::Urgent, "r"), (Class::Ordinary, "b"), (Class::Urgent, "s")]
        {
            queue.push(class, WEIGHT, job, now).expect("there is room");
        }
        assert_eq!(entry(&mut queue), ["r", "s", "a", "b"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_entry_takes_what_fits_and_the_rest_keeps_its_place() {
        let (mut queue, now) = (queue(), Instant::now());
        for job in 0..ENTRY + 3 {
            queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
        }
        assert_eq!(entry(&mut queue).len(), ENTRY);
        let again = |job| Waiting { class: Class::Ordinary, since: now, weight: WEIGHT, job };
        queue.push_again([7, 8].map(again).into());
        assert_eq!(entry(&mut queue), [7, 8, ENTRY, ENTRY + 1, ENTRY + 2]);
        queue.push(Class::Urgent, ENTRY_BYTES * 2, 1, now).expect("there is room");
        assert_eq!(entry(&mut queue), [1], "one that is larger than an entry goes alone");
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_left_out() {
        let (mut queue, now) = (queue(), Instant::now());
        for job in 0..4 {
            queue.push(Class::Ordinary, WEIGHT, job, now).expect("there is room");
        }
        let kept: Vec<i32> = queue.take_entry(|job| job % 2 == 0).into_iter().map(|waiting| waiting.job).collect();
        assert_eq!(kept, [0, 2]);
    }

    #[test]
    fn claims_are_refused_while_a_disk_hangs_and_renewals_are_taken() {
        let (mut queue, start) = (queue(), Instant::now());
        queue.entry_sent(start);
        queue.push(Class::Ordinary, WEIGHT, 0, start).expect("it hangs for no time yet");
        let later = start + MAX_EXPECTED_WAIT + Duration::from_millis(1);
        assert_eq!(queue.push(Class::Ordinary, WEIGHT, 1, later), Err(Full::TooSlow));
        queue.push(Class::Urgent, WEIGHT, 2, later).expect("renewals are taken");
        assert_eq!(queue.next_late(), Some(start + MAX_WAIT));
        assert_eq!(queue.take_late(start + MAX_WAIT), [0], "what was taken in is refused in time");
        queue.entry_done(start, later);
        queue.entry_sent(later);
        queue.entry_done(later, later + Duration::from_millis(1));
        queue.push(Class::Ordinary, WEIGHT, 3, later + Duration::from_millis(1)).expect("it has recovered");
    }

    #[test]
    fn both_lines_are_bounded_in_number_and_bytes() {
        let now = Instant::now();
        for class in [Class::Urgent, Class::Ordinary] {
            let mut many = queue();
            let taken = (0..2 * MAX_WAITING).take_while(|_| many.push(class, 1, (), now).is_ok()).count();
            assert_eq!(taken, MAX_WAITING);
            let mut large = queue();
            let taken = (0..1000).take_while(|_| large.push(class, 1 << 20, (), now).is_ok()).count();
            assert_eq!(taken, MAX_WAITING_BYTES >> 20);
        }
    }

    /// What became of commands that came ten times as fast as entries could take them.
    struct Played {
        /// Longest time from coming to having been served.
        renewal: Duration,
        claim: Duration,
        served: usize,
        refused: usize,
        longest_line: usize,
    }

    /// Ten seconds of virtual time: 20 ms an entry, one renewal each ms, and claims at ten times of what is left.
    fn play(renewals: Class) -> Played {
        const STEP: Duration = Duration::from_millis(1);
        const ENTRY_TAKES: u32 = 20;
        let start = Instant::now();
        let mut queue: Queue<(bool, Instant)> = queue();
        let mut played = Played { renewal: STEP, claim: STEP, served: 0, refused: 0, longest_line: 0 };
        let mut on_their_way: VecDeque<(Instant, Vec<(bool, Instant)>)> = VecDeque::new();
        for ms in 0..10_000 {
            let now = start + STEP * ms;
            let _ = queue.push(renewals, WEIGHT, (true, now), now).inspect_err(|_| played.renewal = Duration::MAX);
            for _ in 0..10 * IN_FLIGHT * ENTRY / ENTRY_TAKES as usize {
                played.refused += usize::from(queue.push(Class::Ordinary, WEIGHT, (false, now), now).is_err());
            }
            for (is_renewal, _) in queue.take_late(now) {
                played.refused += 1;
                played.renewal = if is_renewal { Duration::MAX } else { played.renewal };
            }
            while let Some((done, _)) = on_their_way.front().filter(|(done, _)| *done <= now) {
                queue.entry_done(*done - STEP * ENTRY_TAKES, now);
                for (is_renewal, came) in on_their_way.pop_front().expect("there is one").1 {
                    let longest = if is_renewal { &mut played.renewal } else { &mut played.claim };
                    *longest = (*longest).max(now - came);
                    played.served += 1;
                }
            }
            while on_their_way.len() < IN_FLIGHT && !queue.is_empty() {
                queue.entry_sent(now);
                on_their_way.push_back((now + STEP * ENTRY_TAKES, entry(&mut queue)));
            }
            played.longest_line = played.longest_line.max(queue.len(Class::Ordinary));
        }
        played
    }

    #[test]
    fn at_ten_times_what_can_be_served_renewals_are_quick_and_claims_are_served_in_time_or_refused() {
        let played = play(Class::Urgent);
        assert!(played.renewal <= Duration::from_millis(2 * 20), "{:?}", played.renewal);
        assert!(played.claim <= MAX_WAIT + Duration::from_millis(20), "{:?}", played.claim);
        let possible = 10_000 / 20 * IN_FLIGHT * ENTRY;
        assert!(played.served > possible * 9 / 10, "{} of {possible}: no entry goes half empty", played.served);
        assert!(played.refused > possible * 8, "{} refused", played.refused);
        assert!(played.longest_line < MAX_WAITING, "bounded by time before it is bounded in number");
    }

    #[test]
    fn in_one_line_with_the_claims_renewals_would_wait_as_long_or_be_refused() {
        assert!(play(Class::Ordinary).renewal > Duration::from_millis(300), "the check above can fail");
    }
}
