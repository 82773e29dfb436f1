//! `tenure config`.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::failure::Failure;
use super::output::{self, Format, OutputArgument};
use crate::config::{Config, ConfigError, NodeEntry};

#[derive(Subcommand)]
pub enum Command {
    /// Check a configuration file, and report all its problems
    Check {
        /// Configuration file
        #[arg(default_value = "cluster.toml")]
        file: PathBuf,
        #[command(flatten)]
        format: OutputArgument,
    },
}

impl Command {
    /// The output format that the user asked for.
    pub fn output(&self) -> Format {
        let Command::Check { format, .. } = self;
        format.output
    }
}

pub fn run(command: Command) -> Result<(), Failure> {
    let Command::Check { file, format } = command;
    let config = Config::load(&file)?;
    if format.output == Format::Json {
        let node = |node: &NodeEntry| json!({"id": node.id, "http": node.http, "peer": node.peer, "data": node.data});
        let nodes: Vec<_> = config.nodes.iter().map(node).collect();
        return output::json(&json!({"cluster": config.cluster, "nodes": nodes, "warnings": config.warnings()}));
    }
    for warning in config.warnings() {
        message!("warning: {warning}");
    }
    message!("{}: cluster {}, {} nodes", file.display(), config.cluster, config.nodes.len());
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
