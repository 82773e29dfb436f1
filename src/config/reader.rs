//! Reads the values of a TOML table one by one. The reader records all problems instead of stopping at the first one.
//! Keys that remain in the table at the end are unknown keys.

use toml::{Table, Value};

/// The unread rest of a table, and the problems so far.
pub struct Reader {
    table: Table,
    /// The table's path in the file (`raft.`, `node[2].`), for problems.
    path: String,
    /// All keys that were read, for the problem about an unknown key.
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl Reader {
    pub fn new(table: Table) -> Reader {
        Reader { table, path: String::new(), known: Vec::new(), problems: Vec::new() }
    }

    fn within(table: Table, path: String) -> Reader {
        Reader { path, ..Reader::new(table) }
    }

    /// Records a problem. `text` starts with its key or keys.
    pub fn problem(&mut self, text: impl Into<String>) {
        let text = text.into();
        self.problems.push(format!("{}{text}", self.path));
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn wrong_type(&mut self, key: &str, expected: &str, found: &Value) {
        self.problem(format!("{key}: expected {expected}, found {} {found}", found.type_str()));
    }

    /// A required text. If it is missing, the reader records a problem and returns an empty text.
    pub fn required_text(&mut self, key: &'static str) -> String {
        match self.take(key) {
            Some(Value::String(text)) if !text.is_empty() => return text,
            Some(Value::String(_)) => self.problem(format!("{key}: must not be empty")),
            Some(other) => self.wrong_type(key, "a text", &other),
            None => self.problem(format!("{key}: required key is missing")),
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

    /// An integer in `min..=max`. The default may be outside this range.
    pub fn number(&mut self, key: &'static str, default: u64, min: u64, max: u64) -> u64 {
        self.optional_number(key, min, max).unwrap_or(default)
    }

    pub fn required_number(&mut self, key: &'static str, min: u64, max: u64) -> Option<u64> {
        if !self.table.contains_key(key) {
            self.known.push(key);
            self.problem(format!("{key}: required key is missing"));
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

    /// Reads a table. A missing table counts as empty.
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

    /// Reads an array of tables (`[[node]]`). Problems number the tables from 1.
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

    fn inner<T>(&mut self, table: Table, path: String, read: impl FnOnce(&mut Reader) -> T) -> T {
        let mut inner = Reader::within(table, format!("{}{path}", self.path));
        let value = read(&mut inner);
        self.problems.extend(inner.finish());
        value
    }

    /// Returns all problems, including unknown keys.
    pub fn finish(mut self) -> Vec<String> {
        let known = self.known.join(", ");
        for key in self.table.keys() {
            self.problems.push(format!("{}{key}: unknown key: expected one of {known}", self.path));
        }
        self.problems
    }
}
