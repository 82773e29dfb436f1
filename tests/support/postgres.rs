//! A PostgreSQL server for tests. Include it with `#[path]` from any test target.
//!
//! `TENURE_TEST_POSTGRES` names a running server: a libpq URL or `key=value` text, with a role that may create schemas.
//! Without it, the test starts the installed programs in a temporary folder, on a Unix socket and no port. PostgreSQL
//! refuses to run as root, so a test that runs as root starts it as the user `postgres`.
//!
//! Without a server, the tests and `scripts/check` report that nothing was checked. With `TENURE_REQUIRE_SERVERS=1`, as
//! in CI, the tests fail.
//!
//! The server runs without fsync, because no test here cuts the power.

use std::env;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getuid, kill_process};
use tempfile::TempDir;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls};

const HOW_TO_INSTALL: &str = "these tests need a PostgreSQL server. Install one (Debian, Ubuntu: apt-get install \
     postgresql; Fedora: dnf install postgresql-server), or set TENURE_TEST_POSTGRES to the URL of a running one";
/// The limit for the start of the server.
const SOON: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// A server, and a schema that belongs to this test.
pub struct PostgresServer {
    config: Config,
    /// The server process that this test started. It is declared before the folder that it writes to.
    process: Option<Child>,
    _folder: Option<TempDir>,
}

impl PostgresServer {
    /// Starts or finds a server. Returns `None` if there is no server and none is required.
    ///
    /// Call it from the thread of the test: the server ends with the thread that started it, so a killed test leaves
    /// none.
    pub async fn start() -> Option<PostgresServer> {
        let (config, process, folder) = match (env::var("TENURE_TEST_POSTGRES"), programs()) {
            (Ok(url), _) => {
                (Config::from_str(&url).expect("TENURE_TEST_POSTGRES is a libpq URL or key=value text"), None, None)
            }
            (Err(_), Some(programs)) => start_own(&programs),
            (Err(_), None) => {
                let required = env::var("TENURE_REQUIRE_SERVERS").is_ok_and(|required| required == "1");
                assert!(!required, "{HOW_TO_INSTALL}");
                println!("NOT CHECKED: {HOW_TO_INSTALL}");
                return None;
            }
        };
        let mut server = PostgresServer { config, process, _folder: folder };
        let admin = server.connect_when_up().await;
        let schema = format!("tenure_{}_{}", std::process::id(), unique());
        admin.batch_execute(&format!("CREATE SCHEMA {schema}")).await.expect("the role may create schemas");
        server.config.options(format!("-c search_path={schema}"));
        Some(server)
    }

    /// Opens a connection with the schema of the test as its search path.
    pub async fn connect(&self) -> Client {
        self.try_connect()
            .await
            .unwrap_or_else(|error| panic!("cannot connect to the running PostgreSQL server: {error}"))
    }

    /// The connection settings for other programs.
    #[allow(dead_code, reason = "not every test target starts other programs")]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The connection settings as `key=value` text.
    #[allow(dead_code, reason = "not every test target starts other programs")]
    pub fn text(&self) -> String {
        let quoted = |value: &str| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"));
        let mut words = Vec::new();
        for host in self.config.get_hosts() {
            words.push(match host {
                Host::Tcp(name) => format!("host={}", quoted(name)),
                Host::Unix(folder) => format!("host={}", quoted(&folder.to_string_lossy())),
            });
        }
        words.extend(self.config.get_ports().iter().map(|port| format!("port={port}")));
        let password = self.config.get_password().map(String::from_utf8_lossy);
        for (key, value) in [
            ("user", self.config.get_user()),
            ("password", password.as_deref()),
            ("dbname", self.config.get_dbname()),
            ("options", self.config.get_options()),
        ] {
            words.extend(value.map(|value| format!("{key}={}", quoted(value))));
        }
        words.join(" ")
    }

    async fn try_connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        // The task ends when the client is dropped, or with the runtime of the test.
        tokio::spawn(connection);
        Ok(client)
    }

    async fn connect_when_up(&mut self) -> Client {
        let began = Instant::now();
        loop {
            let error = match self.try_connect().await {
                Ok(client) => return client,
                Err(error) => error,
            };
            if let Some(process) = &mut self.process
                && let Some(status) = process.try_wait().expect("it is a child")
            {
                let mut said = String::new();
                drop(process.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said)));
                panic!("PostgreSQL ended with {status}:\n{said}");
            }
            assert!(began.elapsed() < SOON, "PostgreSQL is not up after {SOON:?}: {error}");
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let Some(process) = &mut self.process else { return };
        // An immediate shutdown: the test needs none of the data. The process may have ended already.
        let _ = kill_process(Pid::from_child(process), Signal::QUIT);
        drop(process.wait());
    }
}

fn start_own(programs: &Path) -> (Config, Option<Child>, Option<TempDir>) {
    let folder = tempfile::Builder::new().prefix("tenure-pg-").tempdir().expect("a folder");
    let user = getuid().is_root().then(|| give_away(folder.path()));
    let data = folder.path().join("data");
    let made = run_as(user.as_deref(), &programs.join("initdb"))
        .args(["--auth=trust", "--username=tenure", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
        .arg(&data)
        .output()
        .expect("setpriv (util-linux) is installed");
    assert!(made.status.success(), "initdb failed:\n{}", String::from_utf8_lossy(&made.stderr));
    let process = run_as(user.as_deref(), &programs.join("postgres"))
        .args([
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "log_min_messages=fatal",
            "-c",
            "max_connections=50",
        ])
        .arg("-k")
        .arg(folder.path())
        .arg("-D")
        .arg(&data)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("setpriv starts, as it did for initdb");
    let mut config = Config::new();
    config.host_path(folder.path()).user("tenure").dbname("postgres");
    (config, Some(process), Some(folder))
}

/// The folder with `initdb` and `postgres`: on the PATH, or where Debian and Fedora install them, the newest version
/// first.
fn programs() -> Option<PathBuf> {
    let on_path = env::var_os("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|item| Some((item.file_name().to_str()?.parse().ok()?, item.path().join("bin"))))
        .collect();
    versions.sort_by(|one, other| other.cmp(one));
    let installed = versions.into_iter().map(|(_, bin)| bin);
    on_path.into_iter().chain(installed).find(|bin| bin.join("initdb").is_file() && bin.join("postgres").is_file())
}

/// Gives the folder to a user that PostgreSQL accepts, and returns the user.
fn give_away(folder: &Path) -> String {
    let id = |user: &str, what: &str| {
        let said = Command::new("id").args([what, user]).stderr(Stdio::null()).output().ok()?;
        String::from_utf8(said.stdout).ok()?.trim().parse::<u32>().ok()
    };
    let user = ["postgres", "nobody"].into_iter().find(|user| id(user, "-u").is_some());
    let user = user.expect("PostgreSQL does not run as root: create a user \"postgres\" or \"nobody\"");
    chown(folder, id(user, "-u"), id(user, "-g")).expect("root may give a folder away");
    assert_ne!(fs::metadata(folder).expect("the folder exists").uid(), 0);
    user.to_owned()
}

/// A command whose process ends with this thread.
fn run_as(user: Option<&str>, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    if let Some(user) = user {
        let group = Command::new("id").args(["-g", user]).output().expect("id ran before").stdout;
        let group = String::from_utf8(group).expect("a number");
        command.args(["--reuid", user, "--regid", group.trim(), "--clear-groups"]);
    }
    command.args(["--pdeathsig", "QUIT", "--"]).arg(program).stdin(Stdio::null()).current_dir("/");
    command
}

/// A number that no other test of this program has.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
