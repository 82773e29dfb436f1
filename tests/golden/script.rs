//! The commands of the scripts: `at`, `term`, `begin`, `end`, `restart` and `restore` control the log and the machine. The
//! machine's own commands make log entries. The others read.

use std::collections::BTreeMap;
use std::error::Error;
use std::str::FromStr;

use goldenscript::{ArgumentConsumer, Context, Runner};
use tenure::lease::{Acquire, Batch, Command, Limits, ListFilter, Machine, Renewal, Stamp, StateFilter, WaiterId};
use tenure::token::FencingToken;
use tenure::types::{ClusterMs, HolderId, Metadata, Ttl};

use crate::print;

/// Wall clock at cluster time 0. No rule reads it.
const WALL_MS: u64 = 1_700_000_000_000;

pub struct Transcript {
    machine: Machine,
    position: FencingToken,
    now: ClusterMs,
    /// The commands since `begin`.
    pending: Option<Vec<Command>>,
}

type Failure = Box<dyn Error>;

impl Transcript {
    pub fn new() -> Transcript {
        let position = FencingToken::new(1, 0);
        Transcript { machine: Machine::new(), position, now: 0, pending: None }
    }

    fn propose(&mut self, command: Command) -> String {
        match &mut self.pending {
            Some(commands) => {
                commands.push(command);
                String::new()
            }
            None => self.apply(vec![command]),
        }
    }

    fn apply(&mut self, commands: Vec<Command>) -> String {
        self.position = FencingToken::new(self.position.term(), self.position.index() + 1);
        let stamp = Stamp { now: self.now, wall_ms: WALL_MS + self.now };
        let (outcomes, effects) = self.machine.apply(self.position, &Batch { stamp, commands });
        print::entry(self.position, self.machine.now(), &outcomes, &effects)
    }

    /// Rebuilds the machine from its stored form, like a restart.
    fn restart(&mut self) -> Result<(), Failure> {
        self.machine = Machine::from_records(self.machine.header(), self.machine.records())?;
        Ok(())
    }
}

impl Runner for Transcript {
    type Command = goldenscript::Command;

    fn run(&mut self, command: &goldenscript::Command, _: &Context) -> Result<String, Failure> {
        let mut args = command.consume_args();
        let output = match command.name.as_str() {
            "at" => {
                self.now = next(&mut args)?;
                String::new()
            }
            "term" => {
                self.position = FencingToken::new(next(&mut args)?, self.position.index());
                String::new()
            }
            "begin" => {
                self.pending = Some(Vec::new());
                String::new()
            }
            "end" => {
                let commands = self.pending.take().ok_or("end without begin")?;
                self.apply(commands)
            }
            "restart" => {
                self.restart()?;
                String::new()
            }
            "restore" => {
                self.position = token(args.next_pos().ok_or("missing position TERM/INDEX")?)?;
                let effects = self.machine.restore(self.position, WALL_MS + self.now, key(&mut args, "no_grants")?);
                print::entry(self.position, self.machine.now(), &[], &effects)
            }
            "get" => print::view(self.machine.get(&next(&mut args)?)),
            "queue" => print::queue(&self.machine.queue(&next(&mut args)?)),
            "history" => print::history(&self.machine.history(&next(&mut args)?)),
            "explain" => {
                let name = next(&mut args)?;
                let holder = args.next_pos().map(HolderId::from_str).transpose()?;
                print::explanation(&self.machine.explain(&name, holder.as_ref()))
            }
            "list" => print::list(&self.machine, &filter(&mut args)?, key(&mut args, "page")?.unwrap_or(100)),
            "counts" => format!("{:?}", self.machine.counts()),
            "due" => self.machine.next_due().map_or("nothing".to_string(), |at| format!("at {at}")),
            "would_refuse" => {
                let refusal = self.machine.held_by_other(&acquire(&mut args)?, self.now);
                refusal.map_or("ask the log".to_string(), |refusal| print::refusal(&refusal))
            }
            _ => {
                let command = machine_command(command.name.as_str(), &mut args)?;
                self.propose(command)
            }
        };
        args.reject_next()?;
        Ok(output)
    }
}

