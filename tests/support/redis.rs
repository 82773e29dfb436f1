//! A Redis server for tests, on a Unix socket and no port, and a client for the part of its protocol (RESP) that the
//! tests use.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The limit for the start of the server.
const SOON: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

pub struct RedisServer {
    process: Child,
    folder: TempDir,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Integer(i64),
    Text(String),
    Error(String),
    List(Vec<Reply>),
}

impl RedisServer {
    /// Starts a server. Returns `None` and prints a message if there is no `redis-server`. With
    /// `TENURE_REQUIRE_SERVERS=1` it panics.
    ///
    /// Call it from the thread of the test: the server ends with the thread that started it.
    pub fn start() -> Option<RedisServer> {
        let Some(program) = program() else {
            let required = env::var("TENURE_REQUIRE_SERVERS").is_ok_and(|required| required == "1");
            assert!(!required, "there is no redis-server (Debian, Ubuntu: apt-get install redis-server)");
            println!("NOT CHECKED: no redis-server");
            return None;
        };
        let folder = tempfile::Builder::new().prefix("tenure-redis-").tempdir().expect("a folder");
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no", "--unixsocket"])
            .arg(folder.path().join("socket"))
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("setpriv (util-linux) is installed");
        let server = RedisServer { process, folder };
        let began = Instant::now();
        while UnixStream::connect(server.folder.path().join("socket")).is_err() {
            assert!(began.elapsed() < SOON, "Redis is not up after {SOON:?}");
            std::thread::sleep(POLL);
        }
        Some(server)
    }

    pub fn connect(&self) -> Connection {
        let stream = UnixStream::connect(self.folder.path().join("socket")).expect("the server listens");
        Connection { stream: BufReader::new(stream) }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    /// Sends a command and waits for the reply.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(command.as_bytes())?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) =
            line.split_at_checked(1).ok_or_else(|| io::Error::other("Redis closed the connection without a reply"))?;
        let number = || rest.parse::<i64>().map_err(io::Error::other);
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => self.text(number()? as usize)?,
            "*" => Reply::List((0..number()?).map(|_| self.reply()).collect::<io::Result<_>>()?),
            _ => {
                return Err(io::Error::other(format!(
                    "unknown RESP reply {line:?}: expected a line that begins with one of + - : $ *"
                )));
            }
        })
    }

    fn text(&mut self, bytes: usize) -> io::Result<Reply> {
        let mut text = vec![0; bytes + 2];
        self.stream.read_exact(&mut text)?;
        text.truncate(bytes);
        String::from_utf8(text).map(Reply::Text).map_err(io::Error::other)
    }
}

fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join("redis-server")).find(|program| program.is_file())
}
