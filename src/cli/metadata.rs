//! The parser of metadata arguments: `KEY=VALUE`.

/// Parses one entry.
///
/// # Errors
///
/// The text has no `=`. The error is a message for the user.
pub fn read(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("{text:?} has no `=`: expected KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}
