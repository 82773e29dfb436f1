//! A broken promise.

use std::fmt;

/// A broken promise: its name, the lease if it concerns one, and the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub promise: &'static str,
    pub name: Option<String>,
    pub how: String,
}

impl Broken {
    pub fn of_lease(promise: &'static str, name: &str, how: impl Into<String>) -> Broken {
        Broken { promise, name: Some(name.to_owned()), how: how.into() }
    }

    pub fn of_cluster(promise: &'static str, how: impl Into<String>) -> Broken {
        Broken { promise, name: None, how: how.into() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map_or(String::new(), |name| format!(" of {name}"));
        write!(f, "{}{name}: {}", self.promise, self.how)
    }
}
