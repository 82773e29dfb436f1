//! Fuzz targets: one check for each parser of external bytes. The fuzzer and the tests that replay its corpora use
//! them.
//!
//! A check takes arbitrary bytes and returns whether the parser accepts them. For an accepted value, it asserts that
//! the value is within its bounds, and that it reads back unchanged after encoding. Invalid bytes alone never cause a
//! panic.
//!
//! | module | source of the bytes |
//! |---|---|
//! | `requests` | clients over HTTP |
//! | `answers` | nodes, to the client library |
//! | `peers` | other nodes |
//! | `stored` | this node's own disk |
//! | `words` | operators: the configuration, the command line, headers |

mod answers;
mod peers;
mod requests;
mod stored;
mod words;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::storage::codec;

/// One fuzz target.
#[derive(Clone, Copy)]
pub struct Input {
    /// The name of the target and of its corpus directory.
    pub name: &'static str,
    /// Largest input to try, in bytes. Longer inputs reach no other code.
    pub max_bytes: usize,
    /// Returns whether the parser accepts these bytes. Panics if an accepted value violates a guarantee.
    pub check: fn(&[u8]) -> bool,
    /// Accepted inputs, at least one for each variant.
    pub examples: fn() -> Vec<Vec<u8>>,
}

/// All fuzz targets.
pub fn all() -> Vec<Input> {
    [requests::inputs(), answers::inputs(), peers::inputs(), stored::inputs(), words::inputs()].concat()
}

const fn input(
    name: &'static str,
    max_bytes: usize,
    check: fn(&[u8]) -> bool,
    examples: fn() -> Vec<Vec<u8>>,
) -> Input {
    Input { name, max_bytes, check, examples }
}

fn texts<const N: usize>(texts: [&str; N]) -> Vec<Vec<u8>> {
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

/// Decodes JSON, and asserts that the value survives encoding and decoding.
fn json<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&value).expect("a decoded value can be encoded");
    assert_eq!(serde_json::from_slice::<T>(&written).expect("encoded JSON can be decoded"), value);
    Some(value)
}

/// Decodes bytes in the storage codec, and asserts that the value survives encoding and decoding.
fn encoded<T: DeserializeOwned + Serialize>(bytes: &[u8], limit: usize) -> Option<T> {
    let value: T = codec::decode(bytes, limit).ok()?;
    assert!(bytes.len() <= limit, "the decoder accepted {} bytes: expected at most {limit}", bytes.len());
    let written = codec::encode(&value);
    let again: T = codec::decode(&written, codec::MAX_DECODE_BYTES).expect("encoded bytes can be decoded");
    assert_eq!(codec::encode(&again), written);
    Some(value)
}
