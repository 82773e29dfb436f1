//! A resource for the tests: values behind a gate, as durable as the gate's marks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tenure::fence::conformance::{Answer, Resource};
use tenure::fence::{Gate, Refused};
use tenure::token::FencingToken;

/// Values in memory that outlive the shelf, like data on a disk outlives a process.
pub type Values = Arc<Mutex<BTreeMap<String, String>>>;

pub struct Shelf {
    pub gate: Gate,
    pub values: Values,
}

impl Shelf {
    pub fn open(marks: &Path, values: &Values) -> Shelf {
        let gate = Gate::open(PathBuf::from(marks)).unwrap_or_else(|error| panic!("{error}"));
        Shelf { gate, values: Arc::clone(values) }
    }
}

impl Resource for Shelf {
    type Error = Refused;

    async fn write(&self, item: &str, token: FencingToken, value: &str) -> Result<Answer, Refused> {
        let write = || async {
            // Lets other tasks run between the check and the write. The gate must block newer tokens here.
            tokio::task::yield_now().await;
            self.values.lock().expect("no panic").insert(item.to_owned(), value.to_owned());
        };
        match self.gate.admit(item, token, write).await {
            Ok(()) => Ok(Answer::Accepted),
            Err(Refused::Stale(_)) => Ok(Answer::Refused),
            Err(other) => Err(other),
        }
    }

    async fn read(&self, item: &str) -> Result<Option<String>, Refused> {
        Ok(self.values.lock().expect("no panic").get(item).cloned())
    }
}
