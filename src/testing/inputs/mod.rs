//! Everything that reads bytes from outside of the process, one function each: for fuzzing, and for the tests that
//! replay what fuzzing found.
//!
//! A check takes any bytes. It refuses them, or it accepts them and asserts what is promised of what was accepted: it is
//! inside its bounds, and what is written of it reads back as the same. It never panics for the bytes alone.
//!
//! | file | who sends it |
//! |---|---|
//! | `requests` | clients over HTTP |
//! | `answers` | nodes, to the client library |
//! | `peers` | other nodes |
//! | `stored` | this node's own disk |
//! | `words` | people: the configuration, the command line, headers |

mod answers;
mod peers;
mod requests;
mod stored;
mod words;

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::storage::codec;

/// One kind of input.
#[derive(Clone, Copy)]
pub struct Input {
    /// Also the folder of its corpus.
    pub name: &'static str,
    /// More than this is not tried: nothing new is in it.
    pub max_bytes: usize,
    /// Whether these bytes are accepted. Panics where a promise is broken.
    pub check: fn(&[u8]) -> bool,
    /// Bytes that are accepted, one of every shape.
    pub examples: fn() -> Vec<Vec<u8>>,
}

/// All of them.
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

/// What this JSON says, if it can be read; then it is written and read again as the same.
fn json<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(bytes).ok()?;
    let written = serde_json::to_vec(&value).expect("what was read can be written");
    assert_eq!(serde_json::from_slice::<T>(&written).expect("what was written can be read"), value);
    Some(value)
}

/// What these bytes in our own encoding say, if they can be read; then they are written and read again as the same.
fn encoded<T: DeserializeOwned + Serialize>(bytes: &[u8], limit: usize) -> Option<T> {
    let value: T = codec::decode(bytes, limit).ok()?;
    assert!(bytes.len() <= limit, "{} bytes were accepted where {limit} are allowed", bytes.len());
    let written = codec::encode(&value);
    let again: T = codec::decode(&written, codec::MAX_DECODE_BYTES).expect("what was written can be read");
    assert_eq!(codec::encode(&again), written);
    Some(value)
}
