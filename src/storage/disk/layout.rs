//! Keys of the `meta` tree and of the snapshot tree. Log entries have their keys in `entries`.

pub(in crate::storage) const IDENTITY: &[u8] = b"identity";
pub(in crate::storage) const VOTE: &[u8] = b"vote";
pub(in crate::storage) const FLOOR: &[u8] = b"floor";
pub(in crate::storage) const COMMITTED: &[u8] = b"committed";
pub(in crate::storage) const SNAPSHOT: &[u8] = b"snapshot";

/// Key of a snapshot's chunk.
pub(in crate::storage) fn chunk_key(id: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&id.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}
