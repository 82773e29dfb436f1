//! Transcripts of the state of a lease at its holder: tests/golden/hold. Times are milliseconds of the holder's clock.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use goldenscript::{ArgumentConsumer, Command, Context, Runner};
use parking_lot::Mutex;

use super::{Hold, KeeperAction, Unreleased};
use crate::client::{HoldState, LeaseOptions, Loss};
use crate::rng::{Seeded, seed};
use crate::token::FencingToken;
use crate::transcripts::run_all;
use crate::types::{HolderId, LeaseName};

#[test]
fn hold_transcripts_match_their_recorded_output() {
    run_all("hold", 8, Transcript::new);
}

struct Transcript {
    hold: Arc<Hold>,
    now: Duration,
    progress: Arc<Mutex<ProgressCheck>>,
    shown: String,
    /// Renewals have a random jitter.
    _seeded: Seeded,
}

type Failure = Box<dyn Error>;

/// What the progress check finds.
#[derive(Clone, Copy, Default)]
enum ProgressCheck {
    #[default]
    Made,
    Stopped,
    Panic,
}

impl ProgressCheck {
    fn check(self) -> bool {
        match self {
            ProgressCheck::Made => true,
            ProgressCheck::Stopped => false,
            ProgressCheck::Panic => panic!("the progress check panics"),
        }
    }
}

impl Transcript {
    fn new() -> Transcript {
        let hold = hold(LeaseOptions::new(), 0);
        Transcript { hold, now: Duration::ZERO, progress: Arc::default(), shown: String::new(), _seeded: seed(1) }
    }

    fn begin(&mut self, args: &mut ArgumentConsumer) -> Result<(), Failure> {
        let mut options = LeaseOptions::new();
        if let Some(grace) = time(args, "grace")? {
            options = options.grace(grace);
        }
        if let Some(longest) = time(args, "longest_hold")? {
            options = options.longest_hold(longest);
        }
        if args.take_key("progress").is_some() {
            *self.progress.lock() = ProgressCheck::Made;
            let progress = self.progress.clone();
            options = options.renew_while(move || {
                let progress = *progress.lock();
                progress.check()
            });
        }
        self.hold = hold(options, args.take_key("drift").unwrap_or("10").parse()?);
        self.now = Duration::ZERO;
        self.shown = self.describe();
        Ok(())
    }

    fn describe(&self) -> String {
        let mut text = match self.hold.states().borrow().to_owned() {
            HoldState::Idle => "idle".to_owned(),
            HoldState::Held { token, .. } => format!("held {}", show(token)),
            HoldState::AtRisk { token, failures, .. } => format!("at risk {}, {failures} failures", show(token)),
            HoldState::Ending { token, why, .. } => format!("ending {}, {}", show(token), why.as_str()),
            HoldState::Lost { token, why } => format!("lost {}, {}", show(token), why.as_str()),
            HoldState::Released { token } => format!("released {}", show(token)),
        };
        text += &match self.hold.remaining(self.now) {
            None => "; not held".to_owned(),
            Some(Duration::MAX) => "; held without end".to_owned(),
            Some(left) => format!("; held until {}", millis(self.now + left)),
        };
        let signals = self.hold.signals();
        let has_grant = self.hold.granted_token().is_some();
        if has_grant && signals.stopping.is_cancelled() {
            text += "; the work must stop";
        }
        if let Some(Unreleased { token, .. }) = self.hold.unreleased() {
            text += &format!("; {} may still count as held", show(token));
        }
        text
    }
}

