//! Takes the values out of a TOML table one by one, and notes every problem on the way instead of stopping at the
//! first. Keys that nobody took are unknown.

use toml::{Table, Value};

/// A table that is being read, and what was wrong with it so far.
pub struct Reader {
    table: Table,
    /// Where the table is in the file (`raft.`, `node[2].`), so that a problem names its key.
    place: String,
    /// Every key that was asked for: what an unknown key could have been.
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl Reader {
    pub fn new(table: Table) -> Reader {
        Reader { table, place: String::new(), known: Vec::new(), problems: Vec::new() }
    }

    fn within(table: Table, place: String) -> Reader {
        Reader { place, ..Reader::new(table) }
    }

    /// Notes a problem. `what` begins with the key, or keys, it is about.
    pub fn problem(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.problems.push(format!("{}{what}", self.place));
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn wrong_type(&mut self, key: &str, wanted: &str, found: &Value) {
        self.problem(format!("{key}: expected {wanted}, found {} {found}", found.type_str()));
    }

    /// A text that must be there. Empty if it is not, which is noted.
    pub fn required_text(&mut self, key: &'static str) -> String {
        match self.take(key) {
            Some(Value::String(text)) if !text.is_empty() => return text,
            Some(Value::String(_)) => self.problem(format!("{key}: is empty")),
            Some(other) => self.wrong_type(key, "a text", &other),
            None => self.problem(format!("{key}: is missing")),
        }
        String::new()
    }

    pub fn text(&mut self, key: &'static str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong_type(key, "a text", &other);
                None
            }
        }
    }

    pub fn flag(&mut self, key: &'static str, default: bool) -> bool {
        match self.take(key) {
            Some(Value::Boolean(flag)) => flag,
            Some(other) => {
                self.wrong_type(key, "true or false", &other);
                default
            }
            None => default,
        }
    }

    /// An integer within `min..=max`, which the default need not be part of.
    pub fn number(&mut self, key: &'static str, default: u64, min: u64, max: u64) -> u64 {
        self.optional_number(key, min, max).unwrap_or(default)
    }

    pub fn required_number(&mut self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        if !self.table.contains_key(key) {
            self.known.push(key);
            self.problem(format!("{key}: is missing"));
            return None;
        }
        self.optional_number(key, min, max)
    }

    fn optional_number(&mut self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        match self.take(key)? {
            Value::Integer(number) => match u64::try_from(number) {
                Ok(number) if (min..=max).contains(&number) => return Some(number),
                _ => self.problem(format!("{key}: {number} is outside {min} to {max}")),
            },
            other => self.wrong_type(key, "an integer", &other),
        }
        None
    }

    /// Reads a table, which counts as empty when it is not there.
    pub fn section<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Reader) -> T) -> T {
        let table = match self.take(key) {
            Some(Value::Table(table)) => table,
            Some(other) => {
                self.wrong_type(key, "a table", &other);
                Table::new()
            }
            None => Table::new(),
        };
        self.inner(table, format!("{key}."), read)
    }

    /// Reads an array of tables (`[[node]]`), the first of which is number 1 in a problem's text.
    pub fn tables<T>(&mut self, key: &'static str, mut read: impl FnMut(&mut Reader) -> T) -> Vec<T> {
        let tables = match self.take(key) {
            Some(Value::Array(tables)) => tables,
            Some(other) => {
                self.wrong_type(key, &format!("[[{key}]] tables"), &other);
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let mut values = Vec::with_capacity(tables.len());
        for (number, table) in (1..).zip(tables) {
            match table {
                Value::Table(table) => values.push(self.inner(table, format!("{key}[{number}]."), &mut read)),
                other => self.wrong_type(key, &format!("[[{key}]] tables"), &other),
            }
        }
        values
    }

    fn inner<T>(&mut self, table: Table, place: String, read: impl FnOnce(&mut Reader) -> T) -> T {
        let mut inner = Reader::within(table, format!("{}{place}", self.place));
        let value = read(&mut inner);
        self.problems.extend(inner.finish());
        value
    }

    /// All problems, unknown keys among them.
    pub fn finish(mut self) -> Vec<String> {
        let known = self.known.join(", ");
        for key in self.table.keys() {
            self.problems.push(format!("{}{key}: unknown key; known here: {known}", self.place));
        }
        self.problems
    }
}
