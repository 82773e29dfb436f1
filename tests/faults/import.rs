//! Reads histories from JSON lines and checks each lease. tests/judge/file.rs describes the format.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tenure::token::FencingToken;
use tenure::types::{HolderId, LeaseName};

use super::bounds::FILE_BOUNDS;
use super::judge::history::{Ended, Operation, RequestKind};
use super::judge::{self, Broken, LeaseHistory, Progress, SearchResult, Transition, reads_are_current};

/// The operations and the transitions of one lease.
#[derive(Default)]
pub struct Lease {
    pub operations: Vec<Operation>,
    pub log: Vec<Transition>,
}

/// The leases of a file, by run and name.
type Leases = BTreeMap<(String, String), Lease>;

/// The result of checking a file.
#[derive(Debug, Default)]
pub struct JudgedFile {
    pub operations: usize,
    pub leases: usize,
    pub too_hard: usize,
    /// Leases of runs in which no answer shows a log index. Without an index the commits are unknown, so no time bound
    /// applies.
    pub untimed: usize,
    pub broken: Vec<Broken>,
}

/// Checks each lease in a file.
pub fn judge_lines(lines: impl BufRead) -> Result<JudgedFile> {
    let leases = read(lines)?;
    let mut judged = JudgedFile { leases: leases.len(), ..JudgedFile::default() };
    let runs = runs(&leases);
    for ((run, name), Lease { operations, log }) in &leases {
        let history = LeaseHistory { operations, queues: &[], transitions: log, bounds: &FILE_BOUNDS };
        let (broken, decided) = judge::check(name, &history);
        match &runs[run.as_str()] {
            (progress, _) if progress.is_empty() => judged.untimed += 1,
            (progress, end) => judged.broken.extend(judge::check_bounds(name, &history, progress, *end).0),
        }
        judged.operations += operations.len();
        judged.too_hard += usize::from(decided == SearchResult::TooHard);
        judged.broken.extend(broken);
    }
    for run in runs.keys() {
        let of_run = leases.iter().filter(|((name, _), _)| name == run).flat_map(|(_, lease)| &lease.operations);
        let checked = reads_are_current::check_indexes(of_run);
        judged.broken.extend(checked.err().map(|how| Broken::of_cluster("reads_are_current", how)));
    }
    Ok(judged)
}

/// The commits of each run that its answers show, and the time of its last line.
fn runs(leases: &Leases) -> BTreeMap<&str, (Progress, Duration)> {
    let mut answers: BTreeMap<&str, Vec<(Duration, Option<u64>)>> = BTreeMap::new();
    for ((run, _), Lease { operations, log }) in leases {
        let answers = answers.entry(run).or_default();
        answers.extend(log.iter().map(|seen| (seen.at, None)));
        answers.extend(operations.iter().map(|asked| (asked.returned.unwrap_or(asked.invoked), asked.index)));
    }
    let of_run = |mut answers: Vec<(Duration, Option<u64>)>| {
        answers.sort();
        let mut progress = Progress::default();
        answers.iter().for_each(|(at, index)| index.iter().for_each(|index| progress.saw(*index, *at)));
        (progress, answers.last().map_or(Duration::ZERO, |(at, _)| *at))
    };
    answers.into_iter().map(|(run, answers)| (run, of_run(answers))).collect()
}

fn read(lines: impl BufRead) -> Result<Leases> {
    let mut leases = Leases::new();
    // The operations without an answer so far: the run and the id, and the index of the operation.
    let mut open: BTreeMap<(String, u64), usize> = BTreeMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line: Value = serde_json::from_str(&line?).with_context(|| format!("line {}", number + 1))?;
        if line["type"] == "note" {
            continue;
        }
        add(&mut leases, &mut open, &line).with_context(|| format!("line {}: {line}", number + 1))?;
    }
    leases.values_mut().for_each(|lease| lease.log.sort_by_key(Transition::position));
    Ok(leases)
}

