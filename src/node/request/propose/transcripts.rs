//! Transcripts of the command queue: tests/golden/queue. Times are milliseconds since the start.

use std::error::Error;
use std::time::Duration;

use goldenscript::{ArgumentConsumer, Context, Runner};
use tokio::time::Instant;

use super::{Class, CommandQueue, Full, QueuedCommand};
use crate::transcripts::run_all;

/// Largest entry of the queue, in bytes.
const ENTRY_BYTES: usize = 1_000;
/// Most entries in flight.
const IN_FLIGHT: usize = 2;

#[test]
fn queue_transcripts_match_their_recorded_output() {
    run_all("queue", 5, Transcript::new);
}

struct Transcript {
    queue: CommandQueue<String>,
    start: Instant,
    now: Instant,
    /// The commands of the last entry.
    taken: Vec<QueuedCommand<String>>,
}

type Failure = Box<dyn Error>;

impl Transcript {
    fn new() -> Transcript {
        let start = Instant::now();
        Transcript { queue: CommandQueue::new(ENTRY_BYTES, IN_FLIGHT), start, now: start, taken: Vec::new() }
    }

    /// Queues commands of one class: `count` commands with the same name, or the named ones.
    fn push(&mut self, class: Class, args: &mut ArgumentConsumer) -> Result<String, Failure> {
        let bytes = key(args, "bytes")?.unwrap_or(100);
        let count = key(args, "count")?.unwrap_or(1);
        let mut refused = None;
        while let Some(name) = args.next_pos() {
            for _ in 0..count {
                refused = self.queue.push(class, bytes, name.to_owned(), self.now).err().or(refused);
            }
        }
        let refused = match refused {
            None => "",
            Some(Full::TooSlow) => "refused: the expected wait is too long; ",
            Some(Full::TooMany) => "refused: the queue is full; ",
        };
        Ok(format!("{refused}{}", self.waiting()))
    }

    fn waiting(&self) -> String {
        let (urgent, ordinary) = (self.queue.len(Class::Urgent), self.queue.len(Class::Ordinary));
        format!("{urgent} urgent, {ordinary} ordinary")
    }

    fn instant(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }
}

impl Runner for Transcript {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let output = match command.name.as_str() {
            "at" => {
                self.now = self.instant(next(&mut args)?);
                String::new()
            }
            "urgent" => self.push(Class::Urgent, &mut args)?,
            "ordinary" => self.push(Class::Ordinary, &mut args)?,
            "take" => {
                let unwanted = args.take_key("unwanted").unwrap_or_default().to_owned();
                self.taken = self.queue.take_entry(|job| *job != unwanted);
                let names: Vec<&str> = self.taken.iter().map(|taken| taken.job.as_str()).collect();
                format!("[{}]; {}", runs(&names), self.waiting())
            }
            "return" => {
                self.queue.requeue(std::mem::take(&mut self.taken));
                self.waiting()
            }
            "sent" => {
                self.queue.entry_sent(self.now);
                String::new()
            }
            "done" => {
                let sent = self.instant(key(&mut args, "sent")?.ok_or("missing argument sent=MS")?);
                self.queue.entry_done(sent, self.now);
                String::new()
            }
            "late" => {
                let late = self.queue.take_late(self.now);
                let next = self.queue.next_late();
                let next = next.map_or("no next".to_owned(), |at| format!("next at {}", (at - self.start).as_millis()));
                format!("[{}]; {next}", late.join(" "))
            }
            "stop" => format!("[{}]", self.queue.take_all().join(" ")),
            other => return Err(format!("unknown command {other:?}").into()),
        };
        args.reject_next()?;
        Ok(output)
    }
}

/// The names in order, with equal neighbors as a count.
fn runs(names: &[&str]) -> String {
    let runs = names.chunk_by(|one, other| one == other);
    let runs = runs.map(|run| if run.len() == 1 { run[0].to_owned() } else { format!("{} x{}", run[0], run.len()) });
    runs.collect::<Vec<_>>().join(" ")
}

fn next(args: &mut ArgumentConsumer) -> Result<u64, Failure> {
    Ok(args.next_pos().ok_or("missing positional argument")?.parse()?)
}

fn key<T: std::str::FromStr<Err: Error + 'static>>(
    args: &mut ArgumentConsumer,
    key: &str,
) -> Result<Option<T>, Failure> {
    Ok(args.take_key(key).map(str::parse).transpose()?)
}
