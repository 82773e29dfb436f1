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
    /// Whether a call of the client can be cancelled: not in a thread.
    pub cancels: bool,
}

/// A driver in another language.
struct Other {
    name: &'static str,
    /// The variable with its command.
    variable: &'static str,
    /// The file that replaces `driver` in the command.
    file: &'static str,
    resolution: Duration,
    cancels: bool,
}

const OTHERS: [Other; 3] = [
    Other {
        name: "Python",
        variable: "TENURE_PYTHON_DRIVER",
        file: "driver",
        resolution: Duration::ZERO,
        cancels: true,
    },
    Other {
        name: "Python-sync",
        variable: "TENURE_PYTHON_DRIVER",
        file: "driver_sync",
        resolution: Duration::ZERO,
        cancels: false,
    },
    Other {
        name: "TypeScript",
        variable: "TENURE_TYPESCRIPT_DRIVER",
        file: "driver",
        // Node.js has no function that reads CLOCK_BOOTTIME. /proc/uptime has hundredths of a second.
        resolution: Duration::from_millis(10),
        cancels: true,
    },
];

/// The Rust client. Cargo builds its driver as an example.
pub fn rust() -> Language {
    let driver = example("conformance_driver");
    let driver = driver.unwrap_or_else(|| panic!("run cargo build --all-features --example conformance_driver"));
    let command = vec![driver.display().to_string()];
    Language { name: "Rust", command, environment: Vec::new(), resolution: Duration::ZERO, cancels: true }
}

/// The clients whose drivers the environment names, and the names of the others.
pub fn others() -> (Vec<Language>, Vec<&'static str>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for Other { name, variable, file, resolution, cancels } in OTHERS {
        match std::env::var(variable) {
            Ok(line) if !line.trim().is_empty() => {
                let line = line.replace("/conformance/driver.", &format!("/conformance/{file}."));
                let command = line.split_whitespace().map(str::to_owned).collect();
                found.push(Language { name, command, environment: Vec::new(), resolution, cancels });
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