fn machine_command(verb: &str, args: &mut ArgumentConsumer) -> Result<Command, Failure> {
    Ok(match verb {
        "acquire" => Command::Acquire(acquire(args)?),
        "renew" => {
            let holder = next(args)?;
            let ttl = args.take_key("ttl").map(ttl).transpose()?;
            let mut leases = Vec::new();
            while let Some((name, at)) = args.next_key() {
                leases.push(Renewal { name: name.parse()?, token: token(at)?, ttl });
            }
            Command::Renew { holder, leases }
        }
        "release" => Command::Release { name: next(args)?, holder: next(args)?, token: own_token(args)? },
        "revoke" => {
            let reason = args.take_key("reason").unwrap_or_default().to_string();
            Command::Revoke { name: next(args)?, reason }
        }
        "handover" => {
            Command::HandOver { name: next(args)?, holder: next(args)?, token: own_token(args)?, to: key(args, "to")? }
        }
        "keep" => Command::KeepWaiting { waiters: vec![WaiterId { name: next(args)?, holder: next(args)? }] },
        "leave" => Command::LeaveQueue { waiter: WaiterId { name: next(args)?, holder: next(args)? } },
        "metadata" => Command::UpdateMetadata {
            name: next(args)?,
            holder: next(args)?,
            token: own_token(args)?,
            version: key(args, "version")?.unwrap_or(0),
            metadata: metadata(args)?,
        },
        "as" => {
            let principal = next(args)?;
            let verb = args.next_pos().ok_or("missing command")?;
            machine_command(verb, args)?.owned_by(principal)
        }
        "tick" => Command::Tick,
        "limits" => Command::SetLimits(limits(args)?),
        _ => return Err(format!("unknown command {verb:?}").into()),
    })
}

fn acquire(args: &mut ArgumentConsumer) -> Result<Acquire, Failure> {
    let metadata = metadata(args)?;
    Ok(Acquire {
        name: next(args)?,
        holder: next(args)?,
        ttl: args.take_key("ttl").map(ttl).transpose()?.unwrap_or(Ttl::millis(10_000)?),
        wait_ms: key(args, "wait")?,
        lock_delay_ms: key(args, "delay")?.unwrap_or(0),
        limit: key(args, "limit")?.unwrap_or(1),
        metadata,
    })
}

fn metadata(args: &mut ArgumentConsumer) -> Result<Metadata, Failure> {
    let mut metadata = BTreeMap::new();
    if let Some((name, value)) = args.take_key("metadata").and_then(|text| text.split_once('/')) {
        metadata.insert(name.to_string(), value.to_string());
    }
    Ok(Metadata::new(metadata)?)
}

fn limits(args: &mut ArgumentConsumer) -> Result<Limits, Failure> {
    let mut limits = Limits::default();
    limits.max_leases = key(args, "max_leases")?.unwrap_or(limits.max_leases);
    limits.max_waiters = key(args, "max_waiters")?.unwrap_or(limits.max_waiters);
    limits.history = key(args, "history")?.unwrap_or(limits.history);
    limits.ended_keep_ms = key(args, "ended_keep_ms")?.unwrap_or(limits.ended_keep_ms);
    limits.ended_keep = key(args, "ended_keep")?.unwrap_or(limits.ended_keep);
    limits.waiter_timeout_ms = key(args, "waiter_timeout_ms")?.unwrap_or(limits.waiter_timeout_ms);
    Ok(limits)
}

fn filter(args: &mut ArgumentConsumer) -> Result<ListFilter, Failure> {
    let mut states = Vec::new();
    for state in args.take_key("state").into_iter().flat_map(|states| states.split(',')) {
        states.push(match state {
            "active" => StateFilter::Active,
            "renewed" => StateFilter::Renewed,
            "expired" => StateFilter::Expired,
            "released" => StateFilter::Released,
            "revoked" => StateFilter::Revoked,
            "handed_over" => StateFilter::HandedOver,
            "restored" => StateFilter::Restored,
            other => return Err(format!("unknown state {other:?}: expected a lease state such as \"active\"").into()),
        });
    }
    let prefix = args.take_key("prefix").unwrap_or_default().to_string();
    Ok(ListFilter { prefix, holder: key(args, "holder")?, states })
}

fn next<T: FromStr<Err: Error + 'static>>(args: &mut ArgumentConsumer) -> Result<T, Failure> {
    Ok(args.next_pos().ok_or("missing positional argument")?.parse()?)
}

fn key<T: FromStr<Err: Error + 'static>>(args: &mut ArgumentConsumer, key: &str) -> Result<Option<T>, Failure> {
    Ok(args.take_key(key).map(str::parse).transpose()?)
}

fn own_token(args: &mut ArgumentConsumer) -> Result<FencingToken, Failure> {
    token(args.take_key("token").ok_or("missing argument token=TERM/INDEX")?)
}

fn token(text: &str) -> Result<FencingToken, Failure> {
    let (term, index) = text.split_once('/').ok_or("invalid token: expected TERM/INDEX")?;
    Ok(FencingToken::new(term.parse()?, index.parse()?))
}

fn ttl(text: &str) -> Result<Ttl, Failure> {
    Ok(if text == "infinite" { Ttl::INFINITE } else { Ttl::millis(text.parse()?)? })
}
