//! The output of commands on stdout: tables or JSON.

use std::io::{ErrorKind, Write};

use clap::{Args, ValueEnum};
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::duration;
use super::failure::Failure;
use crate::api::{Event, EventKind, LeaseInfo};

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text in columns
    Table,
    /// JSON, one value per line
    Json,
}

/// The output format of a command that sends no request.
#[derive(Args, Clone, Copy)]
pub struct OutputArgument {
    /// Output format
    #[arg(short, long, default_value = "table")]
    pub output: Format,
}

/// Writes text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(error) => Err(Failure::Other(anyhow::Error::new(error).context("cannot write to stdout"))),
    }
}

/// Prints one line.
pub fn line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// Prints a value as JSON, on one line.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).expect("API types have string keys and finite numbers");
    line(&text)
}

/// Prints a table.
pub fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<(), Failure> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(headings);
    table.add_rows(rows);
    let text: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    print(&text)
}

/// Prints leases, one line each.
pub fn leases(leases: &[LeaseInfo]) -> Result<(), Failure> {
    let headings = ["NAME", "STATE", "HOLDER", "TOKEN", "TTL", "EXPIRES IN", "RENEWALS", "WAITERS", "GRANTED"];
    table(&headings, leases.iter().map(row))
}

fn row(lease: &LeaseInfo) -> Vec<String> {
    vec![
        lease.name.clone(),
        lease.state.as_str().replace('_', " "),
        lease.holder.clone(),
        lease.token.to_string(),
        lease.ttl_ms.as_millis().map_or("infinite".to_owned(), duration::show),
        lease.expires_in_ms.map_or("-".to_owned(), duration::show),
        lease.renewals.to_string(),
        lease.waiters.to_string(),
        lease.granted_at.to_string(),
    ]
}

/// Text of another client, on one line: a terminal must not execute its control characters.
pub fn one_line(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Formats a transition as one line of text.
pub fn transition(event: &Event) -> String {
    let Event { at, name, holder, token, .. } = event;
    let mut words = format!("{at}  {:<11}  {name}  {holder}  token {token}", event.event.as_str());
    match (event.event, &event.reason, &event.to) {
        (EventKind::Revoked, Some(reason), _) if !reason.is_empty() => {
            words.push_str(&format!("  because: {}", one_line(reason)));
        }
        (EventKind::HandedOver, _, Some(to)) => words.push_str(&format!("  to {to}")),
        _ => {}
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_of_a_lease_has_the_order_of_its_headings() {
        let json = r#"{"name":"jobs","holder":"h","token":"7","term":3,"index":12,"ttl_ms":30000,"expires_in_ms":20,
            "state":"handed_over","granted_at":"2026-01-31T12:00:00.000Z","renewed_at":"2026-01-31T13:00:00.000Z",
            "renewals":4,"limit":1,"lock_delay_ms":0,"waiters":5}"#;
        let lease: LeaseInfo = serde_json::from_str(json).expect("a lease");
        let expected = ["jobs", "handed over", "h", "7", "30s", "20ms", "4", "5", "2026-01-31T12:00:00.000Z"];
        assert_eq!(row(&lease), expected);
    }

    #[test]
    fn transition_of_a_hand_over_names_the_next_holder() {
        let json = r#"{"event":"handed_over","index":12,"part":0,"name":"jobs","holder":"h","token":"7","to":"next",
            "at":"2026-01-31T12:00:00.000Z"}"#;
        let shown = transition(&serde_json::from_str(json).expect("an event"));
        assert!(shown.ends_with("jobs  h  token 7  to next"), "{shown}");
    }

    #[test]
    fn reason_of_a_revoke_stays_on_its_line() {
        let json = r#"{"event":"revoked","index":12,"part":0,"name":"jobs","holder":"h","token":"7",
            "reason":"it's \"stuck\"\n2026-01-31  granted\u001b[2J\u0085é","at":"2026-01-31T12:00:00.000Z"}"#;
        let shown = transition(&serde_json::from_str(json).expect("an event"));
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        let reason = shown.split_once("  because: ").expect("a reason").1;
        assert_eq!(reason, r#"it's "stuck"\n2026-01-31  granted\u{1b}[2J\u{85}é"#);
    }
}