fn add(leases: &mut Leases, open: &mut BTreeMap<(String, u64), usize>, line: &Value) -> Result<()> {
    let (run, name) = (text(line, "run")?, text(line, "name")?);
    let time = Duration::from_nanos(line["time_ns"].as_u64().context("time_ns")?);
    let lease = leases.entry((run.to_owned(), name.to_owned())).or_default();
    let kind = text(line, "type")?;
    if kind == "transition" {
        lease.log.push(transition(line, time)?);
        return Ok(());
    }
    let id = (run.to_owned(), line["id"].as_u64().context("id")?);
    if kind == "invoke" {
        let (by, name) = (HolderId::new(text(line, "process")?)?, LeaseName::new(name)?);
        let what = what(text(line, "f")?, &line["value"])?;
        lease.operations.push(Operation {
            by,
            name,
            what,
            invoked: time,
            returned: None,
            ended: Ended::Unknown,
            index: None,
        });
        if open.insert(id, lease.operations.len() - 1).is_some() {
            bail!("duplicate operation id: expected a unique id per run");
        }
        return Ok(());
    }
    let place = open.remove(&id).context("answer to no operation: expected the id of an open invocation")?;
    let operation = &mut lease.operations[place];
    operation.returned = Some(time);
    operation.ended = ended(kind, line)?;
    operation.index = line["index"].as_u64();
    Ok(())
}

fn what(function: &str, value: &Value) -> Result<RequestKind> {
    Ok(match function {
        "acquire" => RequestKind::Acquire {
            ttl_ms: match value.get("ttl_ms").context("ttl_ms")? {
                Value::Null => None,
                ttl_ms => Some(ttl_ms.as_u64().context("ttl_ms")?),
            },
            limit: u32::try_from(value["limit"].as_u64().context("limit")?)?,
            // Files of older runs lack the length of a wait.
            wait_ms: value["wait"].as_bool().context("wait")?.then(|| value["wait_ms"].as_u64().unwrap_or(0)),
            // Files of older runs lack this field; those runs had no lock delay.
            lock_delay_ms: value["lock_delay_ms"].as_u64().unwrap_or(0),
        },
        "renew" => RequestKind::Renew { token: token(value)? },
        "release" => RequestKind::Release { token: token(value)? },
        "hand_over" => {
            RequestKind::HandOver { token: token(value)?, to: value["to"].as_str().map(HolderId::new).transpose()? }
        }
        "update_metadata" => {
            let version = value["version"].as_u64().context("version")?;
            RequestKind::UpdateMetadata { token: token(value)?, version, tag: text(value, "tag")?.to_owned() }
        }
        "revoke" => RequestKind::Revoke,
        "read" => RequestKind::Read,
        other => bail!(
            "unknown function {other:?}: expected acquire, renew, release, hand_over, update_metadata, revoke or read"
        ),
    })
}

fn ended(kind: &str, line: &Value) -> Result<Ended> {
    let value = &line["value"];
    Ok(match kind {
        "fail" => Ended::Refused(text(line, "error")?.to_owned()),
        "info" => Ended::Unknown,
        "ok" if value["holders"].is_array() => {
            let held = value["holders"].as_array().into_iter().flatten();
            let held = held.map(|held| Ok((text(held, "holder")?.to_owned(), token(held)?))).collect::<Result<_>>()?;
            Ended::Saw(held, value["index"].as_u64().context("index")?)
        }
        "ok" if value.is_null() => Ended::Showed,
        "ok" if value["tag"].is_string() => {
            let version = value["version"].as_u64().context("version")?;
            Ended::Updated { version, tag: text(value, "tag")?.to_owned() }
        }
        "ok" => match value["changed"].as_bool() {
            Some(changed) => Ended::Changed(changed),
            None => Ended::Held(token(value)?, value["expires_in_ms"].as_u64()),
        },
        other => bail!("unknown type {other:?}: expected invoke, ok, fail, info, transition or note"),
    })
}

