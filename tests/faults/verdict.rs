//! What a run came to.

use std::fmt;

/// Which promise was broken, for which lease if it is about one, and how.
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
