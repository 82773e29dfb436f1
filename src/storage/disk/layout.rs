//! Keys of the trees `meta` and `snap`. The module `entries` has the keys of log entries.

pub(in crate::storage) const IDENTITY: &[u8] = b"identity";
pub(in crate::storage) const VOTE: &[u8] = b"vote";
pub(in crate::storage) const FLOOR: &[u8] = b"floor";
pub(in crate::storage) const COMMITTED: &[u8] = b"committed";
pub(in crate::storage) const SNAPSHOT: &[u8] = b"snapshot";

/// The key of a snapshot chunk: id and number, big-endian, so that chunks are stored in order.
pub(in crate::storage) fn chunk_key(id: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}