fn transition(line: &Value, at: Duration) -> Result<Transition> {
    let event = json!({
        "event": line["event"], "cause": line["cause"], "index": line["index"], "part": line["part"],
        "name": line["name"], "holder": line["holder"], "token": line["token"], "at": "1970-01-01T00:00:00.000Z",
    });
    Ok(Transition::of_watch(&serde_json::from_value(event)?, at))
}

fn text<'a>(line: &'a Value, field: &str) -> Result<&'a str> {
    line[field].as_str().with_context(|| format!("{field} is missing"))
}

fn token(value: &Value) -> Result<FencingToken> {
    text(value, "token")?.parse().map_err(|error| anyhow!("token: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::judge::file::HistoryWriter;
    use super::*;
    use crate::judge::samples::{acquire, acquired, did, expired, from_queue, granted, saw};

    /// A recorded history. The lines of the process `planted` grant a held lease to a second holder.
    const PLANTED: &str = include_str!("planted_second_holder.jsonl");

    fn write(operations: &[Operation], log: &[Transition]) -> String {
        let mut lines = Vec::new();
        let mut writer = HistoryWriter::new(&mut lines, "test".to_owned());
        writer.write(operations, log).expect("a write to memory succeeds");
        String::from_utf8(lines).expect("JSON")
    }

    fn claim(ttl_ms: Option<u64>, limit: u32, lock_delay_ms: u64) -> RequestKind {
        RequestKind::Acquire { ttl_ms, limit, wait_ms: Some(9_000), lock_delay_ms }
    }

    /// Reads every 100 ms for ten seconds. Each one shows another commit.
    fn reads() -> impl Iterator<Item = Operation> {
        let name = LeaseName::new("other").expect("valid");
        let read = |n: u64| did("reader", RequestKind::Read, (100 * n, 100 * n), Ended::Saw(Vec::new(), 1_000 + n));
        (0..100).map(move |n| Operation { name: name.clone(), index: Some(1_000 + n), ..read(n) })
    }

    fn promises_broken(operations: &[Operation], log: &[Transition]) -> Vec<&'static str> {
        let judged = judge_lines(write(operations, log).as_bytes()).expect("the format is valid");
        judged.broken.iter().map(|broken| broken.promise).collect()
    }

    #[test]
    fn imported_history_is_judged_by_the_claims_in_it() {
        let asked = |ttl_ms, limit, delay| [did("a", claim(ttl_ms, limit, delay), (0, 10), Ended::Unknown)];
        let log = [granted(5, "a", 5), expired(1_100, "a", 5, 8), granted(1_150, "b", 9)];
        let b = did("b", claim(Some(1_000), 1, 0), (1_120, 1_160), Ended::Unknown);
        let judged = |claims: [Operation; 1], log| promises_broken(&[claims[0].clone(), b.clone()], log);
        assert!(judged(asked(Some(1_000), 1, 0), &log).is_empty());
        assert_eq!(judged(asked(Some(1_000), 1, 500), &log), ["lock_delay"]);
        assert_eq!(judged(asked(None, 1, 0), &log), ["no_early_expiry"]);
        let both = [granted(5, "a", 5), granted(1_150, "b", 9)];
        assert!(judged(asked(Some(1_000), 2, 0), &both).is_empty());
        assert!(judged(asked(Some(1_000), 1, 0), &both).contains(&"one_holder"));
    }

    #[test]
    fn imported_bounds_in_time_count_from_the_indices_of_answers() {
        let log = |at| [granted(5, "a", 5), expired(at, "a", 5, 9_000), from_queue(at, "b", 9_001)];
        let waits = did("b", claim(Some(9_000), 1, 0), (20, 9_000), Ended::Unknown);
        let asked = [acquired("a", (0, 10), 5), waits];
        let with_reads: Vec<Operation> = asked.iter().cloned().chain(reads()).collect();
        assert!(promises_broken(&with_reads, &log(2_000)).is_empty());
        assert_eq!(promises_broken(&with_reads, &log(2_400)), ["expiry_happens"]);
        assert!(promises_broken(&asked, &log(2_400)).is_empty(), "the commits are unknown");
        let mut late = log(2_000).to_vec();
        late[2].at = Duration::from_millis(3_400);
        assert_eq!(promises_broken(&with_reads, &late), ["waiters_are_served"]);
    }

    #[test]
    fn exported_history_reads_back_as_it_was() {
        let token = crate::judge::samples::token(5);
        let update = |version| RequestKind::UpdateMetadata { token, version, tag: "x".to_owned() };
        let operations = [
            acquired("a", (0, 10), 5),
            did("a", RequestKind::Renew { token }, (20, 30), Ended::Held(token, None)),
            saw((25, 40), &[("a", 5)], 6),
            did("b", acquire(), (30, 35), Ended::Refused("held".to_owned())),
            Operation { index: Some(7), ..did("d", claim(None, 3, 250), (31, 36), Ended::Unknown) },
            did("a", RequestKind::HandOver { token, to: None }, (41, 45), Ended::Refused("no_such_waiter".to_owned())),
            did("a", RequestKind::HandOver { token, to: HolderId::new("b").ok() }, (46, 47), Ended::Unknown),
            did("a", update(0), (47, 48), Ended::Updated { version: 1, tag: "x".to_owned() }),
            Operation { index: Some(7), ..did("b", RequestKind::Read, (48, 49), Ended::Showed) },
            did("a", RequestKind::Release { token }, (50, 2_000), Ended::Unknown),
            did("operator", RequestKind::Revoke, (60, 61), Ended::Changed(false)),
            Operation { returned: None, ..did("c", RequestKind::Read, (70, 0), Ended::Unknown) },
        ];
        let log = [granted(5, "a", 5), expired(1_400, "a", 5, 8)];
        let text = write(&operations, &log) + r#"{"type":"note","value":{"fault":"kill"}}"#;
        assert_eq!(text.lines().count(), 2 * operations.len() - 1 + log.len() + 1);
        let leases = read(text.as_bytes()).expect("the format is valid");
        let lease = &leases[&("test".to_owned(), "job".to_owned())];
        assert_eq!(format!("{:?}", lease.operations), format!("{operations:?}"));
        let seen = |log: &[Transition]| -> Vec<_> { log.iter().map(|seen| (seen.event, seen.at)).collect() };
        assert_eq!(seen(&lease.log), seen(&log));
    }

    #[test]
    fn lines_of_another_format_are_refused_with_their_number() {
        let text = write(&[acquired("a", (0, 10), 5)], &[]);
        for (from, to, said) in [
            ("invoke", "call", "answer to no operation"),
            ("acquire", "lock", "unknown function"),
            ("\"time_ns\"", "\"time\"", "time_ns"),
            ("\"ok\"", "\"done\"", "unknown type"),
        ] {
            let error = judge_lines(text.replace(from, to).as_bytes()).expect_err(said);
            let error = format!("{error:#}");
            assert!(error.contains("line ") && error.contains(said), "{error}");
        }
    }

    #[test]
    fn second_holder_planted_in_an_exported_history_is_found() {
        let judged = judge_lines(PLANTED.as_bytes()).expect("the format is valid");
        let broken: Vec<&str> = judged.broken.iter().map(|broken| broken.promise).collect();
        assert!(broken.contains(&"linearizable"), "{broken:?}");
        assert!(judged.operations > 100 && judged.leases > 5, "{} of {}", judged.operations, judged.leases);
        let honest: String =
            PLANTED.lines().filter(|line| !line.contains("planted")).map(|line| format!("{line}\n")).collect();
        let judged = judge_lines(honest.as_bytes()).expect("the format is valid");
        assert!(judged.broken.is_empty(), "{:?}", judged.broken);
    }
}
