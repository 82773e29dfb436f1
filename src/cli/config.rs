//! `tenure config`.

use std::path::PathBuf;

use clap::Subcommand;

use super::failure::Failure;
use super::output;
use crate::config::{Config, ConfigError};

#[derive(Subcommand)]
pub enum Command {
    /// Check a configuration file, and report all its problems
    Check {
        /// Configuration file
        #[arg(default_value = "cluster.toml")]
        file: PathBuf,
    },
}

pub fn run(command: Command) -> Result<(), Failure> {
    let Command::Check { file } = command;
    let config = Config::load(&file)?;
    for warning in config.warnings() {
        eprintln!("warning: {warning}");
    }
    eprintln!("{}: cluster {}, {} nodes", file.display(), config.cluster, config.nodes.len());
    let rows = config
        .nodes
        .iter()
        .map(|node| vec![node.id.to_string(), node.http.clone(), node.peer.clone(), node.data.display().to_string()]);
    output::table(&["NODE", "HTTP", "PEER", "DATA"], rows)
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Failure {
        // With its cause.
        Failure::Usage(format!("{:#}", anyhow::Error::from(error)))
    }
}