impl Runner for Transcript {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let now = self.now;
        let mut output = match command.name.as_str() {
            "begin" => {
                self.begin(&mut args)?;
                String::new()
            }
            "at" => {
                self.now = Duration::from_millis(next(&mut args)?.parse()?);
                String::new()
            }
            "granted" => {
                let (token, sent) = (token(&mut args)?, time(&mut args, "sent")?.unwrap_or(now));
                self.hold.granted(self.hold.options(), token, ttl(&mut args)?, sent, now);
                String::new()
            }
            "renewed" => {
                let (token, sent) = (token(&mut args)?, time(&mut args, "sent")?.unwrap_or(now));
                self.hold.renewed(token, ttl(&mut args)?, sent, now);
                String::new()
            }
            "no_answer" => {
                self.hold.renewal_failed(token(&mut args)?, now);
                String::new()
            }
            "lost" => {
                let token = token(&mut args)?;
                self.hold.lose(token, loss(next(&mut args)?)?);
                String::new()
            }
            "release" => self
                .hold
                .give_up()
                .map_or("nothing to send".to_owned(), |token| format!("send release {}", show(token))),
            "release_failed" => {
                self.hold.set_unreleased(Unreleased { token: token(&mut args)?, ttl: None });
                self.hold
                    .failed_release()
                    .map_or("nothing to repeat".to_owned(), |token| format!("repeat release {}", show(token)))
            }
            "release_done" => {
                self.hold.forget_unreleased_token(token(&mut args)?);
                String::new()
            }
            "hand_over" => self
                .hold
                .pause(now)
                .map_or("nothing to hand over".to_owned(), |token| format!("send handover {}", show(token))),
            "hand_over_refused" => {
                self.hold.resume();
                String::new()
            }
            "acquire" => {
                self.hold.end_unheld_grant(now);
                String::new()
            }
            "no_progress" => {
                *self.progress.lock() = ProgressCheck::Stopped;
                String::new()
            }
            "progress_panics" => {
                *self.progress.lock() = ProgressCheck::Panic;
                String::new()
            }
            "renew_early" => {
                let can = self.hold.can_renew_early(now);
                if can {
                    self.hold.renew_now(now);
                }
                if can { "in this batch".to_owned() } else { "not yet".to_owned() }
            }
            "check" => match self.hold.next_action(now, time(&mut args, "late")?.unwrap_or_default()) {
                KeeperAction::Nothing => "nothing".to_owned(),
                KeeperAction::CheckAt(at) => format!("check at {}", millis(at)),
                KeeperAction::Renew { token, ttl } => {
                    let ttl = ttl.map_or("infinite".to_owned(), millis);
                    format!("send renewal {}, ttl {ttl}", show(token))
                }
            },
            other => return Err(format!("unknown command {other:?}").into()),
        };
        args.reject_next()?;
        let state = self.describe();
        if state != self.shown {
            output += &format!("{}{} {state}", if output.is_empty() { "" } else { "\n" }, millis(self.now));
            self.shown = state;
        }
        Ok(output)
    }
}

fn hold(options: LeaseOptions, drift_permille: u32) -> Arc<Hold> {
    let (name, holder) = (LeaseName::new("job").expect("valid"), HolderId::new("a").expect("valid"));
    Hold::new(name, holder, options, drift_permille, Arc::default())
}

fn show(token: FencingToken) -> String {
    format!("{}/{}", token.term, token.index)
}

fn millis(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

fn next<'a>(args: &mut ArgumentConsumer<'a>) -> Result<&'a str, Failure> {
    Ok(args.next_pos().ok_or("missing positional argument")?)
}

fn token(args: &mut ArgumentConsumer) -> Result<FencingToken, Failure> {
    let (term, index) = next(args)?.split_once('/').ok_or("invalid token: expected TERM/INDEX")?;
    Ok(FencingToken { term: term.parse()?, index: index.parse()? })
}

fn time(args: &mut ArgumentConsumer, key: &str) -> Result<Option<Duration>, Failure> {
    Ok(args.take_key(key).map(str::parse).transpose()?.map(Duration::from_millis))
}

/// The ttl of an answer: 10 s unless given.
fn ttl(args: &mut ArgumentConsumer) -> Result<Option<Duration>, Failure> {
    match args.take_key("ttl") {
        Some("infinite") => Ok(None),
        Some(ttl) => Ok(Some(Duration::from_millis(ttl.parse()?))),
        None => Ok(Some(Duration::from_secs(10))),
    }
}

fn loss(word: &str) -> Result<Loss, Failure> {
    let all = [Loss::Expired, Loss::Revoked, Loss::HandedOver, Loss::Released, Loss::Forgotten];
    Ok(all.into_iter().find(|loss| loss.as_str() == word).ok_or_else(|| format!("unknown loss {word:?}"))?)
}
