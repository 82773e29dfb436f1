//! What goes wrong in a command, and the exit code that says so.

use std::process::ExitCode;

use crate::api::Problem;
use crate::client::CallError;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The cluster said no.
    Refused(Box<Problem>),
    /// What was asked for may have been done.
    Unknown(String),
    /// Certainly not done: nobody could.
    Unavailable(String),
    /// The command line or a configuration file is not valid.
    Usage(String),
    /// Whoever reads our output has gone: no failure of ours.
    OutputClosed,
    Other(anyhow::Error),
}

impl Failure {
    /// Says it on stderr.
    pub fn report(self) -> ExitCode {
        let (code, words) = match self {
            Failure::Refused(problem) => (1, format!("refused ({}): {}", problem.code.as_str(), problem.detail)),
            Failure::Unknown(why) => (3, why),
            Failure::Unavailable(why) => (4, why),
            Failure::Usage(why) => (2, why),
            Failure::OutputClosed => return ExitCode::SUCCESS,
            Failure::Other(error) => (1, format!("{error:#}")),
        };
        eprintln!("tenure: {words}");
        ExitCode::from(code)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Failure {
        let words = error.to_string();
        match error {
            CallError::Refused(problem) => Failure::Refused(problem),
            CallError::Unknown { .. } => Failure::Unknown(words),
            CallError::Unavailable(_) | CallError::ShutDown => Failure::Unavailable(words),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Other(error)
    }
}
