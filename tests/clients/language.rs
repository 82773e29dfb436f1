//! The clients under test, and how their drivers start.

use std::path::PathBuf;
use std::time::Duration;

/// A client library and its driver.
#[derive(Clone, Debug)]
pub struct Language {
    pub name: &'static str,
    /// The program of the driver and its arguments.
    pub command: Vec<String>,
    /// Additional environment variables of the driver.
    pub environment: Vec<(String, String)>,
    /// The resolution of the clock of the client. Its readings are up to this much too early.
    pub resolution: Duration,
}

/// The variables with the commands of the other drivers, and the resolutions of their clocks.
const OTHERS: [(&str, &str, Duration); 2] = [
    ("Python", "TENURE_PYTHON_DRIVER", Duration::ZERO),
    // Node.js has no function that reads CLOCK_BOOTTIME. /proc/uptime has hundredths of a second.
    ("TypeScript", "TENURE_TYPESCRIPT_DRIVER", Duration::from_millis(10)),
];

/// The Rust client. Cargo builds its driver as an example.
pub fn rust() -> Language {
    let driver = example("conformance_driver");
    let driver = driver.unwrap_or_else(|| panic!("run cargo build --all-features --example conformance_driver"));
    let command = vec![driver.display().to_string()];
    Language { name: "Rust", command, environment: Vec::new(), resolution: Duration::ZERO }
}

/// The clients whose drivers the environment names, and the names of the others.
pub fn others() -> (Vec<Language>, Vec<&'static str>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for (name, variable, resolution) in OTHERS {
        match std::env::var(variable) {
            Ok(line) if !line.trim().is_empty() => {
                let command = line.split_whitespace().map(str::to_owned).collect();
                found.push(Language { name, command, environment: Vec::new(), resolution });
            }
            _ => missing.push(name),
        }
    }
    (found, missing)
}

/// A file that cargo builds from an example of the library.
pub fn example(file: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().expect("a program has a path");
    let built = program.parent()?.parent()?.join("examples").join(file);
    Some(built).filter(|built| built.exists())
}
