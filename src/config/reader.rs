//! Deserializes settings. It collects all problems instead of stopping at the first one.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde_json::{Map, Value};
use serde_path_to_error::{Path, Segment};

/// Maximum number of values that cannot be read. [`read`] gives up after them, because each one needs another attempt.
const MAX_UNREADABLE: usize = 100;

/// A setting, and the reason why it is invalid.
#[derive(Debug)]
pub(super) struct SettingProblem {
    /// The setting's path in the file, such as `raft.snapshot_keep` or `node[2].http`.
    pub path: String,
    pub text: String,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// The problems so far.
#[derive(Debug, Default)]
pub(super) struct Found(pub Vec<SettingProblem>);

impl Found {
    pub fn add(&mut self, path: impl Into<String>, text: impl Into<String>) {
        self.0.push(SettingProblem { path: path.into(), text: text.into() });
    }

    /// Adds a problem of a setting that has none yet. A setting that cannot be read has its default, so its other
    /// problems are not the user's.
    pub fn add_first(&mut self, path: impl Into<String>, text: impl Into<String>) {
        let path = path.into();
        if self.0.iter().all(|problem| problem.path != path) {
            self.add(path, text);
        }
    }
}

/// Deserializes settings. Values that are absent or cannot be read have their defaults. Returns `None` if too many
/// values cannot be read.
pub(super) fn read<T>(defaults: &T, mut values: Value, found: &mut Found) -> Option<T>
where
    T: Serialize + DeserializeOwned,
{
    let defaults = to_values(defaults);
    refuse_arrays(&mut values, &defaults, found);
    for _ in 0..MAX_UNREADABLE {
        let mut settings = defaults.clone();
        overlay(&mut settings, &values);
        let error = match serde_path_to_error::deserialize(settings) {
            Ok(settings) => return Some(settings),
            Err(error) => error,
        };
        found.add(written(error.path()), error.inner().to_string());
        remove(&mut values, error.path());
    }
    None
}

pub(super) fn to_values(settings: &impl Serialize) -> Value {
    serde_json::to_value(settings).expect("settings have string keys and finite numbers")
}

/// Replaces the values of `base` by those of `values`. The other keys of its tables stay.
fn overlay(base: &mut Value, values: &Value) {
    match (base, values) {
        (Value::Object(base), Value::Object(values)) => {
            for (key, value) in values {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, values) => *base = values.clone(),
    }
}

/// Removes arrays in the place of tables: serde would read their elements as the keys of a table.
fn refuse_arrays(values: &mut Value, defaults: &Value, found: &mut Found) {
    const REFUSED: &str = "invalid type: sequence, expected a table";
    let Value::Object(values) = values else { return };
    for (key, value) in values {
        let Value::Array(elements) = value else { continue };
        // An absent table has the default `null`.
        if defaults[key].is_object() || defaults[key].is_null() {
            found.add(key, REFUSED);
            *value = Value::Object(Map::new());
            continue;
        }
        for (number, element) in (1..).zip(elements).filter(|(_, element)| element.is_array()) {
            found.add(format!("{key}[{number}]"), REFUSED);
            *element = Value::Object(Map::new());
        }
    }
}

/// Removes the value at `path`. An element of an array becomes an empty table, so that the others keep their numbers.
fn remove(values: &mut Value, path: &Path) {
    let mut parent = values;
    let mut segments = path.iter().peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none_or(|next| matches!(next, Segment::Enum { .. } | Segment::Unknown));
        parent = match (segment, parent) {
            (Segment::Map { key }, Value::Object(table)) if is_last => {
                table.remove(key);
                return;
            }
            (Segment::Seq { index }, Value::Array(tables)) if is_last => {
                tables[*index] = Value::Object(Map::new());
                return;
            }
            (Segment::Map { key }, table) => &mut table[key],
            (Segment::Seq { index }, tables) => &mut tables[*index],
            (Segment::Enum { .. } | Segment::Unknown, _) => return,
        };
    }
}

/// The path as in the file. Tables of an array are numbered from 1.
fn written(path: &Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } if text.is_empty() => text.push_str(key),
            Segment::Map { key } => text.push_str(&format!(".{key}")),
            Segment::Seq { index } => text.push_str(&format!("[{}]", index + 1)),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

/// Deserializes an integer from `MIN` to `MAX`.
pub(super) fn within<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    deserializer.deserialize_u64(Within::<T, MIN, MAX>(PhantomData))
}

struct Within<T, const MIN: u64, const MAX: u64>(PhantomData<T>);

impl<T: TryFrom<u64>, const MIN: u64, const MAX: u64> Visitor<'_> for Within<T, MIN, MAX> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let within = Some(number).filter(|number| (MIN..=MAX).contains(number));
        let outside = || E::custom(format_args!("{number} is outside {MIN} to {MAX}"));
        within.and_then(|number| T::try_from(number).ok()).ok_or_else(outside)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::custom(format_args!("{number} is outside {MIN} to {MAX}"))),
        }
    }
}
