//! Bytes for values, and values from bytes: the only place that names bincode.
//!
//! The encoding is not self-describing: a reader of another shape would take a newer value for an older one without
//! complaint. So every use of it carries a version of its own, and [`decode`] insists on the last byte.

use bincode::config;
use serde::{Deserialize, Serialize};

/// The largest limit that [`decode`] takes, in bytes.
pub const MAX_DECODE_BYTES: usize = 1 << 30;

const SMALL: usize = 64 << 10;
const MEDIUM: usize = 4 << 20;
const LARGE: usize = 64 << 20;
/// Values of at most so many bytes are held to [`LARGE`], whatever the limit.
const LARGE_ENOUGH: usize = 8 << 20;

/// The bytes of a value.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(value, &mut bytes);
    bytes
}

/// Appends the bytes of a value.
pub fn encode_into<T: Serialize + ?Sized>(value: &T, bytes: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(value, bytes, config::standard())
        .expect("writing to memory does not fail, and our types have an encoding");
}

/// A value from exactly these bytes: more than `limit` of them, too few or too many are an error.
///
/// A length inside the bytes that claims more memory than the limit's class (64 KiB, 4 MiB, 64 MiB, 1 GiB) is refused
/// before anything is reserved for it, and the largest class takes 8 MiB of bytes to be reached. `limit` is at most
/// [`MAX_DECODE_BYTES`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], limit: usize) -> Result<T, DecodeError> {
    assert!(limit <= MAX_DECODE_BYTES, "a decode limit of {limit} bytes");
    if bytes.len() > limit {
        return Err(DecodeError::TooLong { bytes: bytes.len(), limit });
    }
    // bincode takes its limit as a type: one of four classes bounds what a hostile length can reserve.
    let config = config::standard();
    let decoded = if limit <= SMALL {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<SMALL>())
    } else if limit <= MEDIUM {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<MEDIUM>())
    } else if limit <= LARGE || bytes.len() <= LARGE_ENOUGH {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<LARGE>())
    } else {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<MAX_DECODE_BYTES>())
    };
    let (value, read) = decoded.map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if read != bytes.len() {
        return Err(DecodeError::Trailing { bytes: bytes.len(), read });
    }
    Ok(value)
}

/// Bytes that are not the value that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{bytes} bytes where at most {limit} are allowed")]
    TooLong { bytes: usize, limit: usize },
    #[error("{bytes} bytes of which only {read} belong to the value: it may come from a newer version")]
    Trailing { bytes: usize, read: usize },
    #[error("malformed bytes: {0}")]
    Malformed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_reads_back_and_its_bytes_are_frozen() {
        let value = (7u64, 300u64, Some("lease".to_string()), vec![1u8, 2, 3]);
        let bytes = encode(&value);
        assert_eq!(bytes, [7, 251, 44, 1, 1, 5, b'l', b'e', b'a', b's', b'e', 3, 1, 2, 3]);
        assert_eq!(decode(&bytes, 64), Ok(value));
    }

    #[test]
    fn more_or_fewer_bytes_than_the_value_are_refused() {
        let mut bytes = encode(&(1u64, 2u64));
        assert!(decode::<(u64, u64, u64)>(&bytes, 64).is_err());
        bytes.push(0);
        assert_eq!(decode::<(u64, u64)>(&bytes, 64), Err(DecodeError::Trailing { bytes: 3, read: 2 }));
        assert_eq!(decode::<(u64, u64)>(&bytes, 2), Err(DecodeError::TooLong { bytes: 3, limit: 2 }));
    }

    #[test]
    fn a_length_that_claims_the_memory_of_the_machine_is_refused() {
        let hostile = encode(&(u64::MAX >> 8));
        assert!(matches!(decode::<String>(&hostile, 64), Err(DecodeError::Malformed(_))));
        assert!(matches!(decode::<Vec<u8>>(&hostile, MAX_DECODE_BYTES), Err(DecodeError::Malformed(_))));
        assert!(matches!(decode::<Vec<u64>>(&hostile, MEDIUM), Err(DecodeError::Malformed(_))));
        let above_its_class = encode(&(LARGE as u64 + 1));
        let refused = decode::<String>(&above_its_class, MAX_DECODE_BYTES).expect_err("few bytes claim much");
        assert!(refused.to_string().contains("LimitExceeded"), "{refused}");
    }
}
