//! The text of a file: its values, and their lines.

use std::collections::BTreeMap;

use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::Problems;
use super::reader::{Found, SettingProblem};

pub(super) struct Source<'t> {
    text: &'t str,
    /// Where each key and each table of an array starts, by path.
    offsets: BTreeMap<String, usize>,
}

impl Source<'_> {
    /// Parses the text. Also returns its values.
    ///
    /// # Errors
    ///
    /// The text is not TOML.
    pub fn parse(text: &str) -> Result<(Source<'_>, Value), Problems> {
        let refused = |error: toml::de::Error| Problems(vec![error.to_string().trim().to_owned()]);
        let values = toml::from_str(text).map_err(refused)?;
        let mut source = Source { text, offsets: BTreeMap::new() };
        source.add_keys("", DeTable::parse(text).map_err(refused)?.get_ref());
        Ok((source, values))
    }

    fn add_keys(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(inner) => self.add_keys(&format!("{path}."), inner),
                DeValue::Array(items) => {
                    for (number, item) in (1..).zip(items.iter()) {
                        let path = format!("{path}[{number}]");
                        if let DeValue::Table(inner) = item.get_ref() {
                            self.add_keys(&format!("{path}."), inner);
                        }
                        self.offsets.insert(path, item.span().start);
                    }
                }
                _ => {}
            }
            self.offsets.insert(path, key.span().start);
        }
    }

    /// The problems with their lines, in the order of the file.
    pub fn locate(&self, found: Found) -> Problems {
        let mut located: Vec<(usize, SettingProblem)> =
            found.0.into_iter().map(|problem| (self.offset(&problem.path), problem)).collect();
        located.sort_by_key(|(offset, _)| *offset);
        let line = |offset: usize| self.text[..offset].matches('\n').count() + 1;
        Problems(located.into_iter().map(|(offset, problem)| format!("{problem} (line {})", line(offset))).collect())
    }

    /// Where the setting starts. An absent one has the place of its table, which is the start of the file for a key
    /// outside of tables.
    fn offset(&self, path: &str) -> usize {
        let table = || path.rsplit_once('.').and_then(|(table, _)| self.offsets.get(table));
        self.offsets.get(path).or_else(table).copied().unwrap_or_default()
    }
}
