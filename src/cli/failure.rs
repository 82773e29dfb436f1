//! Errors of commands, and their exit codes.

use std::process::ExitCode;

use crate::api::Problem;
use crate::client::CallError;

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
    /// The reader of stdout has closed it, for instance `head`. This counts as success.
    OutputClosed,
    Other(anyhow::Error),
}

impl Failure {
    /// Prints the error on stderr, and returns the exit code.
    pub fn report(self) -> ExitCode {
        let (code, message) = match self {
            Failure::Refused(problem) => (1, format!("refused ({}): {}", problem.code.as_str(), problem.detail)),
            Failure::Unknown(why) => (3, why),
            Failure::Unavailable(why) => (4, why),
            Failure::Usage(why) => (2, why),
            Failure::OutputClosed => return ExitCode::SUCCESS,
            Failure::Other(error) => (1, format!("{error:#}")),
        };
        eprintln!("tenure: {message}");
        ExitCode::from(code)
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
