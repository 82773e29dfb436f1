//! The secret text of an access token.

use std::fmt;
use std::str::FromStr;

/// How each access token begins, so that a secret in the wrong place can be found.
const PREFIX: &str = "tenure_";
/// Bytes of the random part.
const SECRET_BYTES: usize = 32;
/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 4;

/// An access token: the secret with which a client proves which principal it is.
///
/// The text is `tenure_`, 64 hexadecimal digits, which are random, and 8 digits of their CRC-32. So a mistyped or
/// truncated token is found before it is sent. `Debug` does not show the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken(String);

/// The text is not an access token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an access token: expected \"tenure_\", 72 hexadecimal digits, and a correct checksum")]
pub struct InvalidToken;

impl AccessToken {
    /// The text. Each program that has it acts as the principal: never write it to a log.
    pub fn expose(&self) -> &str {
        &self.0
    }

    #[cfg(feature = "server")]
    #[doc(hidden)]
    pub fn from_secret(secret: [u8; SECRET_BYTES]) -> AccessToken {
        let secret = hex(&secret);
        let checksum = hex(&checksum(&secret));
        AccessToken(format!("{PREFIX}{secret}{checksum}"))
    }
}

impl FromStr for AccessToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<AccessToken, InvalidToken> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidToken)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
        if digits.len() != 2 * (SECRET_BYTES + CHECKSUM_BYTES) || !is_hex {
            return Err(InvalidToken);
        }
        let (secret, sum) = digits.split_at(2 * SECRET_BYTES);
        if sum != hex(&checksum(secret)) {
            return Err(InvalidToken);
        }
        Ok(AccessToken(text.to_owned()))
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(secret)")
    }
}

fn checksum(secret: &str) -> [u8; CHECKSUM_BYTES] {
    crc32fast::hash(secret.as_bytes()).to_be_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(all(test, feature = "server"))]
mod tests {
    use super::*;

    #[test]
    fn token_is_parsed_only_as_it_was_made() {
        let text = AccessToken::from_secret([0xa7; 32]).expose().to_owned();
        assert_eq!(text, format!("tenure_{}c097aaa3", "a7".repeat(32)));
        assert_eq!(text.parse::<AccessToken>().map(|token| token.expose().to_owned()), Ok(text.clone()));
        let mistyped = text.replacen("a7a7", "a77a", 1);
        let invalid =
            [&text[..78], &mistyped, &text.to_uppercase(), &format!("{text}0"), text.trim_start_matches("tenure_"), ""];
        for text in invalid {
            assert_eq!(text.parse::<AccessToken>(), Err(InvalidToken), "{text}");
        }
    }

    #[test]
    fn debug_text_has_no_secret() {
        let token = AccessToken::from_secret([0xa7; 32]);
        assert_eq!(format!("{token:?}"), "AccessToken(secret)");
    }
}
