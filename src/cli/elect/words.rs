//! What `tenure elect` prints: a line for each thing that happens, on stderr while stdout is a command's.

use serde_json::{Value, json};

use crate::cli::failure::Failure;
use crate::cli::output::{self, Format};
use crate::client::HoldState;
use crate::election::LeaderView;
use crate::token::FencingToken;

#[derive(Clone, Copy)]
pub struct Words {
    pub format: Format,
    /// Stdout is a command's.
    pub aside: bool,
}

impl Words {
    /// Who leads.
    pub fn view(self, view: &LeaderView) -> Result<(), Failure> {
        match &view.leader {
            None => self.line(json!({"event": "leader", "holder": null}), "nobody leads".to_owned()),
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

    pub fn lost(self, token: FencingToken, state: HoldState) -> Result<(), Failure> {
        let (reason, why) = match state {
            HoldState::Lost { why, .. } => (why.as_str(), why.to_string()),
            // Given up before its time was over, because it could not be renewed.
            _ => ("unreachable", "it could not be renewed".to_owned()),
        };
        let event = json!({"event": "lost", "token": token.to_string(), "reason": reason});
        self.line(event, format!("lost, token {token}: {why}"))
    }

    fn line(self, event: Value, words: String) -> Result<(), Failure> {
        let line = if self.format == Format::Json { event.to_string() } else { words };
        if self.aside {
            eprintln!("{line}");
            return Ok(());
        }
        output::line(&line)
    }
}
