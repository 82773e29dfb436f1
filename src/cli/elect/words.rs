//! The output of `tenure elect`: one line per event.

use serde_json::{Value, json};

use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};
use crate::client::Loss;
use crate::election::LeaderView;
use crate::token::FencingToken;

#[derive(Clone, Copy)]
pub struct EventPrinter {
    pub format: Format,
    /// Whether to print to stderr, because a command uses stdout.
    pub to_stderr: bool,
}

impl EventPrinter {
    /// Prints the current leader.
    pub fn view(self, view: &LeaderView) -> Result<(), Failure> {
        match &view.leader {
            None => self.line(json!({"event": "leader", "holder": null}), "no leader".to_owned()),
            Some(leader) => self.line(
                json!({
                    "event": "leader", "holder": leader.holder, "token": leader.token.to_string(),
                    "established": leader.is_established, "metadata": leader.metadata,
                }),
                format!("{} leads, token {}", leader.holder, leader.token),
            ),
        }
    }

    pub fn elected(self, token: FencingToken) -> Result<(), Failure> {
        self.line(json!({"event": "elected", "token": token.to_string()}), format!("elected, token {token}"))
    }

    pub fn resigned(self, token: FencingToken) -> Result<(), Failure> {
        self.line(json!({"event": "resigned", "token": token.to_string()}), format!("resigned, token {token}"))
    }

    pub fn lost(self, token: FencingToken, why: Option<Loss>) -> Result<(), Failure> {
        let (reason, why) = match why {
            Some(why) => (why.as_str(), why.to_string()),
            // The candidate has ended its leadership before the lease expired, and perhaps could not release the lease.
            None => ("unreachable", "the lease could not be renewed or released".to_owned()),
        };
        let event = json!({"event": "lost", "token": token.to_string(), "reason": reason});
        self.line(event, format!("lost, token {token}: {why}"))
    }

    fn line(self, event: Value, text: String) -> Result<(), Failure> {
        let line = if self.format == Format::Json { event.to_string() } else { text };
        if self.to_stderr {
            message!("{line}");
            return Ok(());
        }
        output::line(&line)
    }
}
