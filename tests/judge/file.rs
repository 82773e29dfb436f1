//! Histories as JSON lines, for external checkers.
//!
//! All lines:
//!
//! - `type`: `invoke` (call), its answer `ok`, `fail` (certainly not done) or `info` (unknown), `transition` (a holder
//!   changed), `note` (text only).
//! - `time_ns`: nanoseconds on one real clock, of the call, the answer, or the first sight of the transition. It
//!   orders the lines of a lease.
//! - `run`, `name` (lease).
//!
//! Calls and answers:
//!
//! - `id`: unique in a run. A call without answer is unknown.
//! - `process`: holder or reader; its calls may overlap.
//! - `f`: `acquire`, `renew`, `release`, `hand_over`, `update_metadata`, `revoke`, `read`.
//! - `value` of `invoke`: for acquire `ttl_ms` (`null`: infinite), `limit`, `wait`, `wait_ms` (`null`: no wait),
//!   `lock_delay_ms`. For renew, release, hand_over and update_metadata `token`. For hand_over also `to` (`null`: the
//!   first waiter). For update_metadata also `version` (the one that it replaces) and `tag` (the new metadata).
//! - `value` of `ok`: for grants and renewals `token`, `expires_in_ms` (`null`: infinite). For release and revoke
//!   `changed`, also for a hand_over without its new grant. For update_metadata `version`, `tag`. For read `holders`, log `index`. `null`: it read something else,
//!   and the `index` of the line is that of the state.
//! - `index`: log index that the answer includes; absent if not known.
//! - `error` of `fail`: the error code of docs/http.md; `held`: no free place.
//!
//! Transitions: `event`, `cause`, `index`, `part`, `holder`, `token`, as in the watch of docs/http.md.
//!
//! With `index`, `judge` also checks time bounds of expiries and waiters. No client is told of an expiry: use the
//! `expired` transitions, or allow it at any time after the ttl.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tenure::api::GrantCause;

use super::history::{Ended, Operation, RequestKind};
use super::transition::Transition;

/// Writes the histories of one run. The writer numbers the operations of a run in the order of writing.
pub struct HistoryWriter<W> {
    out: W,
    run: String,
    next_id: u64,
}

impl<W: Write> HistoryWriter<W> {
    pub fn new(out: W, run: String) -> HistoryWriter<W> {
        HistoryWriter { out, run, next_id: 0 }
    }

    /// Writes invocations, returns and transitions in the order of time.
    ///
    /// One call must contain all lines of a lease.
    pub fn write<'a>(
        &mut self,
        operations: impl IntoIterator<Item = &'a Operation>,
        transitions: impl IntoIterator<Item = &'a Transition>,
    ) -> io::Result<()> {
        let mut lines: Vec<(Duration, Value)> = Vec::new();
        for operation in operations {
            let mut line = json!({
                "run": self.run, "id": self.next_id, "process": operation.by.as_str(), "name": operation.name.as_str(),
                "f": function(&operation.what),
            });
            self.next_id += 1;
            let (kind, value, error) = end(&operation.ended);
            let mut invoke = line.clone();
            invoke["type"] = "invoke".into();
            invoke["value"] = arguments(&operation.what);
            lines.push((operation.invoked, invoke));
            if let Some(returned) = operation.returned {
                line["type"] = kind.into();
                line["value"] = value;
                if let Some(error) = error {
                    line["error"] = error.into();
                }
                if let Some(index) = operation.index {
                    line["index"] = index.into();
                }
                lines.push((returned, line));
            }
        }
        for seen in transitions {
            let line = json!({
                "run": self.run, "type": "transition", "event": seen.event.as_str(), "cause": seen.cause.map(GrantCause::as_str), "index": seen.index,
                "part": seen.part, "name": seen.name, "holder": seen.holder, "token": seen.token.to_string(),
            });
            lines.push((seen.at, line));
        }
        // An invocation precedes a return of the same time: the sort is stable, and invocations were pushed first.
        lines.sort_by_key(|(time, _)| *time);
        for (time, mut line) in lines {
            line["time_ns"] = (time.as_nanos() as u64).into();
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }
}

fn function(what: &RequestKind) -> &'static str {
    match what {
        RequestKind::Acquire { .. } => "acquire",
        RequestKind::Renew { .. } => "renew",
        RequestKind::Release { .. } => "release",
        RequestKind::HandOver { .. } => "hand_over",
        RequestKind::UpdateMetadata { .. } => "update_metadata",
        RequestKind::Revoke => "revoke",
        RequestKind::Read => "read",
    }
}

fn arguments(what: &RequestKind) -> Value {
    match what {
        RequestKind::Acquire { ttl_ms, limit, wait_ms, lock_delay_ms } => {
            let wait = wait_ms.is_some();
            json!({"ttl_ms": ttl_ms, "limit": limit, "wait": wait, "wait_ms": wait_ms, "lock_delay_ms": lock_delay_ms})
        }
        RequestKind::Renew { token } | RequestKind::Release { token } => json!({"token": token.to_string()}),
        RequestKind::HandOver { token, to } => {
            json!({"token": token.to_string(), "to": to.as_ref().map(|to| to.as_str())})
        }
        RequestKind::UpdateMetadata { token, version, tag } => {
            json!({"token": token.to_string(), "version": version, "tag": tag})
        }
        RequestKind::Revoke | RequestKind::Read => Value::Null,
    }
}

/// The type of the line, the value, and the code of a refusal.
fn end(ended: &Ended) -> (&'static str, Value, Option<&str>) {
    match ended {
        Ended::Held(token, left) => ("ok", json!({"token": token.to_string(), "expires_in_ms": left}), None),
        Ended::Changed(changed) => ("ok", json!({"changed": changed}), None),
        Ended::Saw(held, index) => {
            let held = held.iter().map(|(holder, token)| json!({"holder": holder, "token": token.to_string()}));
            ("ok", json!({"index": index, "holders": held.collect::<Vec<Value>>()}), None)
        }
        Ended::Showed => ("ok", Value::Null, None),
        Ended::Updated { version, tag } => ("ok", json!({"version": version, "tag": tag}), None),
        Ended::Refused(code) => ("fail", Value::Null, Some(code)),
        Ended::Unknown => ("info", Value::Null, None),
    }
}
