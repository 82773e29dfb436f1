//! Notes beside a lease, as people write them: `KEY=VALUE`.

/// Reads one.
///
/// # Errors
///
/// What is wrong with it, in words.
pub fn read(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| "a note is KEY=VALUE".to_owned())?;
    Ok((key.to_owned(), value.to_owned()))
}
