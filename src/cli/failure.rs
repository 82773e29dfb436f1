//! Errors of commands, and their exit codes.

use std::process::ExitCode;

use super::output::Format;
use crate::api::{Code, Problem};
use crate::client::CallError;
use crate::telemetry::Logs;

/// An error of a command.
#[derive(Debug)]
pub enum Failure {
    /// The cluster refused the request.
    Refused(Box<Problem>),
    /// The request may be applied.
    Unknown(String),
    /// No node could be reached or could serve: the request is certainly not applied.
    Unavailable(String),
    /// The command line or a configuration file is invalid.
    Usage(String),
    /// `tenure doctor` found problems.
    Unhealthy(String),
    /// The reader of stdout has closed it, for instance `head`. This counts as success.
    OutputClosed,
    /// The cluster removed the node of this process.
    Removed(String),
    /// The command has printed its error, and exits with this code.
    Printed(u8),
    /// A signal ended the command, which exits with this code.
    Stopped(u8, String),
    Other(anyhow::Error),
}

impl Failure {
    /// Prints the error on stderr, and returns the exit code. With JSON, the error is a problem document on one line.
    pub fn report(self, format: Format) -> ExitCode {
        let code = self.exit_code();
        match format {
            _ if matches!(self, Failure::OutputClosed | Failure::Printed(_)) => {}
            Format::Table => message!("tenure: {}", self.message()),
            Format::Json => message!("{}", self.problem()),
        }
        ExitCode::from(code)
    }

    /// Prints the error as the last line of the logs, which never blocks.
    pub fn print(self, logs: &Logs) -> Failure {
        logs.print(format_args!("tenure: {}", self.message()));
        Failure::Printed(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        match self {
            Failure::Printed(code) | Failure::Stopped(code, _) => *code,
            Failure::OutputClosed => 0,
            Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unknown(_) => 3,
            Failure::Unavailable(_) => 4,
            Failure::Removed(_) => 8,
            Failure::Unhealthy(_) => 9,
            Failure::Refused(problem) => match problem.code {
                Code::Invalid => 2,
                Code::Held | Code::LockDelay | Code::WaitTimeout | Code::WaitAbandoned => 5,
                Code::Lost => 6,
                Code::NotFound => 7,
                _ => 1,
            },
        }
    }

    pub fn message(&self) -> String {
        match self {
            Failure::Refused(problem) => format!("refused ({}): {}", problem.code.as_str(), problem.detail),
            Failure::Unknown(why)
            | Failure::Unavailable(why)
            | Failure::Usage(why)
            | Failure::Removed(why)
            | Failure::Unhealthy(why)
            | Failure::Stopped(_, why) => why.clone(),
            Failure::OutputClosed | Failure::Printed(_) => String::new(),
            Failure::Other(error) => format!("{error:#}"),
        }
    }

    /// The problem document of the cluster, or one that this command makes.
    fn problem(&self) -> serde_json::Value {
        let code = match self {
            Failure::Refused(problem) => return serde_json::json!(problem),
            Failure::Unknown(_) => "outcome_unknown",
            Failure::Unavailable(_) => "unavailable",
            Failure::Usage(_) => "invalid",
            Failure::Unhealthy(_) => "unhealthy",
            Failure::OutputClosed
            | Failure::Printed(_)
            | Failure::Removed(_)
            | Failure::Stopped(..)
            | Failure::Other(_) => "failed",
        };
        serde_json::json!({"code": code, "detail": self.message()})
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let message = error.to_string();
        match error {
            CallError::Refused(problem) => Failure::Refused(problem),
            CallError::Unknown { .. } => Failure::Unknown(message),
            CallError::Unavailable(_) | CallError::ShutDown => Failure::Unavailable(message),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script decides by it whether a request can be repeated.
    #[test]
    fn problem_document_shows_the_kind_of_a_failure() {
        let why = || "why".to_owned();
        let refused = Failure::Refused(Box::new(Problem::new(Code::Held, why())));
        for (failure, code) in [
            (refused, "held"),
            (Failure::Unknown(why()), "outcome_unknown"),
            (Failure::Unavailable(why()), "unavailable"),
            (Failure::Usage(why()), "invalid"),
            (Failure::Unhealthy(why()), "unhealthy"),
            (Failure::Removed(why()), "failed"),
            (Failure::Other(anyhow::anyhow!("why")), "failed"),
        ] {
            let problem = failure.problem();
            assert_eq!((&problem["code"], &problem["detail"]), (&code.into(), &"why".into()), "{failure:?}");
        }
    }

    #[test]
    fn exit_code_shows_the_kind_of_a_failure() {
        let why = || "why".to_owned();
        let others = [
            (Failure::OutputClosed, 0),
            (Failure::Other(anyhow::anyhow!("why")), 1),
            (Failure::Usage(why()), 2),
            (Failure::Unknown(why()), 3),
            (Failure::Unavailable(why()), 4),
            (Failure::Removed(why()), 8),
            (Failure::Unhealthy(why()), 9),
        ];
        let refused = [
            (Code::Invalid, 2),
            (Code::Held, 5),
            (Code::LockDelay, 5),
            (Code::WaitTimeout, 5),
            (Code::WaitAbandoned, 5),
            (Code::Lost, 6),
            (Code::NotFound, 7),
            (Code::Unauthenticated, 1),
            (Code::Forbidden, 1),
            (Code::NoSuchWaiter, 1),
            (Code::MemberRefused, 1),
            (Code::QueueFull, 1),
            (Code::Other, 1),
        ];
        let refused = refused.map(|(code, expected)| (Failure::Refused(Box::new(Problem::new(code, why()))), expected));
        for (failure, expected) in others.into_iter().chain(refused) {
            assert_eq!(failure.exit_code(), expected, "{failure:?}");
        }
    }
}
