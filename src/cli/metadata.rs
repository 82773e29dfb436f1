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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_can_be_empty_or_have_an_equals_sign() {
        let entry = |key: &str, value: &str| Ok((key.to_owned(), value.to_owned()));
        assert_eq!(read("url=http://a/?x=1"), entry("url", "http://a/?x=1"));
        assert_eq!(read("url="), entry("url", ""));
        assert!(read("url").is_err());
    }
}
