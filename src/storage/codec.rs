//! Encodes values to bytes and decodes them. Only this module names bincode.
//!
//! The encoding is not self-describing: a reader with another shape could decode a newer value without an error. So
//! every stored or sent value carries a version, and [`decode`] must consume the last byte.

use bincode::config;
use serde::{Deserialize, Serialize};

/// The largest limit that [`decode`] accepts, in bytes.
pub const MAX_DECODE_BYTES: usize = 1 << 30;

const SMALL: usize = 64 << 10;
const MEDIUM: usize = 4 << 20;
const LARGE: usize = 64 << 20;
/// Most bytes that one encoded byte claims: a number of one byte counts as eight.
const MAX_CLAIM: usize = 8;

/// Encodes a value.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    encode_into(value, &mut bytes);
    bytes
}

/// Encodes a value and appends it to `bytes`.
pub fn encode_into<T: Serialize + ?Sized>(value: &T, bytes: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(value, bytes, config::standard())
        .expect("writing to memory does not fail, and our types have an encoding");
}

/// Decodes a value from exactly these bytes.
///
/// A length inside the bytes can claim memory. The decoder rejects it before it allocates if it exceeds the class of
/// the input (64 KiB, 4 MiB, 64 MiB or 1 GiB). For an input of up to 128 MiB, the class is at least eight times as large,
/// so that each value within the limit can be decoded.
///
/// # Errors
///
/// `bytes` is longer than `limit`, incomplete, malformed, or longer than the value.
///
/// # Panics
///
/// Panics if `limit` is above [`MAX_DECODE_BYTES`].
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], limit: usize) -> Result<T, DecodeError> {
    assert!(limit <= MAX_DECODE_BYTES, "the decode limit has {limit} bytes: at most {MAX_DECODE_BYTES} are allowed");
    if bytes.len() > limit {
        return Err(DecodeError::TooLong { bytes: bytes.len(), limit });
    }
    // bincode takes its limit as a type parameter. So one of four classes bounds the memory that a length can reserve.
    let config = config::standard();
    let decoded = if bytes.len() <= SMALL / MAX_CLAIM {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<SMALL>())
    } else if bytes.len() <= MEDIUM / MAX_CLAIM {
        bincode::serde::borrow_decode_from_slice(bytes, config.with_limit::<MEDIUM>())
    } else if bytes.len() <= LARGE / MAX_CLAIM {
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

/// The reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{bytes} bytes: at most {limit} are allowed")]
    TooLong { bytes: usize, limit: usize },
    #[error("{bytes} bytes, of which only {read} belong to the value: a newer version may have written it")]
    Trailing { bytes: usize, read: usize },
    #[error("malformed bytes: {0}")]
    Malformed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_reads_back_and_its_bytes_are_frozen() {
        let value = (7u64, 300u64, Some("lease".to_string()), vec![1u8, 2, 3]);
        let bytes = encode(&value);
        assert_eq!(bytes, [7, 251, 44, 1, 1, 5, b'l', b'e', b'a', b's', b'e', 3, 1, 2, 3]);
        assert_eq!(decode(&bytes, 64), Ok(value));
    }

    #[test]
    fn decode_refuses_missing_and_trailing_bytes() {
        let mut bytes = encode(&(1u64, 2u64));
        assert!(decode::<(u64, u64, u64)>(&bytes, 64).is_err());
        bytes.push(0);
        assert_eq!(decode::<(u64, u64)>(&bytes, 64), Err(DecodeError::Trailing { bytes: 3, read: 2 }));
        assert_eq!(decode::<(u64, u64)>(&bytes, 2), Err(DecodeError::TooLong { bytes: 3, limit: 2 }));
    }

    #[test]
    fn value_at_the_limit_is_decoded() {
        for limit in [SMALL / MAX_CLAIM, SMALL, MEDIUM / MAX_CLAIM, MEDIUM, LARGE / MAX_CLAIM, LARGE / MAX_CLAIM + 1] {
            // Each number takes one byte and claims eight. The length of the list takes five bytes or less.
            let around = encode(&vec![0u64; limit - 5]).len() - (limit - 5);
            let numbers = vec![0u64; limit - around];
            let bytes = encode(&numbers);
            assert_eq!(bytes.len(), limit);
            assert!(decode::<Vec<u64>>(&bytes, limit).is_ok_and(|read| read == numbers), "{limit} bytes");
        }
    }

    #[test]
    fn decode_refuses_lengths_that_claim_too_much_memory() {
        let hostile = encode(&(u64::MAX >> 8));
        assert!(matches!(decode::<String>(&hostile, 64), Err(DecodeError::Malformed(_))));
        assert!(matches!(decode::<Vec<u8>>(&hostile, MAX_DECODE_BYTES), Err(DecodeError::Malformed(_))));
        assert!(matches!(decode::<Vec<u64>>(&hostile, MEDIUM), Err(DecodeError::Malformed(_))));
        let above_its_class = encode(&(LARGE as u64 + 1));
        let refused = decode::<String>(&above_its_class, MAX_DECODE_BYTES).expect_err("the length is above its class");
        assert!(refused.to_string().contains("LimitExceeded"), "{refused}");
    }
}
